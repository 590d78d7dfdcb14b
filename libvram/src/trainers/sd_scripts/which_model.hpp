#pragma once

#include "trainers/sd_scripts/arguments.hpp"
#include "vram/job/job.hpp"

namespace vram::profile {
class Catalogue;
}

namespace vram::trainers::sd_scripts {

/// Sets the job's model, described with the trainer's own forward: what lies at pretrained_model_name_or_path; a
/// repository that is known; else what the script is for, with a note. `said` is a profile that is named instead of
/// all that.
///
/// Errors: conflict, a known model that the script does not train; those of models::describe.
void find_model(const io::Document& document, const Config& config, const profile::ModelProfile* said,
                const profile::Catalogue& catalogue, job::Job& job, Diagnostics& complaints, Diagnostics& notes);

}  // namespace vram::trainers::sd_scripts
