#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "vram/profile/model_profile.hpp"

namespace vram::trainers::sd_scripts {

/// A script that trains a network, for the models of one shape.
struct Script {
    std::string_view file;          // "sdxl_train_network.py"
    std::string_view architecture;  // as Pipeline::architecture has it
    std::string_view title;         // "SDXL", for sentences
    std::string_view model;         // the profile that a name which says no more stands for
    std::string_view vae;
    std::span<const std::string_view> text_encoders;
    std::string_view network_module;  // the one that is played
    std::int64_t bucket_reso_steps;   // what has to divide them: verify_bucket_reso_steps
    std::int64_t side_step;           // what has to divide the sides of what is trained on
    std::int64_t sample_step;         // sides of samples are rounded down to it
    std::int64_t sample_steps;        // of a prompt that does not say
    double sample_scale;              // of a prompt that does not say
    bool (*plays)(const profile::ModelProfile& profile);
    std::int64_t most_clip_skip = 0;  // hidden states of its text encoder, one more than its layers; 0: it has no say
};

/// The nearest side below that the model takes, and 64 at least.
[[nodiscard]] std::int64_t side_below(const Script& script, std::int64_t side);

extern const Script sd1, sd2, sdxl, flux;
/// All of them, in the order in which a profile is asked for its own.
[[nodiscard]] std::span<const Script* const> scripts();

/// The script that trains such a model; null: none that is played does.
[[nodiscard]] const Script* script_of(const profile::ModelProfile& profile);

}  // namespace vram::trainers::sd_scripts
