#pragma once

#include "nn/module.hpp"

namespace vram::models {

/// CogVideoXSafeConv3d (diffusers 0.42.1, models/autoencoders/autoencoder_kl_cogvideox.py): inputs beyond 2 GiB of half
/// precision go through in chunks of frames.
class SafeConv3d {
  public:
    SafeConv3d(const nn::Builder& builder, std::string_view name, std::int64_t in, std::int64_t out,
               const nn::Dims& kernel, const nn::Dims& stride, const nn::Dims& padding)
        : kernel_size_(kernel[0]), conv(builder.conv(name, in, out, kernel, stride, padding)) {}

    [[nodiscard]] nn::Tensor operator()(nn::Tensor input) const;

  private:
    std::int64_t kernel_size_;  // in time
    nn::Conv conv;
};

}  // namespace vram::models
