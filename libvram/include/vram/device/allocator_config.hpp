#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "vram/base/bytes.hpp"
#include "vram/base/diagnostic.hpp"
#include "vram/base/expected.hpp"

namespace vram::device {

/// No limit, for sizes and capacities. One PiB: above any card, far below 63 bits.
inline constexpr Bytes unlimited = Bytes{1} << 50;

/// What PYTORCH_CUDA_ALLOC_CONF (PYTORCH_ALLOC_CONF) can say about device memory, in bytes. The defaults are torch's.
/// Source: c10/core/AllocatorConfig.h and c10/cuda/CUDAAllocatorConfig.h, torch 2.13.
struct AllocatorConfig {
    enum class Backend : std::uint8_t { native, cuda_malloc_async };

    Backend backend = Backend::native;
    /// Ignored by torch on Windows before the releases that support it; whoever knows the platform clears it.
    bool expandable_segments = false;
    /// Blocks of this size and above are never split.
    Bytes max_split_size = unlimited;
    /// How much larger than a request >= max_split_size a block may be that serves it whole. Default since 2.11:
    /// large_segment_size. Before 2.6 always 20 MiB.
    Bytes max_non_split_rounding = 20 * MiB;
    /// Segment for requests between 1 and 10 MiB, and the page of expandable segments of the large pool (2.11).
    Bytes large_segment_size = 20 * MiB;
    /// 0: off. Acts only together with a memory fraction below 1.
    double garbage_collection_threshold = 0;
    /// Below 1, segments may not exceed this share of the card's total. 1: no limit of torch's own.
    double per_process_memory_fraction = 1;
    /// With a fraction below 1: fail at once instead of giving back cached segments first (2.12, pytorch PR 179473).
    bool throw_on_cudamalloc_oom = false;
    /// Divisions between two powers of two, by the power of two below the request: 1 MiB (and less), 2 MiB, … 32 GiB
    /// and more. 0 and 1: off.
    std::array<std::int64_t, 16> roundup_power2_divisions{};

    bool operator==(const AllocatorConfig&) const = default;
};

/// Reads "expandable_segments:True,max_split_size_mb:128". An empty text gives the defaults; what is unknown or out of
/// range is a complaint, all of them at once, `key` being the option and `nearest` a right one.
/// Stricter than torch where torch guesses: "128abc" is no number, a missing ':' is a complaint.
/// Options that concern host memory, graphs or locks are checked by name only. `notes` takes what is understood and not
/// modelled (warnings), and may be null.
[[nodiscard]] expected<AllocatorConfig> parse(std::string_view alloc_conf, const Place& place = {},
                                              Diagnostics* notes = nullptr);

}  // namespace vram::device
