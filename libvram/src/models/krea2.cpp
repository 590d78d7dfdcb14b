// Mirrors Krea2Transformer2DModel (diffusers 0.42.1, models/transformers/transformer_krea2.py): Krea 2 Raw and Turbo.
#include <deque>

#include "models/attention.hpp"
#include "models/embeddings.hpp"
#include "models/families.hpp"

namespace vram::models::krea2 {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;

/// Of a block.
struct Sizes {
    std::int64_t dim, heads, kv_heads, inner_dim;
};

/// Krea2RMSNorm: in fp32, by 1 + weight.
class RmsNorm {
  public:
    RmsNorm() = default;
    RmsNorm(const Builder& builder, std::int64_t size) : weight(&builder.parameter("weight", {size})) {}

    Tensor operator()(Tensor hidden_states_in) const {
        Tensor hidden_states = std::move(hidden_states_in);
        const Tensor held = hidden_states;
        Tensor wide = to_float(hidden_states);
        Tensor factor = add_scalar(weight->value);
        hidden_states = rms_norm(std::move(wide), std::move(factor));
        return to(hidden_states, held.dtype());
    }

  private:
    nn::Parameter* weight = nullptr;
};

// (1 + scale) * norm(x) + shift
Tensor modulated(const RmsNorm& norm, const Tensor& x, const Tensor& scale, const Tensor& shift) {
    Tensor factor = add_scalar(scale);
    Tensor out = norm(x);
    out = mul(std::move(factor), std::move(out));
    return add(std::move(out), shift);
}

/// Krea2Attention with Krea2AttnProcessor.
class Attention {
  public:
    Attention(const Builder& builder, const Sizes& sizes)
        : heads_(sizes.heads),
          kv_heads_(sizes.kv_heads),
          to_q(builder.linear("to_q", sizes.dim, sizes.dim, false)),
          to_k(builder.linear("to_k", sizes.dim, sizes.dim / sizes.heads * sizes.kv_heads, false)),
          to_v(builder.linear("to_v", sizes.dim, sizes.dim / sizes.heads * sizes.kv_heads, false)),
          to_gate(builder.linear("to_gate", sizes.dim, sizes.dim, false)),
          norm_q(builder["norm_q"], sizes.dim / sizes.heads),
          norm_k(builder["norm_k"], sizes.dim / sizes.heads),
          to_out(builder["to_out"].linear("0", sizes.dim, sizes.dim, false)) {}

    /// hidden_states [B, S, D]; attention_mask [B, 1, 1, S] bool, cos and sin may be undefined
    Tensor operator()(Tensor hidden_states_in, const Tensor& attention_mask, const Tensor& cos,
                      const Tensor& sin) const {
        const Tensor held = std::move(hidden_states_in);
        Tensor query = unflatten(to_q(held), -1, {heads_, -1});
        Tensor key = unflatten(to_k(held), -1, {kv_heads_, -1});
        Tensor value = unflatten(to_v(held), -1, {kv_heads_, -1});
        const Tensor gate = to_gate(held);
        query = norm_q(query);
        key = norm_k(key);
        if (cos.defined()) {
            query = apply_rotary_emb(query, cos, sin, 1);
            key = apply_rotary_emb(key, cos, sin, 1);
        }
        if (heads_ > kv_heads_) {
            key = repeat_interleave(key, heads_ / kv_heads_, 2);
            value = repeat_interleave(value, heads_ / kv_heads_, 2);
        }
        Tensor hidden_states = dispatch_attention(query, key, value, attention_mask);
        hidden_states = flatten(hidden_states, 2, 3);
        hidden_states = mul(hidden_states, sigmoid(gate));
        return to_out(hidden_states);
    }

  private:
    std::int64_t heads_, kv_heads_;
    Linear to_q, to_k, to_v, to_gate;
    RmsNorm norm_q, norm_k;
    Linear to_out;
};

/// Krea2SwiGLU
class SwiGlu {
  public:
    SwiGlu(const Builder& builder, const Sizes& sizes)
        : gate(builder.linear("gate", sizes.dim, sizes.inner_dim, false)),
          up(builder.linear("up", sizes.dim, sizes.inner_dim, false)),
          down(builder.linear("down", sizes.inner_dim, sizes.dim, false)) {}

    Tensor operator()(Tensor hidden_states_in) const {
        const Tensor hidden_states = std::move(hidden_states_in);
        Tensor left = silu(gate(hidden_states));
        Tensor right = up(hidden_states);
        return down(mul(std::move(left), std::move(right)));
    }

  private:
    Linear gate, up, down;
};

/// args: hidden_states, attention_mask or undefined → hidden_states
class TextFusionBlock : public Block {
  public:
    TextFusionBlock(const Builder& parent, const Sizes& sizes) : TextFusionBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0];
        hidden_states = add(hidden_states, attn(norm1(hidden_states), args[1], {}, {}));
        hidden_states = add(hidden_states, ff(norm2(hidden_states)));
        return {hidden_states};
    }

  private:
    TextFusionBlock(const BlockBuilder& builder, const Sizes& sizes)
        : norm1(builder["norm1"], sizes.dim),
          norm2(builder["norm2"], sizes.dim),
          attn(builder["attn"], sizes),
          ff(builder["ff"], sizes) {
        builder.finish(*this, "Krea2TextFusionBlock", {sizes.heads, sizes.kv_heads});
    }

    RmsNorm norm1, norm2;
    Attention attn;
    SwiGlu ff;
};

/// args: hidden_states, temb [B, 1, 6 D], cos, sin, attention_mask or undefined → hidden_states
class TransformerBlock : public Block {
  public:
    TransformerBlock(const Builder& parent, const Sizes& sizes) : TransformerBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0];
        const Tensor modulation = add(unflatten(args[1], -1, {6, -1}), scale_shift_table->value);  // [B, 1, 6, D]
        const Tensors parts = unbind(modulation, -2);  // prescale, preshift, pregate, and those after attention
        const Tensor attn_out = attn(modulated(norm1, hidden_states, parts[0], parts[1]), args[4], args[2], args[3]);
        hidden_states = add(hidden_states, mul(parts[2], attn_out));
        const Tensor ff_out = ff(modulated(norm2, hidden_states, parts[3], parts[4]));
        hidden_states = add(hidden_states, mul(parts[5], ff_out));
        return {hidden_states};
    }

  private:
    TransformerBlock(const BlockBuilder& builder, const Sizes& sizes)
        : scale_shift_table(&builder.parameter("scale_shift_table", {6, sizes.dim})),
          norm1(builder["norm1"], sizes.dim),
          norm2(builder["norm2"], sizes.dim),
          attn(builder["attn"], sizes),
          ff(builder["ff"], sizes) {
        builder.finish(*this, "Krea2TransformerBlock", {sizes.heads, sizes.kv_heads});
    }

    nn::Parameter* scale_shift_table;
    RmsNorm norm1, norm2;
    Attention attn;
    SwiGlu ff;
};

class Krea2Transformer2DModel : public Model {
  public:
    Krea2Transformer2DModel(nn::Weights& weights, const profile::Config& config)
        : Krea2Transformer2DModel(Builder(weights), config) {}

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        const std::int64_t image = tokens(request);
        return {{"hidden_states", {request.batch, image, in_channels_}, request.dtype},
                {"encoder_hidden_states",
                 {request.batch, request.text_tokens, num_text_layers_, text_hidden_dim_},
                 request.dtype},
                {"timestep", {request.batch}, request.dtype},
                {"position_ids", {request.text_tokens + image, 3}, Dtype::f32},
                {"encoder_attention_mask", {request.batch, request.text_tokens}, Dtype::boolean}};
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {{request.batch, tokens(request), in_channels_}};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        Run& run = args[0].run();
        Tensor hidden_states = args[0], encoder_hidden_states = args[1];
        const Tensor& encoder_attention_mask = args[4];
        const std::int64_t batch_size = hidden_states.size(0), image_seq_len = hidden_states.size(1),
                           text_seq_len = encoder_hidden_states.size(1);
        const Tensor temb = time_embed(args[2], hidden_states.dtype());  // [B, 1, D]
        const Tensor temb_mod = time_mod_proj(gelu(temb));

        // Key-padding masks: padded text tokens are no keys anywhere.
        const Tensor text_attention_mask = unsqueeze(unsqueeze(encoder_attention_mask, 1), 1);
        const Tensor image_mask = run.empty({batch_size, image_seq_len}, Dtype::boolean, Op::ones);
        const Tensor whole_mask = cat({encoder_attention_mask, image_mask}, 1);
        const Tensor attention_mask = unsqueeze(unsqueeze(whole_mask, 1), 1);

        encoder_hidden_states = text_fusion(encoder_hidden_states, text_attention_mask);
        encoder_hidden_states = txt_in(encoder_hidden_states);
        hidden_states = img_in(hidden_states);
        hidden_states = cat({encoder_hidden_states, hidden_states}, 1);
        const Tensors image_rotary_emb = flux_pos_embed(args[3], axes_dims_rope_);

        const Caller call(run, gradient_checkpointing);
        for (const TransformerBlock& block : transformer_blocks)
            hidden_states =
                call(block, {hidden_states, temb_mod, image_rotary_emb[0], image_rotary_emb[1], attention_mask})[0];

        hidden_states = slice(hidden_states, 1, text_seq_len, text_seq_len + image_seq_len);
        return {final_layer(hidden_states, temb)};
    }

  private:
    Krea2Transformer2DModel(const Builder& builder, const profile::Config& config)
        : in_channels_(config.integer("in_channels")),
          text_hidden_dim_(config.integer("text_hidden_dim")),
          num_text_layers_(config.integer("num_text_layers")),
          timestep_embed_dim_(config.integer("timestep_embed_dim")),
          axes_dims_rope_(config.integers("axes_dims_rope")) {
        const std::int64_t heads = config.integer("num_attention_heads"),
                           dim = heads * config.integer("attention_head_dim");
        const Sizes sizes{dim, heads, config.integer("num_key_value_heads"), config.integer("intermediate_size")};
        const Sizes text{text_hidden_dim_, config.integer("text_num_attention_heads"),
                         config.integer("text_num_key_value_heads"), config.integer("text_intermediate_size")};
        img_in = builder.linear("img_in", in_channels_, dim);
        time_linear_1 = builder["time_embed"].linear("linear_1", timestep_embed_dim_, dim);
        time_linear_2 = builder["time_embed"].linear("linear_2", dim, dim);
        time_mod_proj = builder.linear("time_mod_proj", dim, 6 * dim);
        const Builder fusion = builder["text_fusion"];
        for (std::int64_t i = 0; i < config.integer("num_layerwise_text_blocks"); ++i)
            layerwise_blocks.emplace_back(fusion["layerwise_blocks"][i], text);
        projector = fusion.linear("projector", num_text_layers_, 1, false);
        for (std::int64_t i = 0; i < config.integer("num_refiner_text_blocks"); ++i)
            refiner_blocks.emplace_back(fusion["refiner_blocks"][i], text);
        txt_norm = RmsNorm(builder["txt_in"]["norm"], text_hidden_dim_);
        txt_linear_1 = builder["txt_in"].linear("linear_1", text_hidden_dim_, dim);
        txt_linear_2 = builder["txt_in"].linear("linear_2", dim, dim);
        for (std::int64_t i = 0; i < config.integer("num_layers"); ++i)
            transformer_blocks.emplace_back(builder["transformer_blocks"][i], sizes);
        const Builder last = builder["final_layer"];
        final_table = &last.parameter("scale_shift_table", {2, dim});
        final_norm = RmsNorm(last["norm"], dim);
        final_linear = last.linear("linear", dim, in_channels_);
    }

    [[nodiscard]] static std::int64_t tokens(const Request& request) {
        return checked_mul(request.height / 16, request.width / 16);
    }

    // Krea2TimestepEmbedding
    [[nodiscard]] Tensor time_embed(const Tensor& timestep, Dtype dtype) const {
        Tensor freqs = mul_scalar(arange(timestep.run(), timestep_embed_dim_ / 2, Dtype::f32));
        freqs = div_scalar(std::move(freqs));
        freqs = exp(std::move(freqs));
        Tensor args = mul_scalar(to_float(timestep));
        args = mul(view(std::move(args), {-1, 1, 1}), freqs);
        Tensor emb;
        {
            Tensor cosine = cos(args);
            Tensor sine = sin(args);
            emb = cat({std::move(cosine), std::move(sine)}, -1);
        }
        emb = to(std::move(emb), dtype);
        return time_linear_2(gelu(time_linear_1(emb)));
    }

    // Krea2TextFusion: [B, T, L, D] → [B, T, D]
    [[nodiscard]] Tensor text_fusion(const Tensor& encoder_hidden_states, const Tensor& attention_mask) const {
        const std::int64_t batch_size = encoder_hidden_states.size(0), seq_len = encoder_hidden_states.size(1);
        const Caller call(encoder_hidden_states.run(), false);
        Tensor hidden_states =
            reshape(encoder_hidden_states, {batch_size * seq_len, num_text_layers_, text_hidden_dim_});
        for (const TextFusionBlock& block : layerwise_blocks)
            hidden_states = call(block, {contiguous(hidden_states), {}})[0];
        hidden_states = reshape(hidden_states, {batch_size, seq_len, num_text_layers_, text_hidden_dim_});
        hidden_states = permute(hidden_states, {0, 1, 3, 2});
        hidden_states = squeeze(projector(hidden_states), -1);
        for (const TextFusionBlock& block : refiner_blocks)
            hidden_states = call(block, {hidden_states, attention_mask})[0];
        return hidden_states;
    }

    // Krea2TextProjection
    [[nodiscard]] Tensor txt_in(const Tensor& text) const {
        Tensor hidden_states = txt_linear_1(txt_norm(text));
        return txt_linear_2(gelu(hidden_states));
    }

    // Krea2FinalLayer
    [[nodiscard]] Tensor final_layer(const Tensor& x, const Tensor& temb) const {
        const Tensor modulation = add(temb, final_table->value);
        const Tensors parts = chunk(modulation, 2, 1);  // scale, shift
        Tensor hidden_states = modulated(final_norm, x, parts[0], parts[1]);
        return final_linear(hidden_states);
    }

    std::int64_t in_channels_, text_hidden_dim_, num_text_layers_, timestep_embed_dim_;
    std::vector<std::int64_t> axes_dims_rope_;
    Linear img_in, time_linear_1, time_linear_2, time_mod_proj, projector;
    std::deque<TextFusionBlock> layerwise_blocks, refiner_blocks;
    RmsNorm txt_norm;
    Linear txt_linear_1, txt_linear_2;
    std::deque<TransformerBlock> transformer_blocks;
    nn::Parameter* final_table = nullptr;
    RmsNorm final_norm;
    Linear final_linear;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<Krea2Transformer2DModel>(weights, profile.config);
}

}  // namespace vram::models::krea2
