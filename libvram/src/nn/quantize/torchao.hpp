#pragma once

#include "nn/module.hpp"

namespace vram::nn::quantize {

/// torchao's weight-only float8 and int8: a byte a weight, a scale a row in the model's dtype; int8 has an int64 zero a
/// row, too. The weight is dequantised in each call and that copy is kept for backward, in the input's dtype; the input
/// is not. int8 multiplies by the codes, cast, and scales the product. Source: torchao 0.10.0,
/// quantization/quant_api.py; quant_primitives.py; dtypes/floatx/float8_layout.py, _linear_fp_act_fp8_weight_impl's
/// fallback; dtypes/uintx/plain_layout.py, _linear_fp_act_int8_weight_impl.
extern const Quantizer torchao_float8, torchao_int8;

}  // namespace vram::nn::quantize
