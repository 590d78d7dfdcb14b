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

}  // namespace vram::report
