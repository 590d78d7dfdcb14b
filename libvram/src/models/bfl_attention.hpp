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

/// (1 + scale) * norm(x) + shift
[[nodiscard]] nn::Tensor modulated_norm(const nn::LayerNorm& norm, const nn::Tensor& x, const nn::Tensor& scale,
                                        const nn::Tensor& shift);

/// Sequential of a linear, an activation and a linear, "0" and "2".
class BflMlp {
  public:
    using Activation = nn::Tensor (*)(nn::Tensor);
    /// `wide`: what the activation is handed, `inner`: what it leaves; `out` 0: as `dim`.
    BflMlp(const nn::Builder& builder, std::int64_t dim, std::int64_t wide, std::int64_t inner, bool bias,
           Activation activation, std::int64_t out = 0);
    [[nodiscard]] nn::Tensor operator()(nn::Tensor x) const;

  private:
    nn::Linear in_, out_;
    Activation activation_;
};

/// timestep_embedding, whose frequencies are made on the CPU: t [B] → [B, dim] fp32, cast within the call to `dtype`.
[[nodiscard]] nn::Tensor bfl_timestep_embedding(const nn::Tensor& t, std::int64_t dim, Dtype dtype);

/// EmbedND: ids [B, L, axes] → [B, 1, L, D / 2, 2, 2] fp32. The exponents are counted in `counted`.
[[nodiscard]] nn::Tensor embed_nd(const nn::Tensor& ids, std::span<const std::int64_t> axes_dim, Dtype counted);

}  // namespace vram::models
