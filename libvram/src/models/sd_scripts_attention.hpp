#pragma once

#include <cstdint>

#include "nn/module.hpp"

/// How CrossAttention of sd-scripts attends (48d368f, library/original_unet.py; sdxl_original_unet.py is alike).
namespace vram::models::sd_scripts {

/// CrossAttention._attention, where neither --sdpa, --xformers nor --mem_eff_attn is given: every score is made. query
/// [B H, N, D], key and value [B H, M, D] → [B, N, H D].
[[nodiscard]] nn::Tensor plain_attention(nn::Tensor query, nn::Tensor key, nn::Tensor value, std::int64_t heads);

/// FlashAttentionFunction.apply(q, k, v, None, False, 512, 1024), which --mem_eff_attn stands
/// for: attention in Python, 512 rows by 1,024 columns at a time. q, k, v [B, H, N, D] → [B, H, N, D], laid out as
/// q is.
[[nodiscard]] nn::Tensor mem_eff_attention(nn::Tensor q, nn::Tensor k, nn::Tensor v);

}  // namespace vram::models::sd_scripts
