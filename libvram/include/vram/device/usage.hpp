#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vram/base/bytes.hpp"
#include "vram/device/allocator.hpp"
#include "vram/device/scratch.hpp"
#include "vram/shadow/trace.hpp"

namespace vram::device {

/// What a trace needs within a phase or a stage. All sizes are bytes.
///
/// `tensors`   live tensors, each storage once, rounded up to 512: EventKind::alloc without scratch
/// `allocated` torch's counter; 0 where only tensors were summed
/// `reserved`  torch's counter; 0 where only tensors were summed
///
/// Peaks are what torch.cuda.max_memory_allocated/_reserved would say at its end after reset_peak_memory_stats at its
/// begin: they start from what is current, so what an earlier phase reserved and kept is in them.
struct Span {
    std::string name;
    Bytes tensors_start = 0, tensors_peak = 0, tensors_end = 0;
    Bytes allocated_peak = 0, reserved_peak = 0;
    /// Index of the event after which the peak was first reached; for a peak that was there at the begin, the event of
    /// the begin mark. In a stage that is played several times: within the play that set the peak.
    std::int64_t tensors_peak_event = 0, allocated_peak_event = 0;
    bool operator==(const Span&) const = default;
};

/// A phase and its stages. Stages of the same name (gradient accumulation plays forward, loss, backward n times) are
/// one entry: start is the first one's, peak the highest, end the last one's. Stages inside stages are entries of their
/// own.
struct PhaseUsage : Span {
    std::vector<Span> stages;
    /// The stage named so, or null.
    [[nodiscard]] const Span* stage(std::string_view stage_name) const;
    bool operator==(const PhaseUsage&) const = default;
};

/// An allocation that failed: where, and what torch would have said. Only the first is kept.
struct Failure {
    std::int64_t event = 0;
    std::string phase, stage;  // empty: outside of one
    OutOfMemory out_of_memory;
    bool operator==(const Failure&) const = default;
};

/// What a trace needs. Phases stand in the order of the run; their names are distinct.
struct Usage {
    std::vector<PhaseUsage> phases;
    /// The run's highest, what lies outside of phases included.
    Bytes tensors_peak = 0, allocated_peak = 0, reserved_peak = 0;
    std::int64_t tensors_peak_event = 0, allocated_peak_event = 0;
    /// torch's num_alloc_retries: how often cached memory had to go back to the card first.
    std::int64_t retries = 0;
    /// Set: the allocator stops there. Peaks of `allocated` and `reserved` are those before it, phases that begin later
    /// have none (0); `tensors` goes on to the end.
    std::optional<Failure> failure;

    /// The phase named so, or null.
    [[nodiscard]] const PhaseUsage* phase(std::string_view name) const;
    bool operator==(const Usage&) const = default;
};

/// Live tensors only: a sum, about 1 ns an event. Errors: none; the trace keeps its invariants.
[[nodiscard]] Usage sum(const shadow::Trace& trace);

/// What becomes of cached memory where a phase begins. Runs keep it; given back, each phase reserves only what it and
/// what is still alive need.
enum class Between : std::uint8_t { keep, give_back };

/// The same and torch's caching allocator, about 20 ns an event. `capacity` bounds the reserved bytes; running out is a
/// value (Usage::failure). To learn the need, replay without a limit; to learn whether giving cached memory back makes
/// it fit, replay with the card's.
///
/// A convolution takes its scratch when its output exists and gives it back before the call ends, as torch takes
/// cuDNN's workspace from the allocator (aten/src/ATen/native/cudnn/Conv_v8.cpp); how much, `scratch` says.
[[nodiscard]] Usage replay(const shadow::Trace& trace, const AllocatorConfig& config, Capacity capacity = unlimited,
                           Between between = Between::keep, const Scratch& scratch = {});

/// A slot that is alive after an event.
struct LiveSlot {
    shadow::Slot slot = 0;
    std::uint16_t tag = 0;          // of Trace::tags, as of then
    std::uint8_t op = 0;            // who asked (shadow::Op)
    bool scratch = false;           // EventKind::scratch and convolution
    Bytes bytes = 0;                // as requested; 0 of a convolution
    std::int64_t born = 0;          // index of its event
    std::int64_t convolution = -1;  // its index in Trace::convolutions; -1: it is none
    bool operator==(const LiveSlot&) const = default;
};

/// Everything that is alive after event number `event` (0 <= event < trace.events.size()), oldest first.
[[nodiscard]] std::vector<LiveSlot> alive_after(const shadow::Trace& trace, std::int64_t event);

/// Bytes of one (component, category), each slot rounded up to 512.
struct TagBytes {
    std::string component;
    shadow::Category category = shadow::Category::activations;
    Bytes bytes = 0;
    bool operator==(const TagBytes&) const = default;
};

/// Scratch of one component: as replayed, and the ends of its range.
struct ScratchBytes {
    std::string component;
    Bytes bytes = 0, low = 0, high = 0;
    bool operator==(const ScratchBytes&) const = default;
};

/// A moment of a replay, taken apart. allocated = Σ tensors + workspace + rounding; reserved = allocated + unallocated.
struct Snapshot {
    std::int64_t event = 0;
    Bytes allocated = 0, reserved = 0;
    std::vector<TagBytes> tensors;      // in the order of Trace::tags; none is 0
    std::vector<ScratchBytes> scratch;  // what `workspace` adds up, by the component that asked
    Bytes workspace = 0;                // Σ scratch: cuBLAS workspaces, counted scratch of kernels
    Bytes rounding = 0;     // unsplit remainders and roundup_power2_divisions; under cudaMallocAsync <= 0, since
                            // that backend counts exact bytes
    Bytes unallocated = 0;  // the phase's reserved peak − allocated
    bool operator==(const Snapshot&) const = default;
};

/// The moment of the highest `allocated` of a phase of `replay(trace, …)`; `phase` is one of its phases and reached
/// before any failure.
[[nodiscard]] Snapshot snapshot_at_peak(const shadow::Trace& trace, const PhaseUsage& phase,
                                        const Scratch& scratch = {});

}  // namespace vram::device
