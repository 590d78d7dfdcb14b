#pragma once

#include "vram/io/document.hpp"

namespace vram::trainers {

/// Whether Python takes a value as true: not null, false, 0, an empty text, list or map.
[[nodiscard]] bool truthy(const io::Node& node);

}  // namespace vram::trainers
