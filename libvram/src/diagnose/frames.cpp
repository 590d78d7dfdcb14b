#include "diagnose/frames.hpp"

#include <algorithm>

namespace vram::diagnosis {
namespace {

/// The name at the start, with its classes' names before dots.
std::string_view name_of(std::string_view text) {
    std::size_t end = 0;
    const auto belongs = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
               c == '<' || c == '>';
    };
    while (end < text.size() && belongs(text[end])) ++end;
    text = text.substr(0, end);
    const std::size_t dot = text.find_last_of('.');
    return dot == std::string_view::npos ? text : text.substr(dot + 1);
}

}  // namespace

std::optional<Frame> frame_of(std::string_view line) {
    constexpr std::string_view opening = "File \"", in = " in ";
    if (const std::size_t file = line.find(opening); file != std::string_view::npos) {
        const std::string_view rest = line.substr(file + opening.size());
        const std::size_t quote = rest.find("\", line ");
        const std::size_t function = quote == std::string_view::npos ? quote : rest.find(in, quote);
        if (function == std::string_view::npos) return std::nullopt;
        return Frame{rest.substr(0, quote), name_of(rest.substr(function + in.size()))};
    }
    const std::size_t suffix = line.find(".py");
    if (suffix == std::string_view::npos) return std::nullopt;
    const std::string_view file = line.substr(0, suffix + 3);
    std::string_view rest = line.substr(suffix + 3);
    const bool numbered = rest.starts_with(':');
    if (numbered) {
        rest.remove_prefix(1);
        rest.remove_prefix(std::min(rest.find_first_not_of("0123456789"), rest.size()));
    }
    if (!rest.starts_with(in)) return std::nullopt;
    const std::string_view function = rest.substr(in.size());
    if (!numbered && function.find('(') == std::string_view::npos) return std::nullopt;  // a sentence about a file
    const std::size_t start = file.find_last_of(" \t");
    return Frame{start == std::string_view::npos ? file : file.substr(start + 1), name_of(function)};
}

void Frames::add(const Signs& signs, const Frame& frame) {
    any = true;
    // Of the entries that fit, one that names the file goes before one that names none.
    const FrameSign* best = nullptr;
    const auto [first, last] = signs.functions.equal_range(std::string(frame.function));
    for (auto it = first; it != last; ++it) {
        const FrameSign& sign = signs.frames[it->second];
        const bool fits =
            sign.files.empty() || std::any_of(sign.files.begin(), sign.files.end(), [&](const auto& part) {
                return frame.file.find(part) != std::string_view::npos;
            });
        if (!fits) continue;
        const bool better = best == nullptr || (best->files.empty() && !sign.files.empty()) ||
                            (best->files.empty() == sign.files.empty() && sign.strength < best->strength);
        if (better) best = &sign;
    }
    if (best == nullptr) return;
    switch (best->strength) {
        case Strength::place: place = best->where; break;
        case Strength::detail: detail = best->where; break;
        case Strength::weak: weak = best->where; break;
    }
}

}  // namespace vram::diagnosis
