#include "report/diagnostic_json.hpp"

namespace vram::report {

nlohmann::ordered_json json_of(const Diagnostic& d) {
    return {{"severity", to_text(d.severity)},
            {"problem", to_text(d.problem)},
            {"key", d.key},
            {"found", d.found},
            {"nearest", d.nearest},
            {"file", d.place.file},
            {"line", d.place.line},
            {"column", d.place.column},
            {"text", d.text}};
}

nlohmann::ordered_json json_of(const Diagnostics& diagnostics) {
    nlohmann::ordered_json out = nlohmann::ordered_json::array();
    for (const Diagnostic& one : diagnostics) out.push_back(json_of(one));
    return out;
}

}  // namespace vram::report
