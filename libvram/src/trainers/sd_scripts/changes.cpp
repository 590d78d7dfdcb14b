#include "trainers/sd_scripts/changes.hpp"

#include "trainers/job_changes.hpp"
#include "trainers/trainer.hpp"

namespace vram::trainers::sd_scripts {

std::vector<job::Change> changes(const io::Document& document, const job::Job& job) {
    if (is_job_file(document)) return job_changes(document, job);
    return {};
}

}  // namespace vram::trainers::sd_scripts
