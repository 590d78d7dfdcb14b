#pragma once

#include "vram/base/bytes.hpp"

namespace vram {

/// The least that torch's allocators hand out; every block is a multiple. Source: c10/core/AllocatorConfig.h,
/// kMinBlockSize.
inline constexpr Bytes min_block = 512;

/// What a storage of `bytes` >= 0 takes: whole blocks. Throws Overflow past 63 bits.
[[nodiscard]] inline Bytes in_blocks(Bytes bytes) { return checked_add(bytes, min_block - 1) / min_block * min_block; }

}  // namespace vram
