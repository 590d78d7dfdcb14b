#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "vram/job/job.hpp"

/// How a job reads in Job::resolved: by the job file's keys, spelled as it spells them.
namespace vram::trainers {

[[nodiscard]] std::string text(bool value);
[[nodiscard]] std::string text(std::int64_t value);
[[nodiscard]] std::string text(double value);  ///< as short as reads back
[[nodiscard]] std::string text(const job::Batch& batch);
[[nodiscard]] std::string text(const std::vector<job::Batch>& batches);

/// What surroundings.hpp reads: `environment.*`, `gpu`, `capacity`.
void tell_surroundings(const job::Job& job, std::map<std::string, std::string>& keys);

}  // namespace vram::trainers
