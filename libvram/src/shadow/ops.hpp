#pragma once

#include <optional>
#include <span>

#include "shadow/provenance.hpp"
#include "shadow/run.hpp"

/// The ops of a forward, named as in torch. Each says what it returns, what it needs while it runs and what it keeps; a
/// function beside it says what its backward allocates. Shapes are those of torch's documentation.
///
/// Arguments come by value and are held until the op returns, as a Python call holds them. Where two arguments of one
/// expression both allocate, write two statements: C++ leaves their order open.
namespace vram::shadow {

/// An op's argument, which says where the op was called: file and line are the caller's.
class Arg : public Tensor {
  public:
    Arg(Tensor tensor, const char* file = __builtin_FILE(), int line = __builtin_LINE())  // NOLINT: as a tensor goes
        : Tensor(std::move(tensor)) {
        if (defined() && run().provenance != nullptr) run().provenance->called(file, line);
    }
};

// ---- views: share the storage
[[nodiscard]] Tensor view(Arg x, Dims sizes);     ///< must be viewable: logic_error otherwise; one size may be -1
[[nodiscard]] Tensor reshape(Arg x, Dims sizes);  ///< a view, or a contiguous copy first
[[nodiscard]] Tensor flatten(Arg x, int from, int to);
[[nodiscard]] Tensor unflatten(Arg x, int dim, Dims sizes);
[[nodiscard]] Tensor permute(Arg x, std::initializer_list<int> order);
[[nodiscard]] Tensor transpose(Arg x, int a, int b);
[[nodiscard]] Tensor unsqueeze(Arg x, int dim);
[[nodiscard]] Tensor squeeze(Arg x, int dim);
[[nodiscard]] Tensor expand(Arg x, Dims sizes);  ///< -1 keeps a size
[[nodiscard]] Tensor slice(Arg x, int dim, std::int64_t start, std::int64_t end, std::int64_t step = 1);
[[nodiscard]] Tensor select(Arg x, int dim, std::int64_t index);
[[nodiscard]] Tensors split(Arg x, std::int64_t size, int dim);
[[nodiscard]] Tensors split(Arg x, const Dims& sizes, int dim);
/// torch.split into more parts than Dims holds.
[[nodiscard]] Tensors split_with_sizes(Arg x, std::span<const std::int64_t> sizes, int dim);
[[nodiscard]] Tensors chunk(Arg x, std::int64_t chunks, int dim);
[[nodiscard]] Tensors unbind(Arg x, int dim);
[[nodiscard]] Tensor view_as_complex(Arg x);  ///< [.., 2] fp32 → [..] complex64, fp64 → complex128
[[nodiscard]] Tensor view_as_real(Arg x);     ///< [..] complex64 → [.., 2] fp32, complex128 → fp64

// ---- copies
[[nodiscard]] Tensor contiguous(Arg x);
[[nodiscard]] Tensor clone(Arg x);              ///< preserve_format
[[nodiscard]] Tensor to(Arg x, Dtype dtype);    ///< itself if the dtype is the same
[[nodiscard]] Tensor to_cuda(Run& run, Arg x);  ///< a copy on the GPU of a host tensor; itself if it is there already
[[nodiscard]] inline Tensor to_float(Arg x) { return to(std::move(x), Dtype::f32); }
/// part.copy_(value), where `part` is a view of `x` without history: in place; the tape gets a CopySlices node, and `x`
/// its history.
void copy_into_view(Tensor& x, Arg part, Tensor value);
/// x[slice] = value, likewise.
void copy_into_slice(Tensor& x, int dim, std::int64_t start, std::int64_t end, std::int64_t step, Arg value);
/// x[slice].addcmul_(tensor1, tensor2), likewise.
void addcmul_into_slice(Tensor& x, int dim, std::int64_t start, std::int64_t end, Arg tensor1, Tensor tensor2);

// ---- elementwise
[[nodiscard]] Tensor add(Arg a, Tensor b);
[[nodiscard]] Tensor sub(Arg a, Tensor b);
[[nodiscard]] Tensor mul(Arg a, Tensor b);
[[nodiscard]] Tensor div(Arg a, Tensor b);
[[nodiscard]] Tensor addcmul(Arg input, Tensor tensor1, Tensor tensor2);
/// With a Python float (`fractional`) or int.
[[nodiscard]] Tensor add_scalar(Arg x, bool fractional = false);
[[nodiscard]] Tensor rsub_scalar(Arg x, bool fractional = false);  ///< number - x
[[nodiscard]] Tensor mul_scalar(Arg x, bool fractional = true);
[[nodiscard]] Tensor div_scalar(Arg x);
[[nodiscard]] Tensor rdiv_scalar(Arg x);  ///< number / x: reciprocal, then a product
/// In place: no allocation, `a` gets the history.
void add_(Tensor& a, Arg b);
void add_scalar_(Tensor& a);
/// In place: `a` gets the history; its old values are copied where `b` wants a gradient.
void mul_(Tensor& a, Arg b);
[[nodiscard]] Tensor neg(Arg x);
[[nodiscard]] Tensor exp(Arg x);
[[nodiscard]] Tensor log(Arg x);
[[nodiscard]] Tensor sin(Arg x);
[[nodiscard]] Tensor cos(Arg x);
[[nodiscard]] Tensor pow_scalar(Arg x);
[[nodiscard]] Tensor scalar_pow(Arg exponent);  ///< number ** x
[[nodiscard]] Tensor rsqrt(Arg x);
[[nodiscard]] Tensor reciprocal(Arg x);
[[nodiscard]] Tensor sqrt(Arg x);
[[nodiscard]] Tensor sigmoid(Arg x);
[[nodiscard]] Tensor tanh(Arg x);
[[nodiscard]] Tensor relu(Arg x);
[[nodiscard]] Tensor silu(Arg x);
[[nodiscard]] Tensor gelu(Arg x);
[[nodiscard]] Tensor clamp(Arg x);
[[nodiscard]] Tensor clamp_min(Arg x);          ///< a number
[[nodiscard]] Tensor compare(Arg a, Tensor b);  ///< bool
[[nodiscard]] Tensor compare_scalar(Arg a);     ///< bool
[[nodiscard]] Tensor bitwise_and(Arg a, Tensor b);
[[nodiscard]] Tensor where(Arg condition, Tensor a, Tensor b);
[[nodiscard]] Tensor where_scalars(Arg condition, Dtype dtype);  ///< torch.where(mask, number, number)
[[nodiscard]] Tensor masked_fill(Arg x, Tensor mask);
/// x.masked_scatter(mask, source): a copy of x; mask broadcasts to it.
[[nodiscard]] Tensor masked_scatter(Arg x, Tensor mask, Tensor source);
[[nodiscard]] inline Tensor dropout(Tensor x) { return x; }  ///< p = 0 or eval: the tensor itself
[[nodiscard]] Tensor native_dropout(Arg x);                  ///< F.dropout while training: keeps a mask

// ---- reductions
[[nodiscard]] Tensor mean(Arg x, int dim, bool keepdim);
[[nodiscard]] Tensor sum(Arg x, int dim, bool keepdim);
[[nodiscard]] Tensor mean_all(Arg x);
[[nodiscard]] Tensor sum_all(Arg x);
[[nodiscard]] Tensor sum_to(Arg x, const Dims& sizes);                           ///< undoes a broadcast; no history
[[nodiscard]] Tensor softmax(Arg x, std::optional<Dtype> dtype = std::nullopt);  ///< over the last dimension

// ---- matrices
/// F.linear: x [.., in], weight [out, in], bias [out] or undefined.
[[nodiscard]] Tensor linear(Arg x, Tensor weight, Tensor bias);
[[nodiscard]] Tensor matmul(Arg a, Tensor b);
/// torch.mm, and `@` of two matrices that are no activations: [M, K] x [K, N].
[[nodiscard]] Tensor mm(Arg a, Tensor b);
[[nodiscard]] Tensor outer(Arg a, Tensor b);

// ---- norms
[[nodiscard]] Tensor layer_norm(Arg x, Tensor weight,
                                Tensor bias);  ///< over the last dimension; weight, bias may be undefined
[[nodiscard]] Tensor group_norm(Arg x, std::int64_t groups, Tensor weight, Tensor bias);
[[nodiscard]] Tensor rms_norm(Arg x, Tensor weight);  ///< F.rms_norm
[[nodiscard]] Tensor vector_norm(Arg x, int dim);     ///< Tensor.norm(2, dim, keepdim=True)
[[nodiscard]] Tensor normalize(Arg input, int dim);   ///< F.normalize

// ---- convolution and pictures
/// How a convolution goes over its input: a value for each spatial dimension.
struct Conv {
    Dims stride, padding, dilation;
    std::int64_t groups = 1;
};
[[nodiscard]] Tensor conv(Arg x, Tensor weight, Tensor bias, const Conv& how);
[[nodiscard]] Tensor upsample_nearest(Arg x, std::int64_t factor);  ///< every spatial dimension
[[nodiscard]] Tensor upsample_nearest_to(Arg x, const Dims& spatial);
[[nodiscard]] Tensor avg_pool1d(Arg x, std::int64_t kernel, std::int64_t stride);  ///< no padding
[[nodiscard]] Tensor avg_pool3d(Arg x, const Dims& kernel);                        ///< stride as the kernel, no padding
[[nodiscard]] Tensor pixel_shuffle(Arg x, std::int64_t factor);    ///< [B, C f f, H, W] → [B, C, H f, W f]
[[nodiscard]] Tensor pixel_unshuffle(Arg x, std::int64_t factor);  ///< [B, C, H f, W f] → [B, C f f, H, W]
[[nodiscard]] Tensor pad(Arg x,
                         std::initializer_list<std::int64_t> amounts);  ///< constant; last dimension first, as F.pad

[[nodiscard]] Tensor reflection_pad(Arg x, std::initializer_list<std::int64_t> amounts);  ///< F.pad(mode="reflect")
/// F.pad(mode="replicate"): a copy, even where all amounts are 0.
[[nodiscard]] Tensor replication_pad(Arg x, std::initializer_list<std::int64_t> amounts);

// ---- attention: q, k, v [B, H, T, D]
/// Which kernel is tried first: as torch has it for the card and the job; or cuDNN's, within
/// sdpa_kernel([CUDNN_ATTENTION, FLASH_ATTENTION, EFFICIENT_ATTENTION, MATH], set_priority=True).
enum class SdpaPriority : std::uint8_t { torch, cudnn };
[[nodiscard]] Tensor scaled_dot_product_attention(Arg q, Tensor k, Tensor v, Tensor mask = {}, bool causal = false,
                                                  SdpaPriority priority = SdpaPriority::torch);

// ---- lookups, joins, loss
[[nodiscard]] Tensor embedding(Arg weight, Tensor ids);
[[nodiscard]] Tensor index(Arg x, int dim, Tensor ids);  ///< x[.., ids, ..], ids [N]
/// x[rows, places], both [N], over the first two dimensions.
[[nodiscard]] Tensor index_pairs(Arg x, Tensor rows, Tensor places);
/// x[mask], mask [N] bool over the first dimension; how many it holds is a value, which the caller knows.
[[nodiscard]] Tensor index_mask(Arg x, Tensor mask, std::int64_t count);
/// x[mask] = values: in place, x gets the history.
void index_put_mask_(Tensor& x, Arg mask, Tensor values);
/// x.scatter_reduce_(dim, index, src, reduce="sum"), include_self: in place, x gets the history, and its old values are
/// copied for it. Where no saved-tensor hooks are active, torch refuses the backward of any but the last such call on
/// x.
void scatter_reduce_(Tensor& x, Arg index, Tensor src);
/// torch.topk over the last dimension: values, and their places as int64.
[[nodiscard]] Tensors topk(Arg x, std::int64_t k);
[[nodiscard]] Tensor argsort(Arg x);  ///< over the last dimension; int64, no history
[[nodiscard]] Tensor cat(std::span<const Tensor> parts, int dim, const char* file = __builtin_FILE(),
                         int line = __builtin_LINE());
[[nodiscard]] Tensor cat(std::initializer_list<Tensor> parts, int dim, const char* file = __builtin_FILE(),
                         int line = __builtin_LINE());
[[nodiscard]] Tensor stack(std::span<const Tensor> parts, int dim, const char* file = __builtin_FILE(),
                           int line = __builtin_LINE());
/// torch.nn.utils.rnn.pad_sequence(batch_first=True): [L, ..] each → [B, longest L, ..].
[[nodiscard]] Tensor pad_sequence(std::span<const Tensor> sequences, const char* file = __builtin_FILE(),
                                  int line = __builtin_LINE());
[[nodiscard]] Tensor repeat_interleave(Arg x, std::int64_t times, int dim);
[[nodiscard]] Tensor repeat(Arg x, Dims times);
[[nodiscard]] Tensor arange(Run& run, std::int64_t count, Dtype dtype, const char* file = __builtin_FILE(),
                            int line = __builtin_LINE());
[[nodiscard]] Tensor mse_loss(Arg input, Tensor target);
[[nodiscard]] Tensor mse_loss_each(Arg input, Tensor target);  ///< reduction="none"

/// What autocast makes of an argument of an op on its lower-precision or fp32 list; `x` itself when autocast is off.
/// An op's arguments are cast from the last to the first: torch's wrapper casts them in a call's argument list, which
/// GCC evaluates from the right. Source: aten/src/ATen/autocast_mode.cpp, cached_cast; autocast_mode.h, WrapFunction_.
[[nodiscard]] Tensor autocast_lower(Tensor x);
[[nodiscard]] Tensor autocast_fp32(Tensor x);
/// Whether autocast keeps the cast of `x`, which is defined, until it ends: of fp32 leaves that require grad and are no
/// views, weights that train; under no_grad, too, as within a reentrant checkpoint. Source: as above.
[[nodiscard]] bool autocast_keeps(const Tensor& x);

}  // namespace vram::shadow
