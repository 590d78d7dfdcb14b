#include <algorithm>
#include <array>

#include "report/words.hpp"
#include "vram/report/report.hpp"

namespace vram::report {
namespace {

constexpr std::size_t number_width = 11, name_width = 36;
constexpr std::size_t most_phases = 12;  // a dataset may have a hundred buckets

/// "1 more note", "2 more notes".
std::string counted(std::size_t count, const std::string& what) {
    return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string headline(const Report& report) { return words(report.verdict) + ": " + report.reason + "\n"; }

std::string phases_text(const Report& report) {
    std::string out = "\n" + left("phase (GiB)", name_width) + right("tensors", number_width) +
                      right("allocated", number_width) + right("reserved", number_width) + "   needs of the card\n";
    // Where there are many, those that reach the highest are worth a line.
    std::vector<const Phase*> shown;
    for (const Phase& phase : report.phases) shown.push_back(&phase);
    std::stable_sort(shown.begin(), shown.end(),
                     [](const Phase* a, const Phase* b) { return a->allocated_peak > b->allocated_peak; });
    const std::size_t hidden = shown.size() > most_phases ? shown.size() - most_phases : 0;
    shown.resize(shown.size() - hidden);
    std::sort(shown.begin(), shown.end());
    for (const Phase* phase : shown) {
        out += left("  " + phase->name, name_width) + right(gib(phase->tensors_peak), number_width) +
               right(gib(phase->allocated_peak), number_width) + right(gib(phase->reserved_peak), number_width) +
               "   " + range(phase->needs_low, phase->needs_high);
        if (phase->verdict == Verdict::tight) out += "  tight";
        if (phase->verdict == Verdict::does_not_fit) out += "  does not fit";
        out += "\n";
    }
    if (hidden > 0) out += "  " + counted(hidden, "more phase") + ", smaller\n";
    // The run's highest may be more than any phase's own.
    const Phase* tightest = report.phase(report.peak->phase);
    const std::string whole = range(report.peak->device_low, report.peak->device_high);
    if (tightest != nullptr && whole != range(tightest->needs_low, tightest->needs_high))
        out += left("  the run, with what phases leave in torch's cache", name_width + 3 * number_width) + "   " +
               whole + "\n";
    return out;
}

std::string breakdown_text(const Report& report) {
    std::string out = "\n" + left("at the peak: " + report.peak->phase, name_width) + right("GiB", number_width) + "\n";
    std::vector<Part> parts = report.breakdown;
    std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.high > b.high; });
    Bytes small_low = 0, small_high = 0;
    const auto line = [&](const std::string& name, Bytes low, Bytes high) {
        const std::string to = gib(low) == gib(high) ? "" : " to " + gib(high);
        out += left("  " + name, name_width) + right(gib(low), number_width) + to + "\n";
    };
    for (const Part& part : parts) {
        std::string category = shadow::to_text(part.category);
        std::replace(category.begin(), category.end(), '_', ' ');
        if (gib(part.high) == "0.00") {
            small_low += part.low;
            small_high += part.high;
        } else {
            line(part.component + " " + category, part.low, part.high);
        }
    }
    if (gib(small_high) != "0.00") line("all else", small_low, small_high);
    line("device", report.peak->device_low, report.peak->device_high);
    return out;
}

/// What the files of a model hold that could not be played.
std::string stored_text(const Report& report) {
    if (report.stored.empty()) return "";
    std::string out = "\n" + left("weights, by their headers", name_width) + right("GiB", number_width) + "\n";
    Bytes all = 0;
    for (const job::StoredWeights& stored : report.stored) {
        out += left("  " + stored.type, name_width) + right(gib(stored.bytes), number_width) + "\n";
        all += stored.bytes;
    }
    return out + left("  together", name_width) + right(gib(all), number_width) + "\n";
}

std::string complaints_text(const Report& report) {
    if (report.diagnostics.empty() || report.verdict == Verdict::cannot_say) return "";
    std::string out = "\n" + to_text(report.diagnostics.front()) + "\n";
    if (report.diagnostics.size() > 1)
        out += "and " + counted(report.diagnostics.size() - 1, "more note") + ": --json has them all\n";
    return out;
}

std::string checkpointing_text(const Report& report) {
    const Checkpointing& checkpointing = report.checkpointing;
    std::string out;
    if (checkpointing.on && checkpointing.kept_without > 0)
        out += "\ncheckpointing keeps " + gib(checkpointing.kept) + " GiB for backward instead of " +
               gib(checkpointing.kept_without) + "\n";
    if (!checkpointing.other) return out;
    const OtherWay& other = *checkpointing.other;
    return out + (out.empty() ? "\n" : "") + (checkpointing.on ? "without it" : "with gradient checkpointing") +
           " the job needs " + range(other.device_low, other.device_high) + " GiB: " + words(other.verdict) +
           "; tightest in " + other.phase + "\n";
}

std::string joined(const std::vector<std::string>& items, const char* last) {
    std::string out;
    for (std::size_t i = 0; i < items.size(); ++i)
        out += (i == 0 ? "" : i + 1 == items.size() ? last : ", ") + items[i];
    return out;
}

/// What becomes of each bucket, where not all fit.
std::string buckets_text(const Report& report) {
    std::vector<std::string> fitting, tight, failing;
    std::vector<std::array<std::int64_t, 4>> seen;
    for (auto phase = report.phases.rbegin(); phase != report.phases.rend(); ++phase) {  // step 2 before step 1
        const auto& [width, height, frames] = phase->bucket;
        const std::array<std::int64_t, 4> batch{width, height, frames, phase->batch_size};
        if (width == 0 || std::find(seen.begin(), seen.end(), batch) != seen.end()) continue;
        seen.push_back(batch);
        std::string name = std::to_string(width) + "x" + std::to_string(height);
        if (frames > 1) name += "x" + std::to_string(frames);
        auto& list = phase->verdict == Verdict::fits ? fitting : phase->verdict == Verdict::tight ? tight : failing;
        list.insert(list.begin(), std::move(name));
    }
    if (tight.empty() && failing.empty()) return "";
    std::string out;
    if (!fitting.empty()) out += "fits at " + joined(fitting, " and ");
    if (!tight.empty())
        out += (out.empty() ? "" : "; ") + std::string("may fail when a batch of ") + joined(tight, " or ") + " comes";
    if (!failing.empty())
        out += (out.empty() ? "" : "; ") + std::string("fails when a batch of ") + joined(failing, " or ") + " comes";
    return "buckets: " + out + "\n";
}

std::string break_text(const Report& report) {
    if (!report.breaks_first) return "";
    const Break& first = *report.breaks_first;
    return "breaks first in " + first.phase + (first.stage.empty() ? "" : ", " + first.stage) + "\n";
}

}  // namespace

std::string to_text(const Report& report) {
    std::string out = headline(report);
    if (!report.peak) return out + stored_text(report);
    out += phases_text(report) + breakdown_text(report);
    out += checkpointing_text(report) + buckets_text(report) + break_text(report);
    for (const std::string& why : report.risk.why) out += "risk: " + why + "\n";
    return out + complaints_text(report);
}

}  // namespace vram::report
