#pragma once

#include <optional>
#include <span>

#include "shadow/run.hpp"

/// The ops of a forward, named as in torch. Each says what it returns, what it needs while it runs and what it keeps; a
/// function beside it says what its backward allocates. Shapes are those of torch's documentation.
///
/// Arguments come by value and are held until the op returns, as a Python call holds them. Where two arguments of one
/// expression both allocate, write two statements: C++ leaves their order open.
namespace vram::shadow {

// ---- views: share the storage
[[nodiscard]] Tensor view(Tensor x, Dims sizes);     ///< must be viewable: logic_error otherwise; one size may be -1
[[nodiscard]] Tensor reshape(Tensor x, Dims sizes);  ///< a view, or a contiguous copy first
[[nodiscard]] Tensor flatten(Tensor x, int from, int to);
[[nodiscard]] Tensor unflatten(Tensor x, int dim, Dims sizes);
[[nodiscard]] Tensor permute(Tensor x, std::initializer_list<int> order);
[[nodiscard]] Tensor transpose(Tensor x, int a, int b);
[[nodiscard]] Tensor unsqueeze(Tensor x, int dim);
[[nodiscard]] Tensor squeeze(Tensor x, int dim);
[[nodiscard]] Tensor expand(Tensor x, Dims sizes);  ///< -1 keeps a size
[[nodiscard]] Tensor slice(Tensor x, int dim, std::int64_t start, std::int64_t end, std::int64_t step = 1);
[[nodiscard]] Tensor select(Tensor x, int dim, std::int64_t index);
[[nodiscard]] Tensors split(Tensor x, std::int64_t size, int dim);
[[nodiscard]] Tensors split(Tensor x, const Dims& sizes, int dim);
/// torch.split into more parts than Dims holds.
[[nodiscard]] Tensors split_with_sizes(Tensor x, std::span<const std::int64_t> sizes, int dim);
[[nodiscard]] Tensors chunk(Tensor x, std::int64_t chunks, int dim);
[[nodiscard]] Tensors unbind(Tensor x, int dim);
[[nodiscard]] Tensor view_as_complex(Tensor x);  ///< [.., 2] fp32 → [..] complex64, fp64 → complex128
[[nodiscard]] Tensor view_as_real(Tensor x);     ///< [..] complex64 → [.., 2] fp32, complex128 → fp64

// ---- copies
[[nodiscard]] Tensor contiguous(Tensor x);
[[nodiscard]] Tensor clone(Tensor x);            ///< preserve_format
[[nodiscard]] Tensor to(Tensor x, Dtype dtype);  ///< itself if the dtype is the same
[[nodiscard]] Tensor to_cuda(Run& run,
                             Tensor x);  ///< a copy on the GPU of a host tensor; itself if it is there already
[[nodiscard]] inline Tensor to_float(Tensor x) { return to(std::move(x), Dtype::f32); }
/// part.copy_(value), where `part` is a view of `x` without history: in place; the tape gets a CopySlices node, and `x`
/// its history.
void copy_into_view(Tensor& x, Tensor part, Tensor value);
/// x[slice] = value, likewise.
void copy_into_slice(Tensor& x, int dim, std::int64_t start, std::int64_t end, std::int64_t step, Tensor value);
/// x[slice].addcmul_(tensor1, tensor2), likewise.
void addcmul_into_slice(Tensor& x, int dim, std::int64_t start, std::int64_t end, Tensor tensor1, Tensor tensor2);

// ---- elementwise
[[nodiscard]] Tensor add(Tensor a, Tensor b);
[[nodiscard]] Tensor sub(Tensor a, Tensor b);
[[nodiscard]] Tensor mul(Tensor a, Tensor b);
[[nodiscard]] Tensor div(Tensor a, Tensor b);
[[nodiscard]] Tensor addcmul(Tensor input, Tensor tensor1, Tensor tensor2);
/// With a Python float (`fractional`) or int.
[[nodiscard]] Tensor add_scalar(Tensor x, bool fractional = false);
[[nodiscard]] Tensor rsub_scalar(Tensor x, bool fractional = false);  ///< number - x
[[nodiscard]] Tensor mul_scalar(Tensor x, bool fractional = true);
[[nodiscard]] Tensor div_scalar(Tensor x);
[[nodiscard]] Tensor rdiv_scalar(Tensor x);  ///< number / x: reciprocal, then a product
/// In place: no allocation, `a` gets the history.
void add_(Tensor& a, Tensor b);
void add_scalar_(Tensor& a);
/// In place: `a` gets the history; its old values are copied where `b` wants a gradient.
void mul_(Tensor& a, Tensor b);
[[nodiscard]] Tensor neg(Tensor x);
[[nodiscard]] Tensor exp(Tensor x);
[[nodiscard]] Tensor log(Tensor x);
[[nodiscard]] Tensor sin(Tensor x);
[[nodiscard]] Tensor cos(Tensor x);
[[nodiscard]] Tensor pow_scalar(Tensor x);
[[nodiscard]] Tensor scalar_pow(Tensor exponent);  ///< number ** x
[[nodiscard]] Tensor rsqrt(Tensor x);
[[nodiscard]] Tensor reciprocal(Tensor x);
[[nodiscard]] Tensor sqrt(Tensor x);
[[nodiscard]] Tensor sigmoid(Tensor x);
[[nodiscard]] Tensor tanh(Tensor x);
[[nodiscard]] Tensor relu(Tensor x);
[[nodiscard]] Tensor silu(Tensor x);
[[nodiscard]] Tensor gelu(Tensor x);
[[nodiscard]] Tensor clamp(Tensor x);
[[nodiscard]] Tensor clamp_min(Tensor x);          ///< a number
[[nodiscard]] Tensor compare(Tensor a, Tensor b);  ///< bool
[[nodiscard]] Tensor compare_scalar(Tensor a);     ///< bool
[[nodiscard]] Tensor bitwise_and(Tensor a, Tensor b);
[[nodiscard]] Tensor where(Tensor condition, Tensor a, Tensor b);
[[nodiscard]] Tensor where_scalars(Tensor condition, Dtype dtype);  ///< torch.where(mask, number, number)
[[nodiscard]] Tensor masked_fill(Tensor x, Tensor mask);
/// x.masked_scatter(mask, source): a copy of x; mask broadcasts to it.
[[nodiscard]] Tensor masked_scatter(Tensor x, Tensor mask, Tensor source);
[[nodiscard]] inline Tensor dropout(Tensor x) { return x; }  ///< p = 0 or eval: the tensor itself
[[nodiscard]] Tensor native_dropout(Tensor x);               ///< F.dropout while training: keeps a mask

// ---- reductions
[[nodiscard]] Tensor mean(Tensor x, int dim, bool keepdim);
[[nodiscard]] Tensor sum(Tensor x, int dim, bool keepdim);
[[nodiscard]] Tensor mean_all(Tensor x);
[[nodiscard]] Tensor sum_all(Tensor x);
[[nodiscard]] Tensor sum_to(Tensor x, const Dims& sizes);                           ///< undoes a broadcast; no history
[[nodiscard]] Tensor softmax(Tensor x, std::optional<Dtype> dtype = std::nullopt);  ///< over the last dimension

// ---- matrices
/// F.linear: x [.., in], weight [out, in], bias [out] or undefined.
[[nodiscard]] Tensor linear(Tensor x, Tensor weight, Tensor bias);
[[nodiscard]] Tensor matmul(Tensor a, Tensor b);
/// torch.mm, and `@` of two matrices that are no activations: [M, K] x [K, N].
[[nodiscard]] Tensor mm(Tensor a, Tensor b);
[[nodiscard]] Tensor outer(Tensor a, Tensor b);

// ---- norms
[[nodiscard]] Tensor layer_norm(Tensor x, Tensor weight,
                                Tensor bias);  ///< over the last dimension; weight, bias may be undefined
[[nodiscard]] Tensor group_norm(Tensor x, std::int64_t groups, Tensor weight, Tensor bias);
[[nodiscard]] Tensor rms_norm(Tensor x, Tensor weight);  ///< F.rms_norm
[[nodiscard]] Tensor vector_norm(Tensor x, int dim);     ///< Tensor.norm(2, dim, keepdim=True)
[[nodiscard]] Tensor normalize(Tensor input, int dim);   ///< F.normalize

// ---- convolution and pictures
/// How a convolution goes over its input: a value for each spatial dimension.
struct Conv {
    Dims stride, padding, dilation;
    std::int64_t groups = 1;
};
[[nodiscard]] Tensor conv(Tensor x, Tensor weight, Tensor bias, const Conv& how);
[[nodiscard]] Tensor upsample_nearest(Tensor x, std::int64_t factor);  ///< every spatial dimension
[[nodiscard]] Tensor upsample_nearest_to(Tensor x, const Dims& spatial);
[[nodiscard]] Tensor avg_pool1d(Tensor x, std::int64_t kernel, std::int64_t stride);  ///< no padding
[[nodiscard]] Tensor avg_pool3d(Tensor x, const Dims& kernel);        ///< stride as the kernel, no padding
[[nodiscard]] Tensor pixel_shuffle(Tensor x, std::int64_t factor);    ///< [B, C f f, H, W] → [B, C, H f, W f]
[[nodiscard]] Tensor pixel_unshuffle(Tensor x, std::int64_t factor);  ///< [B, C, H f, W f] → [B, C f f, H, W]
[[nodiscard]] Tensor pad(Tensor x,
                         std::initializer_list<std::int64_t> amounts);  ///< constant; last dimension first, as F.pad

[[nodiscard]] Tensor reflection_pad(Tensor x, std::initializer_list<std::int64_t> amounts);  ///< F.pad(mode="reflect")
/// F.pad(mode="replicate"): a copy, even where all amounts are 0.
[[nodiscard]] Tensor replication_pad(Tensor x, std::initializer_list<std::int64_t> amounts);

// ---- attention: q, k, v [B, H, T, D]
/// Which kernel is tried first: as torch has it for the card and the job; or cuDNN's, within
/// sdpa_kernel([CUDNN_ATTENTION, FLASH_ATTENTION, EFFICIENT_ATTENTION, MATH], set_priority=True).
enum class SdpaPriority : std::uint8_t { torch, cudnn };
[[nodiscard]] Tensor scaled_dot_product_attention(Tensor q, Tensor k, Tensor v, Tensor mask = {}, bool causal = false,
                                                  SdpaPriority priority = SdpaPriority::torch);

// ---- lookups, joins, loss
[[nodiscard]] Tensor embedding(Tensor weight, Tensor ids);
[[nodiscard]] Tensor index(Tensor x, int dim, Tensor ids);  ///< x[.., ids, ..], ids [N]
/// x[rows, places], both [N], over the first two dimensions.
[[nodiscard]] Tensor index_pairs(Tensor x, Tensor rows, Tensor places);
/// x[mask], mask [N] bool over the first dimension; how many it holds is a value, which the caller knows.
[[nodiscard]] Tensor index_mask(Tensor x, Tensor mask, std::int64_t count);
/// x[mask] = values: in place, x gets the history.
void index_put_mask_(Tensor& x, Tensor mask, Tensor values);
/// x.scatter_reduce_(dim, index, src, reduce="sum"), include_self: in place, x gets the history, and its old values are
/// copied for it. Where no saved-tensor hooks are active, torch refuses the backward of any but the last such call on
/// x.
void scatter_reduce_(Tensor& x, Tensor index, Tensor src);
/// torch.topk over the last dimension: values, and their places as int64.
[[nodiscard]] Tensors topk(Tensor x, std::int64_t k);
[[nodiscard]] Tensor argsort(Tensor x);  ///< over the last dimension; int64, no history
[[nodiscard]] Tensor cat(std::span<const Tensor> parts, int dim);
[[nodiscard]] Tensor cat(std::initializer_list<Tensor> parts, int dim);
[[nodiscard]] Tensor stack(std::span<const Tensor> parts, int dim);
/// torch.nn.utils.rnn.pad_sequence(batch_first=True): [L, ..] each → [B, longest L, ..].
[[nodiscard]] Tensor pad_sequence(std::span<const Tensor> sequences);
[[nodiscard]] Tensor repeat_interleave(Tensor x, std::int64_t times, int dim);
[[nodiscard]] Tensor repeat(Tensor x, Dims times);
[[nodiscard]] Tensor arange(Run& run, std::int64_t count, Dtype dtype);
[[nodiscard]] Tensor mse_loss(Tensor input, Tensor target);
[[nodiscard]] Tensor mse_loss_each(Tensor input, Tensor target);  ///< reduction="none"

/// What autocast makes of an argument of an op on its lower-precision or fp32 list; `x` itself when autocast is off.
/// An op's arguments are cast from the last to the first: torch's wrapper casts them in a call's argument list, which
/// GCC evaluates from the right. Source: aten/src/ATen/autocast_mode.cpp, cached_cast; autocast_mode.h, WrapFunction_.
[[nodiscard]] Tensor autocast_lower(Tensor x);
[[nodiscard]] Tensor autocast_fp32(Tensor x);
/// Whether autocast keeps the cast of `x`, which is defined, until it ends: of fp32 leaves that require grad and are no
/// views, weights that train; under no_grad, too, as within a reentrant checkpoint. Source: as above.
[[nodiscard]] bool autocast_keeps(const Tensor& x);

}  // namespace vram::shadow
