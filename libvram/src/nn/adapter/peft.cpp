#include "nn/adapter/peft.hpp"

#include <utility>

#include "nn/adapter/low_rank.hpp"

namespace vram::nn::adapter {
namespace {

// Places in Adapter::own.
enum : std::size_t { lora_a, lora_b };

// Mirrors lora.Linear.forward (peft 0.21.2, tuners/lora/layer.py).
Tensor forward(const Layer& linear, Tensor argument) {
    const Parameter &down = *linear.adapter->own[lora_a], &up = *linear.adapter->own[lora_b];
    const Tensor held = std::move(argument);  // by Module.__call__
    Tensor x = held;
    Tensor result = linear.base(x);
    const Dtype dtype = result.dtype();
    x = shadow::to(x, down.value.dtype());
    Tensor update = shadow::linear(x, down.value, {});  // [.., r]
    update = shadow::linear(std::move(update), up.value, {});
    update = shadow::mul_scalar(std::move(update));  // * scaling
    result = shadow::add(result, std::move(update));
    return shadow::to(std::move(result), dtype);
}

}  // namespace

const AdapterStyle peft{"peft", add_low_rank, forward};

std::function<Adaptation(const LayerFacts&)> peft_of(std::function<bool(std::string_view)> wanted, std::int64_t rank) {
    return [wanted = std::move(wanted), rank](const LayerFacts& layer) {
        const bool adapts = layer.kind == LayerFacts::Kind::linear && wanted(layer.name);
        return adapts ? Adaptation{.style = &peft, .rank = rank} : Adaptation{};
    };
}

}  // namespace vram::nn::adapter
