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

/// Of usages that the bands belong to.
Need need_of(device::Usage usage, const Unlimited& unlimited, const Card& card) {
    Need need{std::move(usage), unlimited.bands, unlimited.alone, 0, 0, 0, false};
    need.squeezed = need.usage.retries > 0;
    for (std::size_t i = 0; i < need.bands.size(); ++i) {
        const Bytes reserved = need.usage.phases[i].reserved_peak;
        if (need.squeezed) need.alone[i] = std::min(need.alone[i], reserved);
        need.reserved_high = std::max(need.reserved_high, reserved + need.bands[i]);
    }
    need.reserved_high = std::max(need.reserved_high, need.usage.reserved_peak);
    need.device_low = need.usage.reserved_peak + card.outside_low();
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

Unlimited unlimited_need(const Trace& trace, const device::AllocatorConfig& config) {
    Unlimited out{device::replay(trace, config), reserved_bands(trace, config), {}};
    // What one phase leaves in the cache is no reason to call the next one large.
    out.alone = reserved_of(out.usage.phases.size() < 2
                                ? out.usage
                                : device::replay(trace, config, device::unlimited, device::Between::give_back));
    return out;
}

Need need_on(const Trace& trace, const device::AllocatorConfig& config, const Card& card, const Unlimited& unlimited) {
    Need roomy = need_of(unlimited.usage, unlimited, card);
    if (roomy.device_high <= card.line.usable()) return roomy;
    // First as if everything were at its worst: what passes there fits. Then at its best: what fails there does not.
    for (const Bytes limit : {worst_limit(card, unlimited), card.line.usable_high() - card.outside_low()}) {
        if (limit <= 0) continue;
        if (roomy.usage.reserved_peak <= limit) break;  // it would not be felt
        device::Usage usage = device::replay(trace, config, device::Capacity(limit, card.line.capacity));
        if (!usage.failure) return need_of(std::move(usage), unlimited, card);
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
    return !device::replay(trace, config, device::Capacity(limit, card.line.capacity)).failure;
}

Verdict verdict_of(Bytes low, Bytes high, const GpuLine& gpu) {
    if (high <= gpu.usable()) return Verdict::fits;
    return low <= gpu.usable_high() ? Verdict::tight : Verdict::does_not_fit;
}

}  // namespace vram::report
