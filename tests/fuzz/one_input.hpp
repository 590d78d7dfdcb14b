#pragma once

#include <string>
#include <string_view>

namespace vram::fuzz {

/// Hands `input` to every reader of untrusted bytes, and checks what must hold whatever it is. Empty, or the law that
/// did not hold.
[[nodiscard]] std::string check_one(std::string_view input);

}  // namespace vram::fuzz
