#pragma once

#include <array>
#include <vector>

#include "vram/io/fields.hpp"
#include "vram/job/job.hpp"
#include "vram/profile/model_profile.hpp"

namespace vram::trainers::torch {

/// The keys of `data`.
struct Sizes {
    std::vector<job::Batch> batches;  // never empty; those of a text encoder have no width and height
    std::int64_t text_tokens = 0;
    std::vector<std::array<std::int64_t, 2>> reference_images;
};

/// Sizes that the model cannot take are complaints that name the nearest one that it can. `profile` may be null where
/// the model is unknown; then only ranges are looked at. Buckets need a training loop; one that is written twice is
/// played once (a note).
[[nodiscard]] Sizes read_sizes(const io::Document& document, io::Fields& job, const profile::ModelProfile* profile,
                               bool trains, std::int64_t batch_size, Diagnostics& complaints, Diagnostics& notes);

}  // namespace vram::trainers::torch
