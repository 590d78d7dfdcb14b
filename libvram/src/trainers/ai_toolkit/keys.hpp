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
    map,          // moves no memory, and must be a map
};

struct Key {
    std::string_view name;
    Means means = Means::nothing;
    std::string_view why{};  // of unsupported: what it does, for the complaint
};

/// The maps of a config whose keys are known.
enum class SectionId : std::uint8_t {
    process,
    network,
    network_kwargs,
    train,
    ema_config,
    validation_config,
    model,
    dataset,
    sample,
    sample_item,
    save,
    logging,
    slider,
};
[[nodiscard]] std::string_view name_of(SectionId section);

/// Every key that ai-toolkit reads in a section.
[[nodiscard]] std::span<const Key> keys_of(SectionId section);

/// Whether some section other than this one has a memory-moving key of this name, and which; else empty.
[[nodiscard]] std::string_view home_of(std::string_view key, SectionId section);

}  // namespace vram::trainers::ai_toolkit
