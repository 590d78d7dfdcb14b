#include "nn/memory_manager.hpp"

#include "base/blocks.hpp"

namespace vram::nn {
namespace {

using shadow::Node;
using shadow::NodeRef;
using shadow::Op;

/// tensor.to(device): itself where it is there.
Tensor brought(Run& run, const Parameter& parameter) { return shadow::to_cuda(run, parameter.value.detach()); }

/// What a slot keeps of what was brought. A parameter that was there already it keeps by name: that goes to the host
/// with its module.
Tensors kept(const Tensor& brought, const Parameter* parameter) {
    if (parameter != nullptr && parameter->value.storage() == brought.storage()) return {};
    return {brought};
}

/// Addresses as a node keeps them.
std::int64_t number(const void* address) { return static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(address)); }
template <class T>
T* pointer(std::int64_t number) {
    return reinterpret_cast<T*>(static_cast<std::intptr_t>(number));
}

/// The layer as one that stands on the GPU, for a scope.
class Swapped {
  public:
    Swapped(const std::vector<Parameter*>& parameters, const Tensors& values) : parameters_(parameters) {
        std::size_t i = 0;
        for (Parameter* parameter : parameters_) {
            before_.push_back(parameter->value);
            parameter->value = values[i++];
        }
    }
    ~Swapped() {
        std::size_t i = 0;
        for (Parameter* parameter : parameters_) parameter->value = std::move(before_[i++]);
    }
    Swapped(const Swapped&) = delete;
    Swapped& operator=(const Swapped&) = delete;

  private:
    std::vector<Parameter*> parameters_;
    Tensors before_;
};

}  // namespace

Bytes DeviceState::bytes() const {
    Bytes sum = 0;
    for (const Ring* ring : {&forward, &backward})
        for (const Slot& slot : ring->slots)
            for (const Tensors* tensors : {&slot.weight, &slot.bias})
                for (const Tensor& tensor : *tensors) sum += in_blocks(tensor.layout()->bytes);
    return sum;
}

DeviceState::Slot& DeviceState::Ring::next() {
    Slot& slot = slots[clock];
    clock = (clock + 1) % depth;
    return slot;
}

// What _materialize_linear_weight makes of a weight on the CPU: moved, and dequantised where it is torchao's.
Tensor MemoryManager::materialized(const Linear& linear) const {
    Run& run = linear.weights->run();
    if (linear.quantized == nullptr) return brought(run, *linear.weight);
    const QuantizedLayer& layer = *linear.quantized;
    if (!layer.quantizer->dequantized_when_brought)  // the class's `weight` dequantises where the layer is
        return layer.stays_on_host() ? run.empty(layer.weight, layer.dtype(), Op::to_device)
                                     : layer.quantizer->dequantize(layer);
    Tensors moved;
    for (const Parameter* parameter : layer.stored) moved.push_back(brought(run, *parameter));
    return layer.quantizer->dequantize(layer);
}

// _BouncingLinearFn.backward
void MemoryManager::linear_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor x = run.unpack(node.saved[0]);
    auto& manager = *pointer<MemoryManager>(node.numbers[0]);
    Linear linear;
    linear.weights = pointer<Weights>(node.numbers[1]);
    linear.weight = pointer<Parameter>(node.numbers[2]);
    linear.quantized = pointer<const QuantizedLayer>(node.numbers[3]);
    DeviceState::Slot& slot = manager.state_.backward.next();
    const Tensor weight = manager.materialized(linear);
    slot.weight = kept(weight, linear.weight);
    Tensor grad_input = shadow::matmul(grads[0], weight);
    if (node.edges.size() > 1 && node.needs(1)) {
        const auto rows = [](const Tensor& tensor) { return shadow::flatten(tensor, 0, tensor.rank() - 2); };
        const Tensor of_rows = shadow::transpose(rows(grads[0]), 0, 1);
        const Tensor w_grad = shadow::matmul(of_rows, rows(x));
        slot.bias = {w_grad};  // a slot of backward brings no bias: there stands what is on its way to the host
        out[1] = run.on_cpu(w_grad.layout());
    }
    if (node.needs(0)) out[0] = std::move(grad_input);
}

Tensor MemoryManager::linear(const Linear& linear, Tensor x_in) {
    const Tensor x = std::move(x_in);
    Run& run = x.run();
    DeviceState::Slot& slot = state_.forward.next();
    if (linear.quantized != nullptr && !linear.quantized->quantizer->dequantized_when_brought && !before_quantize) {
        // OstrisLinearLayerMemoryManager: what is stored comes, and the format's own forward runs.
        const QuantizedLayer& layer = *linear.quantized;
        Tensors moved;
        for (const Parameter* parameter : layer.stored) moved.push_back(brought(run, *parameter));
        Tensors bias;
        if (linear.bias != nullptr) bias.push_back(brought(run, *linear.bias));
        slot.weight = moved;
        slot.bias = bias;
        std::vector<Parameter*> parameters = layer.stored;
        if (linear.bias != nullptr) {
            parameters.push_back(linear.bias);
            moved.push_back(bias[0]);
        }
        const Swapped swapped(parameters, moved);
        if (linear.multiplies_weight) return linear.with(x, linear.full_weight(), layer.bias_value());
        return layer.quantizer->forward(layer, x);
    }
    // _BouncingLinearFn.forward
    Tensor out;
    {
        const shadow::NoGrad no_grad(run);
        const Tensor weight = materialized(linear);
        slot.weight = kept(weight, linear.weight);
        const Tensor bias = linear.bias == nullptr ? Tensor() : brought(run, *linear.bias);
        slot.bias = bias.defined() ? kept(bias, linear.bias) : Tensors{};
        out = shadow::linear(x.detach(), weight, bias);
    }
    NodeRef node = linear.weight == nullptr ? run.record(Op::custom, linear_backward, {&x})
                                            : run.record(Op::custom, linear_backward, {&x, &linear.weight->value});
    if (node) {
        node->numbers = {number(this), number(linear.weights), number(linear.weight), number(linear.quantized)};
        run.save(*node, x);
    }
    Run::attach(out, node);
    return out;
}

namespace {
// _BouncingConv2dFn.backward and torch.nn.grad.conv2d_input: the weight comes to a slot of its own.
void convolution_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Parameter& parameter = *pointer<Parameter>(node.numbers[1]);
    const Tensor weight = brought(run, parameter);
    pointer<DeviceState>(node.numbers[0])->backward.next().weight = kept(weight, &parameter);
    const Tensor input = run.empty({1}, grads[0].dtype(), Op::empty);
    if (node.needs(0)) out[0] = run.empty(node.meta[0], Op::conv_backward);
}
}  // namespace

// _BouncingConv2dFn, or the quantised class's own forward on what is brought.
Tensor MemoryManager::convolution(const Conv& conv, Tensor x_in) {
    const Tensor x = std::move(x_in);
    Run& run = x.run();
    DeviceState::Slot& slot = state_.forward.next();
    std::vector<Parameter*> parameters;
    if (conv.quantized != nullptr) parameters = conv.quantized->stored;
    if (conv.weight != nullptr) parameters.push_back(conv.weight);
    if (conv.bias != nullptr) parameters.push_back(conv.bias);
    Tensors moved, keeps;
    for (const Parameter* parameter : parameters) {
        moved.push_back(brought(run, *parameter));
        for (const Tensor& one : kept(moved.back(), parameter)) keeps.push_back(one);
    }
    slot.weight = keeps;
    const Swapped swapped(parameters, moved);
    if (conv.quantized != nullptr) return conv.quantized->quantizer->convolve(*conv.quantized, x, conv.how);
    Tensor out;
    {
        const shadow::NoGrad no_grad(run);
        out =
            shadow::conv(x.detach(), conv.weight->value, conv.bias == nullptr ? Tensor() : conv.bias->value, conv.how);
    }
    NodeRef node = run.record(Op::custom, convolution_backward, {&x});
    if (node) {
        node->numbers = {number(&state_), number(conv.weight)};
        node->meta.push_back(x.layout());
        run.save(*node, x);
    }
    Run::attach(out, node);
    return out;
}

}  // namespace vram::nn
