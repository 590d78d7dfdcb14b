#include "vram/base/bytes.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <utility>

namespace vram {

std::string to_text(Bytes bytes) {
    const double magnitude = std::abs(static_cast<double>(bytes));
    constexpr std::array<std::pair<Bytes, const char*>, 3> units{{{GiB, "GiB"}, {MiB, "MiB"}, {KiB, "KiB"}}};
    for (const auto& [size, name] : units) {
        if (magnitude >= static_cast<double>(size)) {
            // Half a hundredth is rounded up: 128 KiB are 0.13 MiB, and printf alone would look for an even digit.
            const double hundredths = std::round(static_cast<double>(bytes) * 100 / static_cast<double>(size));
            std::array<char, 48> text{};
            std::snprintf(text.data(), text.size(), "%.2f %s", hundredths / 100, name);
            return text.data();
        }
    }
    return std::to_string(bytes) + " B";
}

namespace {

bool same_word(std::string_view a, std::string_view b) {
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

}  // namespace

bool parse_bytes(std::string_view text, Bytes& out) {
    while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
    while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
    double number = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (failure != std::errc{} || !std::isfinite(number) || number < 0) return false;
    std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
    while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
    struct Unit {
        std::string_view name;
        double size;
    };
    constexpr std::array<Unit, 11> units{{{"", 1},
                                          {"B", 1},
                                          {"KiB", 1024.0},
                                          {"MiB", 1048576.0},
                                          {"GiB", 1073741824.0},
                                          {"TiB", 1099511627776.0},
                                          {"KB", 1e3},
                                          {"MB", 1e6},
                                          {"GB", 1e9},
                                          {"TB", 1e12},
                                          {"G", 1073741824.0}}};
    for (const Unit& candidate : units) {
        if (!same_word(candidate.name, unit)) continue;
        const double size = number * candidate.size;
        if (size >= 9.2e18) return false;
        out = static_cast<Bytes>(std::llround(size));
        return true;
    }
    return false;
}

}  // namespace vram
