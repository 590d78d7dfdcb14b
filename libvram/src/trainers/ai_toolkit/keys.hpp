#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace vram::trainers::ai_toolkit {

/// What a key of a config means to us.
enum class Means : std::uint8_t {
    nothing,      // known, moves no memory
    memory,       // moves memory, and is read
    unsupported,  // moves memory when Python takes its value as true, and is not modelled
    small,        // may move a few latents' worth when it is true: a note
};

struct Key {
    std::string_view name;
    Means means = Means::nothing;
    std::string_view why{};  // of unsupported: what it does, for the complaint
};

/// Every key that ai-toolkit reads in a section: "process", "network", "network_kwargs", "train", "ema_config",
/// "model", "dataset", "sample", "sample_item", "save", "logging". Empty for a section that is not read.
[[nodiscard]] std::span<const Key> keys_of(std::string_view section);

/// Whether some section other than this one has a memory-moving key of this name, and which; else empty.
[[nodiscard]] std::string_view home_of(std::string_view key, std::string_view section);

}  // namespace vram::trainers::ai_toolkit
