#include "trainers/sd_scripts/namespace.hpp"

#include <algorithm>
#include <utility>

namespace vram::trainers::sd_scripts {

void Namespace::set(Argument argument) {
    const auto same =
        std::find_if(all_.begin(), all_.end(), [&](const Argument& a) { return a.name == argument.name; });
    if (same != all_.end())
        *same = std::move(argument);
    else
        all_.push_back(std::move(argument));
}

void Namespace::erase(std::string_view prefix) {
    std::erase_if(all_, [&](const Argument& argument) { return argument.name.starts_with(prefix); });
}

const Argument* Namespace::find(std::string_view name) const {
    const auto found = std::find_if(all_.begin(), all_.end(), [&](const Argument& a) { return a.name == name; });
    return found == all_.end() ? nullptr : &*found;
}

std::vector<std::string> split(std::string_view text) {
    constexpr std::string_view blanks = " \t\r\n\f\v";
    std::vector<std::string> out;
    std::size_t at = text.find_first_not_of(blanks);
    while (at != std::string_view::npos) {
        const std::size_t end = std::min(text.find_first_of(blanks, at), text.size());
        out.emplace_back(text.substr(at, end - at));
        at = text.find_first_not_of(blanks, end);
    }
    return out;
}

}  // namespace vram::trainers::sd_scripts
