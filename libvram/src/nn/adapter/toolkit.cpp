#include "nn/adapter/toolkit.hpp"

namespace vram::nn::adapter {
namespace {

void build(Weights& weights, Linear& linear) {
    const Rules& rules = weights.rules();
    linear.down = &weights.adapter({rules.rank, linear.in}, rules.adapter_dtype);
    linear.up = &weights.adapter({linear.out, rules.rank}, rules.adapter_dtype);
    linear.up->starts_at_zero = true;
    linear.extra.push_back(&weights.adapter({}, rules.adapter_dtype, true));  // _runtime_scale
    linear.extra.push_back(&weights.adapter({}, rules.adapter_dtype, true));  // alpha
}

// Mirrors ToolkitModuleMixin._call_forward.
Tensor call_forward(const Linear& linear, const Tensor& x) {
    Tensor lx = shadow::linear(x, linear.down->value, {});  // [.., r]
    lx = shadow::linear(lx, linear.up->value, {});          // [.., out]
    return shadow::mul(lx, linear.extra[0]->value);         // * _runtime_scale
}

// Mirrors ToolkitModuleMixin.forward. The network's multiplier, one number an item, lives with the network.
Tensor forward(const Linear& linear, Tensor argument) {
    const Tensor held = std::move(argument);  // by Module.__call__
    Run& run = held.run();
    const Tensor org_forwarded = linear.base(held);
    const Tensor lora_input = shadow::to(held, linear.down->value.dtype());
    const Tensor lora_output = call_forward(linear, lora_input);
    Dims each{lora_output.size(0)};
    while (each.rank() < lora_output.rank()) each.push_back(1);
    Tensor scaled_lora_output = shadow::mul(lora_output, run.on_cpu(each, linear.down->value.dtype()));
    scaled_lora_output = shadow::to(scaled_lora_output, org_forwarded.dtype());
    return shadow::add(org_forwarded, scaled_lora_output);
}

}  // namespace

const AdapterStyle toolkit{"toolkit", build, forward};

}  // namespace vram::nn::adapter
