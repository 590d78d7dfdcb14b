#pragma once

#include "nn/module.hpp"

namespace vram::nn::quantize {

/// ai-toolkit's OstrisLinear with Nvfp4Quantizer: codes of 4 bits, an e4m3 scale a block of 16, one fp32 scale: 9/16
/// byte a weight. Rows that 16 does not divide stay as they are. The dequantised weight is kept for backward, the input
/// is not. Quantising sweeps scales in fp32: up to 32 bytes a weight of one layer beside its fp32 copy. Played with
/// Triton (Linux) on a card that compiles e4m3 (compute capability 8.9): dequantising is then one kernel. Source:
/// toolkit/util/nvfp4_quant.py; convrot_quant.py, quantize_nvfp4, _optimal_nvfp4_scales, dequantize_nvfp4 (27a03a91).
extern const Quantizer toolkit_nvfp4;

/// What quantize_nvfp4(x, optimize_scales) leaves. x [rows, K]; `held_pts`: the per-tensor scale.
struct Nvfp4 {
    Tensor packed, scales, pts;
};
[[nodiscard]] Nvfp4 quantize_nvfp4(const Tensor& x, bool optimize_scales);

}  // namespace vram::nn::quantize
