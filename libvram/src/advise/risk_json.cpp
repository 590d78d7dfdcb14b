#include <nlohmann/json.hpp>

#include "report/json_parts.hpp"
#include "vram/advise/risk.hpp"

namespace vram::advise {
namespace {

using json = nlohmann::ordered_json;

json json_of(const BucketRisk& bucket) {
    return {{"bucket", json(bucket.bucket)},   {"batch_size", bucket.batch_size},
            {"phase", bucket.phase},           {"needs_low", bucket.needs_low},
            {"needs_high", bucket.needs_high}, {"verdict", report::to_text(bucket.verdict)}};
}

json json_of(const PlannedRun& run) {
    json settings = json::array();
    for (const report::Setting& setting : run.settings)
        settings.push_back({{"key", setting.key}, {"value", setting.value}});
    return {{"text", run.text},      {"settings", std::move(settings)}, {"verdict", report::to_text(run.verdict)},
            {"phase", run.phase},    {"device_low", run.device_low},    {"device_high", run.device_high},
            {"why_not", run.why_not}};
}

json instead_of(const Proposal& proposal) {
    json changes = json::array();
    for (const Placed& placed : proposal.changes)
        changes.push_back({{"lever", to_text(placed.change.lever)}, {"text", placed.change.text}});
    return {{"changes", std::move(changes)},
            {"verdict", report::to_text(proposal.verdict)},
            {"phase", proposal.phase},
            {"device_low", proposal.device_low},
            {"device_high", proposal.device_high}};
}

}  // namespace

std::string to_json(const CheckpointingRisk& risk, int indent) {
    json out{{"schema", report::schema_version}, {"vramest", report::library_version()}};
    out["level"] = report::to_text(risk.level);
    out["why"] = risk.why;
    out["is_on"] = risk.is_on;
    out["on"] = json::parse(report::to_json(risk.on, -1));
    out["off"] = json::parse(report::to_json(risk.off, -1));
    out["buckets"] = json::array();
    for (const BucketRisk& bucket : risk.buckets) out["buckets"].push_back(json_of(bucket));
    out["breaks_first"] = json();
    if (risk.off.breaks_first)
        out["breaks_first"] = {{"phase", risk.off.breaks_first->phase}, {"stage", risk.off.breaks_first->stage}};
    out["instead"] = json::array();
    for (const Proposal& proposal : risk.instead) out["instead"].push_back(instead_of(proposal));
    out["plan"] = json::array();
    for (const PlannedRun& run : risk.plan) out["plan"].push_back(json_of(run));
    return report::dumped(out, indent);
}

}  // namespace vram::advise
