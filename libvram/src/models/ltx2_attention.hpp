#pragma once

#include <optional>

#include "models/embeddings.hpp"

/// The attention of LTX-2's classes (diffusers 0.42.1, models/transformers/transformer_ltx2.py).
namespace vram::models::ltx2 {

/// cos and sin of a rotary embedding; undefined is None.
struct Rotary {
    nn::Tensor cos, sin;
};

/// What a class is told once for all of its attentions.
struct AttentionStyle {
    bool split;      // rope_type: "split", or "interleaved"
    bool perturbed;  // LTX2PerturbedAttnProcessor, without a perturbation: values are projected first
};

struct AttentionSizes {
    std::int64_t query_dim, context_dim, heads, head_dim;
    bool gated;
};

/// LTX2Attention with LTX2AudioVideoAttnProcessor.
class LTX2Attention {
  public:
    LTX2Attention(const nn::Builder& builder, const AttentionSizes& sizes, const AttentionStyle& style);
    /// `attention_mask` [B, 1, 1, L] or [B, 1, L], or undefined. `all_perturbed`: values stand for what attention makes
    /// of them, which only the perturbed style knows.
    [[nodiscard]] nn::Tensor operator()(nn::Tensor hidden_states, nn::Tensor encoder_hidden_states,
                                        const Rotary& query_rotary_emb, const Rotary& key_rotary_emb,
                                        const nn::Tensor& attention_mask = {}, bool all_perturbed = false) const;

  private:
    [[nodiscard]] nn::Tensor rotate(const nn::Tensor& x, const Rotary& freqs) const;

    std::int64_t heads_;
    AttentionStyle style_;
    nn::RmsNorm norm_q, norm_k;
    nn::Linear to_q, to_k, to_v, to_out;
    std::optional<nn::Linear> to_gate_logits;
};

}  // namespace vram::models::ltx2
