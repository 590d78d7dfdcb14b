#pragma once

#include <functional>

#include "nn/weights.hpp"
#include "vram/job/job.hpp"

/// Which layers a network stands beside (sd-scripts 48d368fa, LoRANetwork.create_modules).
namespace vram::trainers::sd_scripts {

/// What stands beside a layer; nothing for most.
using Adapts = std::function<nn::Adaptation(const nn::LayerFacts&)>;

/// networks/lora.py, of a UNet: linears and convolutions of one point within Transformer2DModel; with conv_dim those of
/// ResnetBlock2D, Downsample2D and Upsample2D, too, and there and in the former convolutions of three.
[[nodiscard]] Adapts unet_network(const job::Lora& lora);
/// networks/lora.py and lora_flux.py, of a text encoder of CLIP: CLIPAttention and CLIPMLP.
[[nodiscard]] Adapts clip_network(const job::Lora& lora);
/// networks/lora_flux.py, of FLUX: every linear within a DoubleStreamBlock or a SingleStreamBlock.
[[nodiscard]] Adapts flux_network(const job::Lora& lora);

}  // namespace vram::trainers::sd_scripts
