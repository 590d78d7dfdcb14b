#pragma once

#include <cstddef>

#include "vram/job/change.hpp"

namespace vram::advise {

/// The place of a lever in the order in which practice tries them, 0 first.
///
/// Images: checkpointing → batch 1, with accumulation → the top bucket → samples → what is cached → low VRAM,
/// quantising, offloading → what changes the result. Videos: frames before the batch. The order of
/// those that no guide names is a choice, by what each costs; docs/advise.md has it whole.
[[nodiscard]] std::size_t place_of(job::Lever lever, bool is_video);

}  // namespace vram::advise
