#pragma once

#include "nn/module.hpp"

namespace vram::nn::quantize {

/// ai-toolkit's OstrisLinear with UIntXQuantizer: codes of 2 to 7 bits packed into shards of 1, 2 and 4 bits, a scale
/// in the model's dtype and a byte of zero a group of 64: bits/8 + 3/64 bytes a weight in bf16. Rows that 64 does not
/// divide stay as they are, and so does everything at 8 bits: uint8 never quantised. The dequantised weight is kept for
/// backward, the input is not. Quantising works in the weight's own dtype: up to 9 bytes a weight of one layer beside
/// it. Source: toolkit/util/uintx_quant.py; ostris_quant.py (27a03a91).
extern const Quantizer toolkit_uint2, toolkit_uint3, toolkit_uint4, toolkit_uint5, toolkit_uint6, toolkit_uint7,
    toolkit_uint8;

}  // namespace vram::nn::quantize
