#pragma once

#include "nn/module.hpp"

namespace vram::nn::adapter {

/// LoRAModule of sd-scripts (48d368fa, networks/lora.py; networks/lora_flux.py is alike) around a linear or a
/// convolution: the matrices are in Rules::adapter_dtype, nothing is cast but by autocast, and the result is scaled
/// twice (multiplier, scale) in tensors of the layer's output's size. One scalar buffer a module: alpha.
extern const AdapterStyle sd_scripts;

}  // namespace vram::nn::adapter
