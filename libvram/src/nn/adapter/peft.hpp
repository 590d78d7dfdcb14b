#pragma once

#include "nn/module.hpp"

namespace vram::nn::adapter {

/// PEFT's lora.Linear (peft 0.21): the input is cast to the adapter's dtype, and the sum back to the base's.
extern const AdapterStyle peft;

}  // namespace vram::nn::adapter
