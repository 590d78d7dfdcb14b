#include "report/words.hpp"

#include <algorithm>
#include <cmath>

namespace vram::report {

std::string range_text(Bytes low, Bytes high) {
    const std::string to = vram::to_text(high);
    std::string from = vram::to_text(low);
    if (from == to) return to;
    const std::string unit = to.substr(to.find(' '));
    if (from.ends_with(unit)) from.resize(from.size() - unit.size());  // "25.24 to 25.48 GiB"
    return from + " to " + to;
}

std::string gib(Bytes bytes) {
    const bool negative = bytes < 0;
    const double hundredths =
        std::round(static_cast<double>(negative ? -bytes : bytes) * 100 / static_cast<double>(GiB));
    const auto whole = static_cast<std::int64_t>(hundredths);
    const std::string cents = std::to_string(whole % 100);
    return std::string(negative && whole > 0 ? "-" : "") + std::to_string(whole / 100) + "." +
           (cents.size() < 2 ? "0" : "") + cents;
}

std::string range(Bytes low, Bytes high) { return gib(low) == gib(high) ? gib(high) : gib(low) + " to " + gib(high); }

std::string words(std::string_view name) {
    std::string out(name);
    std::replace(out.begin(), out.end(), '_', ' ');
    return out;
}

std::string words(Verdict verdict) { return words(to_text(verdict)); }

std::string room_text(Verdict verdict, Bytes to_spare, Bytes at_least, Bytes at_most) {
    switch (verdict) {
        case Verdict::fits: return vram::to_text(to_spare) + " to spare";
        case Verdict::tight: return "up to " + vram::to_text(at_most) + " too little";
        case Verdict::does_not_fit: return vram::to_text(at_least) + " too little";
        case Verdict::cannot_say: break;
    }
    return {};
}

std::string left(std::string text, std::size_t width) {
    text.resize(std::max(width, text.size()), ' ');
    return text;
}
std::string right(const std::string& text, std::size_t width) {
    return std::string(text.size() < width ? width - text.size() : 1, ' ') + text;
}

}  // namespace vram::report
