#pragma once

#include "report/card.hpp"
#include "vram/device/allocator_config.hpp"
#include "vram/device/usage.hpp"

namespace vram::report {

/// How far `reserved` may lie above its replay, by phase: the largest block that was born and died within that phase,
/// as the allocator rounds it. With expandable segments at most one page of them, as a hole of theirs is never larger
/// than that; this half of the rule is not measured.
///
/// The one place of this rule; `device_high` includes the band, `device_low` does not. Source: a-r-r-o-w/finetrainers
/// (c4d6c6c9, docs/training) publishes LoRA trainings of video models on an A100 as reserved memory; replays of
/// recorded steps met 12 of them within 1.4 %, which one largest transient covers.
[[nodiscard]] std::vector<Bytes> reserved_bands(const shadow::Trace& trace, const device::AllocatorConfig& config,
                                                const device::Scratch& scratch = {});

/// What a trace reserves if its convolutions take the least that their rules allow, or the most.
struct End {
    Bytes allocated_peak = 0, reserved_peak = 0;
    std::vector<Bytes> reserved;  // by phase: the peak
    std::vector<Bytes> alone;     // by phase: reserved, had earlier phases left nothing in the cache
};

/// What a job needs of a card that is large enough.
struct Unlimited {
    device::Scratch scratch;  // whose middle the usage is
    device::Usage usage;
    std::vector<Bytes> bands;  // by phase of the usage
    std::vector<Bytes> alone;  // by phase: reserved, had earlier phases left nothing in the cache
    End low, high;             // as the usage where no convolution is left to the card
    bool ranges = false;       // one is
};

/// Whether the phases are replayed by themselves too. Where nobody asks `alone` is what the run shows; the verdict and
/// the run's own figures do not hang on it.
enum class Alone : std::uint8_t { replayed, not_asked };
[[nodiscard]] Unlimited unlimited_need(const shadow::Trace& trace, const device::AllocatorConfig& config,
                                       const device::Library& library = {}, Alone alone = Alone::replayed);

/// What a job needs on a card.
struct Need {
    device::Scratch scratch;
    device::Usage usage;
    std::vector<Bytes> bands;                     // by phase of the usage
    std::vector<Bytes> alone;                     // by phase, as in Unlimited
    End low, high;                                // as in Unlimited; never above or below the usage
    Bytes reserved_high = 0;                      // the highest phase with its band and the most scratch
    Bytes device_low = 0, device_high = 0;        // reserved and what stands beside it
    bool squeezed = false;                        // fits only since cached memory goes back to the card
    device::Capacity within = device::unlimited;  // of the replay that `usage` is
};

/// Where `unlimited`, of this trace and config, exceeds the card: replayed with its limit, as torch gives cached memory
/// back before it fails: it fits if the most scratch passes with the least room, and does not if the least fails with
/// the most. If that fails too, the need is the unlimited one.
[[nodiscard]] Need need_on(const shadow::Trace& trace, const device::AllocatorConfig& config, const Card& card,
                           const Unlimited& unlimited);
[[nodiscard]] Need need_on(const shadow::Trace& trace, const device::AllocatorConfig& config, const Card& card);

/// Whether the verdict of need_on would be `fits`, for less.
[[nodiscard]] bool fits(const shadow::Trace& trace, const device::AllocatorConfig& config, const Card& card,
                        const Unlimited& unlimited);

/// The phase that needs most by itself; later ones inherit what earlier ones left in the cache, which is not theirs.
/// Among equals the one that fills it most. There is at least one phase.
[[nodiscard]] const device::PhaseUsage& deciding_phase(const Need& need);

/// fits: high ≤ usable; tight: low ≤ usable < high, where a nominal capacity counts at its low end for the one and at
/// its high end for the other; else does_not_fit.
[[nodiscard]] Verdict verdict_of(Bytes low, Bytes high, const GpuLine& gpu);

}  // namespace vram::report
