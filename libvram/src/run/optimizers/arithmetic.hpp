#pragma once

#include "shadow/ops.hpp"

namespace vram::run {

// What optimizers of several libraries compute alike. In-place ops allocate nothing and are left out where they stand.

/// A new tensor of x's shape and dtype.
[[nodiscard]] shadow::Tensor like(const shadow::Tensor& x, shadow::Op op);
/// A result of no dimensions.
[[nodiscard]] shadow::Tensor scalar(const shadow::Tensor& x, shadow::Op op);

/// tensor.norm(2) / (tensor.numel() ** 0.5)
[[nodiscard]] shadow::Tensor rms(const shadow::Tensor& tensor);
/// x.abs().sum() or .max(): the copy is gone, the result is handed back.
[[nodiscard]] shadow::Tensor reduce_abs(const shadow::Tensor& x, shadow::Op op);
/// torch.dot(a, b) on flat views.
[[nodiscard]] shadow::Tensor dot(shadow::Tensor a, shadow::Tensor b);

/// Adafactor's state is by dimension from the second on: row is shape[:-1], col shape[:-2] + shape[-1:], whatever the
/// dimensions mean.
[[nodiscard]] inline bool is_factored(const shadow::Tensor& x) { return x.rank() >= 2; }
[[nodiscard]] shadow::Dims row_of(const shadow::Dims& shape);
[[nodiscard]] shadow::Dims col_of(const shadow::Dims& shape);
/// _approx_sq_grad: the outer product of both, one over its root.
[[nodiscard]] shadow::Tensor approx_sq_grad(const shadow::Tensor& row, const shadow::Tensor& col);
/// row.mul_(..).add_(update.mean(dim=-1)), col.mul_(..).add_(update.mean(dim=-2))
void add_means(const shadow::Tensor& update);
/// Second moments in fp32 for a step, as Automagic2 and 3 name them: state of another type is cast, and what came of it
/// is cast back. Without a column the row is a whole second moment.
struct Moments {
    shadow::Tensor row, col;
};
[[nodiscard]] Moments moments_of(const shadow::Tensor& sq, const shadow::Tensor& row, const shadow::Tensor& col);
/// update.div_((rms(update) / clip_threshold).clamp_(min=1.0))
void clip_rms(const shadow::Tensor& update);

/// toolkit.optimizers.optimizer_utils.copy_stochastic(target, source): source is fp32.
void copy_stochastic(const shadow::Tensor& target, const shadow::Tensor& source);

}  // namespace vram::run
