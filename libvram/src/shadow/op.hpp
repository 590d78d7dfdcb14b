#pragma once

#include <cstdint>

namespace vram::shadow {

/// Who asked for a block. Names follow aten, so that a trace can be laid beside PyTorch's.
enum class Op : std::uint8_t {
    none, parameter, buffer, input, target, empty, zeros, ones, view, slice_backward, select_backward, to_copy, clone, copy_,
    add, add_, sub, mul, mul_, div, neg, exp, sin, cos, pow, rsqrt, sqrt, log, sigmoid, silu, silu_backward, gelu,
    gelu_backward, tanh, clamp, where, compare, arange, outer, mean, sum, linear, addmm, mm, bmm, baddbmm, layer_norm,
    layer_norm_backward, group_norm, group_norm_backward, rms_norm, rms_norm_backward, conv, conv_backward, upsample,
    upsample_backward, pad, softmax, softmax_backward, flash_attention, flash_attention_backward, efficient_attention,
    efficient_attention_backward, embedding, embedding_backward, cat, stack, repeat, mse_loss, mse_loss_backward,
    accumulate_grad, accumulate, expand, checkpoint, dequantize, quantize, optimizer, foreach_, norm, to_device, custom,
    noise, index, gather, cumsum, complex_, linspace, bitwise, eq, any, cublas_workspace, conv_workspace, attention_workspace,
    contiguous_copy, count_
};

[[nodiscard]] const char* to_text(Op op);

}  // namespace vram::shadow
