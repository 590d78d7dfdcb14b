#pragma once

#include <nlohmann/json.hpp>

#include "vram/base/diagnostic.hpp"

namespace vram::report {

/// A complaint as every JSON of ours has it (job-file.md §3).
[[nodiscard]] nlohmann::ordered_json json_of(const Diagnostic& diagnostic);
[[nodiscard]] nlohmann::ordered_json json_of(const Diagnostics& diagnostics);

}  // namespace vram::report
