#include "nn/quantize/formats.hpp"

#include "nn/quantize/bitsandbytes.hpp"
#include "nn/quantize/convrot.hpp"
#include "nn/quantize/nvfp4.hpp"
#include "nn/quantize/quanto.hpp"
#include "nn/quantize/torchao.hpp"
#include "nn/quantize/uintx.hpp"

namespace vram::nn::quantize {
namespace {

constexpr const Quantizer* all[] = {
    &bnb_nf4,
    &bnb_nf4_dq,
    &bnb_fp4,
    &bnb_fp4_dq,
    &bnb_int8,
    &quanto_qfloat8,
    &quanto_qfloat8_e5m2,
    &quanto_qint8,
    &quanto_qint4,
    &quanto_qint2,
    &torchao_float8,
    &torchao_int8,
    &toolkit_uint2,
    &toolkit_uint3,
    &toolkit_uint4,
    &toolkit_uint5,
    &toolkit_uint6,
    &toolkit_uint7,
    &toolkit_uint8,
    &toolkit_nvfp4,
    &toolkit_convrot4,
    &toolkit_convrot8,
    &toolkit_convrotint2,
    &toolkit_convrotint3,
    &toolkit_convrotint4,
    &toolkit_convrotint5,
    &toolkit_convrotint6,
    &toolkit_convrotint7,
    &toolkit_convrotint8,
    &toolkit_convrotbitnet,
    &toolkit_convrotcomfyw4a4,
};

}  // namespace

std::span<const Quantizer* const> formats() { return all; }

const Quantizer* format_named(std::string_view id) {
    for (const Quantizer* format : all)
        if (format->id == id) return format;
    return nullptr;
}

}  // namespace vram::nn::quantize
