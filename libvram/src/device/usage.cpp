#include "vram/device/usage.hpp"

#include <algorithm>
#include <memory>
#include <unordered_map>

#include "vram/device/timeline.hpp"

namespace vram::device {

using shadow::Event;
using shadow::EventKind;
using shadow::Mark;
using shadow::MarkKind;
using shadow::Slot;
using shadow::Trace;

namespace {

constexpr Bytes rounded(Bytes bytes) { return (bytes + 511) & ~Bytes{511}; }

// Highest values since the last mark. The hot loops write here; a mark folds it into every phase and stage that is
// open.
struct Window {
    Bytes tensors = 0, tensors_peak = 0;
    Bytes allocated = 0, allocated_peak = 0, reserved = 0, reserved_peak = 0;
    std::int64_t tensors_peak_event = 0, allocated_peak_event = 0;

    void restart(std::int64_t event) {
        tensors_peak = tensors;
        allocated_peak = allocated;
        reserved_peak = reserved;
        tensors_peak_event = allocated_peak_event = event;
    }
};

// Of two spans, or of a span and a window, the higher peaks; ties keep the earlier.
template <class Part>
void raise(Span& span, const Part& part) {
    if (part.tensors_peak > span.tensors_peak) {
        span.tensors_peak = part.tensors_peak;
        span.tensors_peak_event = part.tensors_peak_event;
    }
    if (part.allocated_peak > span.allocated_peak) {
        span.allocated_peak = part.allocated_peak;
        span.allocated_peak_event = part.allocated_peak_event;
    }
    span.reserved_peak = std::max(span.reserved_peak, part.reserved_peak);
}

class Recorder {
  public:
    Recorder() = default;

    // Marks of any kind but empty_cache.
    void pass(const Mark& mark, std::int64_t event, Window& window) {
        fold(window);
        window.restart(event);
        switch (mark.kind) {
            case MarkKind::phase_begin:
                phase_ = begin<PhaseUsage>(mark.name, event, window);
                in_phase_ = true;
                break;
            case MarkKind::phase_end: end_phase(window); break;
            case MarkKind::stage_begin:
                if (in_phase_) begin_stage(mark.name, event, window);
                break;
            case MarkKind::stage_end:
                if (!open_.empty()) end_stage(window);
                break;
            case MarkKind::empty_cache: break;
        }
    }

    [[nodiscard]] Failure failure(std::int64_t event, const OutOfMemory& why) const {
        return {event, in_phase_ ? phase_.name : std::string(), open_.empty() ? std::string() : open_.back().span.name,
                why};
    }

    [[nodiscard]] Usage finish(Window& window) {
        fold(window);
        while (!open_.empty()) end_stage(window);
        end_phase(window);
        usage_.tensors_peak = run_.tensors_peak;
        usage_.allocated_peak = run_.allocated_peak;
        usage_.reserved_peak = run_.reserved_peak;
        usage_.tensors_peak_event = run_.tensors_peak_event;
        usage_.allocated_peak_event = run_.allocated_peak_event;
        return std::move(usage_);
    }

  private:
    struct OpenStage {
        Span span;
        std::size_t entry;  // in phase_.stages
        bool again;         // played before
    };

    template <class T>
    static T begin(const std::string& name, std::int64_t event, const Window& window) {
        T out;
        out.name = name;
        out.tensors_start = out.tensors_peak = window.tensors;
        out.allocated_peak = window.allocated;
        out.reserved_peak = window.reserved;
        out.tensors_peak_event = out.allocated_peak_event = event;
        return out;
    }
    void fold(const Window& window) {
        raise(run_, window);
        if (in_phase_) raise(phase_, window);
        for (OpenStage& stage : open_) raise(stage.span, window);
    }
    void begin_stage(const std::string& name, std::int64_t event, const Window& window) {
        std::vector<Span>& stages = phase_.stages;
        const auto found =
            std::find_if(stages.begin(), stages.end(), [&](const Span& span) { return span.name == name; });
        const auto entry = static_cast<std::size_t>(found - stages.begin());
        const bool again = found != stages.end();
        Span span = begin<Span>(name, event, window);
        if (!again) stages.push_back(span);
        open_.push_back({std::move(span), entry, again});
    }
    void end_stage(const Window& window) {
        OpenStage stage = std::move(open_.back());
        open_.pop_back();
        stage.span.tensors_end = window.tensors;
        Span& entry = phase_.stages[stage.entry];
        if (!stage.again) {
            entry = std::move(stage.span);
        } else {
            raise(entry, stage.span);
            entry.tensors_end = stage.span.tensors_end;
        }
    }
    void end_phase(const Window& window) {
        if (!in_phase_) return;
        phase_.tensors_end = window.tensors;
        usage_.phases.push_back(std::move(phase_));
        phase_ = {};
        in_phase_ = false;
    }

    Usage usage_;
    Span run_;
    PhaseUsage phase_;
    bool in_phase_ = false;
    std::vector<OpenStage> open_;
};

/// `look(event, counters)` is told after each event what torch counts then.
template <class AnyAllocator, class Look>
Usage replay_with(const Trace& trace, AnyAllocator allocator, Between between, const Scratch& scratch,
                  const Look& look) {
    Recorder recorder;
    Window window;
    const std::vector<Bytes> convolutions = scratch.sizes(trace);
    struct Live {
        Bytes tensor;  // its size; 0 of scratch
        Block block;
    };
    const auto live = std::make_unique_for_overwrite<Live[]>(static_cast<std::size_t>(trace.slots));
    std::optional<Failure> failure;
    const auto count = static_cast<std::int64_t>(trace.events.size());
    const Event* const events = trace.events.data();
    for (std::int64_t i = 0; i < count; ++i) {
        const Event& event = events[i];
        const auto slot = static_cast<std::size_t>(event.slot);
        switch (event.kind) {
            case EventKind::alloc:
                window.tensors += rounded(event.bytes);
                if (window.tensors > window.tensors_peak) {
                    window.tensors_peak = window.tensors;
                    window.tensors_peak_event = i;
                }
                [[fallthrough]];
            case EventKind::scratch:
            case EventKind::convolution: {
                const Bytes bytes = event.kind == EventKind::convolution
                                        ? convolutions[static_cast<std::size_t>(event.bytes)]
                                        : event.bytes;
                live[slot] = {event.kind == EventKind::alloc ? rounded(event.bytes) : 0, no_block};
                if (failure || bytes == 0) break;
                live[slot].block = allocator.allocate(bytes);
                if (live[slot].block == no_block) {
                    window.reserved_peak = allocator.counters().reserved_peak;
                    failure = recorder.failure(i, allocator.out_of_memory());
                } else if (allocator.counters().allocated > window.allocated_peak) {
                    window.allocated_peak = allocator.counters().allocated;
                    window.allocated_peak_event = i;
                }
                break;
            }
            case EventKind::free:
                window.tensors -= live[slot].tensor;
                if (!failure && live[slot].block != no_block) allocator.free(live[slot].block);
                break;
            case EventKind::retag: break;
            case EventKind::mark: {
                const Mark& mark = trace.marks[slot];
                const bool gives_back = mark.kind == MarkKind::empty_cache ||
                                        (mark.kind == MarkKind::phase_begin && between == Between::give_back);
                if (gives_back && !failure) allocator.empty_cache();
                if (mark.kind == MarkKind::empty_cache) break;
                if (failure) {
                    window.allocated = window.reserved = 0;
                } else {
                    window.allocated = allocator.counters().allocated;
                    window.reserved = allocator.counters().reserved;
                    window.reserved_peak = allocator.counters().reserved_peak;
                    allocator.reset_peaks();
                }
                recorder.pass(mark, i, window);
                break;
            }
        }
        look(i, allocator.counters());
    }
    if (!failure) window.reserved_peak = allocator.counters().reserved_peak;
    Usage usage = recorder.finish(window);
    usage.retries = allocator.counters().retries;
    usage.failure = std::move(failure);
    return usage;
}

template <class T>
const T* named(const std::vector<T>& spans, std::string_view name) {
    const auto found = std::find_if(spans.begin(), spans.end(), [&](const T& span) { return span.name == name; });
    return found == spans.end() ? nullptr : &*found;
}

void add(std::vector<TagBytes>& parts, const shadow::Tag& tag, Bytes bytes) {
    if (bytes == 0) return;
    for (TagBytes& part : parts)
        if (part.category == tag.category && part.component == tag.component) {
            part.bytes += bytes;
            return;
        }
    parts.push_back({tag.component, tag.category, bytes});
}

}  // namespace

const Span* PhaseUsage::stage(std::string_view stage_name) const { return named(stages, stage_name); }
const PhaseUsage* Usage::phase(std::string_view phase_name) const { return named(phases, phase_name); }

Usage sum(const Trace& trace) {
    Recorder recorder;
    Window window;
    // Of slots that are alive, 0 for scratch; written at birth, so never read before.
    const auto sizes = std::make_unique_for_overwrite<Bytes[]>(static_cast<std::size_t>(trace.slots));
    const auto count = static_cast<std::int64_t>(trace.events.size());
    const Event* const events = trace.events.data();
    auto stretch = trace.stretches.begin();
    const auto next_stretch = [&] {
        return stretch == trace.stretches.end() ? std::int64_t{-1} : static_cast<std::int64_t>(stretch->first);
    };
    std::int64_t next = next_stretch();
    // Marks are rare: between two of them everything stays in registers.
    for (std::int64_t i = 0; i < count; ++i) {
        Bytes tensors = window.tensors, peak = window.tensors_peak;
        std::int64_t peak_event = window.tensors_peak_event;
        for (;;) {
            if (i == next) {
                if (tensors + stretch->peak > peak) {
                    peak = tensors + stretch->peak;
                    peak_event = i + static_cast<std::int64_t>(stretch->peak_at);
                }
                tensors += stretch->net;
                i += static_cast<std::int64_t>(stretch->count);
                ++stretch;
                next = next_stretch();
                continue;
            }
            if (i == count || events[i].kind == EventKind::mark) break;
            const Event& event = events[i++];
            if (event.kind == EventKind::retag) [[unlikely]]
                continue;
            Bytes& size = sizes[static_cast<std::size_t>(event.slot)];
            // A free is the one event that takes a size away, without a branch.
            const Bytes fresh = rounded(event.bytes) & -static_cast<Bytes>(event.kind == EventKind::alloc);
            tensors += event.kind == EventKind::free ? -size : fresh;
            size = fresh;
            peak_event = tensors > peak ? i - 1 : peak_event;
            peak = std::max(peak, tensors);
        }
        window.tensors = tensors;
        window.tensors_peak = peak;
        window.tensors_peak_event = peak_event;
        if (i == count) break;
        const Mark& mark = trace.marks[static_cast<std::size_t>(events[i].slot)];
        if (mark.kind != MarkKind::empty_cache) recorder.pass(mark, i, window);
    }
    return recorder.finish(window);
}

namespace {
template <class Look>
Usage replay_and_look(const Trace& trace, const AllocatorConfig& config, Capacity capacity, Between between,
                      const Scratch& scratch, const Look& look) {
    using Backend = AllocatorConfig::Backend;
    switch (config.backend) {
        case Backend::native: return replay_with(trace, Allocator(config, capacity), between, scratch, look);
        case Backend::cuda_malloc_async:
            return replay_with(trace, AsyncAllocator(config, capacity), between, scratch, look);
    }
    return {};
}

/// The phases of a trace and what lies between them, as far as it holds events; neither points nor their counts yet.
std::vector<TimelinePart> parts_of(const Trace& trace) {
    const auto count = static_cast<std::int64_t>(trace.events.size());
    std::vector<TimelinePart> parts;
    std::int64_t from = 0;
    std::string phase;
    const auto close = [&](std::int64_t end) {
        if (end > from) parts.push_back({phase, from, end, 0, 0});
        from = end;
    };
    for (std::int64_t i = 0; i < count; ++i) {
        const Event& event = trace.events[static_cast<std::size_t>(i)];
        if (event.kind != EventKind::mark) continue;
        const Mark& mark = trace.marks[static_cast<std::size_t>(event.slot)];
        if (mark.kind == MarkKind::phase_begin) {
            close(i);
            phase = mark.name;
        }
        if (mark.kind == MarkKind::phase_end) {
            close(i + 1);
            phase.clear();
        }
    }
    close(count);
    return parts;
}
}  // namespace

Usage replay(const Trace& trace, const AllocatorConfig& config, Capacity capacity, Between between,
             const Scratch& scratch) {
    return replay_and_look(trace, config, capacity, between, scratch, [](std::int64_t, const Counters&) {});
}

Timeline timeline(const Trace& trace, const AllocatorConfig& config, std::size_t most_points, Capacity capacity,
                  const Scratch& scratch) {
    Timeline out{{}, parts_of(trace)};
    // Every part has a point. What lies between phases has no more; of the others half go by events, so that a load of
    // few large ones is seen beside steps.
    const std::size_t parts = out.parts.size();
    const auto phases = static_cast<std::size_t>(std::count_if(
        out.parts.begin(), out.parts.end(), [](const TimelinePart& part) { return !part.phase.empty(); }));
    const std::size_t spare = most_points > parts ? most_points - parts : 0;
    for (TimelinePart& part : out.parts) {
        const std::int64_t events = part.end - part.begin;
        std::size_t more = 0;
        if (!part.phase.empty() || phases == 0) {
            const double share = static_cast<double>(events) / static_cast<double>(trace.events.size());
            more = spare / 2 / std::max<std::size_t>(phases, 1) +
                   static_cast<std::size_t>(static_cast<double>(spare) / 2 * share);
        }
        part.first_point = out.points.size();
        part.points = std::min(1 + more, static_cast<std::size_t>(events));
        for (std::size_t n = 0; n < part.points; ++n)
            out.points.push_back(
                {part.begin + events * static_cast<std::int64_t>(n) / static_cast<std::int64_t>(part.points), 0, 0});
    }
    std::size_t at = 0;
    const auto look = [&](std::int64_t event, const Counters& counters) {
        while (at + 1 < out.points.size() && event >= out.points[at + 1].event) ++at;
        Point& point = out.points[at];
        point.allocated = std::max(point.allocated, counters.allocated);
        point.reserved = std::max(point.reserved, counters.reserved);
    };
    static_cast<void>(replay_and_look(trace, config, capacity, Between::keep, scratch, look));
    return out;
}

std::vector<LiveSlot> alive_after(const Trace& trace, std::int64_t event) {
    // Backwards, what is freed is known before it is born, and the last tag before the others.
    std::vector<bool> dead(static_cast<std::size_t>(trace.slots));
    std::unordered_map<Slot, std::uint16_t> tags;
    std::vector<LiveSlot> slots;
    for (std::int64_t i = event; i >= 0; --i) {
        const Event& e = trace.events[static_cast<std::size_t>(i)];
        const auto slot = static_cast<std::size_t>(e.slot);
        switch (e.kind) {
            case EventKind::alloc:
            case EventKind::scratch:
            case EventKind::convolution: {
                if (dead[slot]) break;
                const auto tag = tags.find(e.slot);
                const bool convolution = e.kind == EventKind::convolution;
                slots.push_back({e.slot, tag == tags.end() ? e.tag : tag->second, e.op, e.kind != EventKind::alloc,
                                 convolution ? 0 : e.bytes, i, convolution ? e.bytes : -1});
                break;
            }
            case EventKind::free: dead[slot] = true; break;
            case EventKind::retag:
                if (!dead[slot]) tags.emplace(e.slot, e.tag);
                break;
            case EventKind::mark: break;
        }
    }
    std::reverse(slots.begin(), slots.end());
    return slots;
}

Snapshot snapshot_at_peak(const Trace& trace, const PhaseUsage& phase, const Scratch& scratch) {
    Snapshot out;
    out.event = phase.allocated_peak_event;
    out.allocated = phase.allocated_peak;
    out.reserved = phase.reserved_peak;
    std::vector<Bytes> tensors(trace.tags.size());
    std::vector<ScratchBytes> kernels(trace.tags.size());
    for (const LiveSlot& slot : alive_after(trace, out.event)) {
        if (!slot.scratch) {
            tensors[slot.tag] += rounded(slot.bytes);
            continue;
        }
        ScratchRange range{slot.bytes, slot.bytes, slot.bytes};
        if (slot.convolution >= 0)
            range = scratch_of(trace.convolutions[static_cast<std::size_t>(slot.convolution)], scratch.library);
        ScratchBytes& sum = kernels[slot.tag];
        sum.bytes += rounded(range.at(scratch.estimate));
        sum.low += rounded(range.low);
        sum.high += rounded(range.high);
    }
    Bytes live = 0;
    for (std::size_t tag = 0; tag < trace.tags.size(); ++tag) {
        add(out.tensors, trace.tags[tag], tensors[tag]);
        live += tensors[tag];
        if (kernels[tag].high == 0) continue;
        kernels[tag].component = trace.tags[tag].component;
        out.workspace += kernels[tag].bytes;
        out.scratch.push_back(std::move(kernels[tag]));
    }
    out.rounding = out.allocated - live - out.workspace;
    out.unallocated = out.reserved - out.allocated;
    return out;
}

}  // namespace vram::device
