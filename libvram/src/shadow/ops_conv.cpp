#include <algorithm>
#include <stdexcept>

#include "shadow/ops.hpp"

namespace vram::shadow {
namespace {

Bytes dense_bytes(const Tensor& x) { return checked_mul(x.numel(), size_of(x.dtype())); }

/// What a device must know of a call to say what its kernel takes besides its tensors, after the output exists. `in`
/// and `out` are what the pass reads and makes: of the data gradient the gradients, of the weight's the input and the
/// gradient.
Convolution call_of(Convolution::Pass pass, const Tensor& in, const Tensor& weight, const Tensor& out,
                    std::int64_t groups) {
    Convolution call;
    call.pass = pass;
    call.dtype = in.dtype();
    call.channels_last = weight.layout()->channels_last;
    call.spatial = in.rank() - 2;
    call.batch = in.size(0);
    call.groups = groups;
    call.channels_in = in.size(1);
    call.channels_out = out.size(1);
    const auto places = [](std::array<std::int64_t, 3>& into, const Tensor& tensor) {
        for (int i = 2; i < tensor.rank(); ++i) into[static_cast<std::size_t>(3 - tensor.rank() + i)] = tensor.size(i);
    };
    places(call.input, in);
    places(call.output, out);
    places(call.kernel, weight);
    return call;
}

LayoutRef channels_last(Run& run, const Dims& sizes, Dtype dtype) {
    return run.layouts.intern(sizes, channels_last_strides(sizes), dtype);
}

/// The weight's format decides. By cudnn_conv_suggest_memory_format a channels_last input should give a channels_last
/// output, too, and it reaches the upsampling convolutions of a VAE through its attention's output; but the measured
/// peaks there are those of contiguous data (input and output copied by the kernel), and recordings say contiguous, so
/// that is what is modelled.
LayoutRef conv_layout(Run& run, const Dims& sizes, const Tensor& x, const Tensor& weight) {
    return weight.layout()->channels_last ? channels_last(run, sizes, x.dtype())
                                          : run.layouts.contiguous(sizes, x.dtype());
}

/// Ops that keep the input's memory format.
LayoutRef suggested_layout(Run& run, const Dims& sizes, const Tensor& x) {
    return x.layout()->channels_last ? channels_last(run, sizes, x.dtype()) : run.layouts.contiguous(sizes, x.dtype());
}

void conv_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor x = run.unpack(node.saved[0]);
    const Tensor weight = run.unpack(node.saved[1]);
    const std::int64_t groups = node.numbers[0];
    // The gradient is made contiguous inside the call.
    const StorageRef copy = grads[0].contiguous() || grads[0].layout()->channels_last
                                ? StorageRef()
                                : run.scratch(dense_bytes(grads[0]), Op::contiguous_copy);
    if (node.needs(0)) {
        out[0] = run.empty(x.layout()->channels_last ? x.layout() : run.layouts.contiguous(x.sizes(), x.dtype()),
                           Op::conv_backward);
        const StorageRef workspace =
            run.scratch(call_of(Convolution::Pass::data_gradient, grads[0], weight, out[0], groups));
    }
    if (node.needs(1)) {
        out[1] = run.empty_like(weight, Op::conv_backward);
        const StorageRef workspace =
            run.scratch(call_of(Convolution::Pass::weight_gradient, x, weight, grads[0], groups));
    }
    if (node.needs(2)) out[2] = run.empty({weight.size(0)}, grads[0].dtype(), Op::conv_backward);
}

void upsample_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const StorageRef copy = grads[0].contiguous() || grads[0].layout()->channels_last
                                ? StorageRef()
                                : run.scratch(dense_bytes(grads[0]), Op::contiguous_copy);
    out[0] = run.empty(run.layouts.like(node.meta[0], grads[0].dtype()), Op::upsample_backward);
}

void avg_pool_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor x = run.unpack(node.saved[0]);
    const StorageRef copy =
        grads[0].contiguous() ? StorageRef() : run.scratch(dense_bytes(grads[0]), Op::contiguous_copy);
    out[0] = run.empty(x.sizes(), x.dtype(), Op::avg_pool_backward);
}

// constant_pad_nd_backward: a view of the middle where nothing was cropped, cloned.
void pad_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor middle = run.view_of(grads[0], node.meta[0]->sizes, grads[0].layout()->strides);
    out[0] = clone(middle);
}

// zeros like the input, added into. Source: aten/src/ATen/native/cuda/ReflectionPad.cu, reflection_pad3d_backward_cuda;
// ReplicationPadding.cu, replication_pad3d_backward_cuda.
void pad_from_within_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor x = run.unpack(node.saved[0]);
    static_cast<void>(grads);
    out[0] = run.empty_like(x, Op::pad);
}

Dims padded(const Dims& from, std::initializer_list<std::int64_t> amounts) {
    Dims sizes = from;
    const std::int64_t* amount = amounts.begin();
    for (int i = from.rank() - 1; amount != amounts.end(); --i, amount += 2)
        sizes[i] = checked_add(sizes[i], amount[0] + amount[1]);
    return sizes;
}

}  // namespace

Tensor conv(Arg x_in, Tensor weight_in, Tensor bias_in, const Conv& how) {
    const Tensor held_x = std::move(x_in), held_weight = std::move(weight_in), held_bias = std::move(bias_in);
    Tensor bias = autocast_lower(held_bias), weight = autocast_lower(held_weight), x = autocast_lower(held_x);
    Run& run = x.run();
    if (x.size(1) != weight.size(1) * how.groups)
        throw std::logic_error("conv: the input's channels do not fit the weight");
    NodeRef node = run.record(Op::conv, conv_backward, {&x, &weight, &bias});
    if (node) {
        run.save(*node, x);
        run.save(*node, weight);
        node->numbers[0] = how.groups;
    }
    Dims sizes = x.sizes();
    sizes[1] = weight.size(0);
    for (int i = 2; i < x.rank(); ++i) {
        const std::int64_t reach = how.dilation[i - 2] * (weight.size(i) - 1) + 1;
        const std::int64_t room = x.size(i) + 2 * how.padding[i - 2] - reach;
        if (room < 0) throw Refused("a convolution's kernel is larger than its padded input");
        sizes[i] = room / how.stride[i - 2] + 1;
    }
    Tensor out = run.empty(conv_layout(run, sizes, x, weight), Op::conv);
    {
        // cuDNN wants one memory format for all: an input that is neither is copied inside the call.
        const StorageRef copy = x.contiguous() || x.layout()->channels_last
                                    ? StorageRef()
                                    : run.scratch(dense_bytes(x), Op::contiguous_copy);
        const StorageRef workspace = run.scratch(call_of(Convolution::Pass::forward, x, weight, out, how.groups));
    }
    Run::attach(out, node);
    return out;
}

Tensor upsample_nearest_to(Arg x_in, const Dims& spatial) {
    const Tensor held_x = std::move(x_in);
    Tensor x = autocast_fp32(held_x);
    Run& run = x.run();
    NodeRef node = run.record(Op::upsample, upsample_backward, {&x});
    if (node) node->meta.push_back(x.layout());
    Dims sizes = x.sizes();
    for (int i = 2; i < x.rank(); ++i) sizes[i] = spatial[i - 2];
    Tensor out = run.empty(suggested_layout(run, sizes, x), Op::upsample);
    Run::attach(out, node);
    return out;
}

Tensor upsample_nearest(Arg x_in, std::int64_t factor) {
    Tensor x = std::move(x_in);
    Dims spatial;
    for (int i = 2; i < x.rank(); ++i) spatial.push_back(checked_mul(x.size(i), factor));
    return upsample_nearest_to(std::move(x), spatial);
}

namespace {

// The kernel reads a contiguous input. Source: aten/src/ATen/native/cuda/AveragePool2d.cu, AveragePool3d.cu.
Tensor avg_pool(Tensor& x, const Dims& sizes) {
    Run& run = x.run();
    NodeRef node = run.record(Op::avg_pool, avg_pool_backward, {&x});
    if (node) run.save(*node, x);
    Tensor out = run.empty(sizes, x.dtype(), Op::avg_pool);
    const StorageRef copy = x.contiguous() ? StorageRef() : run.scratch(dense_bytes(x), Op::contiguous_copy);
    Run::attach(out, node);
    return out;
}

}  // namespace

// avg_pool2d over a view. Source: aten/src/ATen/native/Pool.h.
Tensor avg_pool1d(Arg x_in, std::int64_t kernel, std::int64_t stride) {
    Tensor x = std::move(x_in);
    Dims sizes = x.sizes();
    const int last = x.rank() - 1;
    sizes[last] = (sizes[last] - kernel) / stride + 1;
    return avg_pool(x, sizes);
}

Tensor avg_pool3d(Arg x_in, const Dims& kernel) {
    Tensor x = std::move(x_in);
    Dims sizes = x.sizes();
    for (int i = 2; i < x.rank(); ++i) sizes[i] /= kernel[i - 2];
    return avg_pool(x, sizes);
}

// Views around one copy, on CUDA as in their backward. Source: aten/src/ATen/native/PixelShuffle.cpp,
// math_pixel_shuffle.
Tensor pixel_shuffle(Arg x_in, std::int64_t factor) {
    Tensor x = std::move(x_in);
    const Dims from = x.sizes();
    const std::int64_t channels = from[1] / (factor * factor);
    x = reshape(std::move(x), {from[0], channels, factor, factor, from[2], from[3]});
    x = permute(std::move(x), {0, 1, 4, 2, 5, 3});
    return reshape(std::move(x), {from[0], channels, from[2] * factor, from[3] * factor});
}

Tensor pixel_unshuffle(Arg x_in, std::int64_t factor) {
    Tensor x = std::move(x_in);
    const Dims from = x.sizes();
    const std::int64_t height = from[2] / factor, width = from[3] / factor;
    x = reshape(std::move(x), {from[0], from[1], height, factor, width, factor});
    x = permute(std::move(x), {0, 1, 3, 5, 2, 4});
    return reshape(std::move(x), {from[0], from[1] * factor * factor, height, width});
}

Tensor pad(Arg x_in, std::initializer_list<std::int64_t> amounts) {
    Tensor x = std::move(x_in);
    Run& run = x.run();
    bool any = false;
    for (std::int64_t amount : amounts) any = any || amount != 0;
    if (!any) return clone(std::move(x));
    NodeRef node = run.record(Op::pad, pad_backward, {&x});
    if (node) node->meta.push_back(x.layout());
    Tensor out = run.empty(suggested_layout(run, padded(x.sizes(), amounts), x), Op::pad);
    Run::attach(out, node);
    return out;
}

namespace {

// What is put around the input is made of the input, which is saved for its sizes.
Tensor pad_from_within(Tensor& x, std::initializer_list<std::int64_t> amounts) {
    Run& run = x.run();
    NodeRef node = run.record(Op::pad, pad_from_within_backward, {&x});
    if (node) run.save(*node, x);
    Tensor out = run.empty(padded(x.sizes(), amounts), x.dtype(), Op::pad);
    Run::attach(out, node);
    return out;
}

}  // namespace

Tensor reflection_pad(Arg x_in, std::initializer_list<std::int64_t> amounts) {
    Tensor x = std::move(x_in);
    const Dims whole = padded(x.sizes(), amounts);
    for (int i = 0; i < x.rank(); ++i)  // as much on both sides
        if (whole[i] - x.size(i) >= 2 * x.size(i))
            throw Refused("reflection padding needs more places than it adds to a side; a tile is too small");
    return pad_from_within(x, amounts);
}

Tensor replication_pad(Arg x_in, std::initializer_list<std::int64_t> amounts) {
    Tensor x = std::move(x_in);
    return pad_from_within(x, amounts);
}

}  // namespace vram::shadow
