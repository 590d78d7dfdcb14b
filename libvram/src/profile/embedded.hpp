#pragma once

#include <span>
#include <string_view>

namespace vram::profile {

/// A profile as it lay in the source tree when the library was built. cmake/Embed.cmake turns device_profiles/*.yaml,
/// failures/*.yaml, model_classes/*.yaml and model_profiles/*.yaml into string constants, so that the library, the
/// command and the Python module find them without a search path and cannot meet files of another version.
struct EmbeddedFile {
    std::string_view name;  // "device_profiles/rtx-4090.yaml"
    std::string_view text;
};

/// In alphabetical order.
[[nodiscard]] std::span<const EmbeddedFile> embedded_device_profiles();
[[nodiscard]] std::span<const EmbeddedFile> embedded_failures();
[[nodiscard]] std::span<const EmbeddedFile> embedded_model_classes();
[[nodiscard]] std::span<const EmbeddedFile> embedded_model_profiles();

}  // namespace vram::profile
