#include "shadow/op.hpp"

#include <array>

namespace vram::shadow {

const char* to_text(Op op) {
    // In the enum's order; the static_assert keeps the two together.
    static constexpr std::array names{
        "none", "parameter", "buffer", "input", "target", "empty", "zeros", "ones", "view", "slice_backward",
        "select_backward", "_to_copy", "clone", "copy_", "add", "add_", "sub", "mul", "mul_", "div", "neg", "exp", "sin",
        "cos", "pow", "rsqrt", "sqrt", "log", "sigmoid", "silu", "silu_backward", "gelu", "gelu_backward", "tanh", "clamp",
        "where", "compare", "arange", "outer", "mean", "sum", "linear", "addmm", "mm", "bmm", "baddbmm",
        "native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward",
        "_fused_rms_norm", "_fused_rms_norm_backward", "convolution", "convolution_backward", "upsample",
        "upsample_backward", "constant_pad_nd", "_softmax", "_softmax_backward_data", "flash_attention",
        "flash_attention_backward", "efficient_attention", "efficient_attention_backward", "embedding",
        "embedding_dense_backward", "cat", "stack", "repeat", "mse_loss", "mse_loss_backward", "accumulate_grad",
        "accumulate", "expand", "checkpoint", "dequantize", "quantize", "optimizer", "_foreach", "norm", "to_device",
        "custom", "noise", "index", "gather", "cumsum", "complex", "linspace", "bitwise", "eq", "any", "cublas_workspace",
        "conv_workspace", "attention_workspace", "contiguous_copy"};
    static_assert(names.size() == static_cast<std::size_t>(Op::count_));
    return names[static_cast<std::size_t>(op)];
}

}  // namespace vram::shadow
