#pragma once

#include "nn/module.hpp"

/// diffusers' residual and sampling layers (diffusers 0.42.1, models/resnet.py, upsampling.py, downsampling.py).
namespace vram::models {

/// ResnetBlock2D, time_embedding_norm "default". args: hidden_states [B, C, H, W], and temb [B, T] where there is one.
class ResnetBlock2D : public nn::Block {
  public:
    /// `temb_channels` 0: no time embedding. A convolution on the shortcut where the channels change. `divides`: the
    /// sum by output_scale_factor, as diffusers does even where that is 1.
    ResnetBlock2D(const nn::Builder& parent, std::int64_t in, std::int64_t out, std::int64_t temb_channels,
                  std::int64_t groups, bool divides = true);
    [[nodiscard]] nn::Tensors forward(const nn::Tensors& args) const override;

    bool training = false;  // nn.Module.training: then the shortcut's input is made contiguous

  private:
    ResnetBlock2D(const nn::BlockBuilder& builder, std::int64_t in, std::int64_t out, std::int64_t temb_channels,
                  std::int64_t groups, bool divides);
    nn::GroupNorm norm1;
    nn::Conv conv1;
    nn::Linear time_emb_proj;
    nn::GroupNorm norm2;
    nn::Conv conv2, conv_shortcut;
    bool has_temb_, has_shortcut_, divides_;
};

/// Upsample2D with a convolution: nearest, twice the size or a given one.
class Upsample2D {
  public:
    Upsample2D() = default;
    Upsample2D(const nn::Builder& builder, std::int64_t channels);
    [[nodiscard]] nn::Tensor operator()(nn::Tensor hidden_states) const;
    [[nodiscard]] nn::Tensor operator()(nn::Tensor hidden_states, std::int64_t height, std::int64_t width) const;

  private:
    nn::Conv conv;
};

/// Downsample2D with a strided convolution; padding 0 pads right and bottom by hand first.
class Downsample2D {
  public:
    Downsample2D() = default;
    Downsample2D(const nn::Builder& builder, std::int64_t channels, std::int64_t padding,
                 std::string_view name = "conv");
    [[nodiscard]] nn::Tensor operator()(nn::Tensor hidden_states) const;

  private:
    nn::Conv conv;
    std::int64_t padding_ = 1;
};

}  // namespace vram::models
