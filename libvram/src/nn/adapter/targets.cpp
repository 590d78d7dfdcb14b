#include "nn/adapter/targets.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <regex>

namespace vram::nn::adapter {
namespace {

bool is_attention(std::string_view name) {
    constexpr std::array<std::string_view, 9> ends{
        ".to_q",     ".to_k",   ".to_v",     ".to_out.0",           ".to_qkv_mlp_proj",
        ".to_query", ".to_key", ".to_value", "_attention.out_layer"};
    return std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return name.ends_with(end); });
}

bool is_block(std::string_view name) {
    constexpr std::array<std::string_view, 4> parts{"transformer_blocks.", "single_transformer_blocks.", "blocks.",
                                                    "layers."};
    return std::any_of(parts.begin(), parts.end(),
                       [&](std::string_view part) { return name.find(part) != std::string_view::npos; });
}

// libstdc++ searches by backtracking, where "(.+)+!" takes 2^n steps on n characters, unless told to keep polynomial.
constexpr auto syntax = std::regex::ECMAScript
#ifdef __GLIBCXX__
                        | std::regex_constants::__polynomial
#endif
    ;
constexpr std::size_t longest_pattern = 1000;  // the compiler of patterns recurses

// "(a?){9000}" is nine thousand states, and within another one nine thousand times as many.
constexpr std::int64_t most_copies = 256;

/// What the counts of a pattern multiply to at most: "(.{0,90}){90}" is 8100.
std::int64_t copies_of(std::string_view pattern) {
    std::int64_t copies = 1, number = 0, larger = 0;
    bool counting = false;
    for (std::size_t i = 0; i < pattern.size() && copies <= most_copies; ++i) {
        const char c = pattern[i];
        if (c == '\\') {
            ++i;
        } else if (c == '{') {
            counting = true;
            number = larger = 0;
        } else if (counting && c >= '0' && c <= '9') {
            number = std::min(number * 10 + (c - '0'), most_copies + 1);
        } else if (counting) {
            larger = std::max(larger, number);
            number = 0;
            counting = c == ',';
            if (c == '}') copies *= std::max<std::int64_t>(larger, 1);
        }
    }
    return copies;
}

}  // namespace

bool is_pattern(const std::string& text) {
    if (text.size() > longest_pattern || copies_of(text) > most_copies) return false;
    try {
        const std::regex pattern(text, syntax);
        return true;
    } catch (const std::regex_error&) {
        return false;
    }
}

std::function<bool(std::string_view)> targets(const std::vector<std::string>& names) {
    if (names.size() == 1 && names.front() == "attention") return is_attention;
    if (names.size() == 1 && names.front() == "blocks") return is_block;
    if (names.size() == 1 && names.front() == "all") return [](std::string_view) { return true; };
    auto patterns = std::make_shared<std::vector<std::regex>>();
    for (const std::string& name : names) patterns->emplace_back(name, syntax);
    return [patterns](std::string_view name) {
        return std::any_of(patterns->begin(), patterns->end(), [&](const std::regex& pattern) {
            return std::regex_search(name.begin(), name.end(), pattern);
        });
    };
}

}  // namespace vram::nn::adapter
