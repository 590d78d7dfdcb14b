#include "trainers/sd_scripts/reading.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/text.hpp"
#include "trainers/sd_scripts/keys.hpp"
#include "trainers/truthy.hpp"

namespace vram::trainers::sd_scripts {
namespace {

std::string_view stripped(std::string_view text) {
    constexpr std::string_view blanks = " \t\r\n";
    const std::size_t from = text.find_first_not_of(blanks);
    if (from == std::string_view::npos) return {};
    text = text.substr(from, text.find_last_not_of(blanks) + 1 - from);
    if (text.size() > 1 && text.front() == '+') text.remove_prefix(1);
    return text;
}

/// As complaints of a wrong type say what stands there.
std::string shown(const io::Node& node) {
    return node.text() != nullptr ? "the text \"" + *node.text() + "\"" : node.spelled();
}

}  // namespace

namespace {
/// 8 for 8.0; empty: no whole number is near.
std::string whole_of(const io::Node& node) {
    const double* number = node.number();
    const bool is_whole = number != nullptr && std::trunc(*number) == *number && std::abs(*number) < 1e15;
    return is_whole ? std::to_string(static_cast<std::int64_t>(*number)) : std::string();
}
bool is_scalar(const io::Node& node) { return !node.is(io::Kind::list) && !node.is(io::Kind::map); }
}  // namespace

std::optional<std::int64_t> integer_of(std::string_view text) {
    text = stripped(text);
    std::int64_t out = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return out;
}

std::optional<double> number_of(std::string_view text) {
    text = stripped(text);
    double out = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (text.empty() || error != std::errc{} || end != text.data() + text.size() || !std::isfinite(out))
        return std::nullopt;
    return out;
}

const Argument* Reading::argument(std::string_view name) const {
    const Argument* said = config.said.find(name);
    return said == nullptr || said->value.is(io::Kind::null) ? nullptr : said;
}

bool Reading::flag(std::string_view name) {
    const Argument* said = argument(name);
    if (said == nullptr) return false;
    if (said->value.is(io::Kind::list) || said->value.is(io::Kind::map)) {
        complain(name, Problem::wrong_type,
                 config.called(document, name) + " must be true or false, not " + said->value.spelled());
        return false;
    }
    const double* number = said->value.number();
    const std::int64_t* whole = said->value.integer();
    if ((number != nullptr && *number != 0 && *number != 1) || (whole != nullptr && *whole != 0 && *whole != 1))
        complain(name, Problem::wrong_type,
                 config.called(document, name) + " must be true or false, not " + said->value.spelled(), "true");
    if (const std::string* text = said->value.text()) {
        const std::string word = lower(*text);
        constexpr std::array<std::string_view, 5> no{"false", "no", "off", "none", "0"};
        constexpr std::array<std::string_view, 4> yes{"true", "yes", "on", "1"};
        const auto is_in = [&](const auto& words) {
            for (const std::string_view one : words)
                if (one == word) return true;
            return false;
        };
        if (is_in(no))
            complain(name, Problem::wrong_type,
                     config.called(document, name) + " is a text, which the trainer takes as true", "false",
                     Severity::warning);
        else if (!is_in(yes) && !word.empty())
            complain(name, Problem::bad_value,
                     config.called(document, name) + " must be true or false; the trainer takes any text as true",
                     "true");
    }
    return truthy(said->value);
}

std::optional<std::int64_t> Reading::integer(std::string_view name, Range range) {
    const Argument* said = argument(name);
    if (said == nullptr) return std::nullopt;
    std::optional<std::int64_t> out;
    if (const std::int64_t* whole = said->value.integer())
        out = *whole;
    else if (const double* number = said->value.number();
             number != nullptr && said->converted && std::trunc(*number) == *number && std::abs(*number) < 1e15)
        out = static_cast<std::int64_t>(*number);
    else if (const std::string* text = said->value.text(); text != nullptr && said->converted)
        out = integer_of(*text);
    if (!out) {
        complain(name, Problem::wrong_type,
                 config.called(document, name) + " must be a whole number, not " + shown(said->value),
                 whole_of(said->value));
        return std::nullopt;
    }
    if (*out < range.min || *out > range.max) {
        const std::int64_t near = *out < range.min ? range.min : range.max;
        const std::string bounds = range.max == Range{}.max
                                       ? std::to_string(range.min) + " at least"
                                       : "from " + std::to_string(range.min) + " to " + std::to_string(range.max);
        complain(name, Problem::out_of_range,
                 config.called(document, name) + " must be " + bounds + ", not " + std::to_string(*out),
                 std::to_string(near));
        return std::nullopt;
    }
    return out;
}

std::optional<double> Reading::number(std::string_view name) {
    const Argument* said = argument(name);
    if (said == nullptr) return std::nullopt;
    if (const std::int64_t* whole = said->value.integer()) return static_cast<double>(*whole);
    if (const double* number = said->value.number(); number != nullptr && std::isfinite(*number)) return *number;
    if (const std::string* text = said->value.text(); text != nullptr && said->converted)
        if (const std::optional<double> out = number_of(*text)) return out;
    complain(name, Problem::wrong_type, config.called(document, name) + " must be a number, not " + shown(said->value));
    return std::nullopt;
}

std::optional<double> Reading::probability(std::string_view name) {
    const std::optional<double> out = number(name);
    if (!out || (*out >= 0 && *out <= 1)) return out;
    complain(name, Problem::out_of_range,
             config.called(document, name) + " must be from 0 to 1, not " + config.said.find(name)->value.spelled(),
             *out < 0 ? "0" : "1");
    return std::nullopt;
}

std::string Reading::text(std::string_view name, std::string_view fallback) {
    const Argument* said = argument(name);
    if (said == nullptr) return std::string(fallback);
    if (said->value.is(io::Kind::list) || said->value.is(io::Kind::map)) {
        complain(name, Problem::wrong_type,
                 config.called(document, name) + " must be a text, not " + said->value.spelled());
        return std::string(fallback);
    }
    return said->value.spelled();
}

std::vector<std::string> Reading::list(std::string_view name) {
    const Argument* said = argument(name);
    if (said == nullptr) return {};
    if (const io::List* items = said->value.list()) {
        std::vector<std::string> out;
        for (const io::Node& item : *items) out.push_back(item.spelled());
        return out;
    }
    if (said->value.is(io::Kind::map)) {
        complain(name, Problem::wrong_type, config.called(document, name) + " must be a list of texts, not a map");
        return {};
    }
    return {said->value.spelled()};
}

void Reading::check_types() {
    for (std::size_t i = 0; i < config.said.all().size(); ++i) {
        Argument said = config.said.all()[i];
        const Key* key = argument_key(said.name);
        if (key == nullptr || said.value.is(io::Kind::null)) continue;
        const std::size_t before = complaints.size();
        switch (key->takes) {
            case Takes::flag: said.value = io::Node{flag(said.name)}; break;
            case Takes::integer: (void)integer(said.name); break;
            case Takes::number: (void)number(said.name); break;
            case Takes::text:
                (void)text(said.name);
                if (!said.converted && is_scalar(said.value) && said.value.text() == nullptr)
                    complain(said.name, Problem::wrong_type,
                             config.called(document, said.name) + " must be a text, not " + said.value.spelled(),
                             "\"" + said.value.spelled() + "\"");
                break;
            case Takes::numbers:
                if (const io::List* items = said.value.list()) {
                    for (const io::Node& item : *items)
                        if (item.text() != nullptr ? !said.converted || !number_of(*item.text())
                                                   : !number_of(item.spelled()))
                            complain(said.name, Problem::wrong_type,
                                     config.called(document, said.name) + " must hold numbers, not " + shown(item));
                } else {
                    (void)number(said.name);
                }
                break;
            case Takes::list:
                (void)list(said.name);
                if (!said.value.is(io::Kind::list) && !said.value.is(io::Kind::map))
                    complain(said.name, Problem::wrong_type,
                             config.called(document, said.name) + " must be a list of texts, not " + shown(said.value),
                             said.value.text() != nullptr ? "[\"" + *said.value.text() + "\"]" : "");
                break;
        }
        if (complaints.size() > before) said.value = io::Node{};
        config.said.set(std::move(said));
    }
}

void Reading::complain(std::string_view name, Problem problem, std::string text, std::string nearest,
                       Severity severity) {
    SaidAt at = config.at(document, name);
    const Argument* said = config.said.find(name);
    Diagnostics& to = severity == Severity::error ? complaints : notes;
    to.push_back({severity, problem, std::move(at.place), std::move(at.key),
                  said != nullptr ? said->value.spelled() : std::string(), std::move(nearest), std::move(text)});
}

void Reading::refuse(std::string_view name, std::string_view why) {
    complain(name, Problem::unsupported, config.called(document, name) + " is not modelled: " + std::string(why));
}

std::optional<std::pair<std::int64_t, std::int64_t>> resolution_of(std::string_view text) {
    const std::size_t comma = text.find(',');
    const std::optional<std::int64_t> width = integer_of(text.substr(0, comma));
    const std::optional<std::int64_t> height =
        comma == std::string_view::npos ? width : integer_of(text.substr(comma + 1));
    if (!width || !height) return std::nullopt;
    return std::pair{*width, *height};
}

}  // namespace vram::trainers::sd_scripts
