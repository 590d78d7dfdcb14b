#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "run/asides.hpp"
#include "vram/base/expected.hpp"
#include "vram/job/change.hpp"
#include "vram/job/job.hpp"
#include "vram/run/facts.hpp"

namespace vram::io {
struct Document;
}
namespace vram::profile {
class Catalogue;
}
namespace vram::shadow {
class Run;
}

namespace vram::trainers {

/// Whose loop is played. A trainer is a folder with these three functions, and one line in trainers.cpp.
struct Trainer {
    std::string_view id;
    std::string_view described;  // name, version and commit that the recipe describes
    /// Whether the document is this trainer's own config.
    bool (*recognises)(const io::Document& document);
    /// Every complaint at once, or the job. Warnings and notes go to `notes` in either case.
    expected<job::Job> (*resolve)(const io::Document& document, const profile::Catalogue& catalogue,
                                  Diagnostics& notes);
    /// Plays the job's phases in the trainer's own order into the run's trace.
    run::Facts (*play)(const job::Job& job, const profile::Catalogue& catalogue, shadow::Run& run, run::Asides asides);
    /// What a user may change in such a document so that the job, which `resolve` made of it, needs less; of each lever
    /// the mildest first. Settings stand in the document, too, and what they decide is not proposed. Whether a change
    /// helps, and whether the trainer takes it, is for the caller to find out by playing it.
    std::vector<job::Change> (*changes)(const io::Document& document, const profile::Catalogue& catalogue,
                                        const job::Job& job);
};

[[nodiscard]] std::span<const Trainer> trainers();

/// Whether the document is a job file, which any trainer may be asked to play: it has a number (or anything but a map,
/// which is for settings beside a trainer's own file) under `vramest`, or names a trainer and a model.
[[nodiscard]] bool is_job_file(const io::Document& document);

}  // namespace vram::trainers
