#pragma once

#include "vram/base/expected.hpp"
#include "vram/job/job.hpp"

namespace vram::io {
struct Document;
}
namespace vram::profile {
class Catalogue;
}

namespace vram::trainers::ai_toolkit {

/// An ai-toolkit config → the job, of an architecture that is played (architectures/), with a LoRA or in full. All
/// complaints at once, each with its place; what else is understood is `unsupported`. Settings stand under the root key
/// `vramest`, by the job file's names. Dataset folders that exist are measured (dataset.hpp).
[[nodiscard]] expected<job::Job> resolve(const io::Document& document, const profile::Catalogue& catalogue,
                                         Diagnostics& notes);

}  // namespace vram::trainers::ai_toolkit
