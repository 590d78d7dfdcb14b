#include "report/summarize.hpp"

#include <algorithm>
#include <utility>

#include "report/words.hpp"

namespace vram::report {
namespace {

using device::PhaseUsage;
using shadow::Category;

/// Empty where the phase has no stages.
std::string deciding_stage(const PhaseUsage& phase) {
    const auto stage =
        std::max_element(phase.stages.begin(), phase.stages.end(), [](const device::Span& a, const device::Span& b) {
            return std::pair(a.reserved_peak, a.allocated_peak) < std::pair(b.reserved_peak, b.allocated_peak);
        });
    return stage == phase.stages.end() ? "" : stage->name;
}

/// `allocated` where cached memory goes back to the card, so that only what is allocated must fit; `device` where
/// reserved memory alone would fit and what stands beside it does not; else `reserved`.
Counter deciding_counter(const Need& need, const GpuLine& gpu, Verdict verdict) {
    if (need.squeezed) return Counter::allocated;
    if (verdict != Verdict::fits && need.reserved_high <= gpu.usable()) return Counter::device;
    return Counter::reserved;
}

Bytes middle(Bytes low, Bytes high) { return low + (high - low) / 2; }

}  // namespace

std::vector<Part> breakdown_of(const shadow::Trace& trace, const Need& need, const Card& card, const PhaseUsage& phase,
                               Bytes reserved_low, Bytes reserved_high) {
    const device::Snapshot moment = device::snapshot_at_peak(trace, phase, need.scratch);
    std::vector<Part> parts;
    for (const device::TagBytes& tag : moment.tensors)
        parts.push_back({tag.component, tag.category, tag.bytes, tag.bytes, "counted"});
    Bytes low = moment.allocated - moment.workspace, high = low;  // allocated, by the ends of what is in it
    for (const device::ScratchBytes& scratch : moment.scratch) {
        parts.push_back(
            {scratch.component, Category::workspace, scratch.low, scratch.high,
             scratch.low == scratch.high ? "counted" : "range of the convolution's kernel: docs/scratch.md"});
        low += scratch.low;
        high += scratch.high;
    }
    if (moment.rounding != 0)
        parts.push_back({"allocator", Category::rounding, moment.rounding, moment.rounding, "replayed"});
    parts.push_back({"allocator", Category::unallocated, reserved_low - low, reserved_high - high,
                     "replayed; high: one largest transient more"});
    for (const device::OutsidePart& part : card.outside)
        parts.push_back({"cuda", part.category, part.low, part.high, part.source});
    return parts;
}

namespace {

/// `low` and `high`: what the phase reserves by itself, see Need.
Phase phase_of(const PhaseUsage& usage, Bytes low, Bytes high, const run::Facts& facts, const Card& card) {
    Phase phase;
    phase.name = usage.name;
    for (const run::PhaseFacts& fact : facts.phases) {
        if (fact.name != usage.name) continue;
        phase.kind = fact.kind;
        phase.bucket = fact.bucket;
        phase.batch_size = fact.batch_size;
        phase.kept_for_backward = fact.kept_for_backward;
    }
    phase.tensors_start = usage.tensors_start;
    phase.tensors_peak = usage.tensors_peak;
    phase.tensors_end = usage.tensors_end;
    phase.allocated_peak = usage.allocated_peak;
    phase.reserved_peak = usage.reserved_peak;
    phase.device_peak = usage.reserved_peak + middle(card.outside_low(), card.outside_high());
    phase.needs_low = low + card.outside_low();
    phase.needs_high = high + card.outside_high();
    phase.verdict = verdict_of(phase.needs_low, phase.needs_high, card.line);
    for (const device::Span& stage : usage.stages)
        phase.stages.push_back(
            {stage.name, stage.tensors_peak, stage.tensors_end, stage.allocated_peak, stage.reserved_peak});
    return phase;
}

std::optional<Break> break_of(const Report& report, const Card& card) {
    for (const Phase& phase : report.phases) {
        if (phase.verdict != Verdict::does_not_fit) continue;
        Break out{phase.name, {}};
        for (const Stage& stage : phase.stages)
            if (out.stage.empty() && stage.allocated_peak + card.outside_low() > report.gpu.usable_high())
                out.stage = stage.name;
        return out;
    }
    return {};
}

std::string card_text(const GpuLine& gpu) {
    return !gpu.id.empty() ? gpu.id : !gpu.name.empty() ? gpu.name : std::string("the card");
}

/// "rtx-4090 has 23.52 GiB", and why it is asked about if nobody named it.
std::string has_text(const Report& report) {
    const GpuLine& gpu = report.gpu;
    std::string card = card_text(gpu);
    if (gpu.chosen_by == ChosenBy::smallest_that_holds)
        card = report.verdict == Verdict::fits ? "the smallest listed card that holds it, " + card + ","
                                               : "the largest listed card, " + card + ",";
    if (gpu.usable_high() == 0) return card + " has nothing left beside other processes";
    return card + " has " + range_text(gpu.usable(), gpu.usable_high()) + (gpu.other_processes > 0 ? " left" : "");
}

std::string reason_of(const Report& report) {
    const Peak& peak = *report.peak;
    const GpuLine& gpu = report.gpu;
    const std::string numbers =
        report.job.model + " needs " + range_text(peak.device_low, peak.device_high) + ", " + has_text(report);
    const std::string where = "; tightest in " + peak.phase + (peak.stage.empty() ? "" : ", " + peak.stage);
    if (report.verdict == Verdict::cannot_say) return numbers;
    return numbers + ": " +
           room_text(report.verdict, gpu.usable() - peak.device_high, peak.device_low - gpu.usable_high(),
                     peak.device_high - gpu.usable()) +
           where;
}

constexpr Bytes thin_percent = 5;

Risk risk_of(const Report& report, const Need& need, const job::Job& job) {
    Risk risk;
    const GpuLine& gpu = report.gpu;
    const auto medium = [&](std::string why) {
        risk.why.push_back(std::move(why));
        risk.level = std::max(risk.level, RiskLevel::medium);
    };
    if (report.verdict == Verdict::fits && gpu.usable() - report.peak->device_high < gpu.capacity / 100 * thin_percent)
        medium("less than 5 % of the card is left");
    if (gpu.capacity_high > gpu.capacity)
        medium("what this card offers is nominal: no machine is known to have printed it");
    if (need.squeezed)
        medium("it fits only since cached memory goes back to the card " +
               (need.usage.retries == 1 ? std::string("once") : std::to_string(need.usage.retries) + " times") +
               ", which is slow");
    // Source: NVIDIA's "System Memory Fallback" (drivers for Windows since 531; its switch since 546.01); WSL issue
    // 11050.
    if (report.verdict != Verdict::fits && job.environment.os != job::Environment::Os::linux_)
        medium(
            "on Windows the driver spills into system memory instead of failing; steps then take several times as "
            "long");
    if (report.verdict == Verdict::tight) risk.why.insert(risk.why.begin(), "the range crosses what the card offers");
    if (report.verdict != Verdict::fits) risk.level = RiskLevel::high;
    return risk;
}

Checkpointing checkpointing_of(const run::Facts& facts) {
    Checkpointing out{facts.checkpointing, facts.kept_for_backward, facts.kept_without_checkpointing, 1};
    if (out.kept_without > 0) out.factor = static_cast<double>(out.kept) / static_cast<double>(out.kept_without);
    return out;
}

}  // namespace

Report summarize(const job::Job& job, const run::Facts& facts, const shadow::Trace& trace, const Need& need,
                 const Card& card) {
    Report report;
    report.job.trainer = job.trainer;
    report.job.model = job.model;
    report.job.resolved = job.resolved;
    report.gpu = card.line;
    report.facts = facts;
    report.checkpointing = checkpointing_of(facts);
    const device::Usage& usage = need.usage;
    if (usage.phases.empty()) {
        report.reason = "nothing was played";
        return report;
    }
    report.verdict = verdict_of(need.device_low, need.device_high, card.line);
    const PhaseUsage& deciding = deciding_phase(need);
    Peak peak;
    peak.phase = deciding.name;
    peak.stage = deciding_stage(deciding);
    peak.decides = deciding_counter(need, card.line, report.verdict);
    peak.tensors = usage.tensors_peak;
    peak.allocated = usage.allocated_peak;
    peak.reserved = usage.reserved_peak;
    peak.allocated_low = need.low.allocated_peak;
    peak.allocated_high = need.high.allocated_peak;
    peak.reserved_low = need.low.reserved_peak;
    peak.reserved_high = need.high.reserved_peak;
    peak.device = usage.reserved_peak + middle(card.outside_low(), card.outside_high());
    peak.device_low = need.device_low;
    peak.device_high = need.device_high;
    report.peak = std::move(peak);
    for (std::size_t i = 0; i < usage.phases.size(); ++i)
        report.phases.push_back(
            phase_of(usage.phases[i], need.low.alone[i], need.high.alone[i] + need.bands[i], facts, card));
    report.breaks_first = break_of(report, card);
    report.breakdown = breakdown_of(trace, need, card, deciding, need.low.reserved_peak, need.reserved_high);
    report.reason = reason_of(report);
    report.risk = risk_of(report, need, job);
    return report;
}

}  // namespace vram::report
