// Mirrors AuraFlowTransformer2DModel (diffusers 0.42.1, models/transformers/auraflow_transformer_2d.py;
// AuraFlowAttnProcessor2_0 of models/attention_processor.py): AuraFlow 0.2 and 0.3.
#include <deque>

#include "models/embeddings.hpp"
#include "models/families.hpp"
#include "models/normalization.hpp"
#include "models/patch_embed.hpp"

namespace vram::models::auraflow {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;

struct Sizes {
    std::int64_t dim, heads, head_dim;
};

class AuraFlowAttention {
  public:
    AuraFlowAttention(const Builder& builder, const Sizes& sizes, bool joint)
        : heads_(sizes.heads),
          head_dim_(sizes.head_dim),
          joint_(joint),
          norm_q(builder, "norm_q", head_dim_, false),
          norm_k(builder, "norm_k", head_dim_, false) {
        const std::int64_t dim = sizes.dim, inner = sizes.heads * sizes.head_dim;
        to_q = builder.linear("to_q", dim, inner, false);
        to_k = builder.linear("to_k", dim, inner, false);
        to_v = builder.linear("to_v", dim, inner, false);
        if (joint) {
            add_k_proj = builder.linear("add_k_proj", dim, inner, false);
            add_v_proj = builder.linear("add_v_proj", dim, inner, false);
            add_q_proj = builder.linear("add_q_proj", dim, inner, false);
        }
        to_out = builder["to_out"].linear("0", inner, dim, false);
        if (!joint) return;
        to_add_out = builder.linear("to_add_out", inner, dim, false);
        norm_added_q = Fp32LayerNorm(builder, "norm_added_q", head_dim_, false);
        norm_added_k = Fp32LayerNorm(builder, "norm_added_k", head_dim_, false);
    }

    /// AuraFlowAttnProcessor2_0: {hidden_states} or {hidden_states, encoder_hidden_states}.
    Tensors operator()(Tensor hidden_states_in, Tensor encoder_hidden_states_in) const {
        const Tensor held = std::move(hidden_states_in), held_encoder = std::move(encoder_hidden_states_in);
        const std::int64_t batch_size = held.size(0);
        const Dims heads{batch_size, -1, heads_, head_dim_};
        // `sample` projections.
        Tensor query = to_q(held);
        Tensor key = to_k(held);
        Tensor value = to_v(held);
        // `context` projections.
        Tensor encoder_query, encoder_key, encoder_value;
        if (joint_) {
            encoder_query = add_q_proj(held_encoder);
            encoder_key = add_k_proj(held_encoder);
            encoder_value = add_v_proj(held_encoder);
        }
        // Reshape.
        query = view(query, heads);
        key = view(key, heads);
        value = view(value, heads);
        // Apply QK norm.
        query = norm_q(query);
        key = norm_k(key);
        // Concatenate the projections.
        if (joint_) {
            encoder_query = view(encoder_query, heads);
            encoder_key = view(encoder_key, heads);
            encoder_value = view(encoder_value, heads);
            encoder_query = norm_added_q(encoder_query);
            encoder_key = norm_added_k(encoder_key);
            query = cat({encoder_query, query}, 1);
            key = cat({encoder_key, key}, 1);
            value = cat({encoder_value, value}, 1);
        }
        query = transpose(query, 1, 2);
        key = transpose(key, 1, 2);
        value = transpose(value, 1, 2);

        // Attention.
        Tensor hidden_states = scaled_dot_product_attention(query, key, value);
        hidden_states = reshape(transpose(hidden_states, 1, 2), {batch_size, -1, heads_ * head_dim_});
        hidden_states = to(hidden_states, query.dtype());
        if (!joint_) return {to_out(hidden_states)};

        // Split the attention outputs.
        const std::int64_t text = held_encoder.size(1);
        Tensor image = slice(hidden_states, 1, text, hidden_states.size(1));
        Tensor encoder_hidden_states = slice(hidden_states, 1, 0, text);
        hidden_states = std::move(image);
        hidden_states = to_out(hidden_states);
        encoder_hidden_states = to_add_out(encoder_hidden_states);
        return {hidden_states, encoder_hidden_states};
    }

  private:
    std::int64_t heads_, head_dim_;
    bool joint_;
    Fp32LayerNorm norm_q, norm_k, norm_added_q, norm_added_k;
    Linear to_q, to_k, to_v, to_out, add_k_proj, add_v_proj, add_q_proj, to_add_out;
};

class AuraFlowFeedForward {
  public:
    AuraFlowFeedForward(const Builder& builder, std::int64_t dim) {
        // two thirds of what a plain one has, a multiple of 256
        const std::int64_t inner = (2 * 4 * dim / 3 + 255) / 256 * 256;
        linear_1 = builder.linear("linear_1", dim, inner, false);
        linear_2 = builder.linear("linear_2", dim, inner, false);
        out_projection = builder.linear("out_projection", inner, dim, false);
    }
    Tensor operator()(Tensor x_in) const {
        const Tensor held = std::move(x_in);
        Tensor gate = silu(linear_1(held));
        Tensor up = linear_2(held);
        Tensor x = mul(std::move(gate), std::move(up));
        x = out_projection(x);
        return x;
    }

  private:
    Linear linear_1, linear_2, out_projection;
};

/// args: hidden_states, encoder_hidden_states, temb → encoder_hidden_states, hidden_states
class AuraFlowJointTransformerBlock : public Block {
  public:
    AuraFlowJointTransformerBlock(const Builder& parent, const Sizes& sizes)
        : AuraFlowJointTransformerBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0], encoder_hidden_states = args[1];
        const Tensor& temb = args[2];
        const Tensor residual = hidden_states, residual_context = encoder_hidden_states;
        // Norm + Projection.
        Tensors modulated = norm1(hidden_states, temb);
        const Tensor norm_hidden_states = modulated[0], gate_msa = modulated[1], shift_mlp = modulated[2],
                     scale_mlp = modulated[3], gate_mlp = modulated[4];
        modulated = norm1_context(encoder_hidden_states, temb);
        const Tensor norm_encoder_hidden_states = modulated[0], c_gate_msa = modulated[1], c_shift_mlp = modulated[2],
                     c_scale_mlp = modulated[3], c_gate_mlp = modulated[4];
        modulated.clear();

        // Attention.
        Tensors attention_outputs = attn(norm_hidden_states, norm_encoder_hidden_states);
        const Tensor attn_output = attention_outputs[0], context_attn_output = attention_outputs[1];
        attention_outputs.clear();

        // Process attention outputs for the `hidden_states`.
        hidden_states = mul(unsqueeze(gate_msa, 1), attn_output);
        hidden_states = norm2(add(residual, std::move(hidden_states)));
        hidden_states = scale_and_shift(hidden_states, scale_mlp, shift_mlp);
        hidden_states = mul(unsqueeze(gate_mlp, 1), ff(hidden_states));
        hidden_states = add(residual, hidden_states);

        // Process attention outputs for the `encoder_hidden_states`.
        encoder_hidden_states = mul(unsqueeze(c_gate_msa, 1), context_attn_output);
        encoder_hidden_states = norm2_context(add(residual_context, std::move(encoder_hidden_states)));
        encoder_hidden_states = scale_and_shift(encoder_hidden_states, c_scale_mlp, c_shift_mlp);
        encoder_hidden_states = mul(unsqueeze(c_gate_mlp, 1), ff_context(encoder_hidden_states));
        encoder_hidden_states = add(residual_context, encoder_hidden_states);
        return {encoder_hidden_states, hidden_states};
    }

  private:
    AuraFlowJointTransformerBlock(const BlockBuilder& builder, const Sizes& sizes)
        : norm1(builder["norm1"], sizes.dim, AdaLayerNormZero::Norm::fp32_layer_norm, false),
          norm1_context(builder["norm1_context"], sizes.dim, AdaLayerNormZero::Norm::fp32_layer_norm, false),
          attn(builder["attn"], sizes, true),
          norm2(builder, "norm2", sizes.dim, false),
          ff(builder["ff"], sizes.dim),
          norm2_context(builder, "norm2_context", sizes.dim, false),
          ff_context(builder["ff_context"], sizes.dim) {
        builder.finish(*this, "AuraFlowJointTransformerBlock", {sizes.heads, sizes.head_dim});
    }

    AdaLayerNormZero norm1, norm1_context;
    AuraFlowAttention attn;
    Fp32LayerNorm norm2;
    AuraFlowFeedForward ff;
    Fp32LayerNorm norm2_context;
    AuraFlowFeedForward ff_context;
};

/// args: hidden_states, temb → hidden_states
class AuraFlowSingleTransformerBlock : public Block {
  public:
    AuraFlowSingleTransformerBlock(const Builder& parent, const Sizes& sizes)
        : AuraFlowSingleTransformerBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0];
        const Tensor residual = hidden_states;
        // Norm + Projection.
        Tensors modulated = norm1(hidden_states, args[1]);
        const Tensor norm_hidden_states = modulated[0], gate_msa = modulated[1], shift_mlp = modulated[2],
                     scale_mlp = modulated[3], gate_mlp = modulated[4];
        modulated.clear();
        // Attention.
        const Tensor attn_output = attn(norm_hidden_states, {})[0];
        // Process attention outputs for the `hidden_states`.
        hidden_states = mul(unsqueeze(gate_msa, 1), attn_output);
        hidden_states = norm2(add(residual, std::move(hidden_states)));
        hidden_states = scale_and_shift(hidden_states, scale_mlp, shift_mlp);
        const Tensor ff_output = ff(hidden_states);
        hidden_states = mul(unsqueeze(gate_mlp, 1), ff_output);
        hidden_states = add(residual, hidden_states);
        return {hidden_states};
    }

  private:
    AuraFlowSingleTransformerBlock(const BlockBuilder& builder, const Sizes& sizes)
        : norm1(builder["norm1"], sizes.dim, AdaLayerNormZero::Norm::fp32_layer_norm, false),
          attn(builder["attn"], sizes, false),
          norm2(builder, "norm2", sizes.dim, false),
          ff(builder["ff"], sizes.dim) {
        builder.finish(*this, "AuraFlowSingleTransformerBlock", {sizes.heads, sizes.head_dim});
    }

    AdaLayerNormZero norm1;
    AuraFlowAttention attn;
    Fp32LayerNorm norm2;
    AuraFlowFeedForward ff;
};

class AuraFlowTransformer2DModel : public Model {
  public:
    AuraFlowTransformer2DModel(nn::Weights& weights, const profile::Config& config)
        : AuraFlowTransformer2DModel(Builder(weights), config) {}

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        return {{"hidden_states", latents(request, in_channels_), request.dtype},
                {"encoder_hidden_states", {request.batch, request.text_tokens, joint_attention_dim_}, request.dtype},
                {"timestep", {request.batch}, request.dtype}};
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {latents(request, out_channels_)};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        Run& run = args[0].run();
        Tensor hidden_states = args[0];
        const std::int64_t batch_size = hidden_states.size(0), height = hidden_states.size(2),
                           width = hidden_states.size(3);
        // Apply patch embedding, timestep embedding, and project the caption embeddings.
        hidden_states = pos_embed(hidden_states);  // [B, S, D]
        Tensor temb = to(timestep_embedding(args[2], 256, true), register_tokens->value.dtype());
        temb = time_step_proj(temb);
        Tensor encoder_hidden_states = context_embedder(args[1]);  // [B, T, D]
        const Tensor tokens = to(register_tokens->value, encoder_hidden_states.dtype());
        encoder_hidden_states = cat({repeat(tokens, {batch_size, 1, 1}), encoder_hidden_states}, 1);  // [B, 8+T, D]

        // MMDiT blocks.
        const Caller call(run, gradient_checkpointing);
        for (const AuraFlowJointTransformerBlock& block : joint_transformer_blocks) {
            Tensors out = call(block, {hidden_states, encoder_hidden_states, temb});
            encoder_hidden_states = std::move(out[0]);
            hidden_states = std::move(out[1]);
        }
        // Single DiT blocks that combine the `hidden_states` (image) and `encoder_hidden_states` (text)
        Tensor combined_hidden_states;
        if (!single_transformer_blocks.empty()) {
            const std::int64_t encoder_seq_len = encoder_hidden_states.size(1);
            combined_hidden_states = cat({encoder_hidden_states, hidden_states}, 1);
            for (const AuraFlowSingleTransformerBlock& block : single_transformer_blocks)
                combined_hidden_states = call(block, {combined_hidden_states, temb})[0];
            hidden_states = slice(combined_hidden_states, 1, encoder_seq_len, combined_hidden_states.size(1));
        }
        hidden_states = norm_out(hidden_states, temb);
        hidden_states = proj_out(hidden_states);
        return {unpatchify(hidden_states, height, width, patch_size_, out_channels_)};
    }

  private:
    AuraFlowTransformer2DModel(const Builder& builder, const profile::Config& config)
        : in_channels_(config.integer("in_channels")),
          out_channels_(config.integer("out_channels", in_channels_)),
          joint_attention_dim_(config.integer("joint_attention_dim")),
          patch_size_(config.integer("patch_size")) {
        const std::int64_t heads = config.integer("num_attention_heads"),
                           head_dim = config.integer("attention_head_dim");
        const Sizes sizes{heads * head_dim, heads, head_dim};
        register_tokens = &builder.parameter("register_tokens", {1, 8, sizes.dim});
        positions = &builder["pos_embed"].parameter("pos_embed", {1, config.integer("pos_embed_max_size"), sizes.dim});
        proj = builder["pos_embed"].linear("proj", patch_size_ * patch_size_ * in_channels_, sizes.dim);
        context_embedder =
            builder.linear("context_embedder", joint_attention_dim_, config.integer("caption_projection_dim"), false);
        time_step_proj = TimestepEmbedding(builder["time_step_proj"], 256, sizes.dim);
        for (std::int64_t i = 0; i < config.integer("num_mmdit_layers"); ++i)
            joint_transformer_blocks.emplace_back(builder["joint_transformer_blocks"][i], sizes);
        for (std::int64_t i = 0; i < config.integer("num_single_dit_layers"); ++i)
            single_transformer_blocks.emplace_back(builder["single_transformer_blocks"][i], sizes);
        linear = builder["norm_out"].linear("linear", sizes.dim, 2 * sizes.dim, false);
        proj_out = builder.linear("proj_out", sizes.dim, patch_size_ * patch_size_ * out_channels_, false);
    }

    [[nodiscard]] static Dims latents(const Request& request, std::int64_t channels) {
        return {request.batch, channels, request.height / 8, request.width / 8};
    }

    // AuraFlowPatchEmbed
    [[nodiscard]] Tensor pos_embed(Tensor latent_in) const {
        const Tensor held = std::move(latent_in);
        Tensor latent = held;
        const std::int64_t batch_size = latent.size(0), num_channels = latent.size(1),
                           height = latent.size(2) / patch_size_, width = latent.size(3) / patch_size_;
        latent = view(latent, {batch_size, num_channels, height, patch_size_, width, patch_size_});
        latent = flatten(permute(latent, {0, 2, 4, 1, 3, 5}), 3, 5);
        latent = flatten(latent, 1, 2);
        latent = proj(latent);
        const Tensor pe_index = pe_selection_index(latent.run(), height, width);
        return add(latent, index(positions->value, 1, pe_index));
    }

    // pe_selection_index_based_on_dim: [height * width], the middle of a square of positions
    [[nodiscard]] static Tensor pe_selection_index(Run& run, std::int64_t height, std::int64_t width) {
        const Tensor rows = arange(run, height, Dtype::i64);
        const Tensor cols = arange(run, width, Dtype::i64);
        const Tensor row_indices = expand(unsqueeze(rows, 1), {-1, width});
        const Tensor col_indices = expand(unsqueeze(cols, 0), {height, -1});
        return flatten(add(mul_scalar(row_indices, false), col_indices), 0, 1);
    }

    // AuraFlowPreFinalBlock
    [[nodiscard]] Tensor norm_out(Tensor x_in, const Tensor& conditioning_embedding) const {
        const Tensor x = std::move(x_in);
        Tensor emb = to(silu(conditioning_embedding), x.dtype());
        emb = linear(std::move(emb));
        const Tensors parts = chunk(emb, 2, 1);  // scale, shift
        Tensor out = mul(x, unsqueeze(add_scalar(parts[0]), 1));
        return add(std::move(out), unsqueeze(parts[1], 1));
    }

    std::int64_t in_channels_, out_channels_, joint_attention_dim_, patch_size_;
    Parameter *register_tokens = nullptr, *positions = nullptr;  // `positions` is pos_embed.pos_embed
    Linear proj, context_embedder, linear, proj_out;             // `linear` is norm_out's
    TimestepEmbedding time_step_proj;
    std::deque<AuraFlowJointTransformerBlock> joint_transformer_blocks;
    std::deque<AuraFlowSingleTransformerBlock> single_transformer_blocks;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<AuraFlowTransformer2DModel>(weights, profile.config);
}

}  // namespace vram::models::auraflow
