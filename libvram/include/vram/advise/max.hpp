#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vram/base/expected.hpp"
#include "vram/io/document.hpp"
#include "vram/report/check.hpp"
#include "vram/report/trial.hpp"

namespace vram::advise {

/// What may be varied, and in which steps:
///
/// batch_size  1, 2, 3 … 4096
/// resolution  the side of a square of as many pixels as the job's largest batch: multiples of 64, or of the least
///             common multiple of 64 and what the model asks for, from 128 to the model's end or 8192. Of a job file
///             every size is scaled alike, each side down to a multiple of what the model asks for; in a trainer's own
///             file it is `data.resolution`, of which the trainer makes buckets
/// frames      1 and every n · frame_step + 1 of the model's profile, to the model's end or 4097
/// rank        1, 2, 4, 8, 12, 16, 24, 32, 48, 64 … 1024: powers of two and between
///
/// The job's own value is one of them, whatever it is.
enum class Vary : std::uint8_t { batch_size, resolution, frames, rank };
[[nodiscard]] std::string_view to_text(Vary vary);
/// One of the four words. Errors, at `--vary`: bad_value with the nearest.
[[nodiscard]] expected<Vary> read_vary(const std::string& word);

/// A value that was played.
struct Tried {
    std::int64_t value = 0;
    std::vector<report::Setting> settings;  // that make `check` play it
    report::Trial trial;
    [[nodiscard]] bool fits() const { return trial.verdict == report::Verdict::fits; }
};

/// The most of one axis, all else as it is.
struct Most {
    std::optional<std::int64_t> beside;  // of the second axis; nothing where there is one
    std::string beside_name;             // "1024x576": how that value reads
    std::optional<Tried> best;           // the largest that fits
    std::optional<Tried> next;           // the axis's next step, which does not; nothing where the axis ends at `best`
    std::vector<Tried> tried;            // all that were played, from the least
    // What `check` says of the best; empty and 0 where there is none.
    std::string phase, stage;
    Bytes device_low = 0, device_high = 0;

    /// Values below the best that do not fit: what is reserved may fall where more is asked for.
    [[nodiscard]] std::vector<std::int64_t> smaller_that_fail() const;
    /// Values above the best that were played; none fits.
    [[nodiscard]] std::vector<std::int64_t> larger_tried() const;
};

struct Max {
    std::string source;  // the file's name
    report::GpuLine gpu;
    std::vector<Vary> vary;         // one, or two
    std::vector<std::string> keys;  // of the job, by axis: "train.batch_size"
    std::int64_t now = 0;           // the job's own value of the first axis
    std::vector<Most> most;         // one; of two axes one a usual value of the second: the frontier
    Diagnostics diagnostics;        // why there are none
};

/// The largest value with which the job fits, played as `check` plays it: the verdict is `fits` there and is not at the
/// axis's next step. Values are looked for by doubling and halving, then two steps beyond; a larger one that fits
/// behind one that does not is taken, and the hole shows in `smaller_that_fail`.
///
/// Errors, in `diagnostics`: those of `check`; missing_key where no card is named; conflict where the job has no such
/// axis, with its place; out_of_range for none or more than two axes; conflict for the same one twice.
[[nodiscard]] Max max(std::string_view text, std::string file_name, const std::vector<Vary>& vary,
                      const report::CheckOptions& options, const profile::Catalogue& catalogue);
[[nodiscard]] Max max(const io::Document& document, const std::vector<Vary>& vary, const report::CheckOptions& options,
                      const profile::Catalogue& catalogue);

/// 0 where a value fits, 1 where none does, 2 where nothing can be said.
[[nodiscard]] int exit_code(const Max& max);
/// For a terminal.
[[nodiscard]] std::string to_text(const Max& max);
/// One JSON object: docs/sweep.md. Sizes are bytes.
[[nodiscard]] std::string to_json(const Max& max, int indent = 2);

}  // namespace vram::advise
