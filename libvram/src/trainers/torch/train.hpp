#pragma once

#include "vram/io/fields.hpp"
#include "vram/job/job.hpp"

namespace vram::trainers::torch {

/// The keys of `train` but for `batch_size`; `batches` stays empty. `dtype` is the job's, which an adapter has unless
/// it says.
[[nodiscard]] job::Training read_training(io::Fields& train, Dtype dtype);

}  // namespace vram::trainers::torch
