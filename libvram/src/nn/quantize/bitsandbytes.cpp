#include "nn/quantize/bitsandbytes.hpp"

#include "nn/quantize/steps.hpp"

namespace vram::nn::quantize {
namespace {

using shadow::Node;
using shadow::NodeRef;
using shadow::Op;

constexpr std::int64_t block = 64, statistics_block = 256;
constexpr std::int64_t custom_rows = 1536;  // _gemm_4bit_custom_max_m

enum : std::size_t { codes, table, maxima, offset, maxima_of, table_of };
enum : std::size_t { int8_codes, int8_scales };

bool is_double(const QuantizedLayer& layer) { return layer.quantizer == &bnb_nf4_dq || layer.quantizer == &bnb_fp4_dq; }
std::int64_t blocks_of(const QuantizedLayer& layer) { return (layer.out() * layer.in() + block - 1) / block; }

void build(Weights& weights, QuantizedLayer& layer) {
    const std::int64_t blocks = blocks_of(layer);
    store(weights, layer, {(layer.out() * layer.in() + 1) / 2, 1}, Dtype::u8);
    store(weights, layer, {16}, Dtype::f32);
    store(weights, layer, {blocks}, is_double(layer) ? Dtype::u8 : Dtype::f32);
    if (!is_double(layer)) return;
    store(weights, layer, {}, Dtype::f32);
    store(weights, layer, {(blocks + statistics_block - 1) / statistics_block}, Dtype::f32);
    store(weights, layer, {256}, Dtype::f32);
}

// quantize_4bit, of a weight that has just come to the GPU.
void convert(Weights& weights, QuantizedLayer& layer) {
    const Tensor weight = std::move(layer.full);
    layer.full = Tensor();
    weights.to_gpu(*layer.stored[codes]);
    Tensor absmax;
    if (is_double(layer))
        absmax = made(layer, {blocks_of(layer)}, Dtype::f32);
    else
        weights.to_gpu(*layer.stored[maxima]);
    weights.to_gpu(*layer.stored[table]);
    {
        // get_4bit_type: divided by its largest in place.
        const Tensor absolute = made(layer, {16}, Dtype::f32);
        const Tensor largest = made(layer, {}, Dtype::f32);
    }
    if (!is_double(layer)) return;
    weights.to_gpu(*layer.stored[offset]);
    const Tensor centred = made_like(absmax);
    Tensor& code = layer.run().constants["bitsandbytes dynamic map"];
    if (!code.defined()) code = made(layer, {256}, Dtype::f32);
    weights.to_gpu(*layer.stored[maxima]);
    weights.to_gpu(*layer.stored[maxima_of]);
    weights.to_gpu(*layer.stored[table_of]);
}

Tensor dequantized(const QuantizedLayer& layer) {
    Tensor absmax;
    if (is_double(layer)) absmax = made(layer, {blocks_of(layer)}, Dtype::f32);
    return made(layer, layer.weight, layer.dtype());
}

const QuantizedLayer& layer_of(const Node& node) {
    return *reinterpret_cast<const QuantizedLayer*>(static_cast<std::intptr_t>(node.numbers[0]));
}

// MatMul4Bit.backward
void backward(Run&, Node& node, Tensors& grads, Tensors& out) {
    if (!node.needs(0)) return;
    const Tensor weight = dequantized(layer_of(node));
    out[0] = shadow::matmul(grads[0], weight);
}

// MatMul4Bit.forward
Tensor forward(const QuantizedLayer& layer, Tensor x) {
    const Tensor input = std::move(x);
    Run& run = input.run();
    Dims sizes = input.sizes();
    sizes[sizes.rank() - 1] = layer.out();
    Tensor out;
    {
        const shadow::NoGrad no_grad(run);
        if (input.numel() / layer.in() > custom_rows || layer.in() % block != 0) {
            const Tensor weight = dequantized(layer);
            out = shadow::linear(input.detach(), weight, layer.bias_value());
        } else {
            out = made(run, sizes, input.dtype());
        }
    }
    NodeRef node = run.record(Op::custom, backward, {&input});
    if (node) node->numbers[0] = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(&layer));
    Run::attach(out, node);
    return out;
}

void build_int8(Weights& weights, QuantizedLayer& layer) {
    store(weights, layer, layer.weight, Dtype::i8);
    store(weights, layer, {layer.out()}, Dtype::f32);
}

// Int8Params._quantize: to fp16 on its way.
void convert_int8(Weights& weights, QuantizedLayer& layer) {
    const Tensor weight = shadow::to(std::move(layer.full), Dtype::f16);
    layer.full = Tensor();
    weights.to_gpu(*layer.stored[int8_scales]);
    weights.to_gpu(*layer.stored[int8_codes]);
}

// MatMul8bitLt.backward: the weight's codes, scaled, in the gradient's dtype.
void backward_int8(Run&, Node& node, Tensors& grads, Tensors& out) {
    if (!node.needs(0)) return;
    const QuantizedLayer& layer = layer_of(node);
    const Tensor weight = made(layer, layer.weight, grads[0].dtype());
    { const Tensor scales = made_like(layer[int8_scales]); }
    out[0] = shadow::matmul(grads[0], weight);
}

// MatMul8bitLt.forward without outliers.
Tensor forward_int8(const QuantizedLayer& layer, Tensor x) {
    const Tensor input = std::move(x);
    Run& run = input.run();
    Dims sizes = input.sizes();
    const std::int64_t rows = input.numel() / layer.in();
    sizes[sizes.rank() - 1] = layer.out();
    Tensor out;
    {
        const shadow::NoGrad no_grad(run);
        Tensor scales, quantised;
        {
            const Tensor half = shadow::to(input.detach(), Dtype::f16);
            scales = made(run, {rows}, Dtype::f32);
            quantised = made(run, {rows, layer.in()}, Dtype::i8);
            const Tensor absolute = made_like(half);
            const Tensor outliers = made_like(half, Dtype::boolean);
        }
        Tensor product = made(run, {rows, layer.out()}, Dtype::i32);
        out = made(run, {rows, layer.out()}, Dtype::f16);
        product = Tensor();
        if (input.dtype() != Dtype::f16) out = shadow::to(out, input.dtype());
        out = shadow::reshape(std::move(out), sizes);
    }
    NodeRef node = run.record(Op::custom, backward_int8, {&input});
    if (node) {
        node->numbers[0] = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(&layer));
        run.save(*node, input);
    }
    Run::attach(out, node);
    return out;
}

constexpr Quantizer four_bits(std::string_view id) {
    Quantizer out;
    out.id = id;
    out.bits = 4;
    out.build = build;
    out.forward = forward;
    out.convert = convert;
    return out;
}
constexpr Quantizer eight_bits() {
    Quantizer out;
    out.id = "bnb_int8";
    out.build = build_int8;
    out.forward = forward_int8;
    out.convert = convert_int8;
    return out;
}

}  // namespace

const Quantizer bnb_nf4 = four_bits("bnb_nf4");
const Quantizer bnb_nf4_dq = four_bits("bnb_nf4_dq");
const Quantizer bnb_fp4 = four_bits("bnb_fp4");
const Quantizer bnb_fp4_dq = four_bits("bnb_fp4_dq");
const Quantizer bnb_int8 = eight_bits();

}  // namespace vram::nn::quantize
