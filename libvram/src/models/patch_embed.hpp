#pragma once

#include "nn/module.hpp"

/// diffusers' patches of a picture, with a table of sines for where they lie (diffusers 0.42.1, models/embeddings.py).
namespace vram::models {

/// PatchEmbed: latent [B, C, H, W] → [B, S, D], not contiguous.
class PatchEmbed {
  public:
    struct Sizes {
        std::int64_t patch_size, in_channels, dim, sample_size;
        std::int64_t pos_embed_max_size = 0;  // patches a side of the table, which is cropped; 0: none, the table is of
                                              // sample_size and another is made for other sizes
    };
    PatchEmbed() = default;
    PatchEmbed(const nn::Builder& builder, const Sizes& sizes);
    [[nodiscard]] nn::Tensor operator()(nn::Tensor latent) const;

  private:
    [[nodiscard]] nn::Tensor cropped_pos_embed(std::int64_t height, std::int64_t width) const;

    Sizes sizes_{};
    nn::Conv proj;
    nn::Parameter* pos_embed = nullptr;  // a buffer
};

/// get_1d_sincos_pos_embed_from_grid: pos [..] → [M, size] fp64, on the GPU.
[[nodiscard]] nn::Tensor sincos_pos_embed_1d(std::int64_t size, nn::Tensor pos);
/// get_2d_sincos_pos_embed_from_grid: grid [2, ..] → [M, size] fp64.
[[nodiscard]] nn::Tensor sincos_pos_embed_2d(std::int64_t size, const nn::Tensor& grid);

/// What a transformer over patches ends with: [B, S, patch² · channels] → [B, channels, height, width].
[[nodiscard]] nn::Tensor unpatchify(nn::Tensor hidden_states, std::int64_t height, std::int64_t width,
                                    std::int64_t patch_size, std::int64_t channels);

}  // namespace vram::models
