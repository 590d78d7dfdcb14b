#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "trainers/sd_scripts/arguments.hpp"
#include "vram/job/job.hpp"

namespace vram::profile {
class Catalogue;
}

namespace vram::trainers::sd_scripts {

/// What was said beside the file, by the job file's names, and has no place among the trainer's arguments.
struct Overrides {
    bool sizes_said = false;                 // data.buckets, or data.resolution as a width and a height:
    std::vector<job::PictureSize> sizes;     // instead of what the datasets yield
    std::optional<std::int64_t> batch_size;  // of every dataset
    std::optional<std::int64_t> resolution;  // a side, of every dataset
    std::optional<std::int64_t> text_tokens;
    std::optional<job::Sampling> sampling;  // instead of what the prompts say
    job::Environment environment;
    job::Card card;
};

/// The model that stands under `vramest.model`, or in a job file; null: none does, or there is a complaint.
[[nodiscard]] const profile::ModelProfile* said_model(const io::Document& document, const profile::Catalogue& catalogue,
                                                      Diagnostics& complaints);

/// What a job file leaves to the trainer: bf16, attention by scaled_dot_product_attention, the denoiser's LoRA alone.
[[nodiscard]] Config job_defaults(const profile::ModelProfile& model);

/// Applies what stands under the root's key `vramest` (`--set train.batch_size=2`) to the arguments; of a job file,
/// what stands in it.
[[nodiscard]] Overrides apply_overrides(const io::Document& document, const profile::Catalogue& catalogue,
                                        Config& config, Diagnostics& complaints, Diagnostics& notes);

}  // namespace vram::trainers::sd_scripts
