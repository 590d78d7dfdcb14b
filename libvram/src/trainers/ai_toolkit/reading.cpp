#include "trainers/ai_toolkit/reading.hpp"

#include <algorithm>

namespace vram::trainers::ai_toolkit {

std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    return text;
}

// The trainer replaces in the whole file before it reads it: toolkit/config.py, preprocess_config.
std::string path_of(Section& section, std::string_view key, const std::string& text) {
    constexpr std::string_view tag = "[name]";
    const std::string& name = section.reading.job_name;
    if (text.find('\0') != std::string::npos) {
        section.fields.complain(key, Problem::bad_value, section.fields.path(key) + " holds a NUL, which no path does");
        return {};
    }
    std::size_t tags = 0;
    for (std::size_t at = text.find(tag); at != std::string::npos; at = text.find(tag, at + tag.size())) ++tags;
    // Both are far below 2^31: a file has at most Limits::bytes.
    const std::size_t size = text.size() - tags * tag.size() + tags * name.size();
    if (size > static_cast<std::size_t>(most_path)) {
        section.fields.complain(key, Problem::out_of_range,
                                section.fields.path(key) + " must be at most " + std::to_string(most_path) +
                                    " bytes long, not " + std::to_string(size));
        return {};
    }
    std::string out;
    out.reserve(size);
    std::size_t from = 0;
    for (std::size_t at = text.find(tag); at != std::string::npos; at = text.find(tag, from)) {
        out.append(text, from, at - from).append(name);
        from = at + tag.size();
    }
    return out.append(text, from);
}

}  // namespace vram::trainers::ai_toolkit
