#pragma once

#include "vram/io/fields.hpp"
#include "vram/job/job.hpp"

namespace vram::profile {
class DeviceCatalogue;
}

namespace vram::trainers {

/// What every trainer's job may say beside the training itself, by the job file's names: `environment.*`, `gpu`,
/// `capacity`. In a job file they stand at the root; in a trainer's own file under `vramest`, where `--set` puts them.
[[nodiscard]] job::Environment read_environment(io::Fields& job, Diagnostics& notes);
/// The gpu is one of `cards`, by its id; unknown_gpu otherwise, conflict where a capacity is given too.
[[nodiscard]] job::Card read_card(io::Fields& job, const profile::DeviceCatalogue& cards);

[[nodiscard]] std::string_view to_text(job::Environment::Os os);
[[nodiscard]] std::string_view to_text(job::Environment::Attention attention);

}  // namespace vram::trainers
