#pragma once

#include "nn/module.hpp"

namespace vram::models::sd_scripts {

/// FlashAttentionFunction.apply(q, k, v, None, False, 512, 1024) of library/original_unet.py (48d368f), which --mem_eff_attn
/// stands for: attention in Python, 512 rows by 1,024 columns at a time. q, k, v [B, H, N, D] → [B, H, N, D], laid out as
/// q is.
[[nodiscard]] nn::Tensor mem_eff_attention(nn::Tensor q, nn::Tensor k, nn::Tensor v);

}  // namespace vram::models::sd_scripts
