#include "shadow/ops.hpp"

namespace vram::shadow {
namespace {

// Kernels that call .contiguous() on what they read take a copy for the length of the call.
// Source: aten/src/ATen/native/cuda/layer_norm_kernel.cu, expect_contiguous.
StorageRef contiguous_scratch(Run& run, const Tensor& x) {
    if (!x.defined() || x.contiguous()) return {};
    return run.scratch(checked_mul(x.numel(), size_of(x.dtype())), Op::contiguous_copy);
}

Dims rows_of(const Tensor& x) {
    Dims out = x.sizes();
    out[x.rank() - 1] = 1;
    return out;
}

// Edges {x, weight, bias}; saved x, weight, mean, rstd.
void layer_norm_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor x = run.unpack(node.saved[0]);
    const Tensor weight = run.unpack(node.saved[1]);
    const Tensor bias = run.unpack(node.saved[2]);
    const Tensor mean = run.unpack(node.saved[3]);
    const Tensor rstd = run.unpack(node.saved[4]);
    const StorageRef copy_grad = contiguous_scratch(run, grads[0]), copy_x = contiguous_scratch(run, x);
    if (node.needs(0)) out[0] = run.empty(x.sizes(), x.dtype(), Op::layer_norm_backward);
    if (node.needs(1)) out[1] = run.empty_like(weight, Op::layer_norm_backward);
    if (node.needs(2)) out[2] = run.empty_like(bias, Op::layer_norm_backward);
}

void rms_norm_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor x = run.unpack(node.saved[0]);
    const Tensor weight = run.unpack(node.saved[1]);
    const Tensor rstd = run.unpack(node.saved[2]);
    const StorageRef copy_grad = contiguous_scratch(run, grads[0]), copy_x = contiguous_scratch(run, x);
    if (node.needs(0)) out[0] = run.empty(x.sizes(), x.dtype(), Op::rms_norm_backward);
    if (node.needs(1)) out[1] = run.empty_like(weight, Op::rms_norm_backward);
}

void group_norm_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor x = run.unpack(node.saved[0]);
    const Tensor weight = run.unpack(node.saved[1]);
    const Tensor mean = run.unpack(node.saved[2]);
    const Tensor rstd = run.unpack(node.saved[3]);
    // Made contiguous in the formula itself, so autograd sees the copy. Source: derivatives.yaml, native_group_norm.
    const Tensor grad = contiguous(grads[0]);
    if (node.needs(0)) out[0] = run.empty_like(x, Op::group_norm_backward);
    if (node.needs(1)) out[1] = run.empty({x.size(1)}, x.dtype(), Op::group_norm_backward);
    if (node.needs(2)) out[2] = run.empty({x.size(1)}, x.dtype(), Op::group_norm_backward);
}

// p = 2: grad * (self / norm).masked_fill_(norm == 0, 0). Source: torch/csrc/autograd/FunctionsManual.cpp,
// norm_backward.
void vector_norm_backward(Run& run, Node& node, Tensors&, Tensors& out) {
    const Tensor x = run.unpack(node.saved[0]);
    const Tensor norm = run.unpack(node.saved[1]);
    const Tensor quotient = run.empty_like(x, norm.dtype(), Op::div);
    const Tensor mask = run.empty_like(norm, Dtype::boolean, Op::eq);
    out[0] = run.empty_like(quotient, Op::mul);
}

}  // namespace

Tensor layer_norm(Arg x_in, Tensor weight_in, Tensor bias_in) {
    const Tensor held_x = std::move(x_in), held_weight = std::move(weight_in), held_bias = std::move(bias_in);
    Tensor bias = autocast_fp32(held_bias), weight = autocast_fp32(held_weight), x = autocast_fp32(held_x);
    Run& run = x.run();
    NodeRef node = run.record(Op::layer_norm, layer_norm_backward, {&x, &weight, &bias});
    if (node) {
        run.save(*node, x);
        run.save_if(weight.defined(), *node, weight);
        run.save_if(bias.defined(), *node, bias);
    }
    Tensor out = run.empty(x.sizes(), x.dtype(), Op::layer_norm);
    // Statistics are fp32 on CUDA whatever the input is.
    const Tensor mean = run.empty(rows_of(x), Dtype::f32, Op::layer_norm);
    const Tensor rstd = run.empty(rows_of(x), Dtype::f32, Op::layer_norm);
    const StorageRef copy = contiguous_scratch(run, x);
    if (node) {
        run.save(*node, mean);
        run.save(*node, rstd);
    }
    Run::attach(out, node);
    return out;
}

namespace {

// rms_norm_composite of aten/src/ATen/native/layer_norm.cpp: the fused kernel wants one dtype.
Tensor rms_norm_composite(const Tensor& x, const Tensor& weight) {
    const Tensor upcasted_input = to_float(x);
    Tensor rqrst_input, upcasted_result;
    {
        const Tensor square = pow_scalar(upcasted_input);
        Tensor variance = mean(square, -1, true);
        add_scalar_(variance);
        rqrst_input = rsqrt(variance);
    }
    {
        const Tensor normalized = mul(upcasted_input, rqrst_input);
        upcasted_result = mul(normalized, weight);
    }
    return to(std::move(upcasted_result), x.dtype());
}

}  // namespace

Tensor rms_norm(Arg x_in, Tensor weight_in) {
    const Tensor held_x = std::move(x_in), held_weight = std::move(weight_in);
    Tensor weight = autocast_fp32(held_weight), x = autocast_fp32(held_x);
    if (weight.defined() && weight.dtype() != x.dtype()) return rms_norm_composite(x, weight);
    Run& run = x.run();
    NodeRef node = run.record(Op::rms_norm, rms_norm_backward, {&x, &weight});
    if (node) {
        run.save(*node, x);
        run.save_if(weight.defined(), *node, weight);
    }
    Tensor out = run.empty(x.sizes(), x.dtype(), Op::rms_norm);  // contiguous, whatever x is
    const Tensor rstd = run.empty(rows_of(x), Dtype::f32, Op::rms_norm);
    const StorageRef copy = contiguous_scratch(run, x);
    if (node) run.save(*node, rstd);
    Run::attach(out, node);
    return out;
}

Tensor vector_norm(Arg x_in, int dim) {
    const Tensor x = std::move(x_in);
    Run& run = x.run();
    NodeRef node = run.record(Op::norm, vector_norm_backward, {&x});
    if (node) run.save(*node, x);
    Dims sizes = x.sizes();
    sizes[dim < 0 ? dim + x.rank() : dim] = 1;
    // Autocast asks for a fp32 result of x as it is: autocast_mode.h, fp32_append_dtype.
    Tensor out = run.empty(sizes, run.autocast().enabled ? Dtype::f32 : x.dtype(), Op::norm);
    if (node) run.save(*node, out);
    Run::attach(out, node);
    return out;
}

// Source: torch/nn/functional.py, normalize.
Tensor normalize(Arg input_in, int dim) {
    const Tensor input = std::move(input_in);
    Tensor denom = vector_norm(input, dim);
    denom = expand(clamp_min(denom), input.sizes());
    return div(input, denom);
}

Tensor group_norm(Arg x_in, std::int64_t groups, Tensor weight_in, Tensor bias_in) {
    const Tensor held_x = std::move(x_in), held_weight = std::move(weight_in), held_bias = std::move(bias_in);
    Tensor bias = autocast_fp32(held_bias), weight = autocast_fp32(held_weight), x = autocast_fp32(held_x);
    Run& run = x.run();
    x = contiguous(std::move(x));  // on CUDA whatever the memory format: native/group_norm.cpp
    NodeRef node = run.record(Op::group_norm, group_norm_backward, {&x, &weight, &bias});
    if (node) {
        run.save(*node, x);
        run.save_if(weight.defined(), *node, weight);
    }
    Tensor out = run.empty_like(x, Op::group_norm);
    const Tensor mean = run.empty({x.size(0), groups}, x.dtype(), Op::group_norm);
    const Tensor rstd = run.empty({x.size(0), groups}, x.dtype(), Op::group_norm);
    if (node) {
        run.save(*node, mean);
        run.save(*node, rstd);
    }
    Run::attach(out, node);
    return out;
}

}  // namespace vram::shadow
