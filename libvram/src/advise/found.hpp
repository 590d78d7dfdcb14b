#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report/json_parts.hpp"
#include "report/words.hpp"
#include "vram/report/check.hpp"
#include "vram/report/trial.hpp"

/// How what was tried reads: the parts that the texts and JSON objects of several verbs share.
namespace vram::advise {

/// "does not fit, 41.20 to 41.60 GiB", "does not fit, more than 80.00 GiB", "cannot say, job.yaml:3:1: …".
[[nodiscard]] std::string found(const report::Trial& trial);

/// "rtx-4090 has 23.52 GiB".
[[nodiscard]] std::string offer(const report::GpuLine& gpu);

/// A line each.
[[nodiscard]] std::string lines_of(const Diagnostics& diagnostics);

[[nodiscard]] nlohmann::ordered_json json_of(const Diagnostics& diagnostics);
[[nodiscard]] nlohmann::ordered_json json_of(const std::vector<report::Setting>& settings);
/// verdict, tensors_peak, tensors_phase, replayed, device_low, device_high (null where nobody replayed), reason.
[[nodiscard]] nlohmann::ordered_json json_of(const report::Trial& trial);
/// schema, vramest and source, with which every answer begins.
[[nodiscard]] nlohmann::ordered_json heading(const std::string& source);

}  // namespace vram::advise
