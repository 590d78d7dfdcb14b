#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "vram/base/expected.hpp"
#include "vram/job/job.hpp"
#include "vram/profile/catalogue.hpp"

namespace vram::report {

/// One line about a folder or file, as `vramest models PATH` prints it.
struct ModelFile {
    std::string path, class_name;  // class_name: empty where nothing tells it
    std::string family;            // empty where it cannot be played; `why_not` says why
    std::string why_not;
    std::int64_t parameters = 0;             // of the family's; of all tensors where there is none
    std::vector<job::StoredWeights> stored;  // by type, the most bytes first; empty where there are no weights
    Diagnostics notes;
    bool operator==(const ModelFile&) const = default;
};

/// Reads config.json and the headers of weights, as a job's `model:` does. Errors: those of a job's `model:`, with
/// their places in the files.
[[nodiscard]] expected<ModelFile> read_model_file(const std::filesystem::path& path,
                                                  const profile::Catalogue& catalogue);

}  // namespace vram::report
