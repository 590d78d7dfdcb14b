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

namespace vram::trainers::sd_scripts {

/// NetworkTrainer.train (sd-scripts 48d368fa, train_network.py): what is cached before the loop, two steps, one further
/// step for each other bucket, samples. The job must be one that sd_scripts::resolve made.
[[nodiscard]] run::Facts play(const job::Job& job, const profile::Catalogue& catalogue, shadow::Run& run,
                              run::Asides asides = run::Asides::played);

}  // namespace vram::trainers::sd_scripts
