#pragma once

#include "vram/base/expected.hpp"
#include "vram/job/job.hpp"

namespace vram::io {
struct Document;
}
namespace vram::profile {
class Catalogue;
}

namespace vram::trainers::torch {

/// Reads a job file for the plain loop: every key of job-file.md §1. All complaints at once, each with its place:
/// unknown, duplicate, missing and ill-typed keys, sizes that the model cannot take, keys that exclude each other;
/// `unsupported` for what is understood and not modelled. Numbers are bounded so that whatever is accepted can be
/// played or is refused for its size.
[[nodiscard]] expected<job::Job> resolve(const io::Document& document, const profile::Catalogue& catalogue,
                                         Diagnostics& notes);

}  // namespace vram::trainers::torch
