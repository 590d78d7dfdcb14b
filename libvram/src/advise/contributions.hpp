#pragma once

#include <vector>

#include "vram/advise/explain.hpp"
#include "vram/job/job.hpp"

namespace vram::advise {

/// What each option that the job has adds. `report` is that of the document with these options, which name a card.
[[nodiscard]] std::vector<Contribution> contributions_of(const io::Document& document,
                                                         const report::CheckOptions& options,
                                                         const profile::Catalogue& catalogue,
                                                         const report::Report& report, const job::Job& job);

}  // namespace vram::advise
