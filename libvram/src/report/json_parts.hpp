#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "report/diagnostic_json.hpp"
#include "vram/report/report.hpp"

/// What stands in a report's JSON and in that of other answers too, by the same names.
namespace vram::report {

[[nodiscard]] nlohmann::ordered_json json_of(const GpuLine& gpu);

/// As text; `indent` < 0: on one line. What is not UTF-8 is replaced.
[[nodiscard]] std::string dumped(const nlohmann::ordered_json& value, int indent);

}  // namespace vram::report
