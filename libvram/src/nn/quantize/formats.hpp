#pragma once

#include <span>
#include <string_view>

#include "nn/weights.hpp"

namespace vram::nn::quantize {

/// Every format, named by library and scheme: "quanto_qfloat8", "toolkit_uint3".
[[nodiscard]] std::span<const Quantizer* const> formats();
/// Null where none has this name.
[[nodiscard]] const Quantizer* format_named(std::string_view id);

}  // namespace vram::nn::quantize
