#pragma once

#include "nn/module.hpp"

namespace vram::models {

/// dispatch_attention_fn with its native backend (diffusers 0.42.1, models/attention_dispatch.py): query, key, value
/// [B, S, H, D] → [B, S, H, D], by way of [B, H, S, D]. `mask` may be undefined.
[[nodiscard]] nn::Tensor dispatch_attention(const nn::Tensor& query, const nn::Tensor& key, const nn::Tensor& value,
                                            const nn::Tensor& mask = {});

}  // namespace vram::models
