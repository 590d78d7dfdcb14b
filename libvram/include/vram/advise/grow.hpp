#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "vram/io/document.hpp"
#include "vram/report/check.hpp"

namespace vram::advise {

/// One thing to raise, all else as it is.
struct Growth {
    std::string what;                       // "steps", "resolution", "samples", "batch_size", "frames", "rank",
                                            // "gradient_checkpointing"
    std::string from, to;                   // as the job reads; empty where nothing can be said of it
    bool grows = false;                     // whether `to` is more than `from`
    std::vector<report::Setting> settings;  // that make `check` play `to`; none where it does not grow
    Bytes device_low = 0, device_high = 0;  // what the job needs of the card then
    std::string why;                        // one sentence: what comes next, or why it does not grow
};

struct Grow {
    std::string source;  // the file's name
    report::GpuLine gpu;
    report::Verdict verdict = report::Verdict::cannot_say;  // of the job as it is
    std::string reason;                                     // of that
    Bytes device_low = 0, device_high = 0;
    std::vector<Growth> lines;  // in the order in which practice raises; none where the job does not fit
    Diagnostics diagnostics;
};

/// What to raise next after a first success, and how far: steps, resolution, samples back, batch size (frames where the
/// model makes videos), rank, gradient checkpointing off. Each alone, to the largest that fits as `max` finds it.
///
/// Errors, in `diagnostics`: those of `check`; missing_key where no card is named.
[[nodiscard]] Grow grow(std::string_view text, std::string file_name, const report::CheckOptions& options,
                        const profile::Catalogue& catalogue);
[[nodiscard]] Grow grow(const io::Document& document, const report::CheckOptions& options,
                        const profile::Catalogue& catalogue);

/// As that of `check`: 0 where the job fits or is tight, 1 where it does not fit, 2 where nothing can be said.
[[nodiscard]] int exit_code(const Grow& grow);
[[nodiscard]] std::string to_text(const Grow& grow);
/// One JSON object: docs/sweep.md. Sizes are bytes.
[[nodiscard]] std::string to_json(const Grow& grow, int indent = 2);

}  // namespace vram::advise
