#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainers/ai_toolkit/config.hpp"

namespace vram::profile {
class Catalogue;
}  // namespace vram::profile

namespace vram::trainers::ai_toolkit {

struct Architecture;

/// What was said beside the file, by the job file's names, and has no place in the trainer's own config.
struct Overrides {
    std::string model;                // a profile, whatever the file names
    bool sizes_said = false;          // data.buckets, or data.resolution as a width and a height:
    std::vector<job::Batch> batches;  // instead of what the datasets yield
    bool references_said = false;     // data.reference_images: beside every item, whatever datasets hold
    std::vector<job::PictureSize> references;
    const Architecture* architecture = nullptr;  // the file's or the setting's; null after a complaint
    std::int64_t text_tokens = 0;
    job::Environment environment;
    job::Card card;
};

/// What a job file leaves to the trainer: its defaults, in bf16, without samples, at the model's resolution.
[[nodiscard]] Config job_defaults();

/// Applies what stands under the document's root key `vramest` (`--set train.batch_size=2`) to the config that was
/// read; of a job file, what stands in it.
[[nodiscard]] Overrides apply_overrides(const io::Document& document, const profile::Catalogue& catalogue,
                                        Config& config, Diagnostics& complaints, Diagnostics& notes);

}  // namespace vram::trainers::ai_toolkit
