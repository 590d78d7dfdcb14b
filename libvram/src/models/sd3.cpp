// Mirrors SD3Transformer2DModel (diffusers 0.42.1, models/transformers/transformer_sd3.py; JointTransformerBlock of
// models/attention.py, JointAttnProcessor2_0 of models/attention_processor.py): Stable Diffusion 3 and 3.5.
#include <algorithm>
#include <deque>
#include <optional>

#include "models/embeddings.hpp"
#include "models/families.hpp"
#include "models/normalization.hpp"
#include "models/patch_embed.hpp"

namespace vram::models::sd3 {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;

struct Sizes {
    std::int64_t dim, heads, head_dim;
    bool qk_norm;           // rms_norm, or none
    bool dual_attention;    // one more attention over the picture alone
    bool context_pre_only;  // the last block: text goes in and does not come out
};

class JointAttention {
  public:
    JointAttention(const Builder& builder, const Sizes& sizes, bool joint)
        : heads_(sizes.heads),
          head_dim_(sizes.head_dim),
          joint_(joint),
          context_pre_only_(sizes.context_pre_only),
          qk_norm_(sizes.qk_norm) {
        const std::int64_t dim = sizes.dim, inner = sizes.heads * sizes.head_dim;
        if (qk_norm_) {
            norm_q = PlainRmsNorm(builder["norm_q"], head_dim_);
            norm_k = PlainRmsNorm(builder["norm_k"], head_dim_);
        }
        to_q = builder.linear("to_q", dim, inner);
        to_k = builder.linear("to_k", dim, inner);
        to_v = builder.linear("to_v", dim, inner);
        if (joint) {
            add_k_proj = builder.linear("add_k_proj", dim, inner);
            add_v_proj = builder.linear("add_v_proj", dim, inner);
            add_q_proj = builder.linear("add_q_proj", dim, inner);
        }
        to_out = builder["to_out"].linear("0", inner, dim);
        if (!joint) return;
        if (!context_pre_only_) to_add_out = builder.linear("to_add_out", inner, dim);
        if (qk_norm_) {
            norm_added_q = PlainRmsNorm(builder["norm_added_q"], head_dim_);
            norm_added_k = PlainRmsNorm(builder["norm_added_k"], head_dim_);
        }
    }

    /// JointAttnProcessor2_0: {hidden_states} or {hidden_states, encoder_hidden_states}.
    Tensors operator()(Tensor hidden_states_in, Tensor encoder_hidden_states_in) const {
        const Tensor residual = std::move(hidden_states_in), held_encoder = std::move(encoder_hidden_states_in);
        const std::int64_t batch_size = residual.size(0);
        const Dims heads{batch_size, -1, heads_, head_dim_};
        // `sample` projections.
        Tensor query = to_q(residual);
        Tensor key = to_k(residual);
        Tensor value = to_v(residual);
        query = transpose(view(query, heads), 1, 2);  // [B, H, S, D]
        key = transpose(view(key, heads), 1, 2);
        value = transpose(view(value, heads), 1, 2);
        if (qk_norm_) {
            query = norm_q(query);
            key = norm_k(key);
        }
        // `context` projections.
        Tensor encoder_query, encoder_key, encoder_value;
        if (joint_) {
            encoder_query = add_q_proj(held_encoder);
            encoder_key = add_k_proj(held_encoder);
            encoder_value = add_v_proj(held_encoder);
            encoder_query = transpose(view(encoder_query, heads), 1, 2);
            encoder_key = transpose(view(encoder_key, heads), 1, 2);
            encoder_value = transpose(view(encoder_value, heads), 1, 2);
            if (qk_norm_) {
                encoder_query = norm_added_q(encoder_query);
                encoder_key = norm_added_k(encoder_key);
            }
            query = cat({query, encoder_query}, 2);
            key = cat({key, encoder_key}, 2);
            value = cat({value, encoder_value}, 2);
        }
        Tensor hidden_states = scaled_dot_product_attention(query, key, value);
        hidden_states = reshape(transpose(hidden_states, 1, 2), {batch_size, -1, heads_ * head_dim_});
        hidden_states = to(hidden_states, query.dtype());
        if (!joint_) return {to_out(hidden_states)};

        // Split the attention outputs.
        Tensor image = slice(hidden_states, 1, 0, residual.size(1));
        Tensor encoder_hidden_states = slice(hidden_states, 1, residual.size(1), hidden_states.size(1));
        hidden_states = std::move(image);
        if (!context_pre_only_) encoder_hidden_states = to_add_out(encoder_hidden_states);
        hidden_states = to_out(hidden_states);
        return {hidden_states, encoder_hidden_states};
    }

  private:
    std::int64_t heads_, head_dim_;
    bool joint_, context_pre_only_, qk_norm_;
    PlainRmsNorm norm_q, norm_k, norm_added_q, norm_added_k;
    Linear to_q, to_k, to_v, to_out, add_k_proj, add_v_proj, add_q_proj, to_add_out;
};

/// args: hidden_states, encoder_hidden_states, temb → hidden_states and, but for the last block, encoder_hidden_states
class JointTransformerBlock : public Block {
  public:
    JointTransformerBlock(const Builder& parent, const Sizes& sizes)
        : JointTransformerBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0], encoder_hidden_states = args[1];
        const Tensor& temb = args[2];
        Tensors modulated = use_dual_attention ? norm1_x(hidden_states, temb) : norm1(hidden_states, temb);
        Tensor norm_hidden_states = modulated[0];
        const Tensor gate_msa = modulated[1], shift_mlp = modulated[2], scale_mlp = modulated[3],
                     gate_mlp = modulated[4];
        Tensor norm_hidden_states2, gate_msa2;
        if (use_dual_attention) {
            norm_hidden_states2 = modulated[5];
            gate_msa2 = modulated[6];
        }
        Tensor norm_encoder_hidden_states, c_gate_msa, c_shift_mlp, c_scale_mlp, c_gate_mlp;
        if (context_pre_only) {
            modulated.clear();
            norm_encoder_hidden_states = norm1_context_continuous(encoder_hidden_states, temb);
        } else {
            modulated = norm1_context(encoder_hidden_states, temb);
            norm_encoder_hidden_states = modulated[0];
            c_gate_msa = modulated[1];
            c_shift_mlp = modulated[2];
            c_scale_mlp = modulated[3];
            c_gate_mlp = modulated[4];
            modulated.clear();
        }

        // Attention.
        Tensors attention_outputs = attn(norm_hidden_states, norm_encoder_hidden_states);
        Tensor attn_output = attention_outputs[0], context_attn_output = attention_outputs[1];
        attention_outputs.clear();

        // Process attention outputs for the `hidden_states`.
        attn_output = mul(unsqueeze(gate_msa, 1), attn_output);
        hidden_states = add(hidden_states, attn_output);
        Tensor attn_output2;
        if (use_dual_attention) {
            attn_output2 = (*attn2)(norm_hidden_states2, {})[0];
            attn_output2 = mul(unsqueeze(gate_msa2, 1), attn_output2);
            hidden_states = add(hidden_states, attn_output2);
        }
        norm_hidden_states = norm2(hidden_states);
        norm_hidden_states = scale_and_shift(norm_hidden_states, scale_mlp, shift_mlp);
        Tensor ff_output = ff(norm_hidden_states);
        ff_output = mul(unsqueeze(gate_mlp, 1), ff_output);
        hidden_states = add(hidden_states, ff_output);
        if (context_pre_only) return {hidden_states};

        // Process attention outputs for the `encoder_hidden_states`.
        context_attn_output = mul(unsqueeze(c_gate_msa, 1), context_attn_output);
        encoder_hidden_states = add(encoder_hidden_states, context_attn_output);
        norm_encoder_hidden_states = norm2_context(encoder_hidden_states);
        norm_encoder_hidden_states = scale_and_shift(norm_encoder_hidden_states, c_scale_mlp, c_shift_mlp);
        const Tensor context_ff_output = ff_context(norm_encoder_hidden_states);
        encoder_hidden_states = add(encoder_hidden_states, mul(unsqueeze(c_gate_mlp, 1), context_ff_output));
        return {hidden_states, encoder_hidden_states};
    }

  private:
    JointTransformerBlock(const BlockBuilder& builder, const Sizes& sizes)
        : use_dual_attention(sizes.dual_attention),
          context_pre_only(sizes.context_pre_only),
          norm1_x(use_dual_attention ? Sd35AdaLayerNormZeroX(builder["norm1"], sizes.dim) : Sd35AdaLayerNormZeroX()),
          norm1(use_dual_attention ? AdaLayerNormZero() : AdaLayerNormZero(builder["norm1"], sizes.dim)),
          norm1_context(context_pre_only ? AdaLayerNormZero() : AdaLayerNormZero(builder["norm1_context"], sizes.dim)),
          norm1_context_continuous(context_pre_only
                                       ? AdaLayerNormContinuous(builder["norm1_context"], sizes.dim, sizes.dim)
                                       : AdaLayerNormContinuous()),
          attn(builder["attn"], sizes, true),
          norm2(builder.layer_norm("norm2", sizes.dim, false)) {
        if (use_dual_attention) attn2.emplace(builder["attn2"], sizes, false);
        const auto activation = FeedForward::Activation::gelu;
        ff = FeedForward(builder["ff"], sizes.dim, 4 * sizes.dim, activation);
        if (!context_pre_only) ff_context = FeedForward(builder["ff_context"], sizes.dim, 4 * sizes.dim, activation);
        builder.finish(*this, "JointTransformerBlock",
                       {sizes.heads, sizes.head_dim, sizes.qk_norm, use_dual_attention, context_pre_only});
    }

    bool use_dual_attention, context_pre_only;
    Sd35AdaLayerNormZeroX norm1_x;  // norm1 with dual attention,
    AdaLayerNormZero norm1;         // and without
    AdaLayerNormZero norm1_context;
    AdaLayerNormContinuous norm1_context_continuous;  // norm1_context of the last block
    JointAttention attn;
    std::optional<JointAttention> attn2;
    nn::LayerNorm norm2, norm2_context;
    FeedForward ff, ff_context;
};

class SD3Transformer2DModel : public Model {
  public:
    SD3Transformer2DModel(nn::Weights& weights, const profile::Config& config)
        : SD3Transformer2DModel(Builder(weights), config) {}

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        return {{"hidden_states", latents(request, in_channels_), request.dtype},
                {"encoder_hidden_states", {request.batch, request.text_tokens, joint_attention_dim_}, request.dtype},
                {"pooled_projections", {request.batch, pooled_projection_dim_}, request.dtype},
                {"timestep", {request.batch}, request.dtype}};
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {latents(request, out_channels_)};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        Run& run = args[0].run();
        Tensor hidden_states = args[0];
        const std::int64_t height = hidden_states.size(2), width = hidden_states.size(3);
        hidden_states = pos_embed(hidden_states);
        hidden_states = contiguous(hidden_states);                 // [B, S, D]
        const Tensor temb = time_text_embed(args[3], args[2]);     // [B, D]
        Tensor encoder_hidden_states = context_embedder(args[1]);  // [B, T, D]

        const Caller call(run, gradient_checkpointing);
        for (const JointTransformerBlock& block : transformer_blocks) {
            Tensors out = call(block, {hidden_states, encoder_hidden_states, temb});
            encoder_hidden_states = out.size() > 1 ? std::move(out[1]) : Tensor();
            hidden_states = std::move(out[0]);
        }
        hidden_states = norm_out(hidden_states, temb);
        hidden_states = proj_out(hidden_states);
        return {unpatchify(hidden_states, height, width, patch_size_, out_channels_)};
    }

  private:
    SD3Transformer2DModel(const Builder& builder, const profile::Config& config)
        : in_channels_(config.integer("in_channels")),
          out_channels_(config.integer("out_channels", in_channels_)),
          joint_attention_dim_(config.integer("joint_attention_dim")),
          pooled_projection_dim_(config.integer("pooled_projection_dim")),
          patch_size_(config.integer("patch_size")) {
        const std::int64_t heads = config.integer("num_attention_heads"),
                           head_dim = config.integer("attention_head_dim"), layers = config.integer("num_layers");
        const std::vector<std::int64_t> dual = config.integers("dual_attention_layers", {});
        Sizes sizes{heads * head_dim, heads, head_dim, config.text("qk_norm", "") == "rms_norm", false, false};
        pos_embed =
            PatchEmbed(builder["pos_embed"], {patch_size_, in_channels_, sizes.dim, config.integer("sample_size"),
                                              config.integer("pos_embed_max_size")});
        const Builder embed = builder["time_text_embed"];
        timestep_embedder = TimestepEmbedding(embed["timestep_embedder"], 256, sizes.dim);
        text_embedder =
            TextProjection(embed["text_embedder"], pooled_projection_dim_, sizes.dim, TextProjection::Activation::silu);
        context_embedder =
            builder.linear("context_embedder", joint_attention_dim_, config.integer("caption_projection_dim"));
        for (std::int64_t i = 0; i < layers; ++i) {
            sizes.dual_attention = std::find(dual.begin(), dual.end(), i) != dual.end();
            sizes.context_pre_only = i == layers - 1;
            transformer_blocks.emplace_back(builder["transformer_blocks"][i], sizes);
        }
        norm_out = AdaLayerNormContinuous(builder["norm_out"], sizes.dim, sizes.dim);
        proj_out = builder.linear("proj_out", sizes.dim, patch_size_ * patch_size_ * out_channels_);
    }

    [[nodiscard]] static Dims latents(const Request& request, std::int64_t channels) {
        return {request.batch, channels, request.height / 8, request.width / 8};
    }

    // CombinedTimestepTextProjEmbeddings
    [[nodiscard]] Tensor time_text_embed(const Tensor& timestep, const Tensor& pooled_projection) const {
        const Tensor timesteps_proj = timestep_embedding(timestep, 256, true);
        const Tensor timesteps_emb = timestep_embedder(to(timesteps_proj, pooled_projection.dtype()));
        const Tensor pooled_projections = text_embedder(pooled_projection);
        return add(timesteps_emb, pooled_projections);
    }

    std::int64_t in_channels_, out_channels_, joint_attention_dim_, pooled_projection_dim_, patch_size_;
    PatchEmbed pos_embed;
    TimestepEmbedding timestep_embedder;
    TextProjection text_embedder;
    Linear context_embedder, proj_out;
    std::deque<JointTransformerBlock> transformer_blocks;
    AdaLayerNormContinuous norm_out;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<SD3Transformer2DModel>(weights, profile.config);
}

}  // namespace vram::models::sd3
