#include <algorithm>

#include "advise/found.hpp"
#include "report/words.hpp"
#include "vram/advise/risk.hpp"

namespace vram::advise {
namespace {

using report::Verdict;

std::string need_text(const report::Report& report) {
    return report::range_text(report.peak->device_low, report.peak->device_high) + ", " +
           report::words(report.verdict) + "; tightest in " + report.peak->phase + "\n";
}

std::string buckets_text(const CheckpointingRisk& risk) {
    if (risk.buckets.empty()) return "";
    constexpr std::size_t most = 24;  // a dataset may have hundreds
    std::string out = "\nbuckets without it\n";
    std::vector<BucketRisk> costliest = risk.buckets;
    std::stable_sort(costliest.begin(), costliest.end(),
                     [](const BucketRisk& a, const BucketRisk& b) { return a.needs_high > b.needs_high; });
    for (std::size_t i = 0; i < costliest.size() && i < most; ++i) {
        const BucketRisk& bucket = costliest[i];
        out += "  " + size_text(bucket.bucket) + ", batch " + std::to_string(bucket.batch_size) + ": " +
               report::range_text(bucket.needs_low, bucket.needs_high) + ", " + report::words(bucket.verdict) + " (" +
               bucket.phase + ")\n";
    }
    if (costliest.size() > most) out += "  and " + std::to_string(costliest.size() - most) + " that need less\n";
    return out;
}

std::string instead_text(const CheckpointingRisk& risk) {
    if (risk.off.verdict == Verdict::fits) return "";
    const bool fits = !risk.instead.empty() && risk.instead.front().verdict == Verdict::fits;
    std::string out = fits ? "\nto have it off, change instead\n"
                           : "\nto have it off: nothing that is known makes it fit without checkpointing\n";
    if (!fits && !risk.instead.empty()) out += "nearest\n";
    for (const Proposal& proposal : risk.instead) {
        out += "  - " + what_of(proposal) + ": then " + report::range_text(proposal.device_low, proposal.device_high) +
               ", " + report::words(proposal.verdict) + "\n";
    }
    return out;
}

std::string plan_text(const CheckpointingRisk& risk) {
    std::string out = "\ntest one variable at a time, with it off\n";
    for (std::size_t i = 0; i < risk.plan.size(); ++i) {
        const PlannedRun& run = risk.plan[i];
        out += "  " + std::to_string(i + 1) + ". " + run.text + ": ";
        if (run.verdict == Verdict::cannot_say)
            out += "not played: " + run.why_not + "\n";
        else
            out += report::range_text(run.device_low, run.device_high) + ", " + report::words(run.verdict) +
                   "; tightest in " + run.phase + "\n";
        std::string settings;
        for (const report::Setting& setting : run.settings)
            settings += " --set '" + setting.key + "=" + setting.value + "'";
        out += "    " + settings + "\n";
    }
    // With nothing set but checkpointing it is the whole job.
    if (!risk.plan.empty() && risk.plan.back().verdict != Verdict::fits && risk.plan.back().settings.size() > 1)
        out += "  stop there: what comes after needs no less\n";
    return out;
}

}  // namespace

std::string to_text(const CheckpointingRisk& risk) {
    for (const report::Report* report : {&risk.on, &risk.off})
        if (report->verdict == Verdict::cannot_say) return "cannot say: " + report->reason + "\n";
    std::string out = std::string(report::to_text(risk.level)) + " risk in turning gradient checkpointing off" +
                      (risk.is_on ? "" : " (it is off in the job)") + "\n";
    out += "  on:  " + need_text(risk.on) + "  off: " + need_text(risk.off);
    if (risk.off.breaks_first)
        out += "  breaks first in " + risk.off.breaks_first->phase +
               (risk.off.breaks_first->stage.empty() ? "" : ", " + risk.off.breaks_first->stage) + "\n";
    out += "\nwhy\n";
    for (const std::string& reason : risk.why) out += "  - " + reason + "\n";
    return out + buckets_text(risk) + instead_text(risk) + plan_text(risk);
}

}  // namespace vram::advise
