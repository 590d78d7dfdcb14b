#pragma once

#include "report/card.hpp"
#include "vram/device/allocator_config.hpp"
#include "vram/device/usage.hpp"

namespace vram::report {

/// How far `reserved` may lie above its replay: the largest block that is born and dies within one phase, as the
/// allocator rounds it; with expandable segments at most one page of them, as they do not fragment.
///
/// The one place of this rule. Source: replays of recorded steps met 12 measured trainings of two video models (A100,
/// reserved) within 1.4 %; what they missed is in which order large transients of unlike sizes found a hole (design.md
/// §4). The real order of frees between streams and threads can cost one more segment of the largest kind, and no
/// replay says when.
[[nodiscard]] Bytes reserved_band(const shadow::Trace& trace, const device::AllocatorConfig& config);

/// What a job needs on a card.
struct Need {
    device::Usage usage;
    Bytes band = 0;
    Bytes device_low = 0, device_high = 0;  // reserved and what stands beside it; `band` is in the high end only
    bool squeezed = false;                  // fits only since cached memory goes back to the card
};

/// Replays without a limit; where that exceeds the card, with its limit, as torch gives cached memory back before it
/// fails. If that fails too, the need is the unlimited one.
[[nodiscard]] Need need_on(const shadow::Trace& trace, const device::AllocatorConfig& config, const Card& card);

/// fits: high ≤ usable; tight: low ≤ usable < high, where a nominal capacity counts at its low end for the one and at
/// its high end for the other; else does_not_fit.
[[nodiscard]] Verdict verdict_of(Bytes low, Bytes high, const GpuLine& gpu);

}  // namespace vram::report
