#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace vram::diagnosis {

/// One drawing of a tqdm bar: "steps:  12%|█▏        | 192/1600 [02:01<14:50,  1.58it/s, avr_loss=0.083]".
struct ProgressBar {
    std::string_view name;  // "steps"; empty where it has none
    std::int64_t done = 0, total = 0;
    std::int64_t elapsed = 0;     // seconds
    double seconds_per_step = 0;  // as printed; 0: not known yet
    bool has_loss = false;        // in its postfix
};

/// Source: tqdm 4.67, std.py format_meter. Absent: the line holds no whole bar, or its numbers have units (downloads).
[[nodiscard]] std::optional<ProgressBar> progress_bar(std::string_view line);

/// A number at the start of `text`, blanks skipped; absent where there is none or it has more than 18 digits.
[[nodiscard]] std::optional<std::int64_t> whole_number(std::string_view text);
/// The same with decimals.
[[nodiscard]] std::optional<double> number(std::string_view text);

}  // namespace vram::diagnosis
