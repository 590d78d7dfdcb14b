#include <algorithm>

#include "shadow/ops.hpp"

namespace vram::shadow {
namespace {

/// An op of several tensors was called there.
void called(std::span<const Tensor> parts, const char* file, int line) {
    if (parts.empty() || !parts.front().defined() || parts.front().run().provenance == nullptr) return;
    parts.front().run().provenance->called(file, line);
}

Tensor reduced(Tensor& x, int dim, bool keepdim, Op op, Backward backward) {
    Run& run = x.run();
    const int at = dim < 0 ? dim + x.rank() : dim;
    const NodeRef node = run.record(op, backward, {&x});
    if (node) {
        node->meta.push_back(x.layout());
        node->numbers[0] = at;
    }
    Dims sizes = x.sizes();
    if (keepdim)
        sizes[at] = 1;
    else
        sizes.erase(at);
    Tensor out = run.empty(sizes, x.dtype(), op);
    Run::attach(out, node);
    return out;
}
Tensor reduced_to_one(Tensor& x, Op op, Backward backward) {
    Run& run = x.run();
    const NodeRef node = run.record(op, backward, {&x});
    if (node) node->meta.push_back(x.layout());
    Tensor out = run.empty({}, x.dtype(), op);
    Run::attach(out, node);
    return out;
}

// The gradient of a reduction, expanded to the input; `numbers[0]` is the dimension that went.
Tensor widened(const Tensor& grad, const Node& node) {
    Tensor whole = grad;
    if (whole.rank() < node.meta[0]->rank() && whole.rank() > 0)
        whole = unsqueeze(std::move(whole), static_cast<int>(node.numbers[0]));
    return expand(std::move(whole), node.meta[0]->sizes);
}
void sum_backward(Run&, Node& node, Tensors& grads, Tensors& out) { out[0] = widened(grads[0], node); }
void mean_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor whole = widened(grads[0], node);
    out[0] = run.empty(node.meta[0]->sizes, grads[0].dtype(), Op::div);
}

// grad * mask * scale in one kernel.
void native_dropout_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor mask = run.unpack(node.saved[0]);
    if (node.needs(0)) out[0] = run.empty_like(grads[0], Op::mul);
}

void softmax_backward(Run& run, Node& node, Tensors&, Tensors& out) {
    const Tensor result = run.unpack(node.saved[0]);
    out[0] = run.empty(node.meta[0]->sizes, node.meta[0]->dtype, Op::softmax_backward);
}

void cat_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    for (std::size_t i = 0; i < node.edges.size(); ++i)
        if (node.needs(i)) out[i] = run.view_of(grads[0], node.meta[i]->sizes, grads[0].layout()->strides);
}
void stack_backward(Run&, Node& node, Tensors& grads, Tensors& out) {
    Tensors parts = unbind(grads[0], static_cast<int>(node.numbers[0]));
    for (std::size_t i = 0; i < node.edges.size(); ++i)
        if (node.needs(i)) out[i] = parts[i];
}

void embedding_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor ids = run.unpack(node.saved[0]);
    out[0] = run.empty(node.meta[0]->sizes, grads[0].dtype(), Op::embedding_backward);
}

// A mask picks by the places that it holds, int64, found for the length of the kernel. Source:
// aten/src/ATen/native/IndexingUtils.h, expandTensors.
StorageRef places_of(Run& run, const Tensor& ids, std::int64_t count) {
    return ids.dtype() == Dtype::boolean ? run.scratch(checked_mul(8, count), Op::index) : StorageRef();
}

// index_backward: zeros that the gradient is put into, sorted by place so that what repeats adds up: the places and
// a range, before and after, are 8 bytes an element each; cub's own scratch is not in it. Source: derivatives.yaml,
// index.Tensor; aten/src/ATen/native/cuda/Indexing.cu, index_put_with_sort_kernel.
void index_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor ids = run.unpack(node.saved[0]);
    const std::int64_t count = node.numbers[0];
    out[0] = run.empty(node.meta[0]->sizes, grads[0].dtype(), Op::zeros);
    const StorageRef places = places_of(run, ids, count);
    const StorageRef sorted = run.scratch(checked_mul(4 * 8, count), Op::index);
}

// self: a copy of the gradient with zeros in the places, these made first; values: the gradient's places. Source:
// derivatives.yaml, index_put_.
void index_put_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor ids = run.unpack(node.saved[0]);
    const Dims& values = node.meta[0]->sizes;
    const auto places = [&] { return places_of(run, ids, values[0]); };
    if (node.needs(0)) {
        const Tensor zeros = run.empty(values, grads[0].dtype(), Op::zeros);
        out[0] = run.empty_like(grads[0], Op::clone);
        const StorageRef found = places();
    }
    if (node.needs(1)) {
        const StorageRef found = places();
        out[1] = run.empty(values, grads[0].dtype(), Op::index);
    }
}

// Zeros that the gradient is scattered into. Source: torch/csrc/autograd/FunctionsManual.cpp,
// value_selecting_reduction_backward.
void topk_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor indices = run.unpack(node.saved[0]);
    out[0] = run.empty(node.meta[0]->sizes, grads[0].dtype(), Op::zeros);
}

// self: the gradient itself; src: the gradient's places. Source: torch/csrc/autograd/FunctionsManual.cpp,
// scatter_reduce_backward.
void scatter_reduce_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor index = run.unpack(node.saved[0]);
    const Tensor self = run.unpack(node.saved[1]);
    const Tensor src = run.unpack(node.saved[2]);
    const Tensor result = run.unpack(node.saved[3]);
    if (node.numbers[0] != 0)
        throw Refused("one of the variables needed for gradient computation has been modified by an inplace operation");
    if (node.needs(0)) out[0] = grads[0];
    if (node.needs(1)) out[1] = run.empty(src.sizes(), grads[0].dtype(), Op::gather);
}

void mse_backward(Run& run, Node& node, Tensors&, Tensors& out) {
    const Tensor input = run.unpack(node.saved[0]);
    const Tensor target = run.unpack(node.saved[1]);
    if (node.needs(0)) out[0] = run.empty_like(input, Op::mse_loss_backward);
    if (node.needs(1)) out[1] = run.empty_like(target, Op::mse_loss_backward);
}

// repeat_interleave and repeat: the gradient is summed over the copies; one copy's is the gradient itself, which may
// be a part of a larger one. Source: torch/csrc/autograd/FunctionsManual.cpp, repeat_backward.
void repeat_backward(Run&, Node& node, Tensors& grads, Tensors& out) {
    if (grads[0].sizes() == node.meta[0]->sizes) {
        out[0] = grads[0];
        return;
    }
    out[0] = grads[0].run().empty(node.meta[0]->sizes, grads[0].dtype(), Op::sum);
}

Tensor repeated(Tensor& x, const Dims& sizes) {
    Run& run = x.run();
    NodeRef node = run.record(Op::repeat, repeat_backward, {&x});
    if (node) node->meta.push_back(x.layout());
    Tensor out = run.empty(sizes, x.dtype(), Op::repeat);
    Run::attach(out, node);
    return out;
}

}  // namespace

Tensor mean(Arg x_in, int dim, bool keepdim) {
    Tensor x = std::move(x_in);
    return reduced(x, dim, keepdim, Op::mean, mean_backward);
}

Tensor sum(Arg x_in, int dim, bool keepdim) {
    Tensor x = std::move(x_in);
    return reduced(x, dim, keepdim, Op::sum, sum_backward);
}

Tensor mean_all(Arg x_in) {
    Tensor x = std::move(x_in);
    return reduced_to_one(x, Op::mean, mean_backward);
}

Tensor sum_all(Arg x_in) {
    Tensor x = std::move(x_in);
    return reduced_to_one(x, Op::sum, sum_backward);
}

Tensor sum_to(Arg x_in, const Dims& sizes) {
    const Tensor x = std::move(x_in);
    if (x.sizes() == sizes) return x;
    // One sum over all broadcast dimensions, leading ones even of size 1; these are then viewed away.
    // Source: aten/src/ATen/ExpandUtils.h, _sum_to.
    const int extra = x.rank() - sizes.rank();
    bool reduces = extra > 0;
    for (int i = extra; i < x.rank(); ++i) reduces = reduces || (x.size(i) != 1 && sizes[i - extra] == 1);
    if (!reduces) return x;
    Tensor out = x.run().empty(sizes, x.dtype(), Op::sum);
    if (extra > 0) out.set_view();
    return out;
}

Tensor softmax(Arg x_in, std::optional<Dtype> dtype) {
    const Tensor held_x = std::move(x_in);
    // fp16 to fp32 is the kernel's own, bf16 is cast first. Source: aten/src/ATen/native/SoftMax.cpp, softmax.
    const bool fused = dtype == Dtype::f32 && held_x.dtype() == Dtype::f16;
    Tensor x = fused ? held_x : dtype && *dtype != held_x.dtype() ? to(held_x, *dtype) : autocast_fp32(held_x);
    Run& run = x.run();
    NodeRef node = run.record(Op::softmax, softmax_backward, {&x});
    if (node) node->meta.push_back(x.layout());
    Tensor out = run.empty(x.sizes(), fused ? Dtype::f32 : x.dtype(), Op::softmax);
    if (node) run.save(*node, out);
    Run::attach(out, node);
    return out;
}

Tensor cat(std::span<const Tensor> parts, int dim, const char* file, int line) {
    called(parts, file, line);
    // On autocast's promote list: the widest dtype among the parts.
    Run& run = parts.front().run();
    Dtype dtype = parts.front().dtype();
    for (const Tensor& part : parts) dtype = promote(dtype, part.dtype());
    const int at = dim < 0 ? dim + parts.front().rank() : dim;
    NodeRef node = run.record(Op::cat, cat_backward, parts);
    Dims sizes = parts.front().sizes();
    sizes[at] = 0;
    bool channels_last = true;
    for (const Tensor& part : parts) {
        if (node) node->meta.push_back(part.layout());
        sizes[at] = checked_add(sizes[at], part.size(at));
        channels_last = channels_last && part.layout()->channels_last;
    }
    Tensor out;
    if (channels_last) {
        out = run.empty(run.layouts.intern(sizes, channels_last_strides(sizes), dtype), Op::cat);
    } else {
        out = run.empty(sizes, dtype, Op::cat);
    }
    Run::attach(out, node);
    return out;
}

Tensor cat(std::initializer_list<Tensor> parts, int dim, const char* file, int line) {
    called({parts.begin(), parts.size()}, file, line);
    return cat(std::span<const Tensor>(parts.begin(), parts.size()), dim);
}

Tensor stack(std::span<const Tensor> parts, int dim, const char* file, int line) {
    called(parts, file, line);
    Run& run = parts.front().run();
    const int at = dim < 0 ? dim + parts.front().rank() + 1 : dim;
    NodeRef node = run.record(Op::stack, stack_backward, parts);
    if (node) node->numbers[0] = at;
    Dims sizes = parts.front().sizes();
    sizes.insert(at, static_cast<std::int64_t>(parts.size()));
    Tensor out = run.empty(sizes, parts.front().dtype(), Op::stack);
    Run::attach(out, node);
    return out;
}

// at::full, then a copy into each row. Source: aten/src/ATen/native/PackedSequence.cpp, pad_sequence.
Tensor pad_sequence(std::span<const Tensor> sequences, const char* file, int line) {
    called(sequences, file, line);
    Run& run = sequences.front().run();
    Dims sizes = sequences.front().sizes();
    for (const Tensor& sequence : sequences) sizes[0] = std::max(sizes[0], sequence.size(0));
    sizes.insert(0, static_cast<std::int64_t>(sequences.size()));
    Tensor out = run.empty(sizes, sequences.front().dtype(), Op::full);
    for (std::size_t i = 0; i < sequences.size(); ++i) {
        Tensor row = select(out.detach(), 0, static_cast<std::int64_t>(i));
        copy_into_view(out, slice(std::move(row), 0, 0, sequences[i].size(0)), sequences[i]);
    }
    return out;
}

// The result and a mask of bools at once.
Tensor native_dropout(Arg x_in) {
    const Tensor x = std::move(x_in);
    Run& run = x.run();
    const NodeRef node = run.record(Op::custom, native_dropout_backward, {&x});
    Tensor out = run.empty_like(x, Op::mul);
    const Tensor mask = run.empty_like(x, Dtype::boolean, Op::noise);
    if (node) run.save(*node, mask);
    Run::attach(out, node);
    return out;
}

Tensor embedding(Arg weight_in, Tensor ids_in) {
    Tensor weight = std::move(weight_in), ids = std::move(ids_in);
    Run& run = weight.run();
    NodeRef node = run.record(Op::embedding, embedding_backward, {&weight});
    if (node) {
        node->meta.push_back(weight.layout());
        run.save(*node, ids);
    }
    Dims sizes = ids.sizes();
    sizes.push_back(weight.size(1));
    Tensor out = run.empty(sizes, weight.dtype(), Op::embedding);
    Run::attach(out, node);
    return out;
}

namespace {

Tensor picked(Tensor& x, int dim, Tensor& ids, std::int64_t count) {
    Run& run = x.run();
    NodeRef node = run.record(Op::index, index_backward, {&x});
    if (node) {
        node->meta.push_back(x.layout());
        node->numbers[0] = count;
        run.save(*node, ids);
    }
    Dims sizes = x.sizes();
    sizes[dim < 0 ? dim + x.rank() : dim] = count;
    const StorageRef places = places_of(run, ids, count);
    Tensor out = run.empty(sizes, x.dtype(), Op::index);
    Run::attach(out, node);
    return out;
}

}  // namespace

Tensor index(Arg x_in, int dim, Tensor ids_in) {
    Tensor x = std::move(x_in), ids = std::move(ids_in);
    const std::int64_t count = ids.numel();
    return picked(x, dim, ids, count);
}

Tensor index_pairs(Arg x_in, Tensor rows_in, Tensor places_in) {
    const Tensor x = std::move(x_in), rows = std::move(rows_in), places = std::move(places_in);
    Run& run = x.run();
    NodeRef node = run.record(Op::index, index_backward, {&x});
    if (node) {
        node->meta.push_back(x.layout());
        node->numbers[0] = rows.numel();
        run.save(*node, rows);
        run.save(*node, places);
    }
    Dims sizes{rows.numel()};
    for (int i = 2; i < x.rank(); ++i) sizes.push_back(x.size(i));
    Tensor out = run.empty(sizes, x.dtype(), Op::index);
    Run::attach(out, node);
    return out;
}

Tensor index_mask(Arg x_in, Tensor mask_in, std::int64_t count) {
    Tensor x = std::move(x_in), mask = std::move(mask_in);
    return picked(x, 0, mask, count);
}

void index_put_mask_(Tensor& x, Arg mask_in, Tensor values_in) {
    const Tensor mask = std::move(mask_in), values = std::move(values_in);
    Run& run = x.run();
    const NodeRef node = run.record(Op::index, index_put_backward, {&x, &values});
    if (node) {
        node->meta.push_back(values.layout());
        run.save(*node, mask);
    }
    const StorageRef places = places_of(run, mask, values.size(0));
    Run::attach(x, node);
}

// All that the formula names is kept, whatever the reduction. Source: tools/autograd/derivatives.yaml,
// scatter_reduce.two; gen_variable_type.py, original_self.
void scatter_reduce_(Tensor& x, Arg index_in, Tensor src_in) {
    const Tensor index = std::move(index_in), src = std::move(src_in);
    Run& run = x.run();
    const NodeRef node = run.record(Op::scatter_reduce, scatter_reduce_backward, {&x, &src});
    if (node) {
        // Saved-tensor hooks cannot see that a saved result is written to again. Source:
        // torch/csrc/autograd/saved_variable.cpp, SavedVariable::unpack.
        if (const NodeRef& before = x.node(); before && before->op == Op::scatter_reduce && run.hooks.empty())
            before->numbers[0] = 1;
        run.save(*node, index);
        run.save(*node, clone(x));
        run.save(*node, src);
        run.save(*node, x.detach());  // the result
    }
    Run::attach(x, node);
}

Tensors topk(Arg x_in, std::int64_t k) {
    Tensor x = std::move(x_in);
    Run& run = x.run();
    NodeRef node = run.record(Op::topk, topk_backward, {&x});
    Dims sizes = x.sizes();
    sizes[x.rank() - 1] = k;
    Tensor values = run.empty(sizes, x.dtype(), Op::topk);
    Tensor indices = run.empty(sizes, Dtype::i64, Op::topk);
    if (node) {
        node->meta.push_back(x.layout());
        run.save(*node, indices);
    }
    Run::attach(values, node);
    return {values, indices};
}

// The sorted values are made too, and dropped. Source: aten/src/ATen/native/Sorting.cpp, argsort.
Tensor argsort(Arg x_in) {
    const Tensor x = std::move(x_in);
    Run& run = x.run();
    const Tensor values = run.empty_like(x, Op::sort);
    return run.empty(x.sizes(), Dtype::i64, Op::sort);
}

Tensor repeat_interleave(Arg x_in, std::int64_t times, int dim) {
    Tensor x = std::move(x_in);
    Dims sizes = x.sizes();
    const int at = dim < 0 ? dim + x.rank() : dim;
    sizes[at] = checked_mul(sizes[at], times);
    return repeated(x, sizes);
}

Tensor repeat(Arg x_in, Dims times) {
    Tensor x = std::move(x_in);
    Dims sizes = times;
    for (int i = 0; i < x.rank(); ++i) {
        const int at = times.rank() - x.rank() + i;
        sizes[at] = checked_mul(times[at], x.size(i));
    }
    return repeated(x, sizes);
}

Tensor arange(Run& run, std::int64_t count, Dtype dtype, const char* file, int line) {
    if (run.provenance != nullptr) run.provenance->called(file, line);
    return run.empty({count}, dtype, Op::arange);
}

namespace {

/// `each`: reduction="none".
Tensor squared_error(Tensor input_in, Tensor target_in, bool each) {
    const Tensor held_input = std::move(input_in), held_target = std::move(target_in);
    Tensor target = autocast_fp32(held_target), input = autocast_fp32(held_input);
    Run& run = input.run();
    NodeRef node = run.record(Op::mse_loss, mse_backward, {&input, &target});
    if (node) {
        run.save(*node, input);
        run.save(*node, target);
    }
    Tensor out = each ? run.empty_like(input, Op::mse_loss) : run.empty({}, input.dtype(), Op::mse_loss);
    Run::attach(out, node);
    return out;
}

}  // namespace

Tensor mse_loss(Arg input, Tensor target) { return squared_error(std::move(input), std::move(target), false); }

Tensor mse_loss_each(Arg input, Tensor target) { return squared_error(std::move(input), std::move(target), true); }

}  // namespace vram::shadow
