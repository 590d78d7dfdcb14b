#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace vram {

/// Element types of tensors, with torch's names. `f8` stands for float8_e4m3fn.
enum class Dtype : std::uint8_t { f32, bf16, f16, f8, f64, i64, i32, i16, i8, u8, boolean, complex64, complex128 };

/// Bytes of one element.
[[nodiscard]] constexpr std::int64_t size_of(Dtype dtype) {
    switch (dtype) {
        case Dtype::complex128: return 16;
        case Dtype::f64:
        case Dtype::i64:
        case Dtype::complex64: return 8;
        case Dtype::f32:
        case Dtype::i32: return 4;
        case Dtype::bf16:
        case Dtype::f16:
        case Dtype::i16: return 2;
        case Dtype::f8:
        case Dtype::i8:
        case Dtype::u8:
        case Dtype::boolean: return 1;
    }
    return 0;
}

[[nodiscard]] constexpr bool is_floating(Dtype dtype) {
    return dtype == Dtype::f32 || dtype == Dtype::bf16 || dtype == Dtype::f16 || dtype == Dtype::f8 ||
           dtype == Dtype::f64;
}
[[nodiscard]] constexpr bool is_complex(Dtype dtype) { return dtype == Dtype::complex64 || dtype == Dtype::complex128; }

/// "bf16", "fp32", "int64", …: the names of job files and reports.
[[nodiscard]] std::string_view to_text(Dtype dtype);
/// Reads those names and torch's ("bfloat16", "float32", "float16", "float", "half").
[[nodiscard]] std::optional<Dtype> parse_dtype(std::string_view text);

/// The dtype that an elementwise op of two tensors yields, as torch.promote_types says.
[[nodiscard]] Dtype promote(Dtype a, Dtype b);

}  // namespace vram
