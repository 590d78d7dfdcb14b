#pragma once

#include <map>
#include <string>

#include "vram/job/job.hpp"

namespace vram::trainers::torch {

/// Every key of the job file as it was understood, defaults included: what the report shows as `job.resolved`.
[[nodiscard]] std::map<std::string, std::string> resolved_keys(const job::Job& job);

}  // namespace vram::trainers::torch
