#include "nn/quantize/quanto.hpp"

namespace vram::nn::quantize {
namespace {

using shadow::Node;
using shadow::NodeRef;
using shadow::Op;

// Places in Linear::stored.
enum : std::size_t { codes, scale };

void build(Weights& weights, Linear& linear) {
    const Dtype dtype = weights.rules().dtype;
    linear.stored.push_back(&weights.base({linear.out, linear.in}, Dtype::f8));
    linear.stored.push_back(&weights.base({linear.out, 1}, dtype, true));
    linear.stored.push_back(&weights.base({}, dtype, true));  // input_scale
    linear.stored.push_back(&weights.base({}, dtype, true));  // output_scale
}

/// scale * codes.to(scale.dtype): both copies of the weight at once.
Tensor dequantized(Run& run, const Tensor& codes, Dtype dtype) {
    const Tensor cast = run.empty(codes.sizes(), dtype, Op::to_copy);
    return run.empty(codes.sizes(), dtype, Op::dequantize);
}

// QTensorLinear.backward: matmul(gO, other), with `other` dequantised.
void backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor input = run.unpack(node.saved[0]);
    const Tensor other = run.unpack(node.saved[1]);
    if (!node.needs(0)) return;
    const Tensor weight = dequantized(run, other, input.dtype());
    out[0] = shadow::matmul(grads[0], weight);
}

// QTensorLinear.forward: an autograd Function, whose inside has no history.
Tensor forward(const Linear& linear, Tensor x) {
    const Tensor input = std::move(x);
    Run& run = input.run();
    const Tensor& other = linear.stored[codes]->value;
    Tensor output;
    {
        const shadow::NoGrad no_grad(run);
        const Tensor weight = dequantized(run, other, linear.stored[scale]->value.dtype());
        output = shadow::linear(input.detach(), weight, {});
    }
    if (linear.bias != nullptr) {
        const shadow::NoGrad no_grad(run);
        output = shadow::add(output, linear.bias->value);
    }
    // What ctx.save_for_backward was given is packed when forward has returned.
    NodeRef node = run.record(Op::custom, backward, {&input});
    if (node) {
        run.save(*node, input);
        run.save(*node, other);
    }
    Run::attach(output, node);
    return output;
}

Tensor dequantize(const Linear& linear) {
    const shadow::NoGrad no_grad(linear.weights->run());
    return dequantized(linear.weights->run(), linear.stored[codes]->value, linear.stored[scale]->value.dtype());
}

}  // namespace

const Quantizer quanto_qfloat8{"quanto_qfloat8", build, forward, dequantize};

namespace {

// A layer's parameters lie in the order of `build`: codes, scale, two scalars, and then its bias.
bool is_codes(const Parameter& parameter) { return parameter.value.dtype() == Dtype::f8; }

/// Op outputs of this scope are the model's weights.
class WeightScope {
  public:
    explicit WeightScope(Weights& weights) : scope_(weights.run(), weights.component(), shadow::Category::weights) {}

  private:
    shadow::ComponentScope scope_;
};

}  // namespace

void QuantoLoader::load() {
    Run& run = weights_.run();
    std::deque<Parameter>& all = weights_.all_base();
    for (std::size_t i = 0; i < all.size(); ++i) {
        if (!is_codes(all[i])) {
            weights_.to_gpu(all[i]);
            continue;
        }
        const WeightScope scope(weights_);
        full_.push_back(run.empty(all[i].value.sizes(), weights_.rules().dtype, Op::parameter));
        i += 3;  // scale and scalars come with quantize and freeze
    }
}

// quanto's quantize(): QModuleMixin.from_module and _quantize_submodule.
void QuantoLoader::quantize() {
    Run& run = weights_.run();
    std::deque<Parameter>& all = weights_.all_base();
    std::size_t layer = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
        if (!is_codes(all[i])) continue;
        const WeightScope scope(weights_);
        Tensor weight = run.empty_like(full_[layer], Op::copy_);
        const bool has_bias = i + 4 < all.size() && !all[i + 4].buffer && all[i + 4].value.rank() == 1 &&
                              all[i + 4].value.size(0) == all[i].value.size(0);
        Tensor bias;
        if (has_bias) bias = run.empty_like(all[i + 4].value, Op::copy_);
        weights_.to_gpu(all[i + 2]);
        weights_.to_gpu(all[i + 3]);
        full_[layer++] = std::move(weight);
        if (has_bias) {
            bias.set_node(all[i + 4].value.node(), all[i + 4].value.output_number());
            all[i + 4].value = std::move(bias);
        }
    }
}

// QModuleMixin.freeze: quantize_weight with the AbsmaxOptimizer, then quantize_symmetric.
void QuantoLoader::freeze() {
    Run& run = weights_.run();
    std::deque<Parameter>& all = weights_.all_base();
    std::size_t layer = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
        if (!is_codes(all[i])) continue;
        const WeightScope scope(weights_);
        const Tensor& base = full_[layer];
        {
            const Tensor absolute = run.empty_like(base, Op::custom);
            Tensor rmax;
            {
                const Tensor again = run.empty_like(absolute, Op::custom);
                rmax = run.empty(all[i + 1].value.sizes(), base.dtype(), Op::custom);
            }
            weights_.to_gpu(all[i + 1]);  // rmax / qmax: the scale
        }
        {
            const Tensor data = run.empty_like(base, Op::div);
            const Tensor clamped = run.empty_like(data, Op::clamp);
            weights_.to_gpu(all[i]);  // the codes
        }
        full_[layer++] = Tensor();
    }
    full_.clear();
}

}  // namespace vram::nn::quantize
