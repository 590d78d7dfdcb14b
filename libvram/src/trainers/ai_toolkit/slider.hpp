#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace vram::trainers::ai_toolkit {

/// What concept_slider's own section says (ConceptSliderTrainerConfig): a prompt at either end, what they are of, and
/// what the adapter is to leave as it was.
struct Slider {
    enum class Prompt : std::uint8_t { none, blank, text };
    Prompt positive = Prompt::blank, negative = Prompt::blank, target_class = Prompt::blank;
    Prompt anchor_class = Prompt::none;  // none: no anchor
    bool operator==(const Slider&) const = default;
};

/// As a job keeps it, among what the trainer has of its own: job::Pipeline::options.
void put(const Slider& slider, std::map<std::string, std::string>& options);
[[nodiscard]] std::optional<Slider> slider_of(const std::map<std::string, std::string>& options);

}  // namespace vram::trainers::ai_toolkit
