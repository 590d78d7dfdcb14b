#pragma once

#include <string>

#include "vram/report/check.hpp"

namespace vram::report {

/// What `check` would say of a job, as far as a search or a table wants it: its verdict is that of `check`, always, and
/// so are all figures but a `device_low` that nobody replayed.
struct Trial {
    Verdict verdict = Verdict::cannot_say;
    GpuLine gpu;
    Bytes tensors_peak = 0;                 // exact
    std::string tensors_phase;              // the first in which so much is alive
    bool replayed = false;                  // by the allocator; else the tensors alone exceed the card
    Bytes device_low = 0, device_high = 0;  // where it was not replayed: at least `device_low`, and no `device_high`
    std::string reason;                     // of cannot_say; empty for other verdicts
    Diagnostics diagnostics;                // as a report's
};

/// Reads no text, compares with nothing, and replays only what the verdict hangs on: a job whose tensors alone exceed
/// the card is not replayed at all.
[[nodiscard]] Trial try_job(io::Document document, const CheckOptions& options, const profile::Catalogue& catalogue);

}  // namespace vram::report
