#pragma once

#include "vram/diagnose/diagnose.hpp"
#include "vram/profile/catalogue.hpp"
#include "vram/report/check.hpp"
#include "vram/report/report.hpp"
#include "vram/report/trainer_list.hpp"

/// The front door:
///
///     const vram::Catalogue catalogue = vram::Catalogue::built_in();
///     const vram::Report report = vram::check(text, "job.yaml", {.gpu = "rtx-4090"}, catalogue);
///     if (report.verdict == vram::Verdict::fits) …
///     const vram::Diagnosis diagnosis = vram::diagnose(log, "run.log", &report);
namespace vram {

using diagnosis::diagnose;
using diagnosis::Diagnosis;
using diagnosis::LogReader;
using profile::Catalogue;
using report::check;
using report::CheckOptions;
using report::Report;
using report::Verdict;

}  // namespace vram
