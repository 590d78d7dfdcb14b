#pragma once

#include <string>
#include <vector>

namespace vram::report {

/// Whose loop can be played.
struct TrainerLine {
    std::string id;         // as a job file's `trainer`
    std::string described;  // name, version and commit that the recipe describes
    bool operator==(const TrainerLine&) const = default;
};
[[nodiscard]] std::vector<TrainerLine> trainer_list();

}  // namespace vram::report
