#pragma once

#include "nn/module.hpp"

namespace vram::nn::quantize {

/// optimum-quanto's QLinear and QConv2d with plain activations. qfloat8 and qint8: a byte a weight, a scale a row in
/// the model's dtype. qint4, qint2: codes packed along rows of groups (of 128 elements, or of the next smaller multiple
/// of 32 that divides a row; a whole row where it is no longer, or nothing divides it), a scale and a shift a group.
/// Two fp32 scalars a layer. Forward and backward hold the dequantised weight for a moment (float8 twice: cast, then
/// scaled); a layer whose input requires grad keeps the input, even though nothing of the layer trains. Quantising
/// holds two copies of a layer at a time, all of them made anew; freezing keeps what autograd saves of its own ops, as
/// the new modules' weights require grad: up to 12 bytes a weight of one layer. qint4 in bf16 with groups of 128 is no
/// format of torch 2.5 or later: quanto packs by int32, which torch._convert_weight_to_int4pack refuses there
/// (`qint4_is_refused`). Source: quanto 0.2.4, nn/qmodule.py, tensor/qweight.py, qbytes.py, qbits/qbits.py,
/// qtensor_func.py, library/qbytes_mm.py, library/quantize.py, tensor/optimizers/.
extern const Quantizer quanto_qfloat8, quanto_qfloat8_e5m2, quanto_qint8, quanto_qint4, quanto_qint2;

/// Whether freezing such a layer raises: see above.
[[nodiscard]] bool qint4_is_refused(Dtype dtype, std::int64_t in);

}  // namespace vram::nn::quantize
