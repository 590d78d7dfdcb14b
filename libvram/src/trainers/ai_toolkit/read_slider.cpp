#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/reading.hpp"

namespace vram::trainers::ai_toolkit {
namespace {

using Prompt = Slider::Prompt;

/// A prompt; absent: "". A null is no text that an encoder takes.
Prompt read_prompt(Section& slider, std::string_view key) {
    return slider.fields.text(key, "").empty() ? Prompt::blank : Prompt::text;
}

/// Where the trainer stops: `what` at the process's type.
void stops(Section& process, std::string_view key, const std::string& why) {
    if (!process.reading.modelled) return;
    process.fields.complain(key, Problem::conflict, "concept_slider " + why);
}

}  // namespace

void read_concept_slider(Section& process, Config& config) {
    Section slider = process.section("slider", SectionId::slider);
    Slider out;
    static_cast<void>(slider.fields.number("guidance_strength", {}, 3));
    static_cast<void>(slider.fields.number("anchor_strength", {}, 1));
    out.positive = read_prompt(slider, "positive_prompt");
    out.negative = read_prompt(slider, "negative_prompt");
    out.target_class = read_prompt(slider, "target_class");
    // None alone is no anchor: the web interface writes "", a blank prompt.
    out.anchor_class = slider.value("anchor_class") == nullptr ? Prompt::none : read_prompt(slider, "anchor_class");
    slider.finish();
    config.slider = out;
    if (config.fine_tune)
        stops(process, "type", "needs a network, whose sign it turns: the trainer stops without one at its first step");
    const Architecture* architecture = process.reading.architecture;
    if (architecture != nullptr && architecture->prompts_need_controls)
        stops(process, "type",
              "encodes its prompts without control images, and the trainer stops: " + std::string(architecture->title) +
                  " takes none without");
}

}  // namespace vram::trainers::ai_toolkit
