#pragma once

#include "nn/module.hpp"

namespace vram::nn::quantize {

/// bitsandbytes' Linear4bit: two codes a byte, an fp32 maximum a block of 64 and a table of 16: 0.5625 byte a weight.
/// With double quantisation the maxima are bytes, with an fp32 maximum a block of 256 of them, a table of 256 and an
/// offset: 0.516. Nothing is kept for backward but the codes, which backward dequantises once. Forward multiplies from
/// the codes; where it does not (more than 1536 rows, rows that 64 does not divide) the dequantised weight stands for a
/// moment. The class wants its input in its compute dtype, here the model's.
extern const Quantizer bnb_nf4, bnb_nf4_dq, bnb_fp4, bnb_fp4_dq;

/// bitsandbytes' Linear8bitLt with threshold 6: a byte a weight and an fp32 scale a row. What columns of the input are
/// outliers is a question of values: none is taken.
extern const Quantizer bnb_int8;

/// Source: bitsandbytes 0.50.2, nn/modules.py, functional.py, autograd/_functions.py, backends/cuda/ops.py.

}  // namespace vram::nn::quantize
