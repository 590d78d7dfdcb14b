#pragma once

#include <string>
#include <string_view>

namespace vram::advise {

/// A text as XML holds it: names come from people's files, and what it cannot hold is a '?'. Behind `most` characters
/// stands "…".
[[nodiscard]] std::string xml(std::string_view text, std::size_t most = std::string_view::npos);

}  // namespace vram::advise
