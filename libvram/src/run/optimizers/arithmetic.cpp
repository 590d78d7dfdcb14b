#include "run/optimizers/arithmetic.hpp"

namespace vram::run {

using shadow::Dims;
using shadow::Op;
using shadow::Tensor;

Tensor like(const Tensor& x, Op op) { return x.run().empty_like(x, op); }

Tensor scalar(const Tensor& x, Op op) { return x.run().empty({}, x.dtype(), op); }

Tensor rms(const Tensor& tensor) {
    const Tensor norm = scalar(tensor, Op::norm);
    return scalar(norm, Op::div);
}

Tensor reduce_abs(const Tensor& x, Op op) {
    const Tensor abs = like(x, Op::abs);
    return scalar(abs, op);
}

Tensor dot(Tensor a_in, Tensor b_in) {
    const Tensor a = std::move(a_in), b = std::move(b_in);
    a.run().gemm();
    return scalar(a, Op::dot);
}

Dims row_of(const Dims& shape) {
    Dims row = shape;
    row.erase(shape.rank() - 1);
    return row;
}

Dims col_of(const Dims& shape) {
    Dims col = shape;
    col.erase(shape.rank() - 2);
    return col;
}

Tensor approx_sq_grad(const Tensor& row, const Tensor& col) {
    const Tensor r_factor = shadow::unsqueeze(shadow::div(row, shadow::mean(row, -1, true)), -1);  // rsqrt_ in place
    const Tensor c_factor = shadow::rsqrt(shadow::unsqueeze(col, -2));
    return shadow::mul(r_factor, c_factor);
}

void add_means(const Tensor& update) {
    static_cast<void>(shadow::mean(update, -1, false));
    static_cast<void>(shadow::mean(update, -2, false));
}

Moments moments_of(const Tensor& sq, const Tensor& row, const Tensor& col) {
    Moments moments{shadow::to_float(row), col.defined() ? shadow::to_float(col) : Tensor()};
    if (col.defined()) add_means(sq);
    if (row.dtype() == Dtype::f32) return moments;
    static_cast<void>(shadow::to(moments.row, row.dtype()));
    if (col.defined()) static_cast<void>(shadow::to(moments.col, col.dtype()));
    return moments;
}

void clip_rms(const Tensor& update) { const Tensor quotient = shadow::div_scalar(rms(update)); }

void copy_stochastic(const Tensor& target, const Tensor& source) {
    if (target.dtype() == Dtype::f32) return;
    shadow::Run& run = source.run();
    if (target.dtype() == Dtype::bf16) {  // copy_stochastic_bf16: noise for the bits that are cut off
        const Tensor result = run.empty_like(source, Dtype::i32, Op::noise);
        return;
    }
    const Tensor noise = shadow::add_scalar(like(source, Op::noise), true);  // rand_like - 0.5
    Tensor rounded = shadow::add(shadow::mul_scalar(source), noise);
    rounded = like(rounded, Op::round);
    const Tensor result_float = shadow::div_scalar(rounded);
}

}  // namespace vram::run
