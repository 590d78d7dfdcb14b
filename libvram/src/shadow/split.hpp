#pragma once

#include <cstdint>
#include <span>

#include "shadow/ops.hpp"

namespace vram::shadow {

/// torch.split of a dimension into any number of parts.
[[nodiscard]] Tensors split_with_sizes(Tensor x, std::span<const std::int64_t> sizes, int dim);

}  // namespace vram::shadow
