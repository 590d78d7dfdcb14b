// Mirrors WanTransformer3DModel (diffusers 0.42.1, models/transformers/transformer_wan.py): Wan 2.1 T2V and I2V,
// Wan 2.2 A14B (one expert) and TI2V 5B, with one timestep a sample or one a token.
#include <array>
#include <deque>

#include "models/attention.hpp"
#include "models/embeddings.hpp"
#include "models/families.hpp"
#include "models/normalization.hpp"

namespace vram::models::wan {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;
using nn::RmsNorm;

constexpr std::int64_t text_context_length = 512;  // of the text encoder, hardcoded in the processor

struct Sizes {
    std::int64_t dim, heads, ffn_dim;
    bool cross_attn_norm;
    std::int64_t added_kv_proj_dim;  // 0: no image context
};

/// (scale_shift_table + temb).chunk(parts): each [B, 1, D], or [B, S, D] of a temb that each token has for itself.
Tensors modulated(Tensor scale_shift_table, Tensor temb, std::int64_t parts) {
    if (temb.rank() == 3) return chunk(add(std::move(scale_shift_table), std::move(temb)), parts, 1);
    Tensors out = chunk(add(unsqueeze(std::move(scale_shift_table), 0), std::move(temb)), parts, 2);
    for (Tensor& part : out) part = squeeze(std::move(part), 2);
    return out;
}

class WanAttention {
  public:
    WanAttention(const Builder& builder, const Sizes& sizes, bool image_context)
        : heads_(sizes.heads),
          image_context_(image_context),
          to_q(builder.linear("to_q", sizes.dim, sizes.dim)),
          to_k(builder.linear("to_k", sizes.dim, sizes.dim)),
          to_v(builder.linear("to_v", sizes.dim, sizes.dim)),
          to_out(builder["to_out"].linear("0", sizes.dim, sizes.dim)),
          norm_q(builder.rms_norm("norm_q", sizes.dim)),
          norm_k(builder.rms_norm("norm_k", sizes.dim)) {
        if (!image_context) return;
        add_k_proj = builder.linear("add_k_proj", sizes.added_kv_proj_dim, sizes.dim);
        add_v_proj = builder.linear("add_v_proj", sizes.added_kv_proj_dim, sizes.dim);
        norm_added_k = builder.rms_norm("norm_added_k", sizes.dim);
    }

    /// WanAttnProcessor: self-attention with cos, sin, or cross-attention with encoder_hidden_states; undefined is
    /// None.
    Tensor operator()(Tensor hidden_states_in, Tensor encoder_hidden_states_in, const Tensor& freqs_cos,
                      const Tensor& freqs_sin) const {
        Tensor hidden_states = std::move(hidden_states_in), encoder_hidden_states = std::move(encoder_hidden_states_in);
        const Tensor held = hidden_states, held_encoder = encoder_hidden_states;
        Tensor encoder_hidden_states_img;
        if (image_context_) {
            const std::int64_t length = encoder_hidden_states.size(1),
                               image_context_length = length - text_context_length;
            encoder_hidden_states_img = slice(encoder_hidden_states, 1, 0, image_context_length);
            encoder_hidden_states = slice(encoder_hidden_states, 1, image_context_length, length);
        }
        const Tensor& context = encoder_hidden_states.defined() ? encoder_hidden_states : hidden_states;
        Tensor query = to_q(hidden_states);
        Tensor key = to_k(context);
        Tensor value = to_v(context);
        query = norm_q(query);
        key = norm_k(key);
        query = unflatten(query, 2, {heads_, -1});
        key = unflatten(key, 2, {heads_, -1});
        value = unflatten(value, 2, {heads_, -1});
        if (freqs_cos.defined()) {
            query = rotate(query, freqs_cos, freqs_sin);
            key = rotate(key, freqs_cos, freqs_sin);
        }

        // I2V task
        Tensor hidden_states_img, key_img, value_img;
        if (image_context_) {
            key_img = add_k_proj(encoder_hidden_states_img);
            value_img = add_v_proj(encoder_hidden_states_img);
            key_img = norm_added_k(key_img);
            key_img = unflatten(key_img, 2, {heads_, -1});
            value_img = unflatten(value_img, 2, {heads_, -1});
            hidden_states_img = dispatch_attention(query, key_img, value_img);
            hidden_states_img = flatten(hidden_states_img, 2, 3);
            hidden_states_img = to(hidden_states_img, query.dtype());
        }

        hidden_states = dispatch_attention(query, key, value);
        hidden_states = flatten(hidden_states, 2, 3);
        hidden_states = to(hidden_states, query.dtype());
        if (hidden_states_img.defined()) hidden_states = add(hidden_states, hidden_states_img);
        return to_out(hidden_states);
    }

  private:
    // apply_rotary_emb of the processor: [B, S, H, D] with cos, sin [1, S, 1, D], written into the halves of a new
    // tensor
    static Tensor rotate(const Tensor& hidden_states, const Tensor& freqs_cos, const Tensor& freqs_sin) {
        const Tensors x = unbind(unflatten(hidden_states, -1, {-1, 2}), -1);  // [B, S, H, D/2] each
        const std::int64_t size = freqs_cos.size(-1);
        const Tensor cos = slice(freqs_cos, -1, 0, size, 2);
        const Tensor sin = slice(freqs_sin, -1, 1, size, 2);
        Tensor out = hidden_states.run().empty_like(hidden_states, Op::empty);
        for (const std::int64_t half : {0, 1}) {
            Tensor first = mul(x[0], half == 0 ? cos : sin);
            Tensor second = mul(x[1], half == 0 ? sin : cos);
            const Tensor turned =
                half == 0 ? sub(std::move(first), std::move(second)) : add(std::move(first), std::move(second));
            copy_into_slice(out, -1, half, out.size(-1), 2, turned);
        }
        return out;
    }

    std::int64_t heads_;
    bool image_context_;
    Linear to_q, to_k, to_v, to_out;
    RmsNorm norm_q, norm_k;
    Linear add_k_proj, add_v_proj;
    RmsNorm norm_added_k;
};

/// args: hidden_states, encoder_hidden_states, temb [B, 6, D] or, a timestep a token, [B, S, 6, D], cos, sin →
/// hidden_states
class WanTransformerBlock : public Block {
  public:
    WanTransformerBlock(const Builder& parent, const Sizes& sizes) : WanTransformerBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0];
        const Tensor &encoder_hidden_states = args[1], &temb = args[2];
        // shift_msa, scale_msa, gate_msa, c_shift_msa, c_scale_msa, c_gate_msa
        const Tensors modulation = modulated(scale_shift_table.value, to_float(temb), 6);

        // 1. Self-attention
        Tensor norm_hidden_states = scale_and_shift(norm1, hidden_states, modulation[1], modulation[0]);
        Tensor attn_output = attn1(norm_hidden_states, {}, args[3], args[4]);
        hidden_states = gated(hidden_states, attn_output, modulation[2]);

        // 2. Cross-attention
        {
            Tensor normed = to_float(hidden_states);
            if (cross_attn_norm) normed = norm2(std::move(normed));
            norm_hidden_states = to(std::move(normed), hidden_states.dtype());
        }
        attn_output = attn2(norm_hidden_states, encoder_hidden_states, {}, {});
        hidden_states = add(hidden_states, attn_output);

        // 3. Feed-forward
        norm_hidden_states = scale_and_shift(norm3, hidden_states, modulation[4], modulation[3]);
        const Tensor ff_output = ffn(norm_hidden_states);
        {
            Tensor wide = to_float(hidden_states);
            Tensor product = mul(to_float(ff_output), modulation[5]);
            Tensor sum = add(std::move(wide), std::move(product));
            hidden_states = to(std::move(sum), hidden_states.dtype());
        }
        return {hidden_states};
    }

  private:
    WanTransformerBlock(const BlockBuilder& builder, const Sizes& sizes)
        : scale_shift_table(builder.parameter("scale_shift_table", {1, 6, sizes.dim})),
          norm1(builder, "norm1", sizes.dim, false),
          attn1(builder["attn1"], sizes, false),
          attn2(builder["attn2"], sizes, sizes.added_kv_proj_dim > 0),
          cross_attn_norm(sizes.cross_attn_norm),
          norm2(sizes.cross_attn_norm ? Fp32LayerNorm(builder, "norm2", sizes.dim, true) : Fp32LayerNorm()),
          ffn(builder["ffn"], sizes.dim, sizes.ffn_dim, FeedForward::Activation::gelu),
          norm3(builder, "norm3", sizes.dim, false) {
        builder.finish(*this, "WanTransformerBlock", {sizes.heads, sizes.cross_attn_norm, sizes.added_kv_proj_dim});
    }

    // (norm(hidden_states.float()) * (1 + scale) + shift).type_as(hidden_states)
    static Tensor scale_and_shift(const Fp32LayerNorm& norm, const Tensor& hidden_states, const Tensor& scale,
                                  const Tensor& shift) {
        Tensor out = norm(to_float(hidden_states));
        Tensor factor = add_scalar(scale);
        out = mul(std::move(out), std::move(factor));
        out = add(std::move(out), shift);
        return to(std::move(out), hidden_states.dtype());
    }
    // (hidden_states.float() + attn_output * gate).type_as(hidden_states)
    static Tensor gated(const Tensor& hidden_states, const Tensor& attn_output, const Tensor& gate) {
        Tensor wide = to_float(hidden_states);
        Tensor product = mul(attn_output, gate);
        Tensor out = add(std::move(wide), std::move(product));
        return to(std::move(out), hidden_states.dtype());
    }

    Parameter& scale_shift_table;
    Fp32LayerNorm norm1;
    WanAttention attn1, attn2;
    bool cross_attn_norm;
    Fp32LayerNorm norm2;
    FeedForward ffn;
    Fp32LayerNorm norm3;
};

class WanTransformer3DModel : public Model {
  public:
    WanTransformer3DModel(nn::Weights& weights, const profile::Config& config)
        : WanTransformer3DModel(Builder(weights), config) {}

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        std::vector<Value> out{
            {"hidden_states", latents(request, in_channels_), request.dtype},
            {"timestep", {request.batch}, Dtype::i64},
            {"encoder_hidden_states", {request.batch, request.text_tokens, text_dim_}, request.dtype}};
        if (image_dim_ > 0)
            out.push_back({"encoder_hidden_states_image", {request.batch, 257, image_dim_}, request.dtype});
        return out;
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {latents(request, out_channels_)};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        Run& run = args[0].run();
        Tensor hidden_states = args[0];
        const std::int64_t batch_size = hidden_states.size(0);
        const std::array<std::int64_t, 3> grid{hidden_states.size(2) / patch_size_[0],
                                               hidden_states.size(3) / patch_size_[1],
                                               hidden_states.size(4) / patch_size_[2]};
        const Tensor freqs_cos = rope(*rope_cos, grid);
        const Tensor freqs_sin = rope(*rope_sin, grid);

        hidden_states = patch_embedding(hidden_states);
        hidden_states = transpose(flatten(hidden_states, 2, 4), 1, 2);
        hidden_states = contiguous(hidden_states);  // [B, S, D]

        Tensor encoder_hidden_states, timestep_proj, encoder_hidden_states_image;
        const Tensor temb = condition_embedder(args, timestep_proj, encoder_hidden_states, encoder_hidden_states_image);
        timestep_proj = unflatten(timestep_proj, timestep_proj.rank() - 1, {6, -1});  // [B, 6, D] or [B, S, 6, D]
        if (encoder_hidden_states_image.defined())
            encoder_hidden_states = cat({encoder_hidden_states_image, encoder_hidden_states}, 1);

        const Caller call(run, gradient_checkpointing);
        for (const WanTransformerBlock& block : blocks)
            hidden_states = call(block, {hidden_states, encoder_hidden_states, timestep_proj, freqs_cos, freqs_sin})[0];

        // shift, scale
        const Tensors modulation = modulated(scale_shift_table->value, unsqueeze(temb, temb.rank() - 1), 2);
        {
            Tensor out = norm_out(to_float(hidden_states));
            Tensor factor = add_scalar(modulation[1]);
            out = mul(std::move(out), std::move(factor));
            out = add(std::move(out), modulation[0]);
            hidden_states = to(std::move(out), hidden_states.dtype());
        }
        hidden_states = proj_out(hidden_states);
        hidden_states = reshape(
            hidden_states, {batch_size, grid[0], grid[1], grid[2], patch_size_[0], patch_size_[1], patch_size_[2], -1});
        hidden_states = permute(hidden_states, {0, 7, 1, 4, 2, 5, 3, 6});
        Tensor output = flatten(hidden_states, 6, 7);
        output = flatten(std::move(output), 4, 5);
        output = flatten(std::move(output), 2, 3);
        return {output};
    }

  private:
    WanTransformer3DModel(const Builder& builder, const profile::Config& config)
        : in_channels_(config.integer("in_channels")),
          out_channels_(config.integer("out_channels", in_channels_)),
          text_dim_(config.integer("text_dim")),
          freq_dim_(config.integer("freq_dim")),
          image_dim_(config.integer("image_dim", 0)),
          head_dim_(config.integer("attention_head_dim")),
          spatial_(config.integer("vae_scale_factor_spatial", 8)),
          temporal_(config.integer("vae_scale_factor_temporal", 4)),
          patch_size_(config.integers("patch_size")) {
        const std::int64_t heads = config.integer("num_attention_heads");
        const Sizes sizes{heads * head_dim_, heads, config.integer("ffn_dim"), config.boolean("cross_attn_norm", true),
                          config.integer("added_kv_proj_dim", 0)};
        const Dims patch{patch_size_[0], patch_size_[1], patch_size_[2]};
        scale_shift_table = &builder.parameter("scale_shift_table", {1, 2, sizes.dim});
        patch_embedding = builder.conv("patch_embedding", in_channels_, sizes.dim, patch, patch, {0, 0, 0});
        const Builder embed = builder["condition_embedder"];
        time_embedder = TimestepEmbedding(embed["time_embedder"], freq_dim_, sizes.dim);
        time_proj = embed.linear("time_proj", sizes.dim, 6 * sizes.dim);
        text_embedder =
            TextProjection(embed["text_embedder"], text_dim_, sizes.dim, TextProjection::Activation::gelu_tanh);
        if (image_dim_ > 0) {
            const Builder image = embed["image_embedder"];
            image_norm1 = Fp32LayerNorm(image, "norm1", image_dim_, true);
            image_ff = FeedForward(image["ff"], image_dim_, image_dim_, FeedForward::Activation::gelu, sizes.dim);
            image_norm2 = Fp32LayerNorm(image, "norm2", sizes.dim, true);
        }
        for (std::int64_t i = 0; i < config.integer("num_layers"); ++i)
            blocks.emplace_back(builder["blocks"][i], sizes);
        norm_out = Fp32LayerNorm(builder, "norm_out", sizes.dim, false);
        proj_out = builder.linear("proj_out", sizes.dim, out_channels_ * patch.product());
        const std::int64_t positions = config.integer("rope_max_seq_len", 1024);
        rope_cos = &builder["rope"].buffer("freqs_cos", {positions, head_dim_}, Dtype::f32);
        rope_sin = &builder["rope"].buffer("freqs_sin", {positions, head_dim_}, Dtype::f32);
    }

    [[nodiscard]] Dims latents(const Request& request, std::int64_t channels) const {
        return {request.batch, channels, (request.frames - 1) / temporal_ + 1, request.height / spatial_,
                request.width / spatial_};
    }

    // WanRotaryPosEmbed, one of its two tables: [1, S, 1, head_dim]
    [[nodiscard]] Tensor rope(const Parameter& table, const std::array<std::int64_t, 3>& grid) const {
        const std::int64_t side = 2 * (head_dim_ / 6);
        const auto [f, h, w] = grid;
        const Tensors freqs = split(table.value, Dims{head_dim_ - 2 * side, side, side}, 1);
        const Tensor freqs_f = expand(view(slice(freqs[0], 0, 0, f), {f, 1, 1, -1}), {f, h, w, -1});
        const Tensor freqs_h = expand(view(slice(freqs[1], 0, 0, h), {1, h, 1, -1}), {f, h, w, -1});
        const Tensor freqs_w = expand(view(slice(freqs[2], 0, 0, w), {1, 1, w, -1}), {f, h, w, -1});
        return reshape(cat({freqs_f, freqs_h, freqs_w}, -1), {1, f * h * w, 1, -1});
    }

    // WanTimeTextImageEmbedding: returns temb and fills the other three.
    [[nodiscard]] Tensor condition_embedder(const Tensors& args, Tensor& timestep_proj, Tensor& encoder_hidden_states,
                                            Tensor& encoder_hidden_states_image) const {
        const bool each_token = args[1].rank() == 2;  // [B, S]; else [B]
        Tensor timestep = each_token ? flatten(args[1], 0, 1) : args[1];
        timestep = timestep_embedding(timestep, freq_dim_, true);
        if (each_token) timestep = unflatten(timestep, 0, {args[1].size(0), args[1].size(1)});
        timestep = to(timestep, time_embedder.dtype());
        Tensor temb = time_embedder(timestep);
        temb = to(std::move(temb), args[2].dtype());
        timestep_proj = time_proj(silu(temb));
        encoder_hidden_states = text_embedder(args[2]);
        if (image_dim_ > 0) {
            Tensor hidden_states = image_norm1(args[3]);
            hidden_states = image_ff(hidden_states);
            encoder_hidden_states_image = image_norm2(hidden_states);
        }
        return temb;
    }

    std::int64_t in_channels_, out_channels_, text_dim_, freq_dim_, image_dim_, head_dim_, spatial_, temporal_;
    std::vector<std::int64_t> patch_size_;
    Parameter* scale_shift_table = nullptr;
    nn::Conv patch_embedding;
    TimestepEmbedding time_embedder;
    Linear time_proj, proj_out;
    TextProjection text_embedder;
    Fp32LayerNorm image_norm1, image_norm2, norm_out;
    FeedForward image_ff;
    std::deque<WanTransformerBlock> blocks;
    Parameter *rope_cos = nullptr, *rope_sin = nullptr;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<WanTransformer3DModel>(weights, profile.config);
}

}  // namespace vram::models::wan
