#pragma once

#include <string>
#include <string_view>

#include "vram/base/bytes.hpp"
#include "vram/report/report.hpp"

namespace vram::report {

/// "25.24 to 25.48 GiB", or one size where both ends read alike.
[[nodiscard]] std::string range_text(Bytes low, Bytes high);

/// "23.52": GiB with two decimals, whole hundredths from the bytes.
[[nodiscard]] std::string gib(Bytes bytes);
/// "22.58 to 22.81", or one number where both ends read alike.
[[nodiscard]] std::string range(Bytes low, Bytes high);
/// A name as people read it: "does not fit" of does_not_fit.
[[nodiscard]] std::string words(std::string_view name);
[[nodiscard]] std::string words(Verdict verdict);

/// What a need leaves of what the card offers: "1.20 GiB to spare", "up to 119.12 MiB too little" where it hangs on
/// what cannot be counted, "11.41 GiB too little" at least. Empty of cannot_say.
[[nodiscard]] std::string room_text(Verdict verdict, Bytes to_spare, Bytes at_least, Bytes at_most);

/// Filled up with blanks: behind the text, and before it, where at least one stands.
[[nodiscard]] std::string left(std::string text, std::size_t width);
[[nodiscard]] std::string right(const std::string& text, std::size_t width);

}  // namespace vram::report
