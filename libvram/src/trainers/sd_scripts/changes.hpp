#pragma once

#include <vector>

#include "vram/job/change.hpp"
#include "vram/job/job.hpp"

namespace vram::profile {
class Catalogue;
}

namespace vram::trainers::sd_scripts {

/// What a file may say else to need less, by its own keys (Trainer::changes).
[[nodiscard]] std::vector<job::Change> changes(const io::Document& document, const profile::Catalogue& catalogue,
                                               const job::Job& job);

}  // namespace vram::trainers::sd_scripts
