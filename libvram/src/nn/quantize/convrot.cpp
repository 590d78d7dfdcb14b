#include "nn/quantize/convrot.hpp"

#include <algorithm>

#include "nn/quantize/nvfp4.hpp"
#include "nn/quantize/steps.hpp"

namespace vram::nn::quantize {
namespace {

using shadow::Node;
using shadow::NodeRef;
using shadow::Op;

constexpr std::int64_t fused_rows = 16;  // FUSED_GEMV_MAX_M

// Places in QuantizedLayer::stored. convrot4 has its own.
enum : std::size_t { codes, scales, ratios };
enum : std::size_t { fp4_codes, fp4_scales, fp4_blocked, fp4_pts };

bool is_comfy(const Quantizer& quantizer) { return &quantizer == &toolkit_convrotcomfyw4a4; }
bool is_bitnet(const Quantizer& quantizer) { return &quantizer == &toolkit_convrotbitnet; }
bool is_packed(const Quantizer& quantizer) { return &quantizer != &toolkit_convrot8; }
/// Whether groups have ratios: INTN_GROUP_BITS.
bool is_grouped(const Quantizer& quantizer) {
    return is_packed(quantizer) && quantizer.bits <= 7 && !is_comfy(quantizer);
}

// _rot_for, largest_pow4_divisor
std::int64_t rotation_of(std::int64_t in) {
    std::int64_t size = 1;
    while (size < 256 && in % (size * 4) == 0) size *= 4;
    return size;
}

bool takes(const Quantizer& quantizer, std::int64_t in, std::int64_t out) {
    if (is_comfy(quantizer)) return in % 256 == 0 && out % 8 == 0;
    return in % 16 == 0 && out % 8 == 0 && rotation_of(in) >= 16;
}
bool takes_fp4(const Quantizer&, std::int64_t in, std::int64_t out) {
    return in % 16 == 0 && out % 16 == 0 && rotation_of(in) >= 16;
}

std::int64_t group_of(std::int64_t in) {
    std::int64_t group = 128;
    while (in % group != 0) group /= 2;
    return group;
}

/// regular_hadamard, kept for the process.
Tensor hadamard(Run& run, std::int64_t size, Dtype dtype) {
    Tensor& kept = run.constants["hadamard " + std::to_string(size) + " " + std::to_string(static_cast<int>(dtype))];
    if (!kept.defined()) kept = made(run, {size, size}, dtype);
    return kept;
}

// rotate: x [.., in]
Tensor rotate(Tensor x) {
    const Dims sizes = x.sizes();
    const std::int64_t in = x.size(-1), size = rotation_of(in);
    const Tensor matrix = hadamard(x.run(), size, x.dtype());
    Tensor blocks = shadow::reshape(std::move(x), {-1, in / size, size});
    blocks = shadow::matmul(std::move(blocks), matrix);
    return shadow::reshape(std::move(blocks), sizes);
}

void constants(const QuantizedLayer& layer) {
    static_cast<void>(hadamard(layer.run(), rotation_of(layer.in()), layer.dtype()));
}

void build(Weights& weights, QuantizedLayer& layer) {
    const Quantizer& quantizer = *layer.quantizer;
    const std::int64_t in = layer.in(), out = layer.out();
    if (!is_packed(quantizer))
        store(weights, layer, {out, in}, Dtype::i8);
    else if (is_bitnet(quantizer))
        store(weights, layer, {out, (in + 4) / 5}, Dtype::u8);
    else
        store(weights, layer, {out, in / 8 * quantizer.bits}, Dtype::u8);
    store(weights, layer, {out}, Dtype::f32);
    if (is_grouped(quantizer)) store(weights, layer, {out, in / group_of(in)}, Dtype::f32);
}

void build_fp4(Weights& weights, QuantizedLayer& layer) {
    const std::int64_t in = layer.in(), out = layer.out(), columns = in / 16;
    store(weights, layer, {out, in / 2}, Dtype::u8);
    store(weights, layer, {out, columns}, Dtype::f8);
    store(weights, layer, {(out + 127) / 128 * 128 * ((columns + 3) / 4 * 4)}, Dtype::f8);
    store(weights, layer, {1}, Dtype::f32);
}

// quantize_int8_rows, quantize_intn_rows: codes, and the layer's scales.
Tensor quantize_rows(Weights& weights, QuantizedLayer& layer, const Tensor& rotated) {
    const Dims rows{layer.out()};
    {
        Tensor largest;
        {
            const Tensor absolute = made_like(rotated);
            largest = made(layer, rows, Dtype::f32);
        }
        largest = made(layer, rows, Dtype::f32);  // / qmax
        const Tensor positive = made(layer, rows, Dtype::boolean);
        const Tensor ones = made(layer, rows, Dtype::f32);
        weights.to_gpu(*layer.stored[scales]);
    }
    Tensor rounded;
    {
        const Tensor divided = made_like(rotated);
        rounded = made_like(rotated);
    }
    return made_like(rotated, Dtype::i8);
}

struct Grouped {
    Tensor codes, scales;
};
// _optimal_group_quantize: a sweep over 16 scales, then two refits.
Grouped optimal_groups(const Tensor& rotated, std::int64_t groups) {
    Run& run = rotated.run();
    const Dims each{rotated.size(0), groups};
    const auto per_group = [&](Dtype dtype = Dtype::f32) { return made(run, each, dtype); };
    const auto full = [&] { return made_like(rotated); };
    Tensor amax;
    {
        const Tensor absolute = full();
        amax = per_group();
    }
    {
        const Tensor positive = per_group(Dtype::boolean);
        const Tensor ones = per_group();
        amax = per_group();
    }
    Tensor best_s = per_group(), best_e, s, q, e, better;
    const auto round_to = [&] {
        const Tensor divided = full();
        q = full();
    };
    for (int i = 0; i < 16; ++i) {
        s = per_group();
        round_to();
        {
            Tensor error;
            {
                const Tensor product = full();
                error = full();
            }
            e = per_group();
        }
        if (!best_e.defined()) {
            best_s = s;
            best_e = e;
        } else {
            better = per_group(Dtype::boolean);
            best_s = per_group();
            best_e = per_group();
        }
    }
    s = best_s;
    Tensor num, den;
    for (int i = 0; i < 2; ++i) {
        round_to();
        {
            const Tensor product = full();
            num = per_group();
        }
        {
            const Tensor product = full();
            den = per_group();
        }
        Tensor both;
        {
            const Tensor den_positive = per_group(Dtype::boolean);
            const Tensor num_positive = per_group(Dtype::boolean);
            both = per_group(Dtype::boolean);
        }
        Tensor divided;
        {
            const Tensor clamped = per_group();
            divided = per_group();
        }
        s = per_group();
    }
    round_to();
    return {made_like(q, Dtype::i8), s};
}

// pack_intn_rows: words of 64 bits.
void pack(Weights& weights, QuantizedLayer& layer, const Tensor& q) {
    const std::int64_t bits = layer.quantizer->bits, bytes = layer.out() * (layer.in() / 8) * bits;
    Tensor u;
    {
        const Tensor wide = made_like(q, Dtype::i64);
        u = made_like(q, Dtype::i64);
    }
    Tensor shifts = made(layer, {8}, Dtype::i64);
    shifts = made(layer, {8}, Dtype::i64);
    Tensor word;
    {
        const Tensor shifted = made_like(q, Dtype::i64);
        word = made(layer, {layer.out(), layer.in() / 8}, Dtype::i64);
    }
    Tensor byte_shifts = made(layer, {bits}, Dtype::i64);
    byte_shifts = made(layer, {bits}, Dtype::i64);
    Tensor b;
    {
        const Tensor shifted = made(layer, {bytes}, Dtype::i64);
        b = made(layer, {bytes}, Dtype::i64);
    }
    weights.to_gpu(*layer.stored[codes]);
}

// pack_ternary_rows
void pack_ternary(Weights& weights, QuantizedLayer& layer, const Tensor& q) {
    Tensor u;
    {
        const Tensor wide = made_like(q, Dtype::i16);
        u = made_like(q, Dtype::i16);
    }
    const std::int64_t bytes = layer[codes].size(1);
    if (bytes * 5 != layer.in()) u = made(layer, {layer.out(), bytes * 5}, Dtype::i16);
    const Tensor powers = made(layer, {5}, Dtype::i16);
    Tensor sum;
    {
        const Tensor product = made_like(u);
        sum = made(layer, {layer.out(), bytes}, Dtype::i64);
    }
    weights.to_gpu(*layer.stored[codes]);
}

void convert(Weights& weights, QuantizedLayer& layer) {
    const Quantizer& quantizer = *layer.quantizer;
    const Tensor weight = std::move(layer.full);
    layer.full = Tensor();
    const Tensor weight_fp32 = shadow::to_float(weight);
    const Tensor rotated = rotate(weight_fp32);
    if (!is_packed(quantizer)) {
        const Tensor q = quantize_rows(weights, layer, rotated);
        weights.put(*layer.stored[codes], q);
    } else if (is_grouped(quantizer)) {
        const Grouped grouped = optimal_groups(rotated, layer.in() / group_of(layer.in()));
        {
            Tensor rscales = made(layer, {layer.out()}, Dtype::f32);  // amax
            rscales = made(layer, {layer.out()}, Dtype::f32);         // * qmax / 127
            const Tensor positive = made(layer, {layer.out()}, Dtype::boolean);
            const Tensor ones = made(layer, {layer.out()}, Dtype::f32);
            weights.to_gpu(*layer.stored[scales]);
        }
        weights.to_gpu(*layer.stored[ratios]);
        is_bitnet(quantizer) ? pack_ternary(weights, layer, grouped.codes) : pack(weights, layer, grouped.codes);
    } else if (is_comfy(quantizer)) {
        const Grouped grouped = optimal_groups(rotated, 1);
        pack(weights, layer, grouped.codes);
        weights.put(*layer.stored[scales], grouped.scales);
    } else {
        const Tensor q = quantize_rows(weights, layer, rotated);
        pack(weights, layer, q);
    }
}

// to_blocked
Tensor blocked(const QuantizedLayer& layer, const Tensor& m) {
    const Dims sizes = layer[fp4_blocked].sizes();
    Tensor padded;
    if (m.numel() != sizes[0]) padded = made(layer, sizes, Dtype::f8);
    const Tensor blocks = made(layer, sizes, Dtype::f8);
    return made(layer, sizes, Dtype::f8);
}

void convert_fp4(Weights& weights, QuantizedLayer& layer) {
    const Tensor weight = std::move(layer.full);
    layer.full = Tensor();
    const Tensor weight_fp32 = shadow::to_float(weight);
    const Tensor rotated = rotate(weight_fp32);
    const Nvfp4 quantized = quantize_nvfp4(rotated, true);
    weights.put(*layer.stored[fp4_codes], quantized.packed);
    weights.put(*layer.stored[fp4_scales], quantized.scales);
    weights.put(*layer.stored[fp4_blocked], blocked(layer, quantized.scales));
    weights.to_gpu(*layer.stored[fp4_pts]);
}

/// The codes as int8 [out, in]: the stored ones, or unpacked.
Tensor unpacked(const QuantizedLayer& layer) {
    return is_packed(*layer.quantizer) ? made(layer, layer.weight, Dtype::i8) : layer[codes];
}

const QuantizedLayer& layer_of(const Node& node) {
    return *reinterpret_cast<const QuantizedLayer*>(static_cast<std::intptr_t>(node.numbers[0]));
}

// _int8_linear_ste_backward, _intn_linear_ste_backward, _bitnet_linear_ste_backward
void backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const QuantizedLayer& layer = layer_of(node);
    const Tensor saved = run.unpack(node.saved[0]);
    const Tensor grad = grads[0];
    const Dims rows{layer.out()};
    Tensor q, w;
    if (is_grouped(*layer.quantizer)) {
        q = unpacked(layer);
        Tensor cast = made(layer, layer.weight, grad.dtype()), scale;
        if (grad.dtype() != Dtype::f32) scale = made(layer, rows, grad.dtype());
        w = made(layer, layer.weight, grad.dtype());
        cast = scale = Tensor();
        out[0] = shadow::matmul(grad, w);
        return;
    }
    Tensor scale;
    if (grad.dtype() != Dtype::f32) scale = made(layer, rows, grad.dtype());
    {
        const Tensor cast = made(layer, layer.weight, grad.dtype());
        w = made(layer, layer.weight, grad.dtype());
    }
    out[0] = shadow::matmul(grad, w);
}

// _int8_act_quant_op, torch._int_mm and _int8_epilogue_op: x2d [rows, in] → [rows, out]
Tensor multiplied(const QuantizedLayer& layer, Tensor x2d, const Tensor& given) {
    Run& run = x2d.run();
    const std::int64_t rows = x2d.size(0), padded = (rows + 31) / 32 * 32;
    const Dtype dtype = x2d.dtype();
    const Tensor aq = made(run, {padded, layer.in()}, Dtype::i8);
    const Tensor a_s = made(run, {padded}, Dtype::f32);
    x2d = Tensor();
    Tensor i32;
    {
        Tensor q = given;
        if (!q.defined()) q = unpacked(layer);
        i32 = made(run, {padded, layer.out()}, Dtype::i32);
    }
    return made(run, {rows, layer.out()}, dtype);
}

Tensor forward(const QuantizedLayer& layer, Tensor x) {
    const Tensor input = std::move(x);
    Run& run = input.run();
    Dims sizes = input.sizes();
    sizes[sizes.rank() - 1] = layer.out();
    const std::int64_t rows = input.numel() / layer.in();
    if (!input.requires_grad()) {
        const shadow::NoGrad no_grad(run);
        Tensor x2d = rows_of(rotate(input));
        if (rows <= fused_rows) {
            Tensor out = made(run, {rows, layer.out()}, input.dtype());
            return shadow::reshape(std::move(out), sizes);
        }
        return shadow::reshape(multiplied(layer, std::move(x2d), {}), sizes);
    }
    // The training operator: its input is held by the call, and a grouped layer is unpacked before the input is
    // quantised.
    const Tensor x2d = rows_of(rotate(input));
    const bool grouped = is_grouped(*layer.quantizer);
    Tensor kept, out;
    {
        const shadow::NoGrad no_grad(run);
        Tensor q = unpacked(layer);
        if (!grouped) kept = q;
        out = multiplied(layer, x2d.detach(), q);
    }
    NodeRef node = run.record(Op::custom, backward, {&x2d});
    if (node) {
        node->numbers[0] = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(&layer));
        run.save(*node, grouped ? layer[codes] : kept);
        // Where a memory manager brings them for the call, these are not the layer's own.
        if (grouped) run.save(*node, layer[ratios]);
        run.save(*node, layer[scales]);
    }
    Run::attach(out, node);
    return shadow::reshape(std::move(out), sizes);
}

Tensor forward_fp4(const QuantizedLayer& layer, Tensor x) {
    const Tensor input = std::move(x);
    Run& run = input.run();
    Dims sizes = input.sizes();
    sizes[sizes.rank() - 1] = layer.out();
    if (!input.requires_grad()) {
        Tensor weight = made(layer, layer.weight, input.dtype());
        Tensor out = shadow::linear(rows_of(rotate(input)), weight, layer.bias_value());
        return shadow::reshape(std::move(out), sizes);
    }
    const Tensor x2d = rows_of(rotate(input));
    Nvfp4 quantized;
    Tensor x_dq, weight, x_ste;
    {
        const shadow::NoGrad no_grad(run);
        quantized = quantize_nvfp4(x2d.detach(), false);
        x_dq = made_like(x2d);
        weight = made(layer, layer.weight, input.dtype());
    }
    {
        const Tensor difference = made_like(x2d);
        x_ste = shadow::add(x2d, difference);
    }
    Tensor out = shadow::linear(x_ste, weight, layer.bias_value());
    return shadow::reshape(std::move(out), sizes);
}

constexpr Quantizer convrot(std::string_view id, std::int64_t bits) {
    Quantizer out;
    out.id = id;
    out.bits = bits;
    out.takes = takes;
    out.build_buffers = build;
    out.forward = forward;
    out.convert = convert;
    out.constants = constants;
    return out;
}
constexpr Quantizer fp4() {
    Quantizer out = convrot("toolkit_convrot4", 4);
    out.takes = takes_fp4;
    out.build_buffers = build_fp4;
    out.forward = forward_fp4;
    out.convert = convert_fp4;
    return out;
}

}  // namespace

const Quantizer toolkit_convrot4 = fp4();
const Quantizer toolkit_convrot8 = convrot("toolkit_convrot8", 8);
const Quantizer toolkit_convrotint2 = convrot("toolkit_convrotint2", 2);
const Quantizer toolkit_convrotint3 = convrot("toolkit_convrotint3", 3);
const Quantizer toolkit_convrotint4 = convrot("toolkit_convrotint4", 4);
const Quantizer toolkit_convrotint5 = convrot("toolkit_convrotint5", 5);
const Quantizer toolkit_convrotint6 = convrot("toolkit_convrotint6", 6);
const Quantizer toolkit_convrotint7 = convrot("toolkit_convrotint7", 7);
const Quantizer toolkit_convrotint8 = convrot("toolkit_convrotint8", 8);
const Quantizer toolkit_convrotbitnet = convrot("toolkit_convrotbitnet", 2);
const Quantizer toolkit_convrotcomfyw4a4 = convrot("toolkit_convrotcomfyw4a4", 4);

}  // namespace vram::nn::quantize
