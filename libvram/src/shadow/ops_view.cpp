#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "shadow/ops.hpp"

namespace vram::shadow {
namespace {

int wrap(int dim, int rank) { return dim < 0 ? dim + rank : dim; }

Dims infer(const Dims& sizes, std::int64_t numel) {
    Dims out = sizes;
    std::int64_t known = 1;
    int open = -1;
    for (int i = 0; i < sizes.rank(); ++i) {
        if (sizes[i] == -1) {
            open = i;
        } else {
            known = checked_mul(known, sizes[i]);
        }
    }
    if (open >= 0) out[open] = known == 0 ? 0 : numel / known;
    if (out.product() != numel) throw std::logic_error("view: sizes do not match");
    return out;
}

// torch's computeStride: the strides of a view with these sizes, or none. Source: aten/src/ATen/TensorUtils.cpp.
std::optional<Dims> view_strides(const Layout& from, const Dims& sizes) {
    if (from.numel == 0) return from.sizes == sizes ? from.strides : contiguous_strides(sizes);
    Dims out = sizes;
    int to = sizes.rank() - 1;
    std::int64_t base = from.rank() == 0 ? 1 : from.strides[from.rank() - 1];
    std::int64_t tensor_numel = 1, view_numel = 1;
    for (int dim = from.rank() - 1; dim >= 0; --dim) {
        tensor_numel *= from.sizes[dim];
        const bool chunk_ends = dim == 0 || (from.sizes[dim - 1] != 1 && from.strides[dim - 1] != tensor_numel * base);
        if (!chunk_ends) continue;
        while (to >= 0 && (view_numel < tensor_numel || sizes[to] == 1)) {
            out[to] = view_numel * base;
            view_numel *= sizes[to];
            --to;
        }
        if (view_numel != tensor_numel) return std::nullopt;
        if (dim > 0) {
            base = from.strides[dim - 1];
            tensor_numel = 1;
            view_numel = 1;
        }
    }
    if (to != -1) {
        if (from.rank() != 0) return std::nullopt;
        for (; to >= 0; --to) out[to] = 1;
    }
    return out;
}

// A view whose gradient is looked at in the sizes of its input: reshape.
void view_backward(Run&, Node& node, Tensors& grads, Tensors& out) { out[0] = reshape(grads[0], node.meta[0]->sizes); }

Tensor strided(Tensor& x, const Dims& sizes, const Dims& strides, Backward backward) {
    Run& run = x.run();
    NodeRef node = run.record(Op::view, backward, {&x});
    if (node) node->meta.push_back(x.layout());
    Tensor out = run.view_of(x, sizes, strides);
    Run::attach(out, node);
    return out;
}

// The same bytes as elements of another dtype.
Tensor reinterpreted(Tensor& x, const Dims& sizes, const Dims& strides, Dtype dtype, Backward backward) {
    Run& run = x.run();
    const NodeRef node = run.record(Op::view, backward, {&x});
    Tensor out = run.view_of(x, sizes, strides, dtype);
    Run::attach(out, node);
    return out;
}

// Source: tools/autograd/derivatives.yaml, view_as_complex and view_as_real.
void view_as_complex_backward(Run&, Node&, Tensors& grads, Tensors& out) {
    out[0] = view_as_real(contiguous(grads[0]));
}
void view_as_real_backward(Run&, Node&, Tensors& grads, Tensors& out) {
    out[0] = view_as_complex(contiguous(grads[0]));
}

void permute_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    Dims sizes = node.meta[0]->sizes, strides = node.meta[0]->sizes;
    for (int i = 0; i < sizes.rank(); ++i) {
        const int from = static_cast<int>(node.numbers[static_cast<std::size_t>(i) / 4] >> (8 * (i % 4)) & 0xff);
        strides[from] = grads[0].layout()->strides[i];
    }
    out[0] = run.view_of(grads[0], sizes, strides);
}

void expand_backward(Run&, Node& node, Tensors& grads, Tensors& out) { out[0] = sum_to(grads[0], node.meta[0]->sizes); }

// zeros of the whole input, then a copy into the slice.
void slice_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    out[0] = run.empty(node.meta[0]->sizes, grads[0].dtype(), Op::slice_backward);
}

// The whole input at once; parts without a gradient become zeros first. Source:
// torch/csrc/autograd/FunctionsManual.cpp, split_with_sizes_backward and unbind_backward.
Tensors every_gradient(Run& run, const Node& node, const Tensors& grads) {
    Tensors parts;
    for (std::size_t i = 0; i < node.outputs.size(); ++i)
        parts.push_back(i < grads.size() && grads[i].defined()
                            ? grads[i]
                            : run.empty(node.outputs[i]->sizes, node.meta[0]->dtype, Op::zeros));
    return parts;
}
void split_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    out[0] = cat(every_gradient(run, node, grads), static_cast<int>(node.numbers[0]));
}
void unbind_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    out[0] = stack(every_gradient(run, node, grads), static_cast<int>(node.numbers[0]));
}

// Views of these lengths along a dimension, all outputs of one node.
Tensors pieces(Tensor& x, std::span<const std::int64_t> lengths, int dim) {
    Run& run = x.run();
    const NodeRef node = run.record(Op::view, split_backward, {&x});
    if (node) {
        node->meta.push_back(x.layout());
        node->numbers[0] = dim;
    }
    Tensors out;
    for (const std::int64_t length : lengths) {
        Dims sizes = x.sizes();
        sizes[dim] = length;
        Tensor piece = run.view_of(x, sizes, x.layout()->strides);
        Run::attach(piece, node);
        out.push_back(std::move(piece));
    }
    return out;
}

void clone_backward(Run&, Node&, Tensors& grads, Tensors& out) { out[0] = grads[0]; }
void to_copy_backward(Run&, Node& node, Tensors& grads, Tensors& out) { out[0] = to(grads[0], node.meta[0]->dtype); }

// torch's CopySlices: the gradient of the whole is copied into the base's strides, its slice is cloned and handed to
// CopyBackwards, which answers with zeros for what was overwritten, if that needs a gradient, and with the slice in the
// value's dtype. The zeros are then copied into the whole. Source: torch/csrc/autograd/functions/tensor.cpp.
void copy_slices_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    Tensor whole =
        run.empty(run.layouts.intern(node.meta[0]->sizes, node.meta[0]->strides, grads[0].dtype()), Op::empty);
    const Tensor part = run.empty(node.meta[1]->sizes, grads[0].dtype(), Op::clone);
    const Tensor zeros = node.needs(0) ? run.empty_like(part, Op::zeros) : Tensor();
    if (node.needs(1)) out[1] = to(part, node.meta[2]->dtype);
    if (node.needs(0)) out[0] = std::move(whole);
}

// CopySlices around addcmul: the slice is cloned, and each factor's gradient is grad * (the other * 1).
// Source: tools/autograd/derivatives.yaml, addcmul.
void addcmul_slices_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor tensor1 = run.unpack(node.saved[0]);
    const Tensor tensor2 = run.unpack(node.saved[1]);
    Tensor whole =
        run.empty(run.layouts.intern(node.meta[0]->sizes, node.meta[0]->strides, grads[0].dtype()), Op::empty);
    const Tensor part = run.empty(node.meta[1]->sizes, grads[0].dtype(), Op::clone);
    const auto factor = [&](const Tensor& other, const Dims& sizes) {
        const Tensor scaled = run.empty_like(other, Op::mul);
        const std::array<LayoutRef, 2> both{part.layout(), scaled.layout()};
        const Tensor product = run.empty(run.layouts.elementwise(both, part.dtype()), Op::mul);
        return sum_to(product, sizes);
    };
    if (node.needs(1)) out[1] = factor(tensor2, node.meta[2]->sizes);
    if (node.needs(2)) out[2] = factor(tensor1, node.meta[3]->sizes);
    if (node.needs(0)) out[0] = std::move(whole);
}

}  // namespace

Tensor view(Arg x_in, Dims sizes) {
    Tensor x = std::move(x_in);
    const Dims full = infer(sizes, x.numel());
    const auto strides = view_strides(*x.layout(), full);
    if (!strides) throw std::logic_error("view: not possible with these strides");
    return strided(x, full, *strides, view_backward);
}

Tensor reshape(Arg x_in, Dims sizes) {
    Tensor x = std::move(x_in);
    const Dims full = infer(sizes, x.numel());
    if (const auto strides = view_strides(*x.layout(), full)) return strided(x, full, *strides, view_backward);
    return view(contiguous(std::move(x)), full);
}

Tensor flatten(Arg x_in, int from, int to) {
    Tensor x = std::move(x_in);
    from = wrap(from, x.rank());
    to = wrap(to, x.rank());
    if (from == to) return x;
    Dims sizes;
    for (int i = 0; i < from; ++i) sizes.push_back(x.size(i));
    std::int64_t product = 1;
    for (int i = from; i <= to; ++i) product = checked_mul(product, x.size(i));
    sizes.push_back(product);
    for (int i = to + 1; i < x.rank(); ++i) sizes.push_back(x.size(i));
    return reshape(std::move(x), sizes);
}

Tensor unflatten(Arg x_in, int dim, Dims sizes) {
    Tensor x = std::move(x_in);
    dim = wrap(dim, x.rank());
    const Dims parts = infer(sizes, x.size(dim));
    Dims full;
    for (int i = 0; i < dim; ++i) full.push_back(x.size(i));
    for (std::int64_t part : parts) full.push_back(part);
    for (int i = dim + 1; i < x.rank(); ++i) full.push_back(x.size(i));
    return view(std::move(x), full);
}

Tensor permute(Arg x_in, std::initializer_list<int> order) {
    Tensor x = std::move(x_in);
    Run& run = x.run();
    NodeRef node = run.record(Op::view, permute_backward, {&x});
    Dims sizes, strides;
    int at = 0;
    for (int from : order) {
        sizes.push_back(x.size(from));
        strides.push_back(x.layout()->strides[wrap(from, x.rank())]);
        if (node)
            node->numbers[static_cast<std::size_t>(at) / 4] |= std::int64_t{wrap(from, x.rank())} << (8 * (at % 4));
        ++at;
    }
    if (node) node->meta.push_back(x.layout());
    Tensor out = run.view_of(x, sizes, strides);
    Run::attach(out, node);
    return out;
}

Tensor transpose(Arg x_in, int a, int b) {
    Tensor x = std::move(x_in);
    a = wrap(a, x.rank());
    b = wrap(b, x.rank());
    Run& run = x.run();
    NodeRef node = run.record(Op::view, permute_backward, {&x});
    Dims sizes = x.sizes(), strides = x.layout()->strides;
    std::swap(sizes[a], sizes[b]);
    std::swap(strides[a], strides[b]);
    if (node) {
        for (int i = 0; i < x.rank(); ++i) {
            const int from = i == a ? b : i == b ? a : i;
            node->numbers[static_cast<std::size_t>(i) / 4] |= std::int64_t{from} << (8 * (i % 4));
        }
        node->meta.push_back(x.layout());
    }
    Tensor out = run.view_of(x, sizes, strides);
    Run::attach(out, node);
    return out;
}

Tensor unsqueeze(Arg x_in, int dim) {
    Tensor x = std::move(x_in);
    dim = wrap(dim, x.rank() + 1);
    Dims sizes = x.sizes(), strides = x.layout()->strides;
    const std::int64_t stride = dim >= x.rank() ? 1 : sizes[dim] * strides[dim];
    sizes.insert(dim, 1);
    strides.insert(dim, stride);
    return strided(x, sizes, strides, view_backward);
}

Tensor squeeze(Arg x_in, int dim) {
    Tensor x = std::move(x_in);
    dim = wrap(dim, x.rank());
    if (x.size(dim) != 1) return x;
    Dims sizes = x.sizes(), strides = x.layout()->strides;
    sizes.erase(dim);
    strides.erase(dim);
    return strided(x, sizes, strides, view_backward);
}

Tensor expand(Arg x_in, Dims sizes) {
    Tensor x = std::move(x_in);
    const int shift = sizes.rank() - x.rank();
    Dims strides = sizes;
    for (int i = 0; i < sizes.rank(); ++i) {
        const int own = i - shift;
        if (own >= 0 && (sizes[i] == -1 || sizes[i] == x.size(own))) {
            sizes[i] = x.size(own);
            strides[i] = x.layout()->strides[own];
        } else {
            strides[i] = 0;
        }
    }
    return strided(x, sizes, strides, expand_backward);
}

Tensor slice(Arg x_in, int dim, std::int64_t start, std::int64_t end, std::int64_t step) {
    Tensor x = std::move(x_in);
    dim = wrap(dim, x.rank());
    const std::int64_t size = x.size(dim);
    if (start < 0) start += size;
    if (end < 0) end += size;
    start = std::clamp<std::int64_t>(start, 0, size);
    end = std::clamp<std::int64_t>(end, start, size);
    Dims sizes = x.sizes(), strides = x.layout()->strides;
    sizes[dim] = ceil_div(end - start, step);
    strides[dim] *= step;
    return strided(x, sizes, strides, slice_backward);
}

Tensor select(Arg x_in, int dim, std::int64_t) {
    Tensor x = std::move(x_in);
    dim = wrap(dim, x.rank());
    Dims sizes = x.sizes(), strides = x.layout()->strides;
    sizes.erase(dim);
    strides.erase(dim);
    return strided(x, sizes, strides, slice_backward);
}

Tensors split(Arg x_in, const Dims& parts, int dim) {
    Tensor x = std::move(x_in);
    return pieces(x, parts, wrap(dim, x.rank()));
}

Tensors split_with_sizes(Arg x_in, std::span<const std::int64_t> sizes, int dim) {
    Tensor x = std::move(x_in);
    return pieces(x, sizes, wrap(dim, x.rank()));
}

Tensors split(Arg x_in, std::int64_t size, int dim) {
    Tensor x = std::move(x_in);
    dim = wrap(dim, x.rank());
    const std::int64_t total = x.size(dim);
    std::vector<std::int64_t> parts;
    for (std::int64_t at = 0; at < std::max<std::int64_t>(total, 1); at += size)
        parts.push_back(std::min(size, total - at));
    return pieces(x, parts, dim);
}

Tensors chunk(Arg x_in, std::int64_t chunks, int dim) {
    Tensor x = std::move(x_in);
    const std::int64_t size = ceil_div(x.size(dim), chunks);
    return split(std::move(x), size, dim);
}

Tensors unbind(Arg x_in, int dim) {
    Tensor x = std::move(x_in);
    dim = wrap(dim, x.rank());
    Run& run = x.run();
    NodeRef node = run.record(Op::view, unbind_backward, {&x});
    if (node) {
        node->meta.push_back(x.layout());
        node->numbers[0] = dim;
    }
    Dims sizes = x.sizes(), strides = x.layout()->strides;
    sizes.erase(dim);
    strides.erase(dim);
    Tensors out;
    for (std::int64_t i = 0; i < x.size(dim); ++i) {
        Tensor piece = run.view_of(x, sizes, strides);
        Run::attach(piece, node);
        out.push_back(std::move(piece));
    }
    return out;
}

Tensor view_as_complex(Arg x_in) {
    Tensor x = std::move(x_in);
    Dims sizes = x.sizes(), strides = x.layout()->strides;
    const int last = x.rank() - 1;
    sizes.erase(last);
    strides.erase(last);
    for (int i = 0; i < last; ++i) strides[i] /= 2;
    const Dtype dtype = x.dtype() == Dtype::f64 ? Dtype::complex128 : Dtype::complex64;
    return reinterpreted(x, sizes, strides, dtype, view_as_complex_backward);
}

Tensor view_as_real(Arg x_in) {
    Tensor x = std::move(x_in);
    Dims sizes = x.sizes(), strides = x.layout()->strides;
    for (int i = 0; i < x.rank(); ++i) strides[i] *= 2;
    sizes.push_back(2);
    strides.push_back(1);
    const Dtype dtype = x.dtype() == Dtype::complex128 ? Dtype::f64 : Dtype::f32;
    return reinterpreted(x, sizes, strides, dtype, view_as_real_backward);
}

Tensor contiguous(Arg x_in) {
    Tensor x = std::move(x_in);
    if (x.contiguous()) return x;
    Run& run = x.run();
    NodeRef node = run.record(Op::clone, clone_backward, {&x});
    Tensor out = run.empty(x.sizes(), x.dtype(), Op::clone);
    Run::attach(out, node);
    return out;
}

Tensor clone(Arg x_in) {
    Tensor x = std::move(x_in);
    Run& run = x.run();
    NodeRef node = run.record(Op::clone, clone_backward, {&x});
    Tensor out = run.empty_like(x, Op::clone);
    Run::attach(out, node);
    return out;
}

Tensor to(Arg x_in, Dtype dtype) {
    Tensor x = std::move(x_in);
    if (x.dtype() == dtype) return x;
    Run& run = x.run();
    NodeRef node =
        is_floating(dtype) || is_complex(dtype) ? run.record(Op::to_copy, to_copy_backward, {&x}) : NodeRef();
    if (node) node->meta.push_back(x.layout());
    Tensor out = x.storage()->slot < 0 ? Tensor(x.storage_ref(), run.layouts.like(x.layout(), dtype))
                                       : run.empty_like(x, dtype, Op::to_copy);
    Run::attach(out, node);
    return out;
}

Tensor to_cuda(Run& run, Arg x_in) {
    Tensor x = std::move(x_in);
    return x.storage()->slot >= 0 ? x : run.empty(x.layout(), Op::to_device);
}

void copy_into_view(Tensor& x, Arg part_in, Tensor value_in) {
    const Tensor part = std::move(part_in), value = std::move(value_in);
    Run& run = x.run();
    const NodeRef node = run.record(Op::copy_, copy_slices_backward, {&x, &value});
    if (!node) return;
    node->meta.push_back(x.layout());
    node->meta.push_back(part.layout());
    node->meta.push_back(value.layout());
    Run::attach(x, node);
}

void copy_into_slice(Tensor& x, int dim, std::int64_t start, std::int64_t end, std::int64_t step, Arg value) {
    copy_into_view(x, slice(x.detach(), dim, start, end, step), std::move(value));
}

void addcmul_into_slice(Tensor& x, int dim, std::int64_t start, std::int64_t end, Arg tensor1_in, Tensor tensor2_in) {
    Run& run = x.run();
    const Tensor tensor1 = std::move(tensor1_in), tensor2 = std::move(tensor2_in);
    const Tensor part = slice(x.detach(), dim, start, end);
    const NodeRef node = run.record(Op::add_, addcmul_slices_backward, {&x, &tensor1, &tensor2});
    if (!node) return;
    for (const LayoutRef layout : {x.layout(), part.layout(), tensor1.layout(), tensor2.layout()})
        node->meta.push_back(layout);
    run.save_if(node->needs(2), *node, tensor1);
    run.save_if(node->needs(1), *node, tensor2);
    Run::attach(x, node);
}

}  // namespace vram::shadow
