#pragma once

#include <span>

#include "nn/module.hpp"

/// diffusers' embedding helpers that many families share (diffusers 0.42.1, models/embeddings.py).
namespace vram::models {

/// get_timestep_embedding: timesteps [N] → [N, size] fp32.
[[nodiscard]] nn::Tensor timestep_embedding(nn::Tensor timesteps, std::int64_t size, bool flip_sin_to_cos);

/// get_1d_rotary_pos_embed(use_real, repeat_interleave_real): positions [S] → cos, sin [S, size] fp32.
[[nodiscard]] nn::Tensors rotary_pos_embed_1d(nn::Tensor positions, std::int64_t size, Dtype freqs_dtype);

/// FluxPosEmbed, Flux2PosEmbed: ids [S, axes] → cos, sin [S, sum of axes_dims] fp32.
[[nodiscard]] nn::Tensors flux_pos_embed(nn::Tensor ids, std::span<const std::int64_t> axes_dims);

/// torch.meshgrid(f, h, w, indexing="ij") of [F], [H], [W]: three views [F, H, W].
[[nodiscard]] nn::Tensors meshgrid(const nn::Tensor& f, const nn::Tensor& h, const nn::Tensor& w);

/// apply_rotary_emb(use_real, unbind last dimension): x [B, S, H, D] with cos, sin [S, D].
[[nodiscard]] nn::Tensor apply_rotary_emb(nn::Tensor x, const nn::Tensor& cos, const nn::Tensor& sin, int sequence_dim);

/// apply_rotary_emb of LTX, apply_interleaved_rotary_emb of LTX-2: x [B, S, C] with cos, sin [B, S, C].
[[nodiscard]] nn::Tensor apply_interleaved_rotary_emb(nn::Tensor x, const nn::Tensor& cos, const nn::Tensor& sin);

/// TimestepEmbedding: linear, silu, linear.
class TimestepEmbedding {
  public:
    TimestepEmbedding() = default;
    TimestepEmbedding(const nn::Builder& builder, std::int64_t in, std::int64_t size, bool bias = true);
    [[nodiscard]] nn::Tensor operator()(nn::Tensor sample) const;
    [[nodiscard]] Dtype dtype() const { return linear_1.bias->value.dtype(); }  ///< of the first parameter

  private:
    nn::Linear linear_1, linear_2;
};

/// PixArtAlphaCombinedTimestepSizeEmbeddings without additional conditions: timestep [N] → [N, size].
class CombinedTimestepEmbeddings {
  public:
    CombinedTimestepEmbeddings() = default;
    CombinedTimestepEmbeddings(const nn::Builder& builder, std::int64_t size);
    [[nodiscard]] nn::Tensor operator()(nn::Tensor timestep, Dtype hidden_dtype) const;

  private:
    TimestepEmbedding timestep_embedder;
};

/// PixArtAlphaTextProjection with silu or tanh-gelu: linear, activation, linear.
class TextProjection {
  public:
    enum class Activation : std::uint8_t { silu, gelu_tanh };
    TextProjection() = default;
    TextProjection(const nn::Builder& builder, std::int64_t in, std::int64_t size, Activation activation);
    [[nodiscard]] nn::Tensor operator()(nn::Tensor caption) const;

  private:
    nn::Linear linear_1, linear_2;
    Activation activation_ = Activation::silu;
};

/// FeedForward of diffusers' attention.py: an activation's projection, then a linear.
class FeedForward {
  public:
    enum class Activation : std::uint8_t { gelu, geglu, swiglu, linear_silu };
    FeedForward() = default;
    FeedForward(const nn::Builder& builder, std::int64_t size, std::int64_t inner, Activation activation,
                std::int64_t out_size = 0,  ///< 0: as `size`
                bool bias = true);
    [[nodiscard]] nn::Tensor operator()(nn::Tensor hidden_states) const;

  private:
    nn::Linear proj, out;
    Activation activation_ = Activation::gelu;
};

}  // namespace vram::models
