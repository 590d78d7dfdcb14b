#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace vram {

/// ASCII letters in lower case; every other byte as it is, whatever the locale.
[[nodiscard]] constexpr char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
[[nodiscard]] inline std::string lower(std::string_view text) {
    std::string out(text);
    std::transform(out.begin(), out.end(), out.begin(), [](char c) { return lower(c); });
    return out;
}

}  // namespace vram
