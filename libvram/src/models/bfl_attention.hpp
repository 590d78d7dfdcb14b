#pragma once

#include <span>

#include "nn/module.hpp"

/// Attention as Black Forest Labs wrote it for FLUX.1 and FLUX.2, which trainers' own classes have kept
/// (src/flux/math.py and modules/layers.py there): the rotary embedding in elementary steps, tables an item.
namespace vram::models {

/// "B L (K H D) -> K B H L D": q, k, v as views.
[[nodiscard]] nn::Tensors heads_of(const nn::Tensor& qkv, std::int64_t heads);

/// attention: q, k, v [B, H, L, D], pe [B, 1, L, D/2, 2, 2] → [B, L, H D]
[[nodiscard]] nn::Tensor bfl_attention(const nn::Tensor& q, const nn::Tensor& k, const nn::Tensor& v,
                                       const nn::Tensor& pe);

/// EmbedND: ids [B, L, axes] → [B, 1, L, D / 2, 2, 2] fp32. The exponents are counted in `counted`.
[[nodiscard]] nn::Tensor embed_nd(const nn::Tensor& ids, std::span<const std::int64_t> axes_dim, Dtype counted);

}  // namespace vram::models
