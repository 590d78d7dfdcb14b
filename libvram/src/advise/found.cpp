#include "advise/found.hpp"

#include "vram/advise/advise.hpp"

namespace vram::advise {

using json = nlohmann::ordered_json;
using report::Verdict;

std::string found(const report::Trial& trial) {
    const std::string verdict = report::words(trial.verdict);
    if (trial.verdict == Verdict::cannot_say) return verdict + ", " + trial.reason;
    if (!trial.replayed) return verdict + ", more than " + vram::to_text(trial.device_low);
    return verdict + ", " + report::range_text(trial.device_low, trial.device_high);
}

std::string offer(const report::GpuLine& gpu) {
    const std::string card = !gpu.id.empty() ? gpu.id : !gpu.name.empty() ? gpu.name : std::string("the card");
    return card + " has " + report::range_text(gpu.usable(), gpu.usable_high());
}

std::string size_text(const std::array<std::int64_t, 3>& bucket) {
    std::string out = std::to_string(bucket[0]) + "x" + std::to_string(bucket[1]);
    if (bucket[2] > 1) out += "x" + std::to_string(bucket[2]);
    return out;
}

std::string what_of(const Proposal& proposal) {
    std::string out;
    for (const Placed& placed : proposal.changes) out += (out.empty() ? "" : "; and ") + placed.change.text;
    return out;
}

Diagnostic card_is_due(std::string_view what) {
    return {Severity::error,
            Problem::missing_key,
            {},
            "--gpu",
            {},
            {},
            std::string(what) + " is about a card: name one with --gpu or --capacity, in the job, or have a driver"};
}

std::string lines_of(const Diagnostics& diagnostics) {
    std::string out;
    for (const Diagnostic& diagnostic : diagnostics) out += vram::to_text(diagnostic) + "\n";
    return out;
}

json json_of(const std::vector<report::Setting>& settings) {
    json out = json::object();
    for (const report::Setting& setting : settings) out[setting.key] = setting.value;
    return out;
}

json json_of(const report::Trial& trial) {
    const bool said = trial.verdict != Verdict::cannot_say;
    return {{"verdict", report::to_text(trial.verdict)},
            {"tensors_peak", trial.tensors_peak},
            {"tensors_phase", trial.tensors_phase},
            {"replayed", trial.replayed},
            {"device_low", said ? json(trial.device_low) : json(nullptr)},
            {"device_high", trial.replayed ? json(trial.device_high) : json(nullptr)},
            {"reason", trial.reason}};
}

json heading(const std::string& source) {
    return {{"schema", report::schema_version}, {"vramest", report::library_version()}, {"source", source}};
}

}  // namespace vram::advise
