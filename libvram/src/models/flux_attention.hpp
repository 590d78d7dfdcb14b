#pragma once

#include "models/embeddings.hpp"

/// What FLUX.1 and the models made from it share (diffusers 0.42.1, models/transformers/transformer_flux.py).
namespace vram::models {

/// FluxAttention with FluxAttnProcessor: joint over text and image, or over one sequence (`pre_only`: its block
/// projects the output itself).
class FluxAttention {
  public:
    FluxAttention(const nn::Builder& builder, std::int64_t dim, std::int64_t heads, std::int64_t head_dim, bool joint);

    /// hidden_states [B, S, D]; joint: encoder_hidden_states [B, T, D]; cos, sin [T+S, head_dim] →
    /// {hidden_states} or {hidden_states, encoder_hidden_states}.
    [[nodiscard]] nn::Tensors operator()(nn::Tensor hidden_states, nn::Tensor encoder_hidden_states,
                                         const nn::Tensor& cos, const nn::Tensor& sin) const;

  private:
    std::int64_t head_dim_;
    bool joint_;
    nn::RmsNorm norm_q, norm_k, norm_added_q, norm_added_k;
    nn::Linear to_q, to_k, to_v, to_out, add_q_proj, add_k_proj, add_v_proj, to_add_out;
};

/// What FluxTransformerBlock and ChromaTransformerBlock (transformer_chroma.py) do behind their first norms.
class FluxJointLayers {
  public:
    FluxJointLayers(const nn::Builder& builder, std::int64_t dim, std::int64_t heads, std::int64_t head_dim);

    /// `modulated` and `modulated_context`: {x, gate_msa, shift_mlp, scale_mlp, gate_mlp} of the first norms →
    /// encoder_hidden_states, hidden_states.
    [[nodiscard]] nn::Tensors operator()(nn::Tensor hidden_states, nn::Tensor encoder_hidden_states,
                                         nn::Tensors modulated, nn::Tensors modulated_context, const nn::Tensor& cos,
                                         const nn::Tensor& sin) const;

  private:
    FluxAttention attn;
    nn::LayerNorm norm2;
    FeedForward ff;
    nn::LayerNorm norm2_context;
    FeedForward ff_context;
};

}  // namespace vram::models
