#include <nlohmann/json.hpp>

#include "report/json_parts.hpp"
#include "vram/advise/explain.hpp"

namespace vram::advise {
namespace {

using json = nlohmann::ordered_json;

json json_of(const device::Timeline& timeline) {
    json points = json::array(), parts = json::array();
    for (const device::Point& point : timeline.points)
        points.push_back(json::array({point.event, point.allocated, point.reserved}));
    for (const device::TimelinePart& part : timeline.parts)
        parts.push_back({{"phase", part.phase},
                         {"begin", part.begin},
                         {"end", part.end},
                         {"first_point", part.first_point},
                         {"points", part.points}});
    return {{"parts", std::move(parts)}, {"points", std::move(points)}};
}

json json_of(const LiveBlocks& blocks) {
    return {{"count", blocks.count},
            {"bytes", blocks.bytes},
            {"total", blocks.total},
            {"component", blocks.component},
            {"category", to_text(blocks.category)},
            {"op", blocks.op},
            {"phase", blocks.phase},
            {"stage", blocks.stage},
            {"module", blocks.module},
            {"class", blocks.class_name},
            {"line", blocks.line},
            {"backward", blocks.backward}};
}

json json_of(const Moment& moment) {
    json breakdown = json::array(), blocks = json::array();
    for (const report::Part& part : moment.breakdown)
        breakdown.push_back({{"component", part.component},
                             {"category", to_text(part.category)},
                             {"low", part.low},
                             {"high", part.high},
                             {"source", part.source}});
    for (const LiveBlocks& one : moment.blocks) blocks.push_back(json_of(one));
    return {{"phase", moment.phase},
            {"stage", moment.stage},
            {"tensors", moment.tensors},
            {"allocated", moment.allocated},
            {"reserved", moment.reserved},
            {"device_low", moment.device_low},
            {"device_high", moment.device_high},
            {"breakdown", std::move(breakdown)},
            {"blocks", std::move(blocks)},
            {"left_out_blocks", moment.left_out_blocks},
            {"left_out", moment.left_out}};
}

json json_of(const std::optional<Bytes>& bytes) { return bytes ? json(*bytes) : json(); }

json json_of(const std::optional<Difference>& difference) {
    if (!difference) return nullptr;
    return {{"device_low", difference->device_low},
            {"device_high", difference->device_high},
            {"needs_low", json_of(difference->needs_low)},
            {"needs_high", json_of(difference->needs_high)},
            {"tensors", difference->tensors},
            {"verdict_without", report::to_text(difference->without)}};
}

json json_of(const std::vector<Contribution>& contributions) {
    json out = json::array();
    for (const Contribution& one : contributions) {
        json instead;
        if (!one.instead.key.empty()) instead = {{"key", one.instead.key}, {"value", one.instead.value}};
        out.push_back({{"option", one.option},
                       {"value", one.value},
                       {"instead", std::move(instead)},
                       {"why_not", one.why_not},
                       {"difference", json_of(one.difference)}});
    }
    return out;
}

}  // namespace

std::string to_json(const Explained& explained, int indent) {
    const bool is_said = explained.report.verdict != report::Verdict::cannot_say;
    json out{{"schema", report::schema_version}, {"vramest", report::library_version()}};
    out["report"] = json::parse(report::to_json(explained.report, -1));
    out["timeline"] = is_said ? json_of(explained.timeline) : json();
    out["moment"] = is_said ? json_of(explained.moment) : json();
    out["contributions"] = json_of(explained.contributions);
    return report::dumped(out, indent);
}

}  // namespace vram::advise
