#pragma once

#include <string>

#include "diagnose/story.hpp"
#include "vram/report/report.hpp"

namespace vram::diagnosis {

/// What a story comes to: all fields of the diagnosis but `source`, the table's texts and the prediction. `by` is the
/// finer cause that failures/changes.yaml asks for.
struct Decided {
    Diagnosis diagnosis;
    std::string by;
};

/// `report`: what the run's config needs, or null. Research and rules: docs/diagnose.md.
[[nodiscard]] Decided decide(const Story& story, const report::Report* report);

/// The report's phase that failed, or the likest one: of a step the heaviest. Null where it plays none such.
[[nodiscard]] const report::Phase* phase_of(const report::Report& report, Phase phase);

}  // namespace vram::diagnosis
