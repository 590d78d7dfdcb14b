#pragma once

#include "nn/module.hpp"

/// transformers' masks for its text models (transformers 5.24.0, masking_utils.py).
namespace vram::models {

/// create_causal_mask and create_bidirectional_mask with attention "sdpa", no cache: attention_mask [B, T] → [B, 1, T,
/// T] bool.
[[nodiscard]] nn::Tensor sdpa_mask(const nn::Tensor& attention_mask, bool causal);

}  // namespace vram::models
