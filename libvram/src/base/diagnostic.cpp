#include "vram/base/diagnostic.hpp"

#include <algorithm>
#include <cctype>

namespace vram {

std::string_view to_text(Problem problem) {
    switch (problem) {
        case Problem::file_not_found: return "file_not_found";
        case Problem::file_too_large: return "file_too_large";
        case Problem::bad_encoding: return "bad_encoding";
        case Problem::syntax: return "syntax";
        case Problem::empty_file: return "empty_file";
        case Problem::too_deep: return "too_deep";
        case Problem::too_many_aliases: return "too_many_aliases";
        case Problem::duplicate_key: return "duplicate_key";
        case Problem::unknown_key: return "unknown_key";
        case Problem::missing_key: return "missing_key";
        case Problem::wrong_type: return "wrong_type";
        case Problem::bad_value: return "bad_value";
        case Problem::bad_unit: return "bad_unit";
        case Problem::out_of_range: return "out_of_range";
        case Problem::overflow: return "overflow";
        case Problem::conflict: return "conflict";
        case Problem::unsupported: return "unsupported";
        case Problem::unknown_model: return "unknown_model";
        case Problem::unknown_gpu: return "unknown_gpu";
        case Problem::unknown_trainer: return "unknown_trainer";
        case Problem::unknown_option: return "unknown_option";
        case Problem::not_a_job: return "not_a_job";
        case Problem::no_data: return "no_data";
    }
    return "?";
}

std::string_view to_text(Severity severity) {
    switch (severity) {
        case Severity::error: return "error";
        case Severity::warning: return "warning";
        case Severity::note: return "note";
    }
    return "?";
}

std::string to_text(const Diagnostic& diagnostic) {
    std::string out = diagnostic.place.file;
    if (diagnostic.place.line > 0)
        out += ":" + std::to_string(diagnostic.place.line) + ":" + std::to_string(diagnostic.place.column);
    if (!out.empty()) out += ": ";
    if (diagnostic.severity != Severity::error) out += std::string(to_text(diagnostic.severity)) + ": ";
    out += diagnostic.text;
    if (!diagnostic.nearest.empty()) out += "; did you mean " + diagnostic.nearest + "?";
    return out;
}

bool has_errors(const Diagnostics& diagnostics) {
    return std::any_of(diagnostics.begin(), diagnostics.end(),
                       [](const Diagnostic& d) { return d.severity == Severity::error; });
}

namespace {
char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

// Damerau's distance with three rows; words are short.
std::size_t distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> before(b.size() + 1), row(b.size() + 1), next(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        next[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const bool same = lower(a[i - 1]) == lower(b[j - 1]);
            next[j] = std::min({next[j - 1] + 1, row[j] + 1, row[j - 1] + (same ? 0U : 1U)});
            if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]))
                next[j] = std::min(next[j], before[j - 2] + 1);
        }
        before.swap(row);
        row.swap(next);
    }
    return row[b.size()];
}
constexpr std::size_t longest_word = 200;  // longer words are not typos of ours
}  // namespace

std::string nearest(std::string_view word, std::span<const std::string_view> candidates) {
    if (word.empty() || word.size() > longest_word) return {};
    std::string_view best;
    std::size_t best_distance = longest_word;
    for (std::string_view candidate : candidates) {
        const std::size_t d = distance(word, candidate);
        if (d < best_distance && d * 3 <= std::max(word.size(), candidate.size())) {
            best = candidate;
            best_distance = d;
        }
    }
    return std::string(best);
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
    const std::vector<std::string_view> views(candidates.begin(), candidates.end());
    return nearest(word, std::span<const std::string_view>(views));
}

}  // namespace vram
