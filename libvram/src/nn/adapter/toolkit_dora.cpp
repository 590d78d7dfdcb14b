#include "nn/adapter/toolkit.hpp"
#include "nn/adapter/toolkit_parts.hpp"

namespace vram::nn::adapter {
namespace {

using shadow::Op;

// Places in Adapter::own: children first, as Module.to goes.
enum : std::size_t { lora_up, lora_down, magnitude, runtime_scale };

void build(Weights& weights, Adapter& adapter) {
    const Dtype dtype = weights.rules().adapter_dtype;
    const std::int64_t in = adapter.sizes[1], out = adapter.sizes[0], rank = adapter.how.rank;
    adapter.own.push_back(&weights.adapter({out, rank}, dtype));
    adapter.own.back()->starts_at_zero = true;
    adapter.own.push_back(&weights.adapter({rank, in}, dtype));
    adapter.own.push_back(&weights.adapter({out}, dtype));
    adapter.own.push_back(&weights.adapter({}, dtype, true));
}

// torch.linalg.norm(weight, dim=1), whose result is detached at once.
Tensor weight_norm_of(const Tensor& weight, const Tensor& scaled_lora_weight) {
    Run& run = weight.run();
    const Tensor sum = run.empty(weight.sizes(), scaled_lora_weight.dtype(), Op::add);
    return run.empty({weight.size(0)}, sum.dtype(), Op::norm);
}

// Mirrors DoRAModule.apply_dora.
Tensor apply_dora(const Layer& layer, const Tensor& x, const Tensor& scaled_lora_weight) {
    Tensor weight = layer.full_weight();
    weight = shadow::to(weight, scaled_lora_weight.dtype());
    const Tensor weight_norm = weight_norm_of(weight, scaled_lora_weight);
    const Tensor dora_weight = shadow::add(weight, scaled_lora_weight);
    Tensor factor = shadow::div(layer.adapter->own[magnitude]->value, weight_norm);
    factor = shadow::add_scalar(std::move(factor));
    factor = shadow::unsqueeze(std::move(factor), 0);
    Tensor cast = shadow::to(x, dora_weight.dtype());
    const Tensor made = shadow::linear(std::move(cast), dora_weight, {});
    return shadow::mul(std::move(factor), made);
}

// Mirrors ToolkitModuleMixin.forward, and what it adds for a DoRAModule.
Tensor forward(const Layer& layer, Tensor argument) {
    const Tensor x = std::move(argument);
    const Adapter& adapter = *layer.adapter;
    Parameter &up = *adapter.own[lora_up], &down = *adapter.own[lora_down];
    const Tensor org_forwarded = layer.base(x);
    const Tensor lora_input = shadow::to(x, down.value.dtype());
    const Tensor lora_output = call_forward(layer, lora_input, down, &up, adapter.own[runtime_scale]->value);
    const Tensor multiplier = multiplier_of(layer, lora_output);
    Tensor scaled_lora_output = shadow::mul(lora_output, multiplier);
    scaled_lora_output = shadow::to(std::move(scaled_lora_output), org_forwarded.dtype());
    const Tensor lx = adapter.how.dropout && layer.weights->adapters_training() ? shadow::native_dropout(x) : x;
    const Tensor lora_weight = shadow::mm(up.value, down.value);
    const Tensor scale = mean_multiplier(layer);
    const Tensor scaled_lora_weight = shadow::mul(lora_weight, scale);
    {
        Tensor applied = apply_dora(layer, lx, scaled_lora_weight);
        applied = shadow::to(std::move(applied), org_forwarded.dtype());
        scaled_lora_output = shadow::add(scaled_lora_output, applied);
    }
    return shadow::add(org_forwarded, scaled_lora_output);
}

}  // namespace

// merge_in of a network of this type returns at once (network_mixins.py).
const AdapterStyle toolkit_dora{"toolkit_dora", build, forward};

}  // namespace vram::nn::adapter
