#pragma once

#include <string>

#include "vram/base/bytes.hpp"

namespace vram::report {

/// "25.24 to 25.48 GiB", or one size where both ends read alike.
[[nodiscard]] std::string range_text(Bytes low, Bytes high);

}  // namespace vram::report
