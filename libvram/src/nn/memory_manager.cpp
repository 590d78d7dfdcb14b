#include "nn/memory_manager.hpp"

#include "base/blocks.hpp"

namespace vram::nn {
namespace {

using shadow::Node;
using shadow::NodeRef;
using shadow::Op;

/// tensor.to(device): itself where it is there.
Tensor brought(Run& run, const Parameter& parameter) {
    if (parameter.value.storage()->slot >= 0) return parameter.value.detach();
    return run.empty(parameter.value.layout(), Op::to_device);
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
    if (!layer.quantizer->dequantized_when_brought) return run.empty(layer.weight, layer.dtype(), Op::to_device);
    Tensors moved;
    for (const Parameter* parameter : layer.stored) moved.push_back(brought(run, *parameter));
    return layer.quantizer->dequantize(layer);
}

// _BouncingLinearFn.backward
void MemoryManager::linear_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor x = run.unpack(node.saved[0]);
    const auto& linear = *reinterpret_cast<const Linear*>(static_cast<std::intptr_t>(node.numbers[0]));
    MemoryManager& manager = *linear.manager;
    DeviceState::Slot& slot = manager.state_.backward.next();
    slot.weight = {manager.materialized(linear)};
    if (node.needs(0)) out[0] = shadow::matmul(grads[0], slot.weight[0]);
}

Tensor MemoryManager::linear(const Linear& linear, Tensor x_in) {
    const Tensor x = std::move(x_in);
    Run& run = x.run();
    DeviceState::Slot& slot = state_.forward.next();
    const auto bring_bias = [&] {
        slot.bias = linear.bias == nullptr ? Tensors{} : Tensors{brought(run, *linear.bias)};
    };
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
        slot.weight = {materialized(linear)};
        bring_bias();
        out = shadow::linear(x.detach(), slot.weight[0], slot.bias.empty() ? Tensor() : slot.bias[0]);
    }
    NodeRef node = run.record(Op::custom, linear_backward, {&x});
    if (node) {
        node->numbers[0] = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(&linear));
        run.save(*node, x);
    }
    Run::attach(out, node);
    return out;
}

// _BouncingConv2dFn, or the quantised class's own forward on what is brought.
Tensor MemoryManager::convolution(const Conv& conv, Tensor x_in) {
    const Tensor x = std::move(x_in);
    Run& run = x.run();
    DeviceState::Slot& slot = state_.forward.next();
    std::vector<Parameter*> parameters;
    if (conv.quantized != nullptr) parameters = conv.quantized->stored;
    if (conv.weight != nullptr) parameters.push_back(conv.weight);
    if (conv.bias != nullptr) parameters.push_back(conv.bias);
    Tensors moved;
    for (const Parameter* parameter : parameters) moved.push_back(brought(run, *parameter));
    slot.weight = moved;
    const Swapped swapped(parameters, moved);
    if (conv.quantized != nullptr) return conv.quantized->quantizer->convolve(*conv.quantized, x, conv.how);
    return shadow::conv(x, conv.weight->value, conv.bias == nullptr ? Tensor() : conv.bias->value, conv.how);
}

}  // namespace vram::nn
