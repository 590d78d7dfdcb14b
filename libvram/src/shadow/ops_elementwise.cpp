#include <array>

#include "shadow/ops.hpp"

namespace vram::shadow {
namespace {

enum class Keeps : std::uint8_t { nothing, input, output };

// ---- what a backward allocates: one tensor like the incoming gradient, or a known number of temporaries.
// Gradients of several inputs are made in the alphabetical order of the inputs' names (`other` before `self`), as the
// code generator sorts them. Source: tools/autograd/load_derivatives.py, sorted(defn.keys()).
// A formula is one expression: its temporaries all live until it is done, and GCC makes an operator's right side first.

Tensor fresh(const Tensor& grad, Op op) { return grad.run().empty_like(grad, op); }
// A tensor of rank 0 does not widen one of rank > 0 of the same kind: torch's result_type.
Dtype result_type(const Tensor& a, const Tensor& b) {
    const auto kind = [](Dtype dtype) {
        return is_complex(dtype) ? 3 : is_floating(dtype) ? 2 : dtype == Dtype::boolean ? 0 : 1;
    };
    if (a.rank() == 0 && b.rank() > 0 && kind(a.dtype()) <= kind(b.dtype())) return b.dtype();
    if (b.rank() == 0 && a.rank() > 0 && kind(b.dtype()) <= kind(a.dtype())) return a.dtype();
    return promote(a.dtype(), b.dtype());
}

Tensor joined(const Tensor& a, const Tensor& b, Op op) {
    Run& run = a.run();
    const std::array<LayoutRef, 2> both{a.layout(), b.layout()};
    return run.empty(run.layouts.elementwise(both, result_type(a, b)), op);
}

void same_backward(Run&, Node&, Tensors& grads, Tensors& out) { out[0] = grads[0]; }
void neg_backward(Run&, Node&, Tensors& grads, Tensors& out) { out[0] = fresh(grads[0], Op::neg); }
// grad * result, grad * cos(self): the factor first where it has to be made.
void times_saved_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor saved = run.unpack(node.saved[0]);
    out[0] = joined(grads[0], saved, Op::mul);
}
void sin_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor saved = run.unpack(node.saved[0]);
    const Tensor factor = fresh(saved, Op::cos);
    out[0] = joined(grads[0], factor, Op::mul);
}
void cos_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor saved = run.unpack(node.saved[0]);
    const Tensor sine = fresh(saved, Op::sin);
    const Tensor factor = fresh(sine, Op::neg);
    out[0] = joined(grads[0], factor, Op::mul);
}
// pow_backward: grad * (exponent * self.pow(exponent - 1)).conj()
void pow_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor saved = run.unpack(node.saved[0]);
    const Tensor power = fresh(saved, Op::pow);
    const Tensor factor = fresh(power, Op::mul);
    out[0] = joined(grads[0], factor, Op::mul);
}
// rsqrt: -0.5 * grad * result.pow(3)
void rsqrt_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor saved = run.unpack(node.saved[0]);
    const Tensor cube = fresh(saved, Op::pow);
    const Tensor half = fresh(grads[0], Op::mul);
    out[0] = joined(half, cube, Op::mul);
}
// sqrt: grad / (2 * result)
void sqrt_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor saved = run.unpack(node.saved[0]);
    const Tensor twice = fresh(saved, Op::mul);
    out[0] = joined(grads[0], twice, Op::div);
}
// reciprocal: -grad * (result * result)
void reciprocal_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor saved = run.unpack(node.saved[0]);
    const Tensor square = fresh(saved, Op::mul);
    const Tensor negative = fresh(grads[0], Op::neg);
    out[0] = joined(negative, square, Op::mul);
}
/// Those whose backward has no name of its own go by theirs.
Op backward_of(Op op) {
    if (op == Op::silu) return Op::silu_backward;
    return op == Op::gelu ? Op::gelu_backward : op;
}
// One fused kernel over the gradient and what was saved.
void fused_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor saved = run.unpack(node.saved[0]);
    out[0] = joined(grads[0], saved, backward_of(node.op));
}
// threshold_backward(grad, result, 0): its iterator reads the result first. Source:
// aten/src/ATen/native/Activation.cpp.
void relu_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor result = run.unpack(node.saved[0]);
    out[0] = joined(result, grads[0], Op::threshold_backward);
}

Tensor unary(Tensor& x, Op op, Keeps keeps, Backward backward, std::optional<Dtype> dtype = std::nullopt) {
    Run& run = x.run();
    NodeRef node = run.record(op, backward, {&x});
    if (node && keeps == Keeps::input) run.save(*node, x);
    const Dtype result = dtype.value_or(x.dtype());
    Tensor out = x.storage()->slot < 0 ? Tensor(x.storage_ref(), run.layouts.like(x.layout(), result))
                                       : run.empty_like(x, result, op);
    if (node && keeps == Keeps::output) run.save(*node, out);
    Run::attach(out, node);
    return out;
}

Dtype with_number(Dtype dtype, bool fractional) {
    return fractional && !is_floating(dtype) && !is_complex(dtype) ? Dtype::f32 : dtype;
}

Tensor binary_result(const Tensor& a, const Tensor& b, Dtype dtype, Op op) {
    Run& run = a.storage()->slot >= 0 ? a.run() : b.run();
    const std::array<LayoutRef, 2> both{a.layout(), b.layout()};
    const LayoutRef layout = run.layouts.elementwise(both, dtype);
    if (a.storage()->slot < 0 && b.storage()->slot < 0) return {a.storage_ref(), layout};
    return run.empty(layout, op);
}

void add_backward(Run&, Node& node, Tensors& grads, Tensors& out) {
    if (node.needs(0)) out[0] = grads[0];
    if (node.needs(1)) out[1] = grads[0];
}
void sub_backward(Run&, Node& node, Tensors& grads, Tensors& out) {
    if (node.needs(0)) out[0] = grads[0];
    if (node.needs(1)) out[1] = fresh(grads[0], Op::neg);
}
// grad * x.conj(): a product does not take a lazy conjugate, so the dispatcher clones it for the length of the call.
// Source: aten/src/ATen/native/MathBitFallback.h.
Tensor times_conjugate(const Tensor& grad, const Tensor& x) {
    const Tensor conjugate = is_complex(x.dtype()) ? fresh(x, Op::clone) : Tensor();
    return joined(grad, x, Op::mul);
}
// saved[0] is `other` if the first input wants a gradient, saved[1] is `self` if the second does.
void mul_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor other = run.unpack(node.saved[0]);
    const Tensor self = run.unpack(node.saved[1]);
    if (node.needs(1)) out[1] = times_conjugate(grads[0], self);
    if (node.needs(0)) out[0] = times_conjugate(grads[0], other);
}
// tensor1: grad * (tensor2 * value), tensor2 likewise. Source: tools/autograd/derivatives.yaml, addcmul.
void addcmul_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor tensor2 = run.unpack(node.saved[0]);
    const Tensor tensor1 = run.unpack(node.saved[1]);
    if (node.needs(0)) out[0] = grads[0];
    const auto factor = [&](const Tensor& other) {
        const Tensor scaled = fresh(other, Op::mul);
        return joined(grads[0], scaled, Op::mul);
    };
    if (node.needs(1)) out[1] = factor(tensor2);
    if (node.needs(2)) out[2] = factor(tensor1);
}
// The number is kept past the saved-tensor hooks: checkpointing neither counts it nor plays a call again for it.
// Source: torch/csrc/autograd/saved_variable.cpp, "avoid wrapped numbers from being leaked to the user".
void scale_backward(Run&, Node& node, Tensors& grads, Tensors& out) { out[0] = fresh(grads[0], node.op); }
// self: grad / other; other: -grad * ((self / other) / other)
void div_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor other = run.unpack(node.saved[0]);
    const Tensor self = run.unpack(node.saved[1]);
    if (node.needs(1)) {
        // One expression in FunctionsManual.cpp, div_tensor_other_grad: the right factor first, all alive to its end.
        const Tensor quotient = joined(self, other, Op::div);
        const Tensor twice = joined(quotient, other, Op::div);
        const Tensor negative = fresh(grads[0], Op::neg);
        out[1] = joined(negative, twice, Op::mul);
    }
    if (node.needs(0)) out[0] = joined(grads[0], other, Op::div);
}
// where((self >= min).logical_and_(self <= max), grad, scalar_tensor(0)), the number on the GPU; clamp_min compares
// once. Source: torch/csrc/autograd/FunctionsManual.cpp, clamp_backward; derivatives.yaml, clamp_min.
void clamp_min_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor saved = run.unpack(node.saved[0]);
    const Tensor zero = run.empty({}, grads[0].dtype(), Op::zeros);
    const Tensor above = run.empty_like(saved, Dtype::boolean, Op::compare);
    out[0] = fresh(grads[0], Op::where);
}
void clamp_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor saved = run.unpack(node.saved[0]);
    const Tensor zero = run.empty({}, grads[0].dtype(), Op::zeros);
    const Tensor above = run.empty_like(saved, Dtype::boolean, Op::compare);
    const Tensor below = run.empty_like(saved, Dtype::boolean, Op::compare);
    out[0] = fresh(grads[0], Op::where);
}
// where(condition, 0, grad), where(condition, grad, 0): the number is a tensor on the GPU for as long as the call.
// Source: tools/autograd/derivatives.yaml, where.self; aten/src/ATen/native/TensorCompare.cpp, where.
void where_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor condition = run.unpack(node.saved[0]);
    const auto where = [&] {
        const Tensor zero = run.empty({}, grads[0].dtype(), Op::full);  // scalar_tensor
        return fresh(grads[0], Op::where);
    };
    if (node.needs(1)) out[1] = where();
    if (node.needs(0)) out[0] = where();
}
void masked_fill_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor mask = run.unpack(node.saved[0]);
    out[0] = fresh(grads[0], Op::where);
}

}  // namespace

Tensor add(Arg a_in, Tensor b_in) {
    Tensor a = std::move(a_in), b = std::move(b_in);
    Run& run = a.run();
    NodeRef node = run.record(Op::add, add_backward, {&a, &b});
    Tensor out = binary_result(a, b, result_type(a, b), Op::add);
    Run::attach(out, node);
    return out;
}

Tensor sub(Arg a_in, Tensor b_in) {
    Tensor a = std::move(a_in), b = std::move(b_in);
    Run& run = a.run();
    NodeRef node = run.record(Op::sub, sub_backward, {&a, &b});
    Tensor out = binary_result(a, b, result_type(a, b), Op::sub);
    Run::attach(out, node);
    return out;
}

namespace {
Tensor product(Tensor& a, Tensor& b, Op op, Backward backward, Dtype dtype) {
    Run& run = a.run();
    NodeRef node = run.record(op, backward, {&a, &b});
    if (node) {
        // div needs the divisor for either gradient, mul each operand for the other's.
        run.save_if(node->needs(0) || op == Op::div, *node, b);
        run.save_if(node->needs(1), *node, a);
    }
    Tensor out = binary_result(a, b, dtype, op);
    Run::attach(out, node);
    return out;
}
}  // namespace

Tensor mul(Arg a_in, Tensor b_in) {
    Tensor a = std::move(a_in), b = std::move(b_in);
    return product(a, b, Op::mul, mul_backward, result_type(a, b));
}

// On autocast's promote list: every argument is cast to the widest type.
Tensor addcmul(Arg input_in, Tensor tensor1_in, Tensor tensor2_in) {
    const Tensor held_input = std::move(input_in), held1 = std::move(tensor1_in), held2 = std::move(tensor2_in);
    Run& run = held_input.run();
    const Dtype dtype = promote(promote(held_input.dtype(), held1.dtype()), held2.dtype());
    const auto cast = [&](const Tensor& x) { return run.autocast().enabled ? to(x, dtype) : x; };
    const Tensor tensor2 = cast(held2);
    const Tensor tensor1 = cast(held1);
    const Tensor input = cast(held_input);
    const NodeRef node = run.record(Op::addcmul, addcmul_backward, {&input, &tensor1, &tensor2});
    if (node) {
        run.save_if(node->needs(1), *node, tensor2);
        run.save_if(node->needs(2), *node, tensor1);
    }
    const std::array<LayoutRef, 3> all{input.layout(), tensor1.layout(), tensor2.layout()};
    Tensor out = run.empty(run.layouts.elementwise(all, dtype), Op::addcmul);
    Run::attach(out, node);
    return out;
}

Tensor div(Arg a_in, Tensor b_in) {
    Tensor a = std::move(a_in), b = std::move(b_in);
    Dtype dtype = result_type(a, b);
    return product(a, b, Op::div, div_backward, with_number(dtype, true));
}

Tensor add_scalar(Arg x_in, bool fractional) {
    Tensor x = std::move(x_in);
    return unary(x, Op::add, Keeps::nothing, same_backward, with_number(x.dtype(), fractional));
}

Tensor rsub_scalar(Arg x_in, bool fractional) {
    Tensor x = std::move(x_in);
    return unary(x, Op::sub, Keeps::nothing, neg_backward, with_number(x.dtype(), fractional));
}

namespace {
Tensor scaled(Tensor& x, Op op, Dtype dtype) {
    Run& run = x.run();
    const NodeRef node = run.record(op, scale_backward, {&x});
    Tensor out = x.storage()->slot < 0 ? Tensor(x.storage_ref(), run.layouts.like(x.layout(), dtype))
                                       : run.empty_like(x, dtype, op);
    Run::attach(out, node);
    return out;
}
}  // namespace

Tensor mul_scalar(Arg x_in, bool fractional) {
    Tensor x = std::move(x_in);
    return scaled(x, Op::mul, with_number(x.dtype(), fractional));
}

Tensor div_scalar(Arg x_in) {
    Tensor x = std::move(x_in);
    return scaled(x, Op::div, with_number(x.dtype(), true));
}

void add_(Tensor& a, Arg b_in) {
    const Tensor b = std::move(b_in);
    const NodeRef node = a.run().record(Op::add_, add_backward, {&a, &b});
    Run::attach(a, node);
}

void add_scalar_(Tensor& a) {
    const NodeRef node = a.run().record(Op::add_, same_backward, {&a});
    Run::attach(a, node);
}

// The copy is an op of its own. Source: tools/autograd/gen_variable_type.py, original_self.
void mul_(Tensor& a, Arg b_in) {
    const Tensor b = std::move(b_in);
    Run& run = a.run();
    const NodeRef node = run.record(Op::mul, mul_backward, {&a, &b});
    if (node) {
        run.save_if(node->needs(0), *node, b);
        run.save_if(node->needs(1), *node, node->needs(1) ? clone(a) : Tensor());
    }
    Run::attach(a, node);
}

Tensor neg(Arg x_in) {
    Tensor x = std::move(x_in);
    return unary(x, Op::neg, Keeps::nothing, neg_backward);
}
Tensor exp(Arg x_in) {
    const Tensor held_x = std::move(x_in);
    Tensor x = autocast_fp32(held_x);
    return unary(x, Op::exp, Keeps::output, times_saved_backward, with_number(x.dtype(), true));
}
Tensor log(Arg x_in) {
    const Tensor held_x = std::move(x_in);
    Tensor x = autocast_fp32(held_x);
    return unary(x, Op::log, Keeps::input, times_saved_backward, with_number(x.dtype(), true));
}
Tensor sin(Arg x_in) {
    Tensor x = std::move(x_in);
    return unary(x, Op::sin, Keeps::input, sin_backward, with_number(x.dtype(), true));
}
Tensor cos(Arg x_in) {
    Tensor x = std::move(x_in);
    return unary(x, Op::cos, Keeps::input, cos_backward, with_number(x.dtype(), true));
}
Tensor pow_scalar(Arg x_in) {
    const Tensor held_x = std::move(x_in);
    Tensor x = autocast_fp32(held_x);
    return unary(x, Op::pow, Keeps::input, pow_backward);
}
Tensor scalar_pow(Arg x_in) {
    const Tensor held_x = std::move(x_in);
    Tensor x = autocast_fp32(held_x);
    return unary(x, Op::pow, Keeps::output, times_saved_backward, with_number(x.dtype(), true));
}
Tensor rsqrt(Arg x_in) {
    const Tensor held_x = std::move(x_in);
    Tensor x = autocast_fp32(held_x);
    return unary(x, Op::rsqrt, Keeps::output, rsqrt_backward);
}
Tensor reciprocal(Arg x_in) {
    const Tensor held_x = std::move(x_in);
    Tensor x = autocast_fp32(held_x);
    return unary(x, Op::div, Keeps::output, reciprocal_backward, with_number(x.dtype(), true));
}
// Tensor.__rtruediv__ is Python, so x is held through both.
Tensor rdiv_scalar(Arg x_in) {
    const Tensor x = std::move(x_in);
    return mul_scalar(reciprocal(x));
}
Tensor sqrt(Arg x_in) {
    Tensor x = std::move(x_in);
    return unary(x, Op::sqrt, Keeps::output, sqrt_backward);
}
Tensor sigmoid(Arg x_in) {
    Tensor x = std::move(x_in);
    return unary(x, Op::sigmoid, Keeps::output, fused_backward);
}
Tensor tanh(Arg x_in) {
    Tensor x = std::move(x_in);
    return unary(x, Op::tanh, Keeps::output, fused_backward);
}
Tensor relu(Arg x_in) {
    Tensor x = std::move(x_in);
    return unary(x, Op::relu, Keeps::output, relu_backward);
}
Tensor silu(Arg x_in) {
    Tensor x = std::move(x_in);
    return unary(x, Op::silu, Keeps::input, fused_backward);
}
Tensor gelu(Arg x_in) {
    Tensor x = std::move(x_in);
    return unary(x, Op::gelu, Keeps::input, fused_backward);
}
Tensor clamp(Arg x_in) {
    Tensor x = std::move(x_in);
    return unary(x, Op::clamp, Keeps::input, clamp_backward);
}
Tensor clamp_min(Arg x_in) {
    Tensor x = std::move(x_in);
    return unary(x, Op::clamp, Keeps::input, clamp_min_backward);
}
Tensor compare(Arg a_in, Tensor b_in) {
    const Tensor a = std::move(a_in), b = std::move(b_in);
    return binary_result(a, b, Dtype::boolean, Op::compare);
}
Tensor compare_scalar(Arg a_in) {
    const Tensor a = std::move(a_in);
    return a.run().empty_like(a, Dtype::boolean, Op::compare);
}
Tensor bitwise_and(Arg a_in, Tensor b_in) {
    const Tensor a = std::move(a_in), b = std::move(b_in);
    return binary_result(a, b, result_type(a, b), Op::bitwise);
}
Tensor where(Arg condition_in, Tensor a_in, Tensor b_in) {
    Tensor condition = std::move(condition_in), a = std::move(a_in), b = std::move(b_in);
    Run& run = condition.run();
    NodeRef node = run.record(Op::where, where_backward, {&a, &b});
    if (node) run.save(*node, condition);
    const std::array<LayoutRef, 3> all{condition.layout(), a.layout(), b.layout()};
    Tensor out = run.empty(run.layouts.elementwise(all, result_type(a, b)), Op::where);
    Run::attach(out, node);
    return out;
}
// Both numbers are tensors on the condition's device for the call. Source: aten/src/ATen/native/TensorCompare.cpp,
// where.
Tensor where_scalars(Arg condition_in, Dtype dtype) {
    const Tensor condition = std::move(condition_in);
    Run& run = condition.run();
    const Tensor other = run.empty({}, dtype, Op::empty), self = run.empty({}, dtype, Op::empty);
    return run.empty_like(condition, dtype, Op::where);
}
Tensor masked_fill(Arg x_in, Tensor mask_in) {
    Tensor x = std::move(x_in), mask = std::move(mask_in);
    Run& run = x.run();
    NodeRef node = run.record(Op::where, masked_fill_backward, {&x});
    if (node) run.save(*node, mask);
    Tensor out = run.empty_like(x, Op::where);
    Run::attach(out, node);
    return out;
}

namespace {
// self: grad.masked_fill(mask, 0); source: grad.masked_select(mask), viewed. Source: derivatives.yaml, masked_scatter;
// FunctionsManual.cpp, masked_scatter_backward.
void masked_scatter_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor mask = run.unpack(node.saved[0]);
    if (node.needs(0)) out[0] = fresh(grads[0], Op::where);
    if (node.needs(1)) out[1] = run.empty(node.meta[0]->sizes, grads[0].dtype(), Op::index);
}
}  // namespace

Tensor masked_scatter(Arg x_in, Tensor mask_in, Tensor source_in) {
    Tensor x = std::move(x_in), mask = std::move(mask_in), source = std::move(source_in);
    Run& run = x.run();
    NodeRef node = run.record(Op::copy_, masked_scatter_backward, {&x, &source});
    if (node) {
        run.save(*node, mask);
        node->meta.push_back(source.layout());
    }
    Tensor out = run.empty(x.sizes(), x.dtype(), Op::clone);
    // A prefix sum of the mask says where each element comes from; a mask that was expanded is copied first.
    // Source: aten/src/ATen/native/cuda/Indexing.cu and IndexKernel.cu, launch_masked_scatter_kernel.
    const StorageRef prefix_sum = run.scratch(checked_mul(x.numel(), 8), Op::index);
    const StorageRef whole_mask =
        mask.sizes() == x.sizes() ? StorageRef() : run.scratch(x.numel(), Op::contiguous_copy);
    Run::attach(out, node);
    return out;
}

bool autocast_keeps(const Tensor& x) {
    return x.dtype() == Dtype::f32 && x.node() && x.node()->leaf != nullptr && !x.is_view();
}

Tensor autocast_lower(Tensor x_in) {
    Tensor x = std::move(x_in);
    if (!x.defined() || !x.run().autocast().enabled || !is_floating(x.dtype()) || x.dtype() == Dtype::f64 ||
        x.dtype() == x.run().autocast().dtype || x.storage()->slot < 0)
        return x;
    Run& run = x.run();
    if (!autocast_keeps(x)) return to(std::move(x), run.autocast().dtype);
    if (const Tensor* found = run.autocast_cache.find(x.storage())) return *found;
    Tensor cast = to(x, run.autocast().dtype);
    run.autocast_cache.put(x.storage(), cast);
    return cast;
}

Tensor autocast_fp32(Tensor x_in) {
    Tensor x = std::move(x_in);
    if (!x.defined() || !x.run().autocast().enabled || !is_floating(x.dtype()) || x.dtype() == Dtype::f64) return x;
    return to(std::move(x), Dtype::f32);
}

}  // namespace vram::shadow
