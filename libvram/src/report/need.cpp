#include "report/need.hpp"

#include <algorithm>

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

/// Fills in the range; the usage is there.
Need ranged(device::Usage usage, std::vector<Bytes> bands, const Card& card) {
    Need need{std::move(usage), std::move(bands), {}, 0, 0, false};
    need.alone = reserved_of(need.usage);
    need.device_low = need.usage.reserved_peak + card.outside_low();
    need.device_high = need.usage.reserved_peak + need.band() + card.outside_high();
    need.squeezed = need.usage.retries > 0;
    return need;
}

Bytes band_of(Bytes largest, const device::AllocatorConfig& config) {
    if (largest == 0) return 0;
    const Bytes band = device::round_size(largest, config);
    return config.expandable_segments ? std::min(band, config.large_segment_size) : band;
}

Need whole_run(const Trace& trace, const device::AllocatorConfig& config, const Card& card) {
    const std::vector<Bytes> bands = reserved_bands(trace, config);
    Need unlimited = ranged(device::replay(trace, config), bands, card);
    if (unlimited.device_high <= card.line.usable()) return unlimited;
    // First as if everything were at its worst: what passes there fits. Then at its best: what fails there does not.
    for (const Bytes limit :
         {card.line.usable() - card.outside_high() - unlimited.band(), card.line.usable_high() - card.outside_low()}) {
        if (limit <= 0) continue;
        if (unlimited.usage.reserved_peak <= limit) break;  // it would not be felt
        device::Usage usage = device::replay(trace, config, device::Capacity(limit, card.line.capacity));
        if (!usage.failure) return ranged(std::move(usage), bands, card);
    }
    return unlimited;
}

}  // namespace

std::vector<Bytes> reserved_bands(const Trace& trace, const device::AllocatorConfig& config) {
    struct Birth {
        Bytes bytes;
        std::int32_t phase;
    };
    std::vector<Birth> births(static_cast<std::size_t>(trace.slots), {0, -1});
    std::vector<Bytes> bands;
    std::int32_t phase = -1;
    Bytes largest = 0;
    for (const shadow::Event& event : trace.events) {
        const auto slot = static_cast<std::size_t>(event.slot);
        switch (event.kind) {
            case EventKind::alloc:
            case EventKind::scratch: births[slot] = {event.bytes, phase}; break;
            case EventKind::free:
                if (phase >= 0 && births[slot].phase == phase) largest = std::max(largest, births[slot].bytes);
                break;
            case EventKind::retag: break;
            case EventKind::mark:
                if (trace.marks[slot].kind == MarkKind::phase_begin) {
                    phase = static_cast<std::int32_t>(bands.size());
                    largest = 0;
                }
                if (trace.marks[slot].kind == MarkKind::phase_end) {
                    bands.push_back(band_of(largest, config));
                    phase = -1;
                }
                break;
        }
    }
    return bands;
}

Bytes Need::band() const { return bands.empty() ? 0 : *std::max_element(bands.begin(), bands.end()); }

Need need_on(const Trace& trace, const device::AllocatorConfig& config, const Card& card) {
    Need need = whole_run(trace, config, card);
    // What one phase leaves in the cache is no reason to call the next one too large.
    if (need.device_high > card.line.usable() && need.usage.phases.size() > 1)
        need.alone = reserved_of(device::replay(trace, config, device::unlimited, device::Between::give_back));
    return need;
}

Verdict verdict_of(Bytes low, Bytes high, const GpuLine& gpu) {
    if (high <= gpu.usable()) return Verdict::fits;
    return low <= gpu.usable_high() ? Verdict::tight : Verdict::does_not_fit;
}

}  // namespace vram::report
