#pragma once

#include "vram/base/expected.hpp"
#include "vram/job/job.hpp"

namespace vram::io {
struct Document;
}
namespace vram::profile {
class Catalogue;
}

namespace vram::trainers::sd_scripts {

/// A file of the kohya_ss GUI, one for --config_file of sd-scripts, or a job file, as a job with nothing left open; or
/// every complaint at once.
[[nodiscard]] expected<job::Job> resolve(const io::Document& document, const profile::Catalogue& catalogue,
                                         Diagnostics& notes);

}  // namespace vram::trainers::sd_scripts
