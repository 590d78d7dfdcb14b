#pragma once

#include <span>

#include "nn/module.hpp"

/// Attention as Black Forest Labs wrote it for FLUX.1 and FLUX.2, which trainers' own classes have kept
/// (src/flux/math.py and modules/layers.py there): the rotary embedding in elementary steps, tables an item.
namespace vram::models {

/// "B L (K H D) -> K B H L D": q, k, v as views.
[[nodiscard]] nn::Tensors heads_of(const nn::Tensor& qkv, std::int64_t heads);

/// attention: q, k, v [B, H, L, D], pe [B, 1, L, D/2, 2, 2] → [B, L, H D]; a mask of those that are seen, or undefined
[[nodiscard]] nn::Tensor bfl_attention(const nn::Tensor& q, const nn::Tensor& k, const nn::Tensor& v,
                                       const nn::Tensor& pe, const nn::Tensor& mask = {});

/// Of apply_rope: x [B, H, L, D] as pairs [B, H, L, D/2, 1, 2] in fp32.
[[nodiscard]] nn::Tensor bfl_pairs(const nn::Tensor& x);
/// freqs_cis[..., 0] * x_[..., 0] + freqs_cis[..., 1] * x_[..., 1]
[[nodiscard]] nn::Tensor bfl_turned(const nn::Tensor& x_, const nn::Tensor& freqs_cis);

/// (1 + scale) * norm(x) + shift
[[nodiscard]] nn::Tensor modulated_norm(const nn::LayerNorm& norm, const nn::Tensor& x, const nn::Tensor& scale,
                                        const nn::Tensor& shift);

/// A linear, an activation and a linear; who calls it holds its argument, as Module.__call__ does.
class Mlp {
  public:
    using Activation = nn::Tensor (*)(shadow::Arg);
    struct Names {
        std::string_view in, out;
    };
    struct Sizes {
        std::int64_t in, wide, inner, out;  // `wide`: what the activation is handed, `inner`: what it leaves
    };
    Mlp(const nn::Builder& builder, const Names& names, const Sizes& sizes, bool bias, Activation activation);
    [[nodiscard]] nn::Tensor operator()(nn::Tensor x) const;

  private:
    nn::Linear in_, out_;
    Activation activation_;
};

/// The same as a Sequential.
class BflMlp : public Mlp {
  public:
    /// `out` 0: as `dim`.
    BflMlp(const nn::Builder& builder, std::int64_t dim, std::int64_t wide, std::int64_t inner, bool bias,
           Activation activation, std::int64_t out = 0)
        : Mlp(builder, {"0", "2"}, {dim, wide, inner, out > 0 ? out : dim}, bias, activation) {}
};

/// What timestep_embedding makes of t [B] and its frequencies [dim / 2]: cosines, then sines, [B, dim] in fp32, cast
/// within the call to `dtype`.
[[nodiscard]] nn::Tensor bfl_waves(const nn::Tensor& t, const nn::Tensor& freqs, Dtype dtype);
/// timestep_embedding, whose frequencies are made on the CPU: t [B] → [B, dim] fp32, cast within the call to `dtype`.
[[nodiscard]] nn::Tensor bfl_timestep_embedding(const nn::Tensor& t, std::int64_t dim, Dtype dtype);

/// RMSNorm._norm: x * rsqrt(x.pow(2).mean(-1, keepdim=True) + eps).
[[nodiscard]] nn::Tensor plain_rms(nn::Tensor x);

/// RMSNorm of Wan's and HunyuanVideo's authors: in fp32, the weight in the input's dtype.
class Fp32RmsNorm {
  public:
    Fp32RmsNorm() = default;
    Fp32RmsNorm(const nn::Builder& builder, std::int64_t dim) : weight(&builder.parameter("weight", {dim})) {}
    [[nodiscard]] nn::Tensor operator()(nn::Tensor x) const;

  private:
    nn::Parameter* weight = nullptr;
};

/// EmbedND: ids [B, L, axes] → [B, 1, L, D / 2, 2, 2] fp32. The exponents are counted in `counted`.
[[nodiscard]] nn::Tensor embed_nd(const nn::Tensor& ids, std::span<const std::int64_t> axes_dim, Dtype counted);

}  // namespace vram::models
