#include "vram/base/dtype.hpp"

#include <array>
#include <utility>

namespace vram {
namespace {
constexpr std::array<std::pair<Dtype, std::string_view>, 13> names{{{Dtype::f32, "fp32"},
                                                                    {Dtype::bf16, "bf16"},
                                                                    {Dtype::f16, "fp16"},
                                                                    {Dtype::f8, "fp8"},
                                                                    {Dtype::f64, "fp64"},
                                                                    {Dtype::i64, "int64"},
                                                                    {Dtype::i32, "int32"},
                                                                    {Dtype::i16, "int16"},
                                                                    {Dtype::i8, "int8"},
                                                                    {Dtype::u8, "uint8"},
                                                                    {Dtype::boolean, "bool"},
                                                                    {Dtype::complex64, "complex64"},
                                                                    {Dtype::complex128, "complex128"}}};
constexpr std::array<std::pair<std::string_view, Dtype>, 10> torch_names{{{"float32", Dtype::f32},
                                                                          {"float", Dtype::f32},
                                                                          {"bfloat16", Dtype::bf16},
                                                                          {"float16", Dtype::f16},
                                                                          {"half", Dtype::f16},
                                                                          {"float64", Dtype::f64},
                                                                          {"double", Dtype::f64},
                                                                          {"float8_e4m3fn", Dtype::f8},
                                                                          {"long", Dtype::i64},
                                                                          {"int", Dtype::i32}}};

// complex > floating > integer > bool: torch's categories.
constexpr int category(Dtype dtype) {
    if (is_complex(dtype)) return 3;
    if (is_floating(dtype)) return 2;
    return dtype == Dtype::boolean ? 0 : 1;
}
}  // namespace

std::string_view to_text(Dtype dtype) {
    for (const auto& [value, name] : names)
        if (value == dtype) return name;
    return "?";
}

std::optional<Dtype> parse_dtype(std::string_view text) {
    for (const auto& [value, name] : names)
        if (name == text) return value;
    for (const auto& [name, value] : torch_names)
        if (name == text) return value;
    return std::nullopt;
}

Dtype promote(Dtype a, Dtype b) {
    if (a == b) return a;
    if (category(a) != category(b)) {
        const Dtype high = category(a) > category(b) ? a : b;
        const Dtype low = high == a ? b : a;
        if (high == Dtype::complex64 && low == Dtype::f64) return Dtype::complex128;
        return high;
    }
    if (is_floating(a) && size_of(a) == size_of(b)) return Dtype::f32;  // bf16 with fp16
    return size_of(a) >= size_of(b) ? a : b;
}

}  // namespace vram
