#pragma once

#include <algorithm>

#include "models/normalization.hpp"
#include "nn/module.hpp"

/// What Lumina 2 (diffusers 0.42.1, transformer_lumina2.py) and OmniGen2 (its repository's copies of it) share.
namespace vram::models {

/// Of a block of NextDiT.
struct LuminaSizes {
    std::int64_t dim, heads, kv_heads, inner_dim;
};

/// apply_rotary_emb(use_real=False): x [B, S, H, D] with freqs_cis [B, S, D / 2] complex128, and so is the product.
[[nodiscard]] nn::Tensor apply_complex_rotary_emb(const nn::Tensor& x, const nn::Tensor& freqs_cis);

/// What the attention of both does alike: how queries, keys and values are made, and what becomes of them.
class LuminaAttention {
  public:
    LuminaAttention(const nn::Builder& builder, const LuminaSizes& sizes);

  protected:
    /// {query [B, S, H, D], key and value [B, S, kv_heads, D]}: projected, normed, rotated.
    [[nodiscard]] nn::Tensors rotated(const nn::Tensor& hidden_states, const nn::Tensor& image_rotary_emb) const;
    /// Of [B, H, S, D] each, while the caller holds them → [B, S, dim]
    [[nodiscard]] nn::Tensor attended(const nn::Tensor& query, const nn::Tensor& key, const nn::Tensor& value,
                                      const nn::Tensor& attention_mask) const;

    std::int64_t heads_, kv_heads_, head_dim_;

  private:
    PlainRmsNorm norm_q, norm_k;
    nn::Linear to_q, to_k, to_v, to_out;
};

/// The linears of LuminaFeedForward; what is between them each class writes in its own way.
class LuminaFeedForward {
  public:
    LuminaFeedForward(const nn::Builder& builder, const LuminaSizes& sizes);

  protected:
    nn::Linear linear_1, linear_2, linear_3;  // gate, down, up
};

/// LuminaLayerNormContinuous with a norm without affine, and a projection of what it returns.
class LuminaLayerNormContinuous {
  public:
    LuminaLayerNormContinuous() = default;
    LuminaLayerNormContinuous(const nn::Builder& builder, std::int64_t size, std::int64_t conditioning,
                              std::int64_t out_size);
    [[nodiscard]] nn::Tensor operator()(nn::Tensor x, nn::Tensor conditioning_embedding) const;

  private:
    nn::Linear linear_1, linear_2;
    nn::LayerNorm norm;
};

/// Lumina2TransformerBlock, OmniGen2TransformerBlock; args: hidden_states [B, S, D], attention_mask [B, S] or
/// undefined, image_rotary_emb, with modulation temb → hidden_states. A norm is built of builder, name and size;
/// attention and the feed-forward of builder and sizes.
template <class Norm, class Attention, class FeedForward>
class LuminaTransformerBlock : public nn::Block {
  public:
    LuminaTransformerBlock(const nn::Builder& parent, std::string_view class_name, const LuminaSizes& sizes,
                           bool modulation)
        : LuminaTransformerBlock(parent.block(*this), class_name, sizes, modulation) {}

    [[nodiscard]] nn::Tensors forward(const nn::Tensors& args) const override {
        using namespace shadow;  // NOLINT: the ops of a forward
        Tensor hidden_states = args[0];
        if (!modulation_) {
            const Tensor norm_hidden_states = norm1(hidden_states);
            const Tensor attn_output = attn(norm_hidden_states, args[1], args[2]);
            hidden_states = add(hidden_states, norm2(attn_output));
            const Tensor mlp_output = feed_forward(ffn_norm1(hidden_states));
            hidden_states = add(hidden_states, ffn_norm2(mlp_output));
            return {hidden_states};
        }

        Tensors modulated = rms_norm_zero(hidden_states, args[3]);
        const Tensor norm_hidden_states = modulated[0], gate_msa = modulated[1], scale_mlp = modulated[2],
                     gate_mlp = modulated[3];
        modulated.clear();
        const Tensor attn_output = attn(norm_hidden_states, args[1], args[2]);
        Tensor gate = tanh(unsqueeze(gate_msa, 1));
        Tensor update = mul(std::move(gate), norm2(attn_output));
        hidden_states = add(hidden_states, std::move(update));

        Tensor normed = ffn_norm1(hidden_states);
        normed = mul(std::move(normed), add_scalar(unsqueeze(scale_mlp, 1)));
        const Tensor mlp_output = feed_forward(std::move(normed));
        gate = tanh(unsqueeze(gate_mlp, 1));
        update = mul(std::move(gate), ffn_norm2(mlp_output));
        hidden_states = add(hidden_states, std::move(update));
        return {hidden_states};
    }

  private:
    LuminaTransformerBlock(const nn::BlockBuilder& builder, std::string_view class_name, const LuminaSizes& sizes,
                           bool modulation)
        : modulation_(modulation), attn(builder["attn"], sizes), feed_forward(builder["feed_forward"], sizes) {
        if (modulation) {
            linear = builder["norm1"].linear("linear", std::min<std::int64_t>(sizes.dim, 1024), 4 * sizes.dim);
            norm1 = Norm(builder["norm1"], "norm", sizes.dim);
        } else {
            norm1 = Norm(builder, "norm1", sizes.dim);
        }
        ffn_norm1 = Norm(builder, "ffn_norm1", sizes.dim);
        norm2 = Norm(builder, "norm2", sizes.dim);
        ffn_norm2 = Norm(builder, "ffn_norm2", sizes.dim);
        builder.finish(*this, class_name, {sizes.heads, sizes.kv_heads, modulation});
    }

    // LuminaRMSNormZero: {x, gate_msa, scale_mlp, gate_mlp}
    [[nodiscard]] nn::Tensors rms_norm_zero(const nn::Tensor& x_in, const nn::Tensor& emb_in) const {
        using namespace shadow;  // NOLINT: the ops of a forward
        Tensor emb = linear(silu(emb_in));
        const Tensors parts = chunk(emb, 4, 1);  // scale_msa, gate_msa, scale_mlp, gate_mlp
        Tensor x = norm1(x_in);
        x = mul(std::move(x), add_scalar(unsqueeze(parts[0], 1)));
        return {x, parts[1], parts[2], parts[3]};
    }

    bool modulation_;
    Attention attn;
    FeedForward feed_forward;
    nn::Linear linear;
    Norm norm1, ffn_norm1, norm2, ffn_norm2;
};

}  // namespace vram::models
