#include "advise/practice.hpp"

#include <algorithm>
#include <array>

namespace vram::advise {
namespace {

using enum job::Lever;

constexpr std::array images{gradient_checkpointing,
                            batch_size,
                            resolution,
                            samples,
                            text_encoder,
                            latent_cache,
                            vae_tiling,
                            low_vram,
                            precision,
                            quantization,
                            offloading,
                            optimizer,
                            ema,
                            rank,
                            frames,
                            allocator,
                            other_processes,
                            pace};
constexpr std::array videos{gradient_checkpointing,
                            frames,
                            batch_size,
                            resolution,
                            samples,
                            text_encoder,
                            latent_cache,
                            vae_tiling,
                            low_vram,
                            precision,
                            offloading,
                            quantization,
                            optimizer,
                            ema,
                            rank,
                            allocator,
                            other_processes,
                            pace};

static_assert(images.size() == static_cast<std::size_t>(pace) + 1 && videos.size() == images.size(), "every lever");

}  // namespace

std::size_t place_of(job::Lever lever, bool is_video) {
    const auto& order = is_video ? videos : images;
    return static_cast<std::size_t>(std::find(order.begin(), order.end(), lever) - order.begin());
}

}  // namespace vram::advise
