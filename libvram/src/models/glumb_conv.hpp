#pragma once

#include "models/normalization.hpp"

namespace vram::models {

/// GLUMBConv (diffusers 0.42.1, models/transformers/sana_transformer.py): x [B, C, H, W].
class GluMbConv {
  public:
    /// `norm_and_residual`: norm_type "rms_norm" and a residual connection, else neither.
    GluMbConv(const nn::Builder& builder, std::int64_t channels, std::int64_t hidden, bool norm_and_residual);
    [[nodiscard]] nn::Tensor operator()(nn::Tensor hidden_states) const;

  private:
    bool norm_and_residual_;
    nn::Conv conv_inverted, conv_depth, conv_point;
    PlainRmsNorm norm;
};

}  // namespace vram::models
