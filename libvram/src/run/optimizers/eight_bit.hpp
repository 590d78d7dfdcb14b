#pragma once

#include "shadow/ops.hpp"

namespace vram::run {

// toolkit.optimizers.optimizer_utils.Auto8bitTensor (ai-toolkit 27a03a9): int8 with one scale a tensor, a number on the
// CPU. The tensor here is its `quantized`.

/// Auto8bitTensor(data)
[[nodiscard]] shadow::Tensor quantize(const shadow::Tensor& data);
/// quantized.to(torch.float32)
[[nodiscard]] shadow::Tensor dequantize(const shadow::Tensor& quantized);

}  // namespace vram::run
