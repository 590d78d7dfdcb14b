#include <nlohmann/json.hpp>

#include "report/diagnostic_json.hpp"
#include "vram/diagnose/diagnosis.hpp"
#include "vram/report/report.hpp"

namespace vram::diagnosis {
namespace {

using json = nlohmann::ordered_json;

template <class T>
json or_null(const std::optional<T>& value) {
    return value ? json(*value) : json(nullptr);
}

json json_of(const Numbers& numbers) {
    return {{"tried", or_null(numbers.tried)},
            {"capacity", or_null(numbers.capacity)},
            {"free", or_null(numbers.free)},
            {"process", or_null(numbers.process)},
            {"allocated", or_null(numbers.allocated)},
            {"reserved_unallocated", or_null(numbers.reserved_unallocated)},
            {"other_processes", or_null(numbers.other_processes)},
            {"allowed", or_null(numbers.allowed)},
            {"host_tried", or_null(numbers.host_tried)},
            {"host_process", or_null(numbers.host_process)}};
}

json json_of(const std::optional<Bucket>& bucket) {
    if (!bucket) return nullptr;
    return {{"size", json(bucket->size)}, {"count", bucket->count}};
}

json json_of(const std::optional<Prediction>& prediction) {
    if (!prediction) return nullptr;
    return {{"verdict", prediction->verdict},     {"reason", prediction->reason},
            {"phase", prediction->phase},         {"compared", prediction->compared},
            {"breaks", prediction->breaks},       {"agrees", prediction->agrees},
            {"needs_low", prediction->needs_low}, {"needs_high", prediction->needs_high},
            {"capacity", prediction->capacity},   {"change", prediction->change}};
}

json json_of(const std::vector<Evidence>& evidence) {
    json out = json::array();
    for (const Evidence& one : evidence) out.push_back({{"line", one.line}, {"text", one.text}, {"says", one.says}});
    return out;
}

}  // namespace

std::string to_json(const Diagnosis& diagnosis, int indent) {
    const json out = {{"schema", schema_version},
                      {"vramest", report::library_version()},
                      {"source", diagnosis.source},
                      {"recognised", diagnosis.recognised},
                      {"phase", to_text(diagnosis.phase)},
                      {"kind", to_text(diagnosis.kind)},
                      {"confidence", to_text(diagnosis.confidence)},
                      {"pattern", to_text(diagnosis.pattern)},
                      {"trainer", diagnosis.trainer},
                      {"system", to_text(diagnosis.system)},
                      {"wording", diagnosis.wording},
                      {"numbers", json_of(diagnosis.numbers)},
                      {"short_by", or_null(diagnosis.short_by)},
                      {"step", or_null(diagnosis.step)},
                      {"steps", or_null(diagnosis.steps)},
                      {"went_on", diagnosis.went_on},
                      {"failures", diagnosis.failures},
                      {"heaviest_bucket", json_of(diagnosis.heaviest_bucket)},
                      {"cause", diagnosis.cause},
                      {"first_change", diagnosis.first_change},
                      {"then", json(diagnosis.then)},
                      {"notes", json(diagnosis.notes)},
                      {"evidence", json_of(diagnosis.evidence)},
                      {"looked_for", json(diagnosis.looked_for)},
                      {"prediction", json_of(diagnosis.prediction)},
                      {"diagnostics", report::json_of(diagnosis.diagnostics)}};
    return out.dump(indent, ' ', false, json::error_handler_t::replace);  // a log's line may be in any code page
}

}  // namespace vram::diagnosis
