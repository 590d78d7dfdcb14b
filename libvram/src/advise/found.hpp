#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "report/json_parts.hpp"
#include "report/words.hpp"
#include "vram/report/check.hpp"
#include "vram/report/trial.hpp"

/// How what was tried reads: the parts that the texts and JSON objects of several verbs share.
namespace vram::advise {

struct Proposal;

/// "does not fit, 41.20 to 41.60 GiB", "does not fit, more than 80.00 GiB", "cannot say, job.yaml:3:1: …".
[[nodiscard]] std::string found(const report::Trial& trial);

/// "rtx-4090 has 23.52 GiB".
[[nodiscard]] std::string offer(const report::GpuLine& gpu);

/// "1024x768", "832x480x81".
[[nodiscard]] std::string size_text(const std::array<std::int64_t, 3>& bucket);

/// "gradient checkpointing; and batch size 1 instead of 4".
[[nodiscard]] std::string what_of(const Proposal& proposal);

/// What a proposal is and comes to, then a line for each edit of the file and for what is typed.
[[nodiscard]] std::vector<std::string> lines_of(const Proposal& proposal, const report::Report& before);

/// The complaint about a verb that no card was named for; `what` is the verb, or what it gives.
[[nodiscard]] Diagnostic card_is_due(std::string_view what);

/// A line each.
[[nodiscard]] std::string lines_of(const Diagnostics& diagnostics);

[[nodiscard]] nlohmann::ordered_json json_of(const std::vector<report::Setting>& settings);
/// verdict, tensors_peak, tensors_phase, replayed, device_low, device_high (null where nobody replayed), reason.
[[nodiscard]] nlohmann::ordered_json json_of(const report::Trial& trial);
/// schema, vramest and source, with which every answer begins.
[[nodiscard]] nlohmann::ordered_json heading(const std::string& source);

}  // namespace vram::advise
