#pragma once

#include "nn/module.hpp"

namespace vram::nn::adapter {

/// ai-toolkit's LoRAModule around a linear: matrices in fp32 (Rules::adapter_dtype), each adapted linear's input cast
/// to them and kept, the result scaled twice (scale, multiplier) before it is cast back. Two scalar buffers a module:
/// _runtime_scale, alpha. Source: toolkit/network_mixins.py, ToolkitModuleMixin.forward and _call_forward;
/// toolkit/lora_special.py, LoRAModule (27a03a91).
extern const AdapterStyle toolkit;

}  // namespace vram::nn::adapter
