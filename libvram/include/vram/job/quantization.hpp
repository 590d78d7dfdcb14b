#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

namespace vram::job {

/// How linears of a part are stored, by library and scheme; `none` keeps `dtype`. docs/quantization.md says what each
/// is.
enum class Quantization : std::uint8_t {
    none,
    bnb_nf4,
    bnb_nf4_dq,
    bnb_fp4,
    bnb_fp4_dq,
    bnb_int8,
    quanto_qfloat8,
    quanto_qfloat8_e5m2,
    quanto_qint8,
    quanto_qint4,
    quanto_qint2,
    torchao_float8,
    torchao_int8,
    toolkit_uint2,
    toolkit_uint3,
    toolkit_uint4,
    toolkit_uint5,
    toolkit_uint6,
    toolkit_uint7,
    toolkit_uint8,
    toolkit_nvfp4,
    toolkit_convrot4,
    toolkit_convrot8,
    toolkit_convrotint2,
    toolkit_convrotint3,
    toolkit_convrotint4,
    toolkit_convrotint5,
    toolkit_convrotint6,
    toolkit_convrotint7,
    toolkit_convrotint8,
    toolkit_convrotbitnet,
    toolkit_convrotcomfyw4a4
};

/// The names of a job file, in the order of the enum.
inline constexpr std::array<std::string_view, 32> quantization_names{
    "none",
    "bnb_nf4",
    "bnb_nf4_dq",
    "bnb_fp4",
    "bnb_fp4_dq",
    "bnb_int8",
    "quanto_qfloat8",
    "quanto_qfloat8_e5m2",
    "quanto_qint8",
    "quanto_qint4",
    "quanto_qint2",
    "torchao_float8",
    "torchao_int8",
    "toolkit_uint2",
    "toolkit_uint3",
    "toolkit_uint4",
    "toolkit_uint5",
    "toolkit_uint6",
    "toolkit_uint7",
    "toolkit_uint8",
    "toolkit_nvfp4",
    "toolkit_convrot4",
    "toolkit_convrot8",
    "toolkit_convrotint2",
    "toolkit_convrotint3",
    "toolkit_convrotint4",
    "toolkit_convrotint5",
    "toolkit_convrotint6",
    "toolkit_convrotint7",
    "toolkit_convrotint8",
    "toolkit_convrotbitnet",
    "toolkit_convrotcomfyw4a4",
};
static_assert(quantization_names.size() == static_cast<std::size_t>(Quantization::toolkit_convrotcomfyw4a4) + 1);

[[nodiscard]] constexpr std::string_view to_text(Quantization quantization) {
    return quantization_names[static_cast<std::size_t>(quantization)];
}

}  // namespace vram::job
