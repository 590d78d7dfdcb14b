#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace vram {

/// A number of bytes. Signed, so that a difference may be an answer: room to spare, or what is missing.
using Bytes = std::int64_t;

inline constexpr Bytes KiB = 1024;
inline constexpr Bytes MiB = 1024 * KiB;
inline constexpr Bytes GiB = 1024 * MiB;

/// A size that does not fit 63 bits. Thrown inside a shadow run only; `check` turns it into a Diagnostic.
struct Overflow : std::overflow_error {
    using std::overflow_error::overflow_error;
};

/// a * b and a + b, or Overflow.
[[nodiscard]] inline std::int64_t checked_mul(std::int64_t a, std::int64_t b) {
    std::int64_t out = 0;
    if (__builtin_mul_overflow(a, b, &out)) throw Overflow("a size exceeds 63 bits");
    return out;
}
[[nodiscard]] inline std::int64_t checked_add(std::int64_t a, std::int64_t b) {
    std::int64_t out = 0;
    if (__builtin_add_overflow(a, b, &out)) throw Overflow("a size exceeds 63 bits");
    return out;
}

/// `value` rounded up to a multiple of `step` > 0; value >= 0.
[[nodiscard]] constexpr std::int64_t round_up(std::int64_t value, std::int64_t step) {
    return (value + step - 1) / step * step;
}
/// Quotient rounded up; value >= 0, step > 0.
[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t step) {
    return (value + step - 1) / step;
}

/// "23.52 GiB", "512 B": two decimals from KiB on, sign kept. For people; files carry bytes.
[[nodiscard]] std::string to_text(Bytes bytes);

/// Reads "24GiB", "24 GiB", "800MiB", "1.5 GB" (10^9), "8589934592" (bytes). False: not a size, negative or too large.
[[nodiscard]] bool parse_bytes(std::string_view text, Bytes& out);

}  // namespace vram
