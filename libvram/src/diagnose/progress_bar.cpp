#include "diagnose/progress_bar.hpp"

#include <algorithm>

#include "diagnose/phrases.hpp"

namespace vram::diagnosis {
namespace {

constexpr std::size_t most_digits = 18;

std::string_view digits(std::string_view text) {
    return text.substr(0,
                       static_cast<std::size_t>(std::find_if_not(text.begin(), text.end(), is_digit) - text.begin()));
}

/// "02:01", "1:02:01". "1 day, 3:04:05" is not read: the sum would need a calendar's words.
std::optional<std::int64_t> seconds(std::string_view text) {
    std::int64_t sum = 0;
    for (int parts = 0; parts < 3; ++parts) {
        const std::string_view part = digits(text);
        if (part.empty() || part.size() > 6) return std::nullopt;
        sum = sum * 60 + *whole_number(part);
        text.remove_prefix(part.size());
        if (text.empty()) return sum;
        if (text.front() != ':') return std::nullopt;
        text.remove_prefix(1);
    }
    return std::nullopt;
}

}  // namespace

std::optional<std::int64_t> whole_number(std::string_view text) {
    const std::string_view part = digits(skip_blanks(text));
    if (part.empty() || part.size() > most_digits) return std::nullopt;
    std::int64_t out = 0;
    for (const char c : part) out = out * 10 + (c - '0');
    return out;
}

std::optional<double> number(std::string_view text) {
    text = skip_blanks(text);
    const std::string_view whole = digits(text);
    if (whole.empty() || whole.size() > most_digits) return std::nullopt;
    double out = static_cast<double>(*whole_number(whole));
    text.remove_prefix(whole.size());
    if (text.size() < 2 || text.front() != '.') return out;
    double scale = 1;
    for (const char c : digits(text.substr(1)).substr(0, most_digits)) out += (c - '0') * (scale /= 10);
    return out;
}

std::optional<ProgressBar> progress_bar(std::string_view line) {
    const std::size_t percent = line.find("%|");
    if (percent == std::string_view::npos) return std::nullopt;
    ProgressBar bar;
    std::string_view name = line.substr(0, percent);
    while (!name.empty() && is_digit(name.back())) name.remove_suffix(1);
    name = trimmed(name);
    if (!name.empty() && name.back() == ':') name.remove_suffix(1);
    bar.name = trimmed(name);

    std::string_view rest = line.substr(percent + 2);
    const std::size_t end_of_bar = rest.find('|');
    if (end_of_bar == std::string_view::npos) return std::nullopt;
    rest = skip_blanks(rest.substr(end_of_bar + 1));
    const std::string_view done = digits(rest);
    rest.remove_prefix(done.size());
    if (done.empty() || rest.empty() || rest.front() != '/') return std::nullopt;
    rest.remove_prefix(1);
    const std::string_view total = digits(rest);
    rest.remove_prefix(total.size());
    rest = skip_blanks(rest);
    if (total.empty() || rest.empty() || rest.front() != '[') return std::nullopt;
    const std::optional<std::int64_t> done_count = whole_number(done), total_count = whole_number(total);
    if (!done_count || !total_count) return std::nullopt;
    bar.done = *done_count;
    bar.total = *total_count;

    rest.remove_prefix(1);
    const std::size_t left = rest.find('<');
    if (left == std::string_view::npos) return bar;
    bar.elapsed = seconds(rest.substr(0, left)).value_or(0);
    const std::size_t comma = rest.find(", ", left);
    if (comma == std::string_view::npos) return bar;
    rest = skip_blanks(rest.substr(comma + 2));
    if (const std::optional<double> rate = number(rest); rate && *rate > 0) {
        const std::string_view unit = rest.substr(std::min(rest.find_first_not_of("0123456789."), rest.size()));
        const bool seconds_each = unit.starts_with("s/");
        bar.seconds_per_step = seconds_each ? *rate : 1 / *rate;
    }
    bar.has_loss = holds(rest, "loss");
    return bar;
}

}  // namespace vram::diagnosis
