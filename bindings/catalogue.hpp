#pragma once

#include "vram/profile/catalogue.hpp"

namespace vram::python {

/// What is built into the library: one handle for all calls, so that a profile is read once. Call it without the GIL,
/// since another thread may be the one that reads.
[[nodiscard]] const profile::Catalogue& catalogue();

}  // namespace vram::python
