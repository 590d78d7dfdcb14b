#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "vram/job/job.hpp"

namespace vram::trainers {

/// At most `most` > 0 of these distinct batches, in their order: those that may need the most. More items of as many
/// pixels never need less; so the one of most pixels comes first, then those that no other one exceeds in both, then
/// the rest by tokens: one for 16 x 16 pixels of a FLUX image, and `text_tokens` an item.
[[nodiscard]] std::vector<job::Batch> heaviest(const std::vector<job::Batch>& batches, std::size_t most,
                                               std::int64_t text_tokens);

}  // namespace vram::trainers
