#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "nn/module.hpp"

namespace vram::nn::adapter {

/// PEFT's lora.Linear (peft 0.21): the input is cast to the adapter's dtype, and the sum back to the base's.
extern const AdapterStyle peft;

/// Rules::adapts: this style on every linear whose qualified name is wanted.
[[nodiscard]] std::function<Adaptation(const LayerFacts&)> peft_of(std::function<bool(std::string_view)> wanted,
                                                                   std::int64_t rank);

}  // namespace vram::nn::adapter
