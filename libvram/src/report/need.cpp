#include "report/need.hpp"

#include <algorithm>
#include <array>
#include <memory>

#include "base/parallel.hpp"

namespace vram::report {
namespace {

using shadow::EventKind;
using shadow::MarkKind;
using shadow::Trace;

std::vector<Bytes> reserved_of(const device::Usage& usage) {
    std::vector<Bytes> out;
    for (const device::PhaseUsage& phase : usage.phases) out.push_back(phase.reserved_peak);
    return out;
}

bool leaves_to_the_card(const Trace& trace, const device::Library& library) {
    return std::any_of(trace.convolutions.begin(), trace.convolutions.end(), [&](const shadow::Convolution& call) {
        const device::ScratchRange range = device::scratch_of(call, library);
        return range.low != range.high;
    });
}

/// `alone`: where phases find an empty cache. What one phase leaves there is no reason to call the next one large.
End end_of(const device::Usage& usage, const device::Usage& alone) {
    return {usage.allocated_peak, usage.reserved_peak, reserved_of(usage), reserved_of(alone)};
}

using Pick = const Bytes& (*)(const Bytes&, const Bytes&);

/// An allocator may reserve more for less; the middle is no less within the range.
void reach(End& end, const device::Usage& usage, const std::vector<Bytes>& alone, Pick pick) {
    end.allocated_peak = pick(end.allocated_peak, usage.allocated_peak);
    end.reserved_peak = pick(end.reserved_peak, usage.reserved_peak);
    for (std::size_t i = 0; i < alone.size(); ++i) {
        end.reserved[i] = pick(end.reserved[i], usage.phases[i].reserved_peak);
        end.alone[i] = pick(end.alone[i], alone[i]);
    }
}

/// Of usages that the bands belong to.
Need need_of(device::Usage usage, const Unlimited& unlimited, const Card& card) {
    Need need{unlimited.scratch,
              std::move(usage),
              unlimited.bands,
              unlimited.alone,
              unlimited.low,
              unlimited.high,
              0,
              0,
              0,
              false};
    need.squeezed = need.usage.retries > 0;
    if (need.squeezed) {
        // Within the limit there is no room for a range: what a convolution asks more is given back before.
        for (std::size_t i = 0; i < need.alone.size(); ++i) {
            const Bytes reserved = need.usage.phases[i].reserved_peak;
            need.alone[i] = std::min(need.alone[i], reserved);
            for (End* end : {&need.low, &need.high}) {
                end->reserved[i] = reserved;
                end->alone[i] = std::min(end->alone[i], reserved);
            }
        }
        need.low.reserved_peak = need.high.reserved_peak = need.usage.reserved_peak;
    }
    for (std::size_t i = 0; i < need.bands.size(); ++i)
        need.reserved_high = std::max(need.reserved_high, need.high.reserved[i] + need.bands[i]);
    need.reserved_high = std::max(need.reserved_high, need.high.reserved_peak);
    need.device_low = need.low.reserved_peak + card.outside_low();
    need.device_high = need.reserved_high + card.outside_high();
    return need;
}

/// What may be reserved if everything beside it is at its worst.
Bytes worst_limit(const Card& card, const Unlimited& unlimited) {
    const std::vector<Bytes>& bands = unlimited.bands;
    const Bytes band = bands.empty() ? 0 : *std::max_element(bands.begin(), bands.end());
    return card.line.usable() - card.outside_high() - band;
}

Bytes band_of(Bytes largest, const device::AllocatorConfig& config) {
    if (largest == 0) return 0;
    const Bytes band = device::round_size(largest, config);
    return config.expandable_segments ? std::min(band, config.large_segment_size) : band;
}

}  // namespace

std::vector<Bytes> reserved_bands(const Trace& trace, const device::AllocatorConfig& config,
                                  const device::Scratch& scratch) {
    const std::vector<Bytes> convolutions = scratch.sizes(trace);
    std::vector<Bytes> bands;
    // By slot; written at birth, so never read before. Slots count in order of birth: from `first` on, in this phase.
    const auto born = std::make_unique_for_overwrite<Bytes[]>(static_cast<std::size_t>(trace.slots));
    std::size_t first = 0;
    std::size_t next = 0;
    Bytes largest = 0;
    for (const shadow::Event& event : trace.events) {
        const auto slot = static_cast<std::size_t>(event.slot);
        switch (event.kind) {
            case EventKind::alloc:
            case EventKind::scratch:
                born[slot] = event.bytes;
                next = slot + 1;
                break;
            case EventKind::convolution:
                born[slot] = convolutions[static_cast<std::size_t>(event.bytes)];
                next = slot + 1;
                break;
            case EventKind::free:
                if (slot >= first) largest = std::max(largest, born[slot]);
                break;
            case EventKind::retag: break;
            case EventKind::mark:
                if (trace.marks[slot].kind == MarkKind::phase_begin) {
                    first = next;
                    largest = 0;
                }
                if (trace.marks[slot].kind == MarkKind::phase_end) bands.push_back(band_of(largest, config));
                break;
        }
    }
    return bands;
}

Unlimited unlimited_need(const Trace& trace, const device::AllocatorConfig& config, const device::Library& library,
                         Alone alone) {
    using device::Estimate;
    const device::Scratch middle{library, Estimate::mid};
    const std::vector<Estimate> estimates = leaves_to_the_card(trace, library)
                                                ? std::vector{Estimate::mid, Estimate::low, Estimate::high}
                                                : std::vector{Estimate::mid};
    constexpr std::array between{device::Between::keep, device::Between::give_back};
    const auto phases = std::count_if(trace.marks.begin(), trace.marks.end(),
                                      [](const shadow::Mark& mark) { return mark.kind == MarkKind::phase_begin; });
    // Nothing lies before a single phase.
    const std::size_t ways = phases < 2 || alone == Alone::not_asked ? 1 : 2;
    std::vector<std::array<device::Usage, 2>> usages(estimates.size());
    in_parallel(usages.size() * ways, [&](std::size_t i) {
        usages[i / ways][i % ways] =
            device::replay(trace, config, device::unlimited, between[i % ways], {library, estimates[i / ways]});
    });
    Unlimited out{middle,
                  {},
                  reserved_bands(trace, config, middle),
                  reserved_of(usages[0][ways - 1]),
                  {},
                  {},
                  estimates.size() > 1};
    out.usage = std::move(usages[0][0]);
    if (out.usage.failure) return out;
    out.low = {out.usage.allocated_peak, out.usage.reserved_peak, reserved_of(out.usage), out.alone};
    out.high = out.low;
    if (estimates.size() == 1) return out;
    out.low = end_of(usages[1][0], usages[1][ways - 1]);
    out.high = end_of(usages[2][0], usages[2][ways - 1]);
    reach(out.low, out.usage, out.alone, &std::min<Bytes>);
    reach(out.high, out.usage, out.alone, &std::max<Bytes>);
    return out;
}

Need need_on(const Trace& trace, const device::AllocatorConfig& config, const Card& card, const Unlimited& unlimited) {
    using device::Estimate;
    Need roomy = need_of(unlimited.usage, unlimited, card);
    if (roomy.device_high <= card.line.usable()) return roomy;
    // First as if everything were at its worst: what passes there fits. Then at its best: what fails there does not.
    struct Attempt {
        Bytes limit;
        Estimate estimate;
        Bytes reserved;
    };
    for (const Attempt& attempt :
         {Attempt{worst_limit(card, unlimited), Estimate::high, unlimited.high.reserved_peak},
          Attempt{card.line.usable_high() - card.outside_low(), Estimate::low, unlimited.low.reserved_peak}}) {
        if (attempt.limit <= 0 || unlimited.usage.tensors_peak > attempt.limit) continue;
        if (attempt.reserved <= attempt.limit) break;  // it would not be felt
        const auto within = [&](Estimate estimate) {
            return device::replay(trace, config, device::Capacity(attempt.limit, card.line.capacity),
                                  device::Between::keep, {unlimited.scratch.library, estimate});
        };
        device::Usage usage = within(attempt.estimate);
        if (usage.failure) continue;
        device::Usage middle = unlimited.ranges ? within(Estimate::mid) : usage;
        const Estimate estimate = middle.failure ? attempt.estimate : Estimate::mid;
        Need need = need_of(std::move(middle.failure ? usage : middle), unlimited, card);
        need.scratch.estimate = estimate;
        need.within = device::Capacity(attempt.limit, card.line.capacity);
        return need;
    }
    return roomy;
}

Need need_on(const Trace& trace, const device::AllocatorConfig& config, const Card& card) {
    return need_on(trace, config, card, unlimited_need(trace, config));
}

bool fits(const Trace& trace, const device::AllocatorConfig& config, const Card& card, const Unlimited& unlimited) {
    if (need_of(unlimited.usage, unlimited, card).device_high <= card.line.usable()) return true;
    const Bytes limit = worst_limit(card, unlimited);
    if (limit <= 0) return false;
    const device::Scratch most{unlimited.scratch.library, device::Estimate::high};
    return !device::replay(trace, config, device::Capacity(limit, card.line.capacity), device::Between::keep, most)
                .failure;
}

const device::PhaseUsage& deciding_phase(const Need& need) {
    std::size_t best = 0;
    const auto size = [&](std::size_t i) { return std::pair(need.alone[i], need.usage.phases[i].allocated_peak); };
    for (std::size_t i = 1; i < need.usage.phases.size(); ++i)
        if (size(best) < size(i)) best = i;
    return need.usage.phases[best];
}

Verdict verdict_of(Bytes low, Bytes high, const GpuLine& gpu) {
    if (high <= gpu.usable()) return Verdict::fits;
    return low <= gpu.usable_high() ? Verdict::tight : Verdict::does_not_fit;
}

}  // namespace vram::report
