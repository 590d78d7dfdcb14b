#pragma once

#include "nn/module.hpp"

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

}  // namespace vram::models
