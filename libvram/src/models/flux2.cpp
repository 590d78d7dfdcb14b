// Mirrors Flux2Transformer2DModel (diffusers 0.42.1, models/transformers/transformer_flux2.py): FLUX.2 dev and klein,
// without the cache of reference keys (kv_cache_mode None). No bias anywhere; one modulation for all blocks of a kind.
#include <deque>

#include "models/attention.hpp"
#include "models/embeddings.hpp"
#include "models/families.hpp"
#include "models/normalization.hpp"

namespace vram::models::flux2 {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;
using nn::RmsNorm;

struct Sizes {
    std::int64_t dim, heads, head_dim, mlp_hidden_dim;
};

// Flux2SwiGLU: silu of the first half of the last dimension, times the second half.
Tensor swiglu(Tensor x_in) {
    const Tensor x = std::move(x_in);
    const std::int64_t half = x.size(-1) / 2;
    Tensor gate = silu(slice(x, -1, 0, half));
    return mul(std::move(gate), slice(x, -1, half, x.size(-1)));
}

class Flux2FeedForward {
  public:
    Flux2FeedForward(const Builder& builder, std::int64_t dim, std::int64_t inner_dim)
        : linear_in(builder.linear("linear_in", dim, 2 * inner_dim, false)),
          linear_out(builder.linear("linear_out", inner_dim, dim, false)) {}

    Tensor operator()(Tensor x_in) const {
        Tensor x = std::move(x_in);
        const Tensor held = x;
        x = linear_in(x);
        x = swiglu(x);
        return linear_out(x);
    }

  private:
    Linear linear_in, linear_out;
};

/// Joint attention of a double block, with Flux2AttnProcessor.
class Flux2Attention {
  public:
    Flux2Attention(const Builder& builder, const Sizes& sizes) : head_dim_(sizes.head_dim) {
        const std::int64_t dim = sizes.dim, inner = sizes.heads * sizes.head_dim;
        to_q = builder.linear("to_q", dim, inner, false);
        to_k = builder.linear("to_k", dim, inner, false);
        to_v = builder.linear("to_v", dim, inner, false);
        norm_q = builder.rms_norm("norm_q", head_dim_);
        norm_k = builder.rms_norm("norm_k", head_dim_);
        to_out = builder["to_out"].linear("0", inner, dim, false);
        norm_added_q = builder.rms_norm("norm_added_q", head_dim_);
        norm_added_k = builder.rms_norm("norm_added_k", head_dim_);
        add_q_proj = builder.linear("add_q_proj", dim, inner, false);
        add_k_proj = builder.linear("add_k_proj", dim, inner, false);
        add_v_proj = builder.linear("add_v_proj", dim, inner, false);
        to_add_out = builder.linear("to_add_out", inner, dim, false);
    }

    /// → hidden_states, encoder_hidden_states
    Tensors operator()(Tensor hidden_states_in, Tensor encoder_hidden_states_in, const Tensor& cos,
                       const Tensor& sin) const {
        const Tensor held = std::move(hidden_states_in), held_encoder = std::move(encoder_hidden_states_in);
        Tensor query = to_q(held);
        Tensor key = to_k(held);
        Tensor value = to_v(held);
        Tensor encoder_query = add_q_proj(held_encoder);
        Tensor encoder_key = add_k_proj(held_encoder);
        Tensor encoder_value = add_v_proj(held_encoder);
        query = unflatten(query, -1, {-1, head_dim_});
        key = unflatten(key, -1, {-1, head_dim_});
        value = unflatten(value, -1, {-1, head_dim_});
        query = norm_q(query);
        key = norm_k(key);
        encoder_query = unflatten(encoder_query, -1, {-1, head_dim_});
        encoder_key = unflatten(encoder_key, -1, {-1, head_dim_});
        encoder_value = unflatten(encoder_value, -1, {-1, head_dim_});
        encoder_query = norm_added_q(encoder_query);
        encoder_key = norm_added_k(encoder_key);
        query = cat({encoder_query, query}, 1);
        key = cat({encoder_key, key}, 1);
        value = cat({encoder_value, value}, 1);
        query = apply_rotary_emb(query, cos, sin, 1);
        key = apply_rotary_emb(key, cos, sin, 1);

        Tensor hidden_states = dispatch_attention(query, key, value);
        hidden_states = flatten(std::move(hidden_states), 2, 3);
        hidden_states = to(std::move(hidden_states), query.dtype());

        const std::int64_t text = held_encoder.size(1);
        Tensors parts = split(hidden_states, Dims{text, hidden_states.size(1) - text}, 1);
        Tensor encoder_hidden_states = parts[0];
        hidden_states = parts[1];
        parts.clear();
        encoder_hidden_states = to_add_out(encoder_hidden_states);
        hidden_states = to_out(hidden_states);
        return {hidden_states, encoder_hidden_states};
    }

  private:
    std::int64_t head_dim_;
    RmsNorm norm_q, norm_k, norm_added_q, norm_added_k;
    Linear to_q, to_k, to_v, to_out, add_q_proj, add_k_proj, add_v_proj, to_add_out;
};

/// Attention and feed-forward of a single block behind one projection, with Flux2ParallelSelfAttnProcessor.
class Flux2ParallelSelfAttention {
  public:
    Flux2ParallelSelfAttention(const Builder& builder, const Sizes& sizes)
        : head_dim_(sizes.head_dim),
          qkv_dim_(3 * sizes.dim),
          to_qkv_mlp_proj(
              builder.linear("to_qkv_mlp_proj", sizes.dim, 3 * sizes.dim + 2 * sizes.mlp_hidden_dim, false)),
          norm_q(builder.rms_norm("norm_q", head_dim_)),
          norm_k(builder.rms_norm("norm_k", head_dim_)),
          to_out(builder.linear("to_out", sizes.dim + sizes.mlp_hidden_dim, sizes.dim, false)) {}

    Tensor operator()(Tensor hidden_states_in, const Tensor& cos, const Tensor& sin) const {
        const Tensor held = std::move(hidden_states_in);
        Tensor hidden_states = to_qkv_mlp_proj(held);
        Tensors parts = split(hidden_states, Dims{qkv_dim_, hidden_states.size(-1) - qkv_dim_}, -1);
        const Tensor qkv = parts[0];
        Tensor mlp_hidden_states = parts[1];
        parts = chunk(qkv, 3, -1);
        Tensor query = unflatten(parts[0], -1, {-1, head_dim_});
        Tensor key = unflatten(parts[1], -1, {-1, head_dim_});
        const Tensor value = unflatten(parts[2], -1, {-1, head_dim_});
        parts.clear();
        query = norm_q(query);
        key = norm_k(key);
        query = apply_rotary_emb(query, cos, sin, 1);
        key = apply_rotary_emb(key, cos, sin, 1);

        hidden_states = dispatch_attention(query, key, value);
        hidden_states = flatten(std::move(hidden_states), 2, 3);
        hidden_states = to(std::move(hidden_states), query.dtype());

        mlp_hidden_states = swiglu(mlp_hidden_states);
        hidden_states = cat({hidden_states, mlp_hidden_states}, -1);
        return to_out(hidden_states);
    }

  private:
    std::int64_t head_dim_, qkv_dim_;
    Linear to_qkv_mlp_proj;
    RmsNorm norm_q, norm_k;
    Linear to_out;
};

/// silu, then a linear; a block splits it into shift, scale, gate.
class Flux2Modulation {
  public:
    Flux2Modulation() = default;
    Flux2Modulation(const Builder& builder, std::int64_t dim, std::int64_t mod_param_sets)
        : linear(builder.linear("linear", dim, 3 * mod_param_sets * dim, false)) {}

    [[nodiscard]] Tensor operator()(const Tensor& temb) const {
        Tensor mod = silu(temb);
        mod = linear(mod);
        return mod;
    }
    static Tensors split(const Tensor& mod, std::int64_t mod_param_sets) {
        return chunk(unsqueeze(mod, 1), 3 * mod_param_sets, -1);
    }

  private:
    Linear linear;
};

// (1 + scale) * x + shift: first norms are modulated with the factor in front, second ones behind (`modulate`).
Tensor modulate_from_left(const Tensor& scale, const Tensor& x, const Tensor& shift) {
    Tensor out = mul(add_scalar(scale), x);
    return add(std::move(out), shift);
}

/// args: hidden_states, encoder_hidden_states, temb_mod_img, temb_mod_txt, cos, sin → encoder_hidden_states,
/// hidden_states
class Flux2TransformerBlock : public Block {
  public:
    Flux2TransformerBlock(const Builder& parent, const Sizes& sizes)
        : Flux2TransformerBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0], encoder_hidden_states = args[1];
        // shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp
        const Tensors img = Flux2Modulation::split(args[2], 2), txt = Flux2Modulation::split(args[3], 2);

        Tensor norm_hidden_states = norm1(hidden_states);
        norm_hidden_states = modulate_from_left(img[1], norm_hidden_states, img[0]);
        Tensor norm_encoder_hidden_states = norm1_context(encoder_hidden_states);
        norm_encoder_hidden_states = modulate_from_left(txt[1], norm_encoder_hidden_states, txt[0]);

        // Attention on concatenated img + txt stream
        const Tensors attention_outputs = attn(norm_hidden_states, norm_encoder_hidden_states, args[4], args[5]);
        Tensor attn_output = attention_outputs[0], context_attn_output = attention_outputs[1];

        // Process attention outputs for the image stream (`hidden_states`).
        attn_output = mul(img[2], attn_output);
        hidden_states = add(hidden_states, attn_output);
        norm_hidden_states = norm2(hidden_states);
        norm_hidden_states = modulate(norm_hidden_states, img[4], img[3]);
        const Tensor ff_output = ff(norm_hidden_states);
        hidden_states = add(hidden_states, mul(img[5], ff_output));

        // Process attention outputs for the text stream (`encoder_hidden_states`).
        context_attn_output = mul(txt[2], context_attn_output);
        encoder_hidden_states = add(encoder_hidden_states, context_attn_output);
        norm_encoder_hidden_states = norm2_context(encoder_hidden_states);
        norm_encoder_hidden_states = modulate(norm_encoder_hidden_states, txt[4], txt[3]);
        const Tensor context_ff_output = ff_context(norm_encoder_hidden_states);
        encoder_hidden_states = add(encoder_hidden_states, mul(txt[5], context_ff_output));
        if (encoder_hidden_states.dtype() == Dtype::f16) encoder_hidden_states = clamp(encoder_hidden_states);
        return {encoder_hidden_states, hidden_states};
    }

  private:
    Flux2TransformerBlock(const BlockBuilder& builder, const Sizes& sizes)
        : norm1(builder.layer_norm("norm1", sizes.dim, false)),
          norm1_context(builder.layer_norm("norm1_context", sizes.dim, false)),
          attn(builder["attn"], sizes),
          norm2(builder.layer_norm("norm2", sizes.dim, false)),
          ff(builder["ff"], sizes.dim, sizes.mlp_hidden_dim),
          norm2_context(builder.layer_norm("norm2_context", sizes.dim, false)),
          ff_context(builder["ff_context"], sizes.dim, sizes.mlp_hidden_dim) {
        builder.finish(*this, "Flux2TransformerBlock", {sizes.heads, sizes.head_dim});
    }

    nn::LayerNorm norm1, norm1_context;
    Flux2Attention attn;
    nn::LayerNorm norm2;
    Flux2FeedForward ff;
    nn::LayerNorm norm2_context;
    Flux2FeedForward ff_context;
};

/// args: hidden_states (text, then image), temb_mod, cos, sin → hidden_states
class Flux2SingleTransformerBlock : public Block {
  public:
    Flux2SingleTransformerBlock(const Builder& parent, const Sizes& sizes)
        : Flux2SingleTransformerBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0];
        const Tensors mod = Flux2Modulation::split(args[1], 1);  // shift, scale, gate
        Tensor norm_hidden_states = norm(hidden_states);
        norm_hidden_states = modulate_from_left(mod[1], norm_hidden_states, mod[0]);
        const Tensor attn_output = attn(norm_hidden_states, args[2], args[3]);
        hidden_states = add(hidden_states, mul(mod[2], attn_output));
        if (hidden_states.dtype() == Dtype::f16) hidden_states = clamp(hidden_states);
        return {hidden_states};
    }

  private:
    Flux2SingleTransformerBlock(const BlockBuilder& builder, const Sizes& sizes)
        : norm(builder.layer_norm("norm", sizes.dim, false)), attn(builder["attn"], sizes) {
        builder.finish(*this, "Flux2SingleTransformerBlock", {sizes.heads, sizes.head_dim});
    }

    nn::LayerNorm norm;
    Flux2ParallelSelfAttention attn;
};

class Flux2Transformer2DModel : public Model {
  public:
    Flux2Transformer2DModel(nn::Weights& weights, const profile::Config& config)
        : Flux2Transformer2DModel(Builder(weights), config) {}

    /// Reference pictures stand behind the noisy tokens, with ids of their own.
    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        std::int64_t image = checked_mul(request.height / 16, request.width / 16);
        for (const auto& [width, height] : request.reference_images)
            image = checked_add(image, checked_mul(height / 16, width / 16));
        const auto axes = static_cast<std::int64_t>(axes_dims_rope_.size());
        std::vector<Value> out{
            {"hidden_states", {request.batch, image, in_channels_}, request.dtype},
            {"encoder_hidden_states", {request.batch, request.text_tokens, joint_attention_dim_}, request.dtype},
            {"timestep", {request.batch}, request.dtype},
            {"img_ids", {image, axes}, request.dtype},
            {"txt_ids", {request.text_tokens, axes}, request.dtype}};
        if (guidance_embeds_) out.push_back({"guidance", {request.batch}, Dtype::f32});
        return out;
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        Dims shape = inputs(request).front().shape;
        shape[2] = out_channels_;
        return {shape};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        Run& run = args[0].run();
        const std::int64_t num_txt_tokens = args[1].size(1);
        const Dtype dtype = args[0].dtype();

        // 1. Timestep embedding and modulation
        const Tensor timestep = mul_scalar(to(args[2], dtype));
        Tensor guidance;
        if (guidance_embeds_) guidance = mul_scalar(to(args[5], dtype));
        const Tensor temb = time_guidance_embed(timestep, guidance);              // [B, D]
        const Tensor double_stream_mod_img = double_stream_modulation_img(temb);  // [B, 6D]
        const Tensor double_stream_mod_txt = double_stream_modulation_txt(temb);  // [B, 6D]
        const Tensor single_stream_mod = single_stream_modulation(temb);          // [B, 3D]

        // 2. Input projections
        Tensor hidden_states = x_embedder(args[0]);                // [B, S, D]
        Tensor encoder_hidden_states = context_embedder(args[1]);  // [B, T, D]

        // 3. Rotary embeddings, text before image
        const Tensors image_rotary_emb = flux_pos_embed(args[3], axes_dims_rope_);
        const Tensors text_rotary_emb = flux_pos_embed(args[4], axes_dims_rope_);
        const Tensor cos = cat({text_rotary_emb[0], image_rotary_emb[0]}, 0);  // [T+S, head_dim]
        const Tensor sin = cat({text_rotary_emb[1], image_rotary_emb[1]}, 0);

        const Caller call(run, gradient_checkpointing);
        for (const Flux2TransformerBlock& block : transformer_blocks) {
            Tensors out = call(
                block, {hidden_states, encoder_hidden_states, double_stream_mod_img, double_stream_mod_txt, cos, sin});
            encoder_hidden_states = std::move(out[0]);
            hidden_states = std::move(out[1]);
        }
        hidden_states = cat({encoder_hidden_states, hidden_states}, 1);
        for (const Flux2SingleTransformerBlock& block : single_transformer_blocks)
            hidden_states = call(block, {hidden_states, single_stream_mod, cos, sin})[0];
        hidden_states = slice(hidden_states, 1, num_txt_tokens, hidden_states.size(1));

        hidden_states = norm_out(hidden_states, temb);
        return {proj_out(hidden_states)};
    }

  private:
    Flux2Transformer2DModel(const Builder& builder, const profile::Config& config)
        : in_channels_(config.integer("in_channels")),
          out_channels_(config.integer("out_channels", in_channels_)),
          joint_attention_dim_(config.integer("joint_attention_dim")),
          timestep_guidance_channels_(config.integer("timestep_guidance_channels", 256)),
          guidance_embeds_(config.boolean("guidance_embeds")),
          axes_dims_rope_(config.integers("axes_dims_rope")) {
        const std::int64_t heads = config.integer("num_attention_heads"),
                           head_dim = config.integer("attention_head_dim"), dim = heads * head_dim;
        const auto mlp_hidden_dim =
            static_cast<std::int64_t>(static_cast<double>(dim) * config.number("mlp_ratio", 3.0));
        const Sizes sizes{dim, heads, head_dim, mlp_hidden_dim};
        const Builder embed = builder["time_guidance_embed"];
        timestep_embedder = TimestepEmbedding(embed["timestep_embedder"], timestep_guidance_channels_, dim, false);
        if (guidance_embeds_)
            guidance_embedder = TimestepEmbedding(embed["guidance_embedder"], timestep_guidance_channels_, dim, false);
        double_stream_modulation_img = Flux2Modulation(builder["double_stream_modulation_img"], dim, 2);
        double_stream_modulation_txt = Flux2Modulation(builder["double_stream_modulation_txt"], dim, 2);
        single_stream_modulation = Flux2Modulation(builder["single_stream_modulation"], dim, 1);
        x_embedder = builder.linear("x_embedder", in_channels_, dim, false);
        context_embedder = builder.linear("context_embedder", joint_attention_dim_, dim, false);
        for (std::int64_t i = 0; i < config.integer("num_layers"); ++i)
            transformer_blocks.emplace_back(builder["transformer_blocks"][i], sizes);
        for (std::int64_t i = 0; i < config.integer("num_single_layers"); ++i)
            single_transformer_blocks.emplace_back(builder["single_transformer_blocks"][i], sizes);
        norm_out = AdaLayerNormContinuous(builder["norm_out"], dim, dim, false);
        proj_out = builder.linear("proj_out", dim, out_channels_, false);
    }

    // Flux2TimestepGuidanceEmbeddings
    [[nodiscard]] Tensor time_guidance_embed(const Tensor& timestep, const Tensor& guidance) const {
        const Tensor timesteps_proj = timestep_embedding(timestep, timestep_guidance_channels_, true);
        const Tensor timesteps_emb = timestep_embedder(to(timesteps_proj, timestep.dtype()));
        if (!guidance.defined()) return timesteps_emb;
        const Tensor guidance_proj = timestep_embedding(guidance, timestep_guidance_channels_, true);
        const Tensor guidance_emb = guidance_embedder(to(guidance_proj, guidance.dtype()));
        return add(timesteps_emb, guidance_emb);
    }

    std::int64_t in_channels_, out_channels_, joint_attention_dim_, timestep_guidance_channels_;
    bool guidance_embeds_;
    std::vector<std::int64_t> axes_dims_rope_;
    TimestepEmbedding timestep_embedder, guidance_embedder;
    Flux2Modulation double_stream_modulation_img, double_stream_modulation_txt, single_stream_modulation;
    Linear x_embedder, context_embedder, proj_out;
    std::deque<Flux2TransformerBlock> transformer_blocks;
    std::deque<Flux2SingleTransformerBlock> single_transformer_blocks;
    AdaLayerNormContinuous norm_out;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<Flux2Transformer2DModel>(weights, profile.config);
}

}  // namespace vram::models::flux2
