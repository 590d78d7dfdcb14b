#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "vram/io/edit.hpp"

namespace vram::job {

/// `--set key=value`: a key of the job file (job-file.md §1), and its value as YAML flow.
struct Setting {
    std::string key, value;
    bool operator==(const Setting&) const = default;
};

/// What a change pulls at. Where it stands in a file is the trainer's to say; which is tried first is advise's.
enum class Lever : std::uint8_t {
    gradient_checkpointing,
    frames,
    batch_size,
    resolution,
    samples,
    text_encoder,
    latent_cache,
    vae_tiling,
    low_vram,
    quantization,
    offloading,
    optimizer,
    precision,
    ema,
    rank,
    allocator,
    other_processes,
    pace,  // how many, how often: moves no peak, and people try it
};
[[nodiscard]] std::string_view to_text(Lever lever);  // "gradient_checkpointing"

/// What a change costs, the worst of it.
enum class Price : std::uint8_t {
    nothing,
    disk,
    previews,  // what is rendered to look at is smaller, or missing
    speed,
    precision,  // numbers are rounded more
    quality,    // the result is another
};
[[nodiscard]] std::string_view to_text(Price price);  // "speed"

/// One thing that a user may change so that a job needs less.
struct Change {
    Lever lever = Lever::pace;
    std::string text;                 // "batch size 1 instead of 4"
    std::vector<io::Edit> edits{};    // of the user's file, in its trainer's keys
    std::vector<Setting> settings{};  // of what surrounds it: the allocator, other processes
    Price price = Price::nothing;
    std::string cost{};   // in words, with its source where that is a figure; empty: nothing
    std::string panel{};  // where the trainer's own interface has it: "Training > Batch Size"; empty: nowhere
    std::string shell{};  // what is typed instead of an edit: "export PYTORCH_CUDA_ALLOC_CONF=…"
    bool operator==(const Change&) const = default;
};

}  // namespace vram::job
