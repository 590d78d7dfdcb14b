#pragma once

#include <array>

#include "nn/module.hpp"

/// What diffusers' Z-Image (0.42.1, models/transformers/transformer_z_image.py) and musubi-tuner's (30c658c,
/// src/musubi_tuner/zimage/zimage_model.py) have in common.
namespace vram::models {

class ZImageTimestepEmbedder {
  public:
    ZImageTimestepEmbedder() = default;
    ZImageTimestepEmbedder(const nn::Builder& builder, std::int64_t out_size, std::int64_t mid_size);
    /// t [B] → [B, out_size]
    [[nodiscard]] nn::Tensor operator()(nn::Tensor t) const;

  private:
    nn::Linear linear_1, linear_2;
};

class ZImageFinalLayer {
  public:
    ZImageFinalLayer() = default;
    ZImageFinalLayer(const nn::Builder& builder, std::int64_t hidden_size, std::int64_t out_channels);
    /// x [B, S, D], c [B, 256] → [B, S, out_channels]
    [[nodiscard]] nn::Tensor operator()(nn::Tensor x, nn::Tensor c) const;

  private:
    nn::LayerNorm norm_final;
    nn::Linear linear, adaLN_modulation;
};

inline constexpr std::int64_t z_image_adaln_embed_dim = 256;

/// apply_rotary_emb, in fp32 whatever autocast says: x [B, S, H, D] with freqs_cis [B, S, D / 2] complex64.
[[nodiscard]] nn::Tensor z_image_rotary_emb(const nn::Tensor& x, const nn::Tensor& freqs_cis);

/// create_coordinate_grid, flattened: [F * H * W, 3] int32
[[nodiscard]] nn::Tensor z_image_coordinate_grid(shadow::Run& run, const std::array<std::int64_t, 3>& size);

}  // namespace vram::models
