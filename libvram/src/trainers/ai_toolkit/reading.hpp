#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainers/ai_toolkit/config.hpp"
#include "trainers/ai_toolkit/section.hpp"
#include "vram/io/document.hpp"

namespace vram::trainers::ai_toolkit {

// The parts of read_config, a file each. All take the section of the one process, and write what it says.

/// What a config may say at most. The trainer has no bounds; these are far beyond any card, and keep the sizes of one
/// tensor within 63 bits.
inline constexpr std::int64_t most_items = 4096;       // in a batch, and batches that accumulate
inline constexpr std::int64_t most_side = 65536;       // pixels
inline constexpr std::int64_t most_frames = 4097;      // of a video
inline constexpr std::int64_t most_rank = 65536;       // FLUX's widest linear has 15360 features
inline constexpr std::int64_t most_steps = 10'000;     // of a sampler; its schedule is a tensor
inline constexpr std::int64_t most_datasets = 10'000;  // one for each resolution: what a person can have meant
inline constexpr std::int64_t most_path = 4096;        // bytes: Linux's PATH_MAX

/// The rank that lokr_full_rank stands for: no factor is taken apart. Source: config_modules.py, NetworkConfig.
inline constexpr std::int64_t no_rank = 9'999'999'999;

/// GenerateImageConfig takes no smaller side of a sample.
inline constexpr std::int64_t smallest_sample = 64;

/// read_model.cpp: `model`. What is trained comes first: an architecture that is not modelled makes all else moot, and
/// `process.reading.modelled` false.
void read_arch(Section& process, Config& config);
void read_model(Section& process, Config& config);
/// read_network.cpp: `network`; without it the model itself is trained.
void read_network(Section& process, Config& config);
/// read_train.cpp: `train`.
void read_train(Section& process, Config& config);
/// read_optimizer.cpp: `optimizer` and `optimizer_params` of `train`, and the names that the trainer has for them.
[[nodiscard]] job::Optimizer read_optimizer(Section& train);
[[nodiscard]] std::span<const io::Choice<job::Optimizer>> optimizer_names();
/// read_datasets.cpp: `datasets`, after `train`, which says what they do not.
void read_datasets(Section& process, Config& config);
/// read_slider.cpp: `slider` of concept_slider, after all that says what is trained.
void read_concept_slider(Section& process, Config& config);
/// read_samples.cpp: `sample` or `first_sample`.
[[nodiscard]] SampleConfig read_sample(Section& process, std::string_view key);

/// `train.noise_scheduler` or `sample.sampler`, by the names of get_sampler; "ddpm" where it is not said. Those of
/// diffusion models are played as one; an architecture without them is played by "flowmatch".
[[nodiscard]] std::string read_scheduler(Section& section, std::string_view key);

/// A path or a name under `key` with the job's name for each `[name]` in it; empty, after a complaint, beyond
/// most_path and with a NUL. `text` is what stands there.
[[nodiscard]] std::string path_of(Section& section, std::string_view key, const std::string& text);

}  // namespace vram::trainers::ai_toolkit
