#include "nn/adapter/peft.hpp"

#include <utility>

namespace vram::nn::adapter {
namespace {

// Places in Adapter::own.
enum : std::size_t { lora_a, lora_b };

void build(Weights& weights, Adapter& adapter) {
    const Rules& rules = weights.rules();
    const std::int64_t rank = adapter.how.rank;
    adapter.own.push_back(&weights.adapter({rank, adapter.sizes[1]}, rules.adapter_dtype));
    adapter.own.push_back(&weights.adapter({adapter.sizes[0], rank}, rules.adapter_dtype));
    adapter.own.back()->starts_at_zero = true;
}

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

const AdapterStyle peft{"peft", build, forward};

std::function<Adaptation(const LayerFacts&)> peft_of(std::function<bool(std::string_view)> wanted, std::int64_t rank) {
    return [wanted = std::move(wanted), rank](const LayerFacts& layer) {
        const bool adapts = layer.kind == LayerFacts::Kind::linear && wanted(layer.name);
        return adapts ? Adaptation{.style = &peft, .rank = rank} : Adaptation{};
    };
}

}  // namespace vram::nn::adapter
