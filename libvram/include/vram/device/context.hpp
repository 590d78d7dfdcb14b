#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vram/base/bytes.hpp"
#include "vram/profile/device_profile.hpp"
#include "vram/shadow/trace.hpp"

namespace vram::device {

/// Memory of the process that torch's allocator does not count. No run can count it, so it has a range and a source.
struct OutsidePart {
    shadow::Category category = shadow::Category::context;  // context or libraries
    Bytes low = 0, high = 0;
    std::string source;
    bool operator==(const OutsidePart&) const = default;
};

/// How the process loads CUDA kernels.
enum class ModuleLoading : std::uint8_t {
    lazy,   // on first use; the default since CUDA 11.8 and torch 1.13
    eager,  // CUDA_MODULE_LOADING=EAGER, or older: every kernel of every library at the start
};

/// What stands beside the reserved memory in nvidia-smi for one process on this card: one part of category context,
/// which holds what the libraries of a training load, and, with eager loading, one of category libraries. Measured on
/// Linux; no public Windows number is known, so that range is widened by two fifths to both sides. Not in it: NCCL,
/// managed memory of paged optimizers, other processes and the desktop.
[[nodiscard]] std::vector<OutsidePart> outside_parts(const profile::DeviceProfile& card, profile::Os os,
                                                     ModuleLoading loading = ModuleLoading::lazy);

/// The context of a card without a profile, from its size alone. `multiprocessors` > 0.
[[nodiscard]] profile::MemoryRange context_by_size(std::int32_t multiprocessors);

}  // namespace vram::device
