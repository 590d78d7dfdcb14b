#pragma once

#include "nn/module.hpp"

namespace vram::nn::quantize {

/// ai-toolkit's ConvRot formats: the input is rotated by blocks (a matrix of up to 256 x 256, kept on the GPU for each
/// dtype), and multiplied by codes of a rotated weight. Eligible: in divisible by 16, out by 8 (convrot4: by 16;
/// comfyw4a4: in by 256); what is not stays as it is.
///
/// - convrot8: int8 codes, an fp32 scale a row. convrotint2 to 7: n bits a code, an fp32 scale a row and an fp32 ratio
/// a
///   group of 128 (halved until it divides a row). convrotint8 without ratios: it keeps the unpacked codes for
///   backward. convrotbitnet: five codes a byte. convrotcomfyw4a4: 4 bits, no ratios. Forward quantises the input
///   (int8, an fp32 scale a row), multiplies into int32 [rows, out] and scales that; for backward it keeps the stored
///   codes alone, which backward dequantises, twice at once.
/// - convrot4: nvfp4 with block scales twice (as they are, and swizzled for the tensor cores): 5/8 byte a weight. Below
///   compute capability 10 the input is quantised and dequantised in fp32, and the dequantised weight kept for
///   backward.
///
/// Rows that are called without grad and are 16 or fewer go through one fused product. Played with Triton (Linux), int8
/// tensor cores, and a card below Blackwell, whose fp4 product convrot4 would take.
/// Source: toolkit/util/convrot_quant.py (27a03a91).
extern const Quantizer toolkit_convrot4, toolkit_convrot8, toolkit_convrotint2, toolkit_convrotint3,
    toolkit_convrotint4, toolkit_convrotint5, toolkit_convrotint6, toolkit_convrotint7, toolkit_convrotint8,
    toolkit_convrotbitnet, toolkit_convrotcomfyw4a4;

}  // namespace vram::nn::quantize
