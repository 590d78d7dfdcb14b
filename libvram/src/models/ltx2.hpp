#pragma once

#include <cstdint>

#include "shadow/tensor.hpp"

/// What pipelines compute beside LTX2VideoTransformer3DModel (diffusers 0.42.1,
/// models/transformers/transformer_ltx2.py).
namespace vram::models::ltx2 {

/// A latent clip.
struct Grid {
    std::int64_t num_frames, height, width;
};

/// LTX2AudioVideoRotaryPosEmbed.prepare_video_coords: where each patch begins and ends, in pixels and seconds,
/// [B, 3, S, 2].
[[nodiscard]] shadow::Tensor prepare_video_coords(shadow::Run& run, std::int64_t batch_size, const Grid& size);
/// prepare_audio_coords: where each latent begins and ends, in seconds, [B, 1, L, 2].
[[nodiscard]] shadow::Tensor prepare_audio_coords(shadow::Run& run, std::int64_t batch_size, std::int64_t num_frames);

/// Latents of the sound of so many frames: 25 a second (16000 samples / 160 a hop / 4), rounded to even as Python does.
[[nodiscard]] std::int64_t audio_latents_of(std::int64_t frames, std::int64_t fps);

}  // namespace vram::models::ltx2
