#pragma once

#include "run/asides.hpp"
#include "vram/job/job.hpp"
#include "vram/run/facts.hpp"

namespace vram::profile {
class Catalogue;
}
namespace vram::shadow {
class Run;
}

namespace vram::trainers::torch {

/// The plain loop of job-file.md §2: the model, its inputs and targets, two steps (stages forward, loss, backward,
/// optimizer, ema) and one further step for each other bucket; or one call under no_grad. The job must be one that
/// torch::resolve made.
[[nodiscard]] run::Facts play(const job::Job& job, const profile::Catalogue& catalogue, shadow::Run& run,
                              run::Asides asides = run::Asides::played);

}  // namespace vram::trainers::torch
