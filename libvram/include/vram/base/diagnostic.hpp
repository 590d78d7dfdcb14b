#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace vram {

/// Where a complaint points. Line and column count from 1; 0 means: the file as a whole, or no file.
struct Place {
    std::string file;
    std::int32_t line = 0, column = 0;
    bool operator==(const Place&) const = default;
};

enum class Severity : std::uint8_t { error, warning, note };

/// What kind of complaint it is: the field that tests and tools compare. Each has a file in tests/bad_inputs.
enum class Problem : std::uint8_t {
    file_not_found,    // the file cannot be opened
    file_too_large,    // beyond the reader's limit
    bad_encoding,      // not UTF-8, or a NUL
    syntax,            // the YAML, JSON or TOML reader stopped here
    empty_file,        // nothing in it
    too_deep,          // nesting beyond the reader's limit
    too_many_aliases,  // YAML anchors that would blow up
    duplicate_key,     // written twice in one map
    unknown_key,       // no such key here
    missing_key,       // required, not there
    wrong_type,        // a map where a number is due
    bad_value,         // a word that is not among the allowed ones
    bad_unit,          // a size without a unit we know
    out_of_range,      // a number below or above what is possible
    overflow,          // sizes beyond 63 bits
    conflict,          // two keys that exclude each other
    unsupported,       // understood, not modelled: the verdict is cannot_say
    unknown_model,
    unknown_gpu,
    unknown_trainer,
    unknown_option,  // of the command line
    not_a_job,       // no vramest job and no trainer's file that we know
    no_data,         // a dataset folder without one readable image
};

[[nodiscard]] std::string_view to_text(Problem problem);
[[nodiscard]] std::string_view to_text(Severity severity);

/// A complaint: fields first, text last.
struct Diagnostic {
    Severity severity = Severity::error;
    Problem problem = Problem::syntax;
    Place place;
    std::string key;      // dotted, as in the file: "train.gradient_checkpoint"
    std::string found;    // what stands there
    std::string nearest;  // the nearest right key or value, or empty
    std::string text;     // one sentence without the place
    bool operator==(const Diagnostic&) const = default;
};
using Diagnostics = std::vector<Diagnostic>;

/// "job.yaml:14:5: unknown option train.gradient_checkpoint; did you mean gradient_checkpointing?"
[[nodiscard]] std::string to_text(const Diagnostic& diagnostic);

[[nodiscard]] bool has_errors(const Diagnostics& diagnostics);

/// The candidate with the smallest edit distance (insert, delete, replace, swap of neighbours; case ignored), if that
/// is at most a third of the longer word's length; else empty. Ties: the first.
[[nodiscard]] std::string nearest(std::string_view word, std::span<const std::string_view> candidates);
[[nodiscard]] std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace vram
