// Mirrors SanaTransformer2DModel (diffusers 0.42.1, models/transformers/sana_transformer.py; SanaLinearAttnProcessor2_0
// of models/attention_processor.py): Sana, Sana 1.5, Sana-Sprint.
#include <deque>
#include <stdexcept>

#include "models/embeddings.hpp"
#include "models/families.hpp"
#include "models/glumb_conv.hpp"
#include "models/normalization.hpp"

namespace vram::models::sana {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::LayerNorm;
using nn::Linear;

struct Sizes {
    std::int64_t dim, heads, cross_heads, cross_head_dim, cross_dim, hidden;
    bool attention_bias, norm_elementwise_affine, qk_norm;
};

/// Attention with what both processors need.
struct Projections {
    Projections(const Builder& builder, std::int64_t dim, std::int64_t context, std::int64_t inner, bool bias,
                bool qk_norm)
        : has_norm(qk_norm),
          norm_q(qk_norm ? PlainRmsNorm(builder["norm_q"], inner) : PlainRmsNorm()),
          norm_k(qk_norm ? PlainRmsNorm(builder["norm_k"], inner) : PlainRmsNorm()),
          to_q(builder.linear("to_q", dim, inner, bias)),
          to_k(builder.linear("to_k", context, inner, bias)),
          to_v(builder.linear("to_v", context, inner, bias)),
          to_out(builder["to_out"].linear("0", inner, dim)) {}

    bool has_norm;
    PlainRmsNorm norm_q, norm_k;
    Linear to_q, to_k, to_v, to_out;
};

/// SanaLinearAttnProcessor2_0: relu(q), relu(k), and the products in fp32.
class LinearAttention {
  public:
    LinearAttention(const Builder& builder, const Sizes& sizes)
        : heads_(sizes.heads), attn(builder, sizes.dim, sizes.dim, sizes.dim, sizes.attention_bias, sizes.qk_norm) {}

    [[nodiscard]] Tensor operator()(Tensor hidden_states_in) const {
        Tensor hidden_states = std::move(hidden_states_in);
        const Tensor encoder_hidden_states = hidden_states;
        const Dtype original_dtype = hidden_states.dtype();
        Tensor query = attn.to_q(hidden_states);
        Tensor key = attn.to_k(encoder_hidden_states);
        Tensor value = attn.to_v(encoder_hidden_states);
        if (attn.has_norm) {
            query = attn.norm_q(query);
            key = attn.norm_k(key);
        }
        query = unflatten(transpose(query, 1, 2), 1, {heads_, -1});  // [B, H, D, N]
        key = transpose(unflatten(transpose(key, 1, 2), 1, {heads_, -1}), 2, 3);
        value = unflatten(transpose(value, 1, 2), 1, {heads_, -1});
        query = relu(query);
        key = relu(key);
        {
            Tensor wide_query = to_float(query);
            Tensor wide_key = to_float(key);
            Tensor wide_value = to_float(value);
            query = std::move(wide_query);
            key = std::move(wide_key);
            value = std::move(wide_value);
        }
        value = pad(value, {0, 0, 0, 1});
        const Tensor scores = matmul(value, key);
        hidden_states = matmul(scores, query);
        {
            Tensor products = slice(hidden_states, 2, 0, -1);
            Tensor sums = slice(hidden_states, 2, -1, hidden_states.size(2));
            hidden_states = div(std::move(products), add_scalar(std::move(sums), true));
        }
        hidden_states = transpose(flatten(hidden_states, 1, 2), 1, 2);
        hidden_states = to(hidden_states, original_dtype);
        hidden_states = attn.to_out(hidden_states);
        if (original_dtype == Dtype::f16) hidden_states = clamp(hidden_states);
        return hidden_states;
    }

  private:
    std::int64_t heads_;
    Projections attn;
};

/// SanaAttnProcessor2_0.
class CrossAttention {
  public:
    CrossAttention(const Builder& builder, const Sizes& sizes)
        : heads_(sizes.cross_heads),
          attn(builder, sizes.dim, sizes.cross_dim, sizes.cross_heads * sizes.cross_head_dim, true, sizes.qk_norm) {}

    [[nodiscard]] Tensor operator()(Tensor hidden_states_in, Tensor encoder_hidden_states_in,
                                    Tensor attention_mask_in) const {
        const Tensor held = std::move(hidden_states_in), encoder_hidden_states = std::move(encoder_hidden_states_in),
                     held_mask = std::move(attention_mask_in);
        const std::int64_t batch_size = encoder_hidden_states.size(0);
        Tensor attention_mask = held_mask;  // [B, 1, T]
        // prepare_attention_mask
        attention_mask = repeat_interleave(attention_mask, heads_, 0);
        attention_mask = view(attention_mask, {batch_size, heads_, -1, attention_mask.size(-1)});
        Tensor query = attn.to_q(held);
        Tensor key = attn.to_k(encoder_hidden_states);
        Tensor value = attn.to_v(encoder_hidden_states);
        if (attn.has_norm) {
            query = attn.norm_q(query);
            key = attn.norm_k(key);
        }
        const std::int64_t head_dim = key.size(-1) / heads_;
        query = transpose(view(query, {batch_size, -1, heads_, head_dim}), 1, 2);
        key = transpose(view(key, {batch_size, -1, heads_, head_dim}), 1, 2);
        value = transpose(view(value, {batch_size, -1, heads_, head_dim}), 1, 2);
        Tensor hidden_states = scaled_dot_product_attention(query, key, value, attention_mask);
        hidden_states = reshape(transpose(hidden_states, 1, 2), {batch_size, -1, heads_ * head_dim});
        hidden_states = to(hidden_states, query.dtype());
        hidden_states = attn.to_out(hidden_states);
        hidden_states = div_scalar(hidden_states);
        return hidden_states;
    }

  private:
    std::int64_t heads_;
    Projections attn;
};

/// args: hidden_states [B, N, D], encoder_hidden_states, encoder_attention_mask, timestep [B, 6 D], and a tensor
/// without bytes whose sizes are height and width → hidden_states
class SanaTransformerBlock : public Block {
  public:
    SanaTransformerBlock(const Builder& parent, const Sizes& sizes)
        : SanaTransformerBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0];
        const Tensor &encoder_hidden_states = args[1], &encoder_attention_mask = args[2], &timestep = args[3];
        const std::int64_t batch_size = hidden_states.size(0), height = args[4].size(0), width = args[4].size(1);

        // 1. Modulation: shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp
        const Tensors modulation =
            chunk(add(unsqueeze(scale_shift_table.value, 0), reshape(timestep, {batch_size, 6, -1})), 6, 1);

        // 2. Self Attention
        Tensor norm_hidden_states = norm1(hidden_states);
        norm_hidden_states = modulate(norm_hidden_states, modulation[1], modulation[0]);
        norm_hidden_states = to(norm_hidden_states, hidden_states.dtype());
        Tensor attn_output = attn1(norm_hidden_states);
        hidden_states = add(hidden_states, mul(modulation[2], attn_output));

        // 3. Cross Attention
        attn_output = attn2(hidden_states, encoder_hidden_states, encoder_attention_mask);
        hidden_states = add(attn_output, hidden_states);

        // 4. Feed-forward
        norm_hidden_states = norm2(hidden_states);
        norm_hidden_states = modulate(norm_hidden_states, modulation[4], modulation[3]);
        norm_hidden_states = permute(unflatten(norm_hidden_states, 1, {height, width}), {0, 3, 1, 2});
        Tensor ff_output = ff(norm_hidden_states);
        ff_output = permute(flatten(ff_output, 2, 3), {0, 2, 1});
        hidden_states = add(hidden_states, mul(modulation[5], ff_output));
        return {hidden_states};
    }

  private:
    SanaTransformerBlock(const BlockBuilder& builder, const Sizes& sizes)
        : scale_shift_table(builder.parameter("scale_shift_table", {6, sizes.dim})),
          norm1(builder.layer_norm("norm1", sizes.dim, false)),
          attn1(builder["attn1"], sizes),
          norm2(builder.layer_norm("norm2", sizes.dim, sizes.norm_elementwise_affine)),
          attn2(builder["attn2"], sizes),
          ff(builder["ff"], sizes.dim, sizes.hidden, false) {
        builder.finish(*this, "SanaTransformerBlock", {sizes.heads, sizes.cross_heads, sizes.qk_norm});
    }

    Parameter& scale_shift_table;
    LayerNorm norm1;
    LinearAttention attn1;
    LayerNorm norm2;
    CrossAttention attn2;
    GluMbConv ff;
};

class SanaTransformer2DModel : public Model {
  public:
    SanaTransformer2DModel(const Builder& builder, const profile::Config& config)
        : in_channels_(config.integer("in_channels")),
          out_channels_(config.integer("out_channels")),
          patch_size_(config.integer("patch_size")),
          caption_channels_(config.integer("caption_channels")),
          guidance_embeds_(config.boolean("guidance_embeds", false)) {
        const std::int64_t heads = config.integer("num_attention_heads");
        const std::int64_t dim = heads * config.integer("attention_head_dim");
        const Sizes sizes{dim,
                          heads,
                          config.integer("num_cross_attention_heads"),
                          config.integer("cross_attention_head_dim"),
                          config.integer("cross_attention_dim"),
                          static_cast<std::int64_t>(config.number("mlp_ratio") * static_cast<double>(dim)),
                          config.boolean("attention_bias", false),
                          config.boolean("norm_elementwise_affine", false),
                          config.has("qk_norm")};
        if (sizes.qk_norm && config.text("qk_norm") != "rms_norm_across_heads")
            throw std::logic_error("sana: this qk_norm is not mirrored");
        scale_shift_table = &builder.parameter("scale_shift_table", {2, dim});
        patch_embed = builder["patch_embed"].conv2d("proj", in_channels_, dim, patch_size_, patch_size_);
        const Builder embed = builder["time_embed"];
        timestep_embedder = TimestepEmbedding(
            guidance_embeds_ ? embed["timestep_embedder"] : embed["emb"]["timestep_embedder"], 256, dim);
        if (guidance_embeds_) guidance_embedder = TimestepEmbedding(embed["guidance_embedder"], 256, dim);
        time_linear = embed.linear("linear", dim, 6 * dim);
        caption_projection = TextProjection(builder["caption_projection"], caption_channels_, dim,
                                            TextProjection::Activation::gelu_tanh);
        caption_norm = PlainRmsNorm(builder["caption_norm"], dim);
        for (std::int64_t i = 0; i < config.integer("num_layers"); ++i)
            blocks.emplace_back(builder["transformer_blocks"][i], sizes);
        norm_out = builder["norm_out"].layer_norm("norm", dim, false);
        proj_out = builder.linear("proj_out", dim, patch_size_ * patch_size_ * out_channels_);
    }

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        std::vector<Value> out{
            {"hidden_states", latents(request, in_channels_), request.dtype},
            {"encoder_hidden_states", {request.batch, request.text_tokens, caption_channels_}, request.dtype},
            {"encoder_attention_mask", {request.batch, request.text_tokens}, Dtype::i64},
            {"timestep", {request.batch}, request.dtype}};
        if (guidance_embeds_) out.push_back({"guidance", {request.batch}, request.dtype});
        return out;
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {latents(request, out_channels_)};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        Run& run = args[0].run();
        Tensor hidden_states = args[0], encoder_hidden_states = args[1], encoder_attention_mask = args[2],
               timestep = args[3];
        encoder_attention_mask = rsub_scalar(to(encoder_attention_mask, hidden_states.dtype()));
        encoder_attention_mask = mul_scalar(encoder_attention_mask);
        encoder_attention_mask = unsqueeze(encoder_attention_mask, 1);

        // 1. Input
        const std::int64_t batch_size = hidden_states.size(0), height = hidden_states.size(2) / patch_size_,
                           width = hidden_states.size(3) / patch_size_;
        hidden_states = patch_embed(hidden_states);
        hidden_states = transpose(flatten(hidden_states, 2, 3), 1, 2);  // [B, N, D]
        Tensor embedded_timestep;
        timestep =
            time_embed(timestep, guidance_embeds_ ? args[4] : Tensor(), hidden_states.dtype(), embedded_timestep);
        encoder_hidden_states = caption_projection(encoder_hidden_states);
        encoder_hidden_states = view(encoder_hidden_states, {batch_size, -1, hidden_states.size(-1)});
        encoder_hidden_states = caption_norm(encoder_hidden_states);

        // 2. Transformer blocks
        const Tensor grid = run.on_cpu({height, width}, Dtype::i64);
        const Caller call(run, gradient_checkpointing);
        for (const SanaTransformerBlock& block : blocks)
            hidden_states =
                call(block, {hidden_states, encoder_hidden_states, encoder_attention_mask, timestep, grid})[0];

        // 3. Normalization
        hidden_states = modulated_norm(hidden_states, embedded_timestep);
        hidden_states = proj_out(hidden_states);

        // 5. Unpatchify
        hidden_states = reshape(hidden_states, {batch_size, height, width, patch_size_, patch_size_, -1});
        hidden_states = permute(hidden_states, {0, 5, 1, 3, 2, 4});
        const Tensor output = reshape(hidden_states, {batch_size, -1, height * patch_size_, width * patch_size_});
        return {output};
    }

  private:
    [[nodiscard]] static Dims latents(const Request& request, std::int64_t channels) {
        return {request.batch, channels, request.height / 32, request.width / 32};
    }

    // AdaLayerNormSingle, SanaCombinedTimestepGuidanceEmbeddings
    [[nodiscard]] Tensor time_embed(const Tensor& timestep, const Tensor& guidance, Dtype hidden_dtype,
                                    Tensor& conditioning) const {
        if (guidance_embeds_) {
            const Tensor timesteps_proj = timestep_embedding(timestep, 256, true);
            const Tensor timesteps_emb = timestep_embedder(to(timesteps_proj, hidden_dtype));
            const Tensor guidance_proj = timestep_embedding(guidance, 256, true);
            const Tensor guidance_emb = guidance_embedder(to(guidance_proj, hidden_dtype));
            conditioning = add(timesteps_emb, guidance_emb);
            return time_linear(silu(conditioning));
        }
        {
            const Tensor timesteps_proj = timestep_embedding(timestep, 256, true);
            conditioning = timestep_embedder(to(timesteps_proj, hidden_dtype));
        }
        return time_linear(silu(conditioning));
    }

    // SanaModulatedNorm
    [[nodiscard]] Tensor modulated_norm(const Tensor& x, const Tensor& temb) const {
        const Tensor hidden_states = norm_out(x);
        const Tensors modulation = chunk(add(unsqueeze(scale_shift_table->value, 0), unsqueeze(temb, 1)), 2, 1);
        return modulate(hidden_states, modulation[1], modulation[0]);
    }

    std::int64_t in_channels_, out_channels_, patch_size_, caption_channels_;
    bool guidance_embeds_;
    Parameter* scale_shift_table = nullptr;
    nn::Conv patch_embed;
    TimestepEmbedding timestep_embedder, guidance_embedder;
    Linear time_linear, proj_out;
    TextProjection caption_projection;
    PlainRmsNorm caption_norm;
    std::deque<SanaTransformerBlock> blocks;
    LayerNorm norm_out;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<SanaTransformer2DModel>(Builder(weights), profile.config);
}

}  // namespace vram::models::sana
