#pragma once

#include "nn/weights.hpp"

namespace vram::nn::adapter {

/// Registers the two weights of a LoRA, lora_down [rank, in, ...] and lora_up [out, rank, 1, ...], which starts at
/// zero: the first two of Adapter::own.
void add_low_rank(Weights& weights, Adapter& adapter);

}  // namespace vram::nn::adapter
