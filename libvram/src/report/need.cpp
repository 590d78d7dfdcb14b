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

/// What may be reserved if everything beside it is at its worst.
Bytes worst_limit(const Card& card, Bytes band) { return card.line.usable() - card.outside_high() - band; }

Need whole_run(const Trace& trace, const device::AllocatorConfig& config, const Card& card,
               const Unlimited& unlimited) {
    Need roomy = ranged(unlimited.usage, unlimited.bands, card);
    if (roomy.device_high <= card.line.usable()) return roomy;
    // First as if everything were at its worst: what passes there fits. Then at its best: what fails there does not.
    for (const Bytes limit : {worst_limit(card, roomy.band()), card.line.usable_high() - card.outside_low()}) {
        if (limit <= 0) continue;
        if (roomy.usage.reserved_peak <= limit) break;  // it would not be felt
        device::Usage usage = device::replay(trace, config, device::Capacity(limit, card.line.capacity));
        if (!usage.failure) return ranged(std::move(usage), unlimited.bands, card);
    }
    return roomy;
}

}  // namespace

std::vector<Bytes> reserved_bands(const Trace& trace, const device::AllocatorConfig& config) {
    std::vector<Bytes> bands;
    std::vector<Bytes> born;  // in this phase: slots count in order of birth
    std::size_t first = 0;
    std::size_t next = 0;
    Bytes largest = 0;
    for (const shadow::Event& event : trace.events) {
        const auto slot = static_cast<std::size_t>(event.slot);
        switch (event.kind) {
            case EventKind::alloc:
            case EventKind::scratch:
                born.push_back(event.bytes);
                next = slot + 1;
                break;
            case EventKind::free:
                if (slot >= first) largest = std::max(largest, born[slot - first]);
                break;
            case EventKind::retag: break;
            case EventKind::mark:
                if (trace.marks[slot].kind == MarkKind::phase_begin) {
                    born.clear();
                    first = next;
                    largest = 0;
                }
                if (trace.marks[slot].kind == MarkKind::phase_end) bands.push_back(band_of(largest, config));
                break;
        }
    }
    return bands;
}

Bytes Need::band() const { return bands.empty() ? 0 : *std::max_element(bands.begin(), bands.end()); }

Unlimited unlimited_need(const Trace& trace, const device::AllocatorConfig& config) {
    return {device::replay(trace, config), reserved_bands(trace, config)};
}

Need need_on(const Trace& trace, const device::AllocatorConfig& config, const Card& card, const Unlimited& unlimited) {
    Need need = whole_run(trace, config, card, unlimited);
    // What one phase leaves in the cache is no reason to call the next one too large.
    if (need.device_high > card.line.usable() && need.usage.phases.size() > 1)
        need.alone = reserved_of(device::replay(trace, config, device::unlimited, device::Between::give_back));
    return need;
}

Need need_on(const Trace& trace, const device::AllocatorConfig& config, const Card& card) {
    return need_on(trace, config, card, unlimited_need(trace, config));
}

bool fits(const Trace& trace, const device::AllocatorConfig& config, const Card& card, const Unlimited& unlimited) {
    const Need roomy = ranged(unlimited.usage, unlimited.bands, card);
    if (roomy.device_high <= card.line.usable()) return true;
    const Bytes limit = worst_limit(card, roomy.band());
    if (limit <= 0) return false;
    return !device::replay(trace, config, device::Capacity(limit, card.line.capacity)).failure;
}

Verdict verdict_of(Bytes low, Bytes high, const GpuLine& gpu) {
    if (high <= gpu.usable()) return Verdict::fits;
    return low <= gpu.usable_high() ? Verdict::tight : Verdict::does_not_fit;
}

}  // namespace vram::report
