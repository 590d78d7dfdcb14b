#include <charconv>
#include <cmath>
#include <limits>

#include "io/readers.hpp"

namespace vram::io {

namespace {

bool one_of(std::string_view text, std::initializer_list<std::string_view> words) {
    for (const std::string_view word : words)
        if (text == word) return true;
    return false;
}

/// How many characters of `text` from `at` on are in `set`.
std::size_t run_of(std::string_view text, std::size_t at, std::string_view set) {
    const std::size_t end = std::min(text.find_first_not_of(set, at), text.size());
    return end - std::min(at, end);
}

constexpr std::string_view decimal = "0123456789_";

/// (:[0-5]?[0-9])+ from `at` on: the position behind it, or `at` if it is not there.
std::size_t skip_sexagesimal(std::string_view text, std::size_t at) {
    while (at < text.size() && text[at] == ':') {
        const std::size_t digits = run_of(text, at + 1, "0123456789");
        if (digits == 0 || digits > 2 || (digits == 2 && text[at + 1] > '5')) break;
        at += 1 + digits;
    }
    return at;
}

struct Whole {
    std::int64_t value = 0;
    double nearest = 0;
    bool fits = true;
};

double to_double(std::string_view text);

Whole digits_of(std::string_view digits, int base, bool negative) {
    Whole out;
    for (const char c : digits) {
        if (c == '_') continue;
        const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
        out.nearest = out.nearest * base + digit;
        out.fits = out.fits && !__builtin_mul_overflow(out.value, std::int64_t{base}, &out.value) &&
                   !__builtin_add_overflow(out.value, std::int64_t{negative ? -digit : digit}, &out.value);
    }
    if (base == 10) out.nearest = to_double(digits);
    if (negative) out.nearest = -out.nearest;
    return out;
}

Whole sexagesimal(std::string_view text, bool negative) {
    Whole out;
    while (true) {
        const std::size_t colon = text.find(':');
        const Whole part = digits_of(text.substr(0, colon), 10, negative);
        out.nearest = out.nearest * 60 + part.nearest;
        out.fits = out.fits && part.fits && !__builtin_mul_overflow(out.value, std::int64_t{60}, &out.value) &&
                   !__builtin_add_overflow(out.value, part.value, &out.value);
        if (colon == std::string_view::npos) return out;
        text.remove_prefix(colon + 1);
    }
}

bool read_whole(std::string_view text, Whole& out) {
    const bool negative = text.starts_with('-');
    if (negative || text.starts_with('+')) text.remove_prefix(1);
    const auto all = [&](std::size_t from, std::string_view set) {
        return text.size() > from && run_of(text, from, set) == text.size() - from &&
               text.find_first_not_of('_', from) != std::string_view::npos;
    };
    if (text.starts_with("0b") && all(2, "01_"))
        out = digits_of(text.substr(2), 2, negative);
    else if (text.starts_with("0x") && all(2, "0123456789abcdefABCDEF_"))
        out = digits_of(text.substr(2), 16, negative);
    else if (text == "0")
        out = {};
    else if (text.starts_with('0') && all(1, "01234567_"))
        out = digits_of(text.substr(1), 8, negative);
    else if (text.empty() || text[0] < '1' || text[0] > '9')
        return false;
    else if (all(0, decimal))
        out = digits_of(text, 10, negative);
    else if (const std::size_t head = run_of(text, 0, decimal);
             head < text.size() && skip_sexagesimal(text, head) == text.size())
        out = sexagesimal(text, negative);
    else
        return false;
    return true;
}

double to_double(std::string_view text) {
    std::string plain;
    for (const char c : text)
        if (c != '_') plain += c;
    double value = 0;
    const auto [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), value);
    if (error == std::errc::result_out_of_range) {  // as Python: 1e999 is infinite, 1e-999 zero
        const std::size_t e = plain.find_first_of("eE");
        const bool tiny = e != std::string::npos && e + 1 < plain.size() && plain[e + 1] == '-';
        return tiny ? 0.0 : std::numeric_limits<double>::infinity();
    }
    return value;
}

bool read_number(std::string_view text, double& out) {
    const bool negative = text.starts_with('-');
    const bool sign = negative || text.starts_with('+');
    if (one_of(text, {".nan", ".NaN", ".NAN"})) {
        out = std::numeric_limits<double>::quiet_NaN();
        return true;
    }
    if (sign) text.remove_prefix(1);
    const auto give = [&](double value) {
        out = negative ? -value : value;
        return true;
    };
    if (one_of(text, {".inf", ".Inf", ".INF"})) return give(std::numeric_limits<double>::infinity());
    const bool digit_first = !text.empty() && text[0] >= '0' && text[0] <= '9';
    std::size_t at = digit_first ? run_of(text, 0, decimal) : 0;
    if (digit_first && at < text.size() && text[at] == ':') {  // 1:30.5 is 90.5
        const std::size_t dot = skip_sexagesimal(text, at);
        if (dot == text.size() || text[dot] != '.' || run_of(text, dot + 1, decimal) != text.size() - dot - 1)
            return false;
        return give(sexagesimal(text.substr(0, dot), false).nearest + to_double("0" + std::string(text.substr(dot))));
    }
    const bool dot = at < text.size() && text[at] == '.';
    if (dot) {
        const std::size_t fraction = run_of(text, at + 1, decimal);
        if (!digit_first && (fraction == 0 || text[at + 1] == '_')) return false;
        at += 1 + fraction;
    }
    if (!dot && !digit_first) return false;
    if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
        ++at;
        if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
        const std::size_t exponent = run_of(text, at, "0123456789");
        if (exponent == 0) return false;
        at += exponent;
    } else if (!dot) {
        return false;
    }
    return at == text.size() && give(to_double(text));
}

}  // namespace

Node resolve_plain(std::string_view text) {
    Node node{.written = std::string(text)};
    Whole whole;
    double number = 0;
    if (one_of(text, {"", "~", "null", "Null", "NULL"})) return node;
    if (one_of(text, {"yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"})) {
        node.value = true;
    } else if (one_of(text, {"no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"})) {
        node.value = false;
    } else if (read_whole(text, whole)) {
        node.beyond_int64 = !whole.fits;
        if (whole.fits)
            node.value = whole.value;
        else
            node.value = whole.nearest;
    } else if (read_number(text, number)) {
        node.value = number;
    } else {
        node.value = std::string(text);
        node.written.clear();
    }
    return node;
}

}  // namespace vram::io
