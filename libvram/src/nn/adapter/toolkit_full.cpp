#include "nn/adapter/toolkit.hpp"
#include "nn/adapter/toolkit_parts.hpp"

namespace vram::nn::adapter {
namespace {

using shadow::Op;

// Places in Adapter::own; diff_b where the layer has a bias.
enum : std::size_t { diff, diff_b };

void build(Weights& weights, Adapter& adapter) {
    const Dtype dtype = weights.rules().adapter_dtype;
    adapter.own.push_back(&weights.adapter(adapter.sizes, dtype));
    adapter.own.back()->starts_at_zero = true;
    if (adapter.bias == nullptr) return;
    adapter.own.push_back(&weights.adapter(adapter.bias->value.sizes(), dtype));
    adapter.own.back()->starts_at_zero = true;
}

// value + (difference * mult).to(value.dtype)
Tensor moved(const Parameter& value, const Parameter& difference, const Tensor& mult) {
    Tensor scaled = shadow::mul(difference.value, mult);
    scaled = shadow::to(std::move(scaled), value.value.dtype());
    return shadow::add(value.value, std::move(scaled));
}

// Mirrors FullModule.forward.
Tensor forward(const Layer& layer, Tensor argument) {
    const Tensor x = std::move(argument);
    const std::vector<Parameter*>& own = layer.adapter->own;
    const Tensor mult = mean_multiplier(layer);
    const Tensor eff_weight = moved(*layer.weight, *own[diff], mult);
    Tensor eff_bias;
    if (own.size() > diff_b) eff_bias = moved(*layer.bias, *own[diff_b], mult);
    return layer.with(x, eff_weight, eff_bias);
}

// Mirrors FullModule.merge_in.
void merge(Weights& weights, const Adapter& adapter, bool untrained) {
    Run& run = weights.run();
    any(run);
    if (untrained) {
        if (adapter.bias != nullptr) any(run);
        return;
    }
    const Tensor base_weight = shadow::to_float(adapter.weight->value.detach());
    Tensor merged_weight;
    {
        const Tensor scaled = run.empty(adapter.sizes, Dtype::f32, Op::mul);
        merged_weight = run.empty(adapter.sizes, Dtype::f32, Op::add);
    }
    const auto put = [&](Parameter& value, Tensor data) {
        run.retag(*data.storage(), value.value.storage()->tag);
        data.set_node(value.value.node(), value.value.output_number());
        value.value = std::move(data);
    };
    put(*adapter.weight, shadow::to(merged_weight, adapter.weight->value.dtype()));
    if (adapter.bias == nullptr) return;
    Tensor bias;
    {
        const Tensor old = shadow::to_float(adapter.bias->value.detach());
        const Tensor scaled = run.empty(old.sizes(), Dtype::f32, Op::mul);
        bias = run.empty(old.sizes(), Dtype::f32, Op::add);
    }
    bias = shadow::to(bias, adapter.bias->value.dtype());
    put(*adapter.bias, std::move(bias));
}

}  // namespace

const AdapterStyle toolkit_full{"toolkit_full", build, forward, merge};

}  // namespace vram::nn::adapter
