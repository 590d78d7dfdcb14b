#pragma once

#include <vector>

#include "vram/job/change.hpp"
#include "vram/job/job.hpp"

namespace vram::profile {
class Catalogue;
}

namespace vram::trainers::ai_toolkit {

/// What an ai-toolkit config may say else to need less (Trainer::changes), in its own keys, with the field of its web
/// interface beside it. A job file is answered in the job file's. Source of the fields: ui/src/app/jobs/new/
/// SimpleJob.tsx of 27a03a91.
[[nodiscard]] std::vector<job::Change> changes(const io::Document& document, const profile::Catalogue& catalogue,
                                               const job::Job& job);

}  // namespace vram::trainers::ai_toolkit
