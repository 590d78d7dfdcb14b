#pragma once

#include "vram/profile/catalogue.hpp"

namespace vram::python {

/// What is built into the library, read at the first call and kept: it is constant. Call it without the GIL, since
/// another thread may be the one that reads. Throws std::runtime_error, with the complaint, for a bug of ours.
[[nodiscard]] const profile::Catalogue& catalogue();

}  // namespace vram::python
