#include "trainers/ai_toolkit/slider.hpp"

#include <array>
#include <string_view>

namespace vram::trainers::ai_toolkit {
namespace {

using Prompt = Slider::Prompt;

struct Place {
    const char* key;
    Prompt Slider::*prompt;
};
constexpr std::array<Place, 4> places{{{"slider.positive_prompt", &Slider::positive},
                                       {"slider.negative_prompt", &Slider::negative},
                                       {"slider.target_class", &Slider::target_class},
                                       {"slider.anchor_class", &Slider::anchor_class}}};
constexpr std::array<std::string_view, 3> words{"none", "blank", "text"};

}  // namespace

void put(const Slider& slider, std::map<std::string, std::string>& options) {
    for (const Place& place : places) options[place.key] = words[static_cast<std::size_t>(slider.*place.prompt)];
}

std::optional<Slider> slider_of(const std::map<std::string, std::string>& options) {
    Slider out;
    for (const Place& place : places) {
        const auto said = options.find(place.key);
        if (said == options.end()) return std::nullopt;
        for (std::size_t i = 0; i < words.size(); ++i)
            if (said->second == words[i]) out.*place.prompt = static_cast<Prompt>(i);
    }
    return out;
}

}  // namespace vram::trainers::ai_toolkit
