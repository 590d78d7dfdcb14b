#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "vram/base/expected.hpp"

namespace vram::profile {

enum class ModelKind : std::uint8_t { denoiser, vae, text_encoder };
[[nodiscard]] std::string_view to_text(ModelKind kind);

/// The constructor arguments of a model, by the names of the class that is mirrored.
///
/// The getters are for families: a key that is missing or of another type is a bug of the profile, not of a user, and
/// throws std::logic_error naming profile, key and type. The forms with a fallback throw for a wrong type only.
struct Config {
    using Value =
        std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>, std::vector<std::string>>;

    std::string profile;  // the id of the profile, for that error
    std::map<std::string, Value, std::less<>> values;

    [[nodiscard]] bool has(std::string_view key) const { return values.find(key) != values.end(); }
    [[nodiscard]] bool boolean(std::string_view key) const;
    [[nodiscard]] bool boolean(std::string_view key, bool fallback) const;
    [[nodiscard]] std::int64_t integer(std::string_view key) const;
    [[nodiscard]] std::int64_t integer(std::string_view key, std::int64_t fallback) const;
    /// Whole numbers too.
    [[nodiscard]] double number(std::string_view key) const;
    [[nodiscard]] double number(std::string_view key, double fallback) const;
    [[nodiscard]] const std::string& text(std::string_view key) const;
    [[nodiscard]] std::string text(std::string_view key, std::string_view fallback) const;
    /// A list of whole numbers; `[false, true]` reads as {0, 1}.
    [[nodiscard]] const std::vector<std::int64_t>& integers(std::string_view key) const;
    [[nodiscard]] std::vector<std::int64_t> integers(std::string_view key, std::vector<std::int64_t> fallback) const;
    [[nodiscard]] const std::vector<std::string>& texts(std::string_view key) const;

    bool operator==(const Config&) const = default;
};

/// What a job gets that does not say. 0 where the model has no such size.
struct Defaults {
    std::int64_t width = 0, height = 0;  // resolution: 1024, or [832, 480]
    std::int64_t frames = 1, text_tokens = 0;
    bool operator==(const Defaults&) const = default;
};

/// The most that the class takes, by its tables of positions. 0: no end.
struct AtMost {
    std::int64_t side = 0, frames = 0, text_tokens = 0;  // side: width and height, in pixels
    bool operator==(const AtMost&) const = default;
};

/// Who counted the parameters.
struct Passport {
    std::int64_t parameters = 0;
    std::string against;  // "the real class on the meta device", "the file's header"
    bool operator==(const Passport&) const = default;
};

/// One variant of one architecture: a file model_profiles/<id>.yaml.
///
///     schema: 1
///     id: flux1_dev                  # the file's name
///     family: flux                   # which code builds it
///     kind: denoiser                 # denoiser, vae, text_encoder
///     name: FLUX.1 dev
///     aliases: [flux, black-forest-labs/FLUX.1-dev]
///     source: FluxTransformer2DModel, diffusers 0.42.1
///     checked: {parameters: 11901408320, against: the real class on the meta device}
///     defaults: {resolution: 1024, frames: 1, text_tokens: 512}
///     divisible_by: 16               # width and height, in pixels; 1 if absent
///     frame_step: 0                  # frames are n · step + 1; 0, or absent: a single frame
///     text_divisible_by: 1           # tokens of a prompt; 1 if absent
///     fixed_resolution: false        # the class takes that of `defaults` only
///     at_most: {side: 16384, frames: 4093, text_tokens: 77}     # where the class has an end
///     reference_images: false        # edit models: takes pictures beside the prompt
///     forwards: {sd_scripts: flux_sd_scripts}   # trainers that run a forward of their own, and the family of each
///     keep_in_fp32: []               # name parts, as the class's _keep_in_fp32_modules
///     config: {num_layers: 19, num_single_layers: 38, axes_dims_rope: [16, 56, 56]}
struct ModelProfile {
    std::string id, family, name, source;
    ModelKind kind = ModelKind::denoiser;
    std::vector<std::string> aliases;  // other names, Hugging Face repositories among them
    Passport checked;
    Defaults defaults;
    std::int64_t divisible_by = 1, frame_step = 0, text_divisible_by = 1;
    bool fixed_resolution = false;
    AtMost at_most;
    bool reference_images = false;
    std::map<std::string, std::string, std::less<>> forwards;
    std::vector<std::string> keep_in_fp32;
    Config config;
    bool operator==(const ModelProfile&) const = default;
};

/// The profile with the forward that a trainer has of its own in the place of `source`'s: another family builds it, or
/// the same one, which reads `forward` from the config. `keep_in_fp32` is empty then: it is diffusers' loader that
/// keeps parts in fp32. `forward` is one of `profile.forwards`: std::out_of_range otherwise.
[[nodiscard]] ModelProfile with_forward(ModelProfile profile, std::string_view forward);

/// Reads a profile strictly: unknown, missing, duplicate and ill-typed keys are errors with their place, all at once;
/// the id must be the file's stem.
[[nodiscard]] expected<ModelProfile> read_model_profile(std::string_view text, std::string file_name);

}  // namespace vram::profile
