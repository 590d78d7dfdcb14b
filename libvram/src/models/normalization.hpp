#pragma once

#include "models/embeddings.hpp"

/// diffusers' adaptive norms that several families share (diffusers 0.42.1, models/normalization.py).
namespace vram::models {

/// FP32LayerNorm: in fp32 whatever comes in, the result in the input's dtype.
class Fp32LayerNorm {
  public:
    Fp32LayerNorm() = default;
    Fp32LayerNorm(const nn::Builder& builder, std::string_view name, std::int64_t size, bool affine);
    [[nodiscard]] nn::Tensor operator()(nn::Tensor inputs) const;

  private:
    nn::LayerNorm norm;
};

/// x * (1 + scale) + shift: scale and shift broadcast to x, which is let go, if it was moved in, once it is multiplied.
[[nodiscard]] nn::Tensor modulate(nn::Tensor x, const nn::Tensor& scale, const nn::Tensor& shift);

/// x * (1 + scale[:, None]) + shift[:, None]: x [B, S, D]; scale, shift [B, D].
[[nodiscard]] nn::Tensor scale_and_shift(const nn::Tensor& x, const nn::Tensor& scale, const nn::Tensor& shift);

/// AdaLayerNormZero: x [B, S, D], emb [B, D] → {x, gate_msa, shift_mlp, scale_mlp, gate_mlp}, all but x [B, D].
class AdaLayerNormZero {
  public:
    enum class Norm : std::uint8_t { layer_norm, fp32_layer_norm };
    AdaLayerNormZero() = default;
    AdaLayerNormZero(const nn::Builder& builder, std::int64_t size, Norm norm_type = Norm::layer_norm,
                     bool bias = true);
    [[nodiscard]] nn::Tensors operator()(nn::Tensor x, nn::Tensor emb) const;

  private:
    Norm norm_type_ = Norm::layer_norm;
    nn::Linear linear;
    nn::LayerNorm norm;
    Fp32LayerNorm fp32_norm;
};

/// SD35AdaLayerNormZeroX, with the same shapes: {x, gate_msa, shift_mlp, scale_mlp, gate_mlp, x2, gate_msa2}.
class Sd35AdaLayerNormZeroX {
  public:
    Sd35AdaLayerNormZeroX() = default;
    Sd35AdaLayerNormZeroX(const nn::Builder& builder, std::int64_t size);
    [[nodiscard]] nn::Tensors operator()(nn::Tensor hidden_states, nn::Tensor emb) const;

  private:
    nn::Linear linear;
    nn::LayerNorm norm;
};

/// AdaLayerNormZeroSingle, with the same shapes: {x, gate_msa}.
class AdaLayerNormZeroSingle {
  public:
    AdaLayerNormZeroSingle() = default;
    AdaLayerNormZeroSingle(const nn::Builder& builder, std::int64_t size);
    [[nodiscard]] nn::Tensors operator()(nn::Tensor x, nn::Tensor emb) const;

  private:
    nn::Linear linear;
    nn::LayerNorm norm;
};

/// AdaLayerNormContinuous with a norm without affine: x [B, S, D], conditioning_embedding [B, C] → [B, S, D].
class AdaLayerNormContinuous {
  public:
    AdaLayerNormContinuous() = default;
    AdaLayerNormContinuous(const nn::Builder& builder, std::int64_t size, std::int64_t conditioning, bool bias = true);
    [[nodiscard]] nn::Tensor operator()(nn::Tensor x, nn::Tensor conditioning_embedding) const;

  private:
    nn::Linear linear;
    nn::LayerNorm norm;
};

/// RMSNorm, in elementary steps: the square, its mean and the product in fp32 where the input or the statistics are.
class PlainRmsNorm {
  public:
    PlainRmsNorm() = default;  ///< without a weight: the result is in the input's dtype
    PlainRmsNorm(const nn::Builder& builder, std::int64_t size, bool bias = false);
    [[nodiscard]] nn::Tensor operator()(nn::Tensor hidden_states) const;

  private:
    nn::Parameter *weight = nullptr, *bias = nullptr;
};

/// AdaLayerNormSingle without additional conditions, LTX2AdaLayerNormSingle: timestep [N] → {modulation [N, vectors x
/// size], embedded_timestep [N, size]}. No norm is in it.
class AdaLayerNormSingle {
  public:
    AdaLayerNormSingle() = default;
    AdaLayerNormSingle(const nn::Builder& builder, std::int64_t size, std::int64_t vectors = 6);
    [[nodiscard]] nn::Tensors operator()(nn::Tensor timestep, Dtype hidden_dtype) const;

  private:
    CombinedTimestepEmbeddings emb;
    nn::Linear linear;
};

}  // namespace vram::models
