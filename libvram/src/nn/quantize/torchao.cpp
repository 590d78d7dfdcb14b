#include "nn/quantize/torchao.hpp"

#include "nn/quantize/steps.hpp"

namespace vram::nn::quantize {
namespace {

using shadow::Node;
using shadow::NodeRef;
using shadow::Op;

enum : std::size_t { codes, scale, zero };

bool is_float(const QuantizedLayer& layer) { return layer.quantizer == &torchao_float8; }

void build(Weights& weights, QuantizedLayer& layer) {
    store(weights, layer, layer.weight, is_float(layer) ? Dtype::f8 : Dtype::i8);
    store(weights, layer, {layer.out()}, weights.rules().dtype);
    if (!is_float(layer)) store(weights, layer, {layer.out()}, Dtype::i64);
}

// choose_qparams_affine, then quantize_affine.
void convert(Weights& weights, QuantizedLayer& layer) {
    const Tensor weight = std::move(layer.full);
    layer.full = Tensor();
    {
        const Dims rows{layer.out()};
        const Dtype dtype = weight.dtype();
        const Tensor min_val = made(layer, rows, dtype), max_val = made(layer, rows, dtype);
        Tensor min_val_neg, max_val_pos;
        {
            const Tensor zeros = made(layer, rows, dtype);
            min_val_neg = made(layer, rows, dtype);
        }
        {
            const Tensor zeros = made(layer, rows, dtype);
            max_val_pos = made(layer, rows, dtype);
        }
        {
            const Tensor negative = made(layer, rows, dtype);
            max_val_pos = made(layer, rows, dtype);
        }
        Tensor divided = made(layer, rows, dtype);
        if (is_float(layer)) {
            weights.to_gpu(*layer.stored[scale]);  // clamp
        } else {
            const Tensor zeros = made(layer, rows, dtype);  // full_like
            weights.to_gpu(*layer.stored[scale]);
            divided = Tensor();
            weights.to_gpu(*layer.stored[zero]);
        }
    }
    Tensor quant;
    {
        Tensor inverse = made_like(layer[scale]);                 // reciprocal
        if (!is_float(layer)) inverse = made_like(layer[scale]);  // * 1.0
        quant = made_like(weight);
    }
    if (!is_float(layer)) {
        quant = made_like(weight);  // round
        quant = made_like(weight);  // + zero_point
    }
    quant = made_like(weight);  // clamp
    weights.to_gpu(*layer.stored[codes]);
}

// dequantize_affine: in place but for the casts; of an int8 the zero points are taken away in int32.
Tensor dequantized(const QuantizedLayer& layer) {
    if (is_float(layer)) {
        const Tensor cast = made(layer, layer.weight, layer.dtype());
        return made(layer, layer.weight, layer.dtype());
    }
    const Tensor wide = made(layer, layer.weight, Dtype::i32);
    return made(layer, layer.weight, layer.dtype());
}

Tensor float8_forward(const QuantizedLayer& layer, Tensor x) {
    Tensor weight = dequantized(layer);
    return shadow::linear(std::move(x), std::move(weight), layer.bias_value());
}

// `y += bias` of a view: CopySlices, whose function is an addition.
void add_into_view_backward(Run& run, Node&, Tensors& grads, Tensors& out) {
    const Tensor grad = std::move(grads[0]);
    grads.clear();
    out[0] = run.empty(grad.sizes(), grad.dtype(), Op::empty);
    const Tensor slice = made_like(grad);
    grads.push_back(grad);
}

Tensor int8_forward(const QuantizedLayer& layer, Tensor x) {
    const Tensor input = std::move(x);
    Run& run = input.run();
    Dims sizes = input.sizes();
    sizes[sizes.rank() - 1] = layer.out();
    Tensor y;
    {
        Tensor weight = made(layer, layer.weight, input.dtype());
        y = shadow::linear(rows_of(input), std::move(weight), {});
    }
    y = shadow::mul(std::move(y), layer[scale]);
    y = shadow::reshape(std::move(y), sizes);
    if (layer.bias != nullptr) {
        NodeRef node = run.record(Op::custom, add_into_view_backward, {&y});
        if (node) Run::attach(y, node);
    }
    return y;
}

constexpr Quantizer torchao(std::string_view id, Tensor (*forward)(const QuantizedLayer&, Tensor)) {
    Quantizer out;
    out.id = id;
    out.build = build;
    out.forward = forward;
    out.dequantize = dequantized;
    out.dequantized_when_brought = true;
    out.convert = convert;
    return out;
}

}  // namespace

const Quantizer torchao_float8 = torchao("torchao_float8", float8_forward);
const Quantizer torchao_int8 = torchao("torchao_int8", int8_forward);

}  // namespace vram::nn::quantize
