#include "report/diagnostic_json.hpp"
#include "report/json_parts.hpp"
#include "vram/report/report.hpp"

namespace vram::report {
namespace {

using json = nlohmann::ordered_json;
using report::json_of;  // beside those below

json json_of(const JobLine& job) {
    return {{"trainer", job.trainer}, {"model", job.model}, {"source", job.source}, {"resolved", json(job.resolved)}};
}

json json_of(const std::optional<Peak>& peak) {
    if (!peak) return nullptr;
    return {{"phase", peak->phase},
            {"stage", peak->stage},
            {"decides", to_text(peak->decides)},
            {"tensors", peak->tensors},
            {"allocated", peak->allocated},
            {"allocated_low", peak->allocated_low},
            {"allocated_high", peak->allocated_high},
            {"reserved", peak->reserved},
            {"reserved_low", peak->reserved_low},
            {"reserved_high", peak->reserved_high},
            {"device", peak->device},
            {"device_low", peak->device_low},
            {"device_high", peak->device_high}};
}

json json_of(const run::Counts& counts) {
    return {{"parameters", counts.parameters},
            {"adapted_modules", counts.adapted_modules},
            {"adapter_parameters", counts.adapter_parameters},
            {"attention_calls",
             {{"flash", counts.attention_flash},
              {"efficient", counts.attention_efficient},
              {"cudnn", counts.attention_cudnn},
              {"math", counts.attention_math}}}};
}

json json_of(const std::vector<run::InputTensor>& tensors) {
    json out = json::array();
    for (const run::InputTensor& tensor : tensors)
        out.push_back(json::array({tensor.name, json(tensor.shape), to_text(tensor.dtype)}));
    return out;
}

json json_of(const Phase& phase) {
    json stages = json::array();
    for (const Stage& stage : phase.stages)
        stages.push_back({{"name", stage.name},
                          {"tensors_peak", stage.tensors_peak},
                          {"tensors_end", stage.tensors_end},
                          {"allocated_peak", stage.allocated_peak},
                          {"reserved_peak", stage.reserved_peak}});
    const bool has_bucket = phase.bucket != std::array<std::int64_t, 3>{};
    return {{"name", phase.name},
            {"kind", phase.kind},
            {"bucket", has_bucket ? json(phase.bucket) : json(nullptr)},
            {"batch_size", phase.batch_size > 0 ? json(phase.batch_size) : json(nullptr)},
            {"kept_for_backward", phase.kept_for_backward},
            {"tensors_start", phase.tensors_start},
            {"tensors_peak", phase.tensors_peak},
            {"tensors_end", phase.tensors_end},
            {"allocated_peak", phase.allocated_peak},
            {"reserved_peak", phase.reserved_peak},
            {"device_peak", phase.device_peak},
            {"needs_low", phase.needs_low},
            {"needs_high", phase.needs_high},
            {"verdict", to_text(phase.verdict)},
            {"stages", std::move(stages)}};
}

json json_of(const Part& part) {
    return {{"component", part.component},
            {"category", shadow::to_text(part.category)},
            {"low", part.low},
            {"high", part.high},
            {"source", part.source}};
}

json json_of(const Advice& advice) {
    return {{"key", advice.key}, {"value", advice.value}, {"saves", advice.saves}, {"text", advice.text}};
}

json json_of(const job::StoredWeights& stored) {
    return {{"type", stored.type}, {"parameters", stored.parameters}, {"bytes", stored.bytes}};
}

json json_of(const std::optional<OtherWay>& other) {
    if (!other) return nullptr;
    return {{"phase", other->phase},
            {"device_low", other->device_low},
            {"device_high", other->device_high},
            {"verdict", to_text(other->verdict)}};
}

json json_of(const std::optional<Break>& first) {
    if (!first) return nullptr;
    return {{"phase", first->phase}, {"stage", first->stage}};
}

template <class T>
json list_of(const std::vector<T>& items) {
    json out = json::array();
    for (const T& item : items) out.push_back(json_of(item));
    return out;
}

}  // namespace

json json_of(const GpuLine& gpu) {
    return {{"id", gpu.id},
            {"name", gpu.name},
            {"chosen_by", to_text(gpu.chosen_by)},
            {"capacity", gpu.capacity},
            {"capacity_high", gpu.capacity_high},
            {"usable", gpu.usable()},
            {"other_processes", gpu.other_processes}};
}

std::string dumped(const json& value, int indent) {
    // A file's own bytes may stand in a complaint; what is not UTF-8 is replaced rather than thrown about.
    return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

std::string to_json(const Report& report, int indent) {
    const run::Facts& facts = report.facts;
    json out;
    out["schema"] = schema_version;
    out["vramest"] = library_version();
    out["job"] = json_of(report.job);
    out["gpu"] = json_of(report.gpu);
    out["verdict"] = to_text(report.verdict);
    out["reason"] = report.reason;
    out["peak"] = json_of(report.peak);
    out["counts"] = json_of(facts.counts);
    out["weights"] = facts.weights;
    if (!report.stored.empty()) out["stored_weights"] = list_of(report.stored);
    out["adapter"] = facts.adapter;
    out["optimizer_state"] = facts.optimizer_state;
    out["gradients"] = facts.gradients;
    out["inputs"] = facts.inputs;
    out["targets"] = facts.targets;
    out["kept_for_backward"] = facts.kept_for_backward;
    out["input_tensors"] = json_of(facts.input_tensors);
    const Checkpointing& checkpointing = report.checkpointing;
    out["checkpointing"] = {{"on", checkpointing.on},
                            {"kept", checkpointing.kept},
                            {"kept_without", checkpointing.kept_without},
                            {"factor", checkpointing.factor},
                            {"other", json_of(checkpointing.other)}};
    out["phases"] = list_of(report.phases);
    out["breaks_first"] = json_of(report.breaks_first);
    out["breakdown"] = list_of(report.breakdown);
    out["advice"] = list_of(report.advice);
    out["risk"] = {{"level", to_text(report.risk.level)}, {"why", report.risk.why}};
    out["diagnostics"] = list_of(report.diagnostics);
    return dumped(out, indent);
}

}  // namespace vram::report
