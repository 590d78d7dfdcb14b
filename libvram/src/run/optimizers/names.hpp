#pragma once

#include <span>
#include <string_view>

#include "vram/io/fields.hpp"
#include "vram/job/optimizer.hpp"

namespace vram::run {

/// Optimizers by the names that a job file has for them: the class of the library that goes by that name, as its
/// constructor is called with nothing but a learning rate (SGD: with momentum).
[[nodiscard]] std::span<const io::Choice<job::Optimizer>> optimizer_names();

/// Names that people write, of optimizers that are not modelled.
[[nodiscard]] std::span<const std::string_view> optimizers_not_modelled();

}  // namespace vram::run
