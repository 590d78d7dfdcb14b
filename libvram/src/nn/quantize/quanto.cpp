#include "nn/quantize/quanto.hpp"

#include "nn/quantize/steps.hpp"

namespace vram::nn::quantize {
namespace {

using shadow::Node;
using shadow::NodeRef;
using shadow::Op;

// Places in QuantizedLayer::stored, in the order in which to() moves them: QBytesTensor's and QBitsTensor's.
enum : std::size_t { bytes_codes, bytes_scale };
enum : std::size_t { bits_scale, bits_codes, bits_shift };

bool is_bytes(const QuantizedLayer& layer) { return layer.quantizer->bits == 8; }
bool is_float(const QuantizedLayer& layer) {
    return layer.quantizer == &quanto_qfloat8 || layer.quantizer == &quanto_qfloat8_e5m2;
}

/// QModuleMixin.__init__: weight_group_size, 0 for none.
std::int64_t group_size(std::int64_t in) {
    std::int64_t group = 128;
    if (in <= group) return 0;
    while (in % group != 0 && group > 32) group -= 32;
    return in % group == 0 ? group : 0;
}

void build(Weights& weights, QuantizedLayer& layer) {
    const Dtype dtype = weights.rules().dtype;
    Dims rows = layer.weight;  // one value a row
    for (int i = 1; i < rows.rank(); ++i) rows[i] = 1;
    if (is_bytes(layer)) {
        store(weights, layer, layer.weight, is_float(layer) ? Dtype::f8 : Dtype::i8);
        store(weights, layer, layer.out() == 1 ? Dims{} : rows, dtype);
    } else {
        const std::int64_t group = group_size(layer.in());
        Dims codes = layer.weight;
        if (group != 0) {
            codes = {layer.out() * (layer.in() / group), group};
            rows = {codes[0], 1};
        }
        const std::int64_t values = 8 / layer.quantizer->bits;
        codes[0] = (codes[0] + values - 1) / values;
        store(weights, layer, rows, dtype);
        store(weights, layer, codes, Dtype::u8);
        store(weights, layer, rows, dtype);
    }
}

void build_buffers(Weights& weights, QuantizedLayer& layer) {
    store(weights, layer, {}, Dtype::f32);  // input_scale
    store(weights, layer, {}, Dtype::f32);  // output_scale
}

// qbytes_mm, QBytesDequantizer, QBitsDequantizer.
Tensor dequantized(const QuantizedLayer& layer) {
    const Dtype dtype = layer.dtype();
    if (!is_bytes(layer)) {
        const Tensor& codes = layer[bits_codes];
        Dims sizes = codes.sizes();
        sizes[0] *= 8 / layer.quantizer->bits;
        const Tensor data = made(layer, sizes, Dtype::u8);  // quanto::unpack
        return made(layer, layer.weight, dtype);            // scale * data; the shift is subtracted in place
    }
    if (!is_float(layer)) return made(layer, layer.weight, dtype);
    const Tensor cast = made(layer, layer.weight, dtype);
    return made(layer, layer.weight, dtype);
}

const QuantizedLayer& layer_of(const Node& node) {
    return *reinterpret_cast<const QuantizedLayer*>(static_cast<std::intptr_t>(node.numbers[0]));
}

// QTensorLinear.backward: matmul(gO, other), with `other` dequantised.
void backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor input = run.unpack(node.saved[0]);
    const Tensor other = run.unpack(node.saved[1]);
    if (!node.needs(0)) return;
    const Tensor weight = dequantized(layer_of(node));
    out[0] = shadow::matmul(grads[0], weight);
}

/// A function without history inside, which kept its input and its codes.
void record(Run& run, const QuantizedLayer& layer, const Tensor& input, Tensor& output, shadow::Backward formula) {
    NodeRef node = run.record(Op::custom, formula, {&input});
    if (node) {
        node->numbers[0] = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(&layer));
        run.save(*node, input);
        run.save(*node, layer[is_bytes(layer) ? std::size_t{bytes_codes} : std::size_t{bits_codes}]);
    }
    Run::attach(output, node);
}

// QTensorLinear.forward: an autograd Function, whose inside has no history.
Tensor forward(const QuantizedLayer& layer, Tensor x) {
    const Tensor input = std::move(x);
    Run& run = input.run();
    Tensor output;
    {
        const shadow::NoGrad no_grad(run);
        const Tensor weight = dequantized(layer);
        output = shadow::matmul(input.detach(), shadow::transpose(weight, 0, 1));
    }
    if (layer.bias != nullptr) {
        const shadow::NoGrad no_grad(run);
        output = shadow::add(output, layer.bias->value);
    }
    // What ctx.save_for_backward was given is packed when forward has returned.
    record(run, layer, input, output, backward);
    return output;
}

// ConvolutionBackward of a weight that is dequantised once more.
void convolution_backward(Run& run, Node& node, Tensors&, Tensors& out) {
    const Tensor input = run.unpack(node.saved[0]);
    const Tensor codes = run.unpack(node.saved[1]);
    if (!node.needs(0)) return;
    const Tensor weight = dequantized(layer_of(node));
    out[0] = run.empty(input.sizes(), input.dtype(), Op::conv_backward);
}

// QConv2d.forward: aten's convolution of a QTensor falls back to the dequantised weight.
Tensor convolve(const QuantizedLayer& layer, Tensor x, const shadow::Conv& how) {
    const Tensor input = std::move(x);
    Run& run = input.run();
    Tensor output;
    {
        const shadow::NoGrad no_grad(run);
        const Tensor weight = dequantized(layer);
        output = shadow::conv(input.detach(), weight, layer.bias_value(), how);
    }
    record(run, layer, input, output, convolution_backward);
    return output;
}

// QModuleMixin.from_module and _quantize_submodule.
void prepare(Weights& weights, QuantizedLayer& layer) {
    Tensor weight = made_like(layer.full);
    Tensor bias;
    if (layer.bias != nullptr) bias = made_like(layer.bias->value);
    const std::size_t scalars = layer.stored.size() - 2;
    weights.to_gpu(*layer.stored[scalars]);
    weights.to_gpu(*layer.stored[scalars + 1]);
    layer.full = std::move(weight);
    if (bias.defined()) weights.put(*layer.bias, bias);
}

// QModuleMixin.freeze: quantize_weight with the AbsmaxOptimizer or the MaxOptimizer, then quantize_symmetric or
// quantize_affine. The weight of a new QLinear requires grad, so what these ops save lives until the graph goes.
void freeze(Weights& weights, QuantizedLayer& layer) {
    const Tensor base = std::move(layer.full);
    layer.full = Tensor();
    if (is_bytes(layer)) {
        const Tensor absolute = made_like(base);
        const Tensor again = made_like(base);
        const Tensor rmax = made_like(layer[bytes_scale]);
        weights.to_gpu(*layer.stored[bytes_scale]);  // rmax / qmax
        Tensor data = made_like(base);
        if (!is_float(layer)) data = made_like(base);  // round
        const Tensor clamped = made_like(base);
        weights.to_gpu(*layer.stored[bytes_codes]);
        return;
    }
    const Tensor rmin = made_like(layer[bits_scale]);
    const Tensor rmax = made_like(rmin);
    {
        const Tensor range = made_like(rmin);
        weights.to_gpu(*layer.stored[bits_scale]);
    }
    weights.to_gpu(*layer.stored[bits_shift]);
    Tensor codes;
    {
        Tensor data = made_like(base);  // base + shift
        data = made_like(base);         // / scale
        data = made_like(base);         // round
        const Tensor clamped = made_like(base);
        codes = made_like(base, Dtype::u8);
    }
    // pack_weights
    weights.to_gpu(*layer.stored[bits_codes]);
    const std::int64_t values = 8 / layer.quantizer->bits;
    const Dims& packed = layer[bits_codes].sizes();
    const std::int64_t rows = layer.weight[0] * layer.in() / (packed.rank() == 2 ? packed[1] : layer.in());
    for (std::int64_t i = 0; i < values && i * packed[0] < rows; ++i)
        const Tensor shifted = made_like(layer[bits_codes]);
}

constexpr Quantizer quanto(std::string_view id, std::int64_t bits) {
    Quantizer out;
    out.id = id;
    out.bits = bits;
    out.build = build;
    out.build_buffers = build_buffers;
    out.forward = forward;
    out.dequantize = dequantized;
    out.convert = freeze;
    out.prepare = prepare;
    out.convolve = convolve;
    out.replaces_module = true;
    return out;
}

}  // namespace

const Quantizer quanto_qfloat8 = quanto("quanto_qfloat8", 8);
const Quantizer quanto_qfloat8_e5m2 = quanto("quanto_qfloat8_e5m2", 8);
const Quantizer quanto_qint8 = quanto("quanto_qint8", 8);
const Quantizer quanto_qint4 = quanto("quanto_qint4", 4);
const Quantizer quanto_qint2 = quanto("quanto_qint2", 2);

bool qint4_is_refused(Dtype dtype, std::int64_t in) { return dtype == Dtype::bf16 && group_size(in) == 128; }

}  // namespace vram::nn::quantize
