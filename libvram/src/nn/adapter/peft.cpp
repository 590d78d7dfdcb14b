#include "nn/adapter/peft.hpp"

namespace vram::nn::adapter {
namespace {

void build(Weights& weights, Linear& linear) {
    const Rules& rules = weights.rules();
    linear.down = &weights.adapter({rules.rank, linear.in}, rules.adapter_dtype);
    linear.up = &weights.adapter({linear.out, rules.rank}, rules.adapter_dtype);
    linear.up->starts_at_zero = true;
}

// Mirrors lora.Linear.forward (peft 0.21.2, tuners/lora/layer.py).
Tensor forward(const Linear& linear, Tensor argument) {
    const Tensor held = std::move(argument);  // by Module.__call__
    Tensor x = held;
    Tensor result = linear.base(x);
    const Dtype dtype = result.dtype();
    x = shadow::to(x, linear.down->value.dtype());
    Tensor update = shadow::linear(x, linear.down->value, {});  // [.., r]
    update = shadow::linear(std::move(update), linear.up->value, {});
    update = shadow::mul_scalar(std::move(update));  // * scaling
    result = shadow::add(result, std::move(update));
    return shadow::to(std::move(result), dtype);
}

}  // namespace

const AdapterStyle peft{"peft", build, forward};

}  // namespace vram::nn::adapter
