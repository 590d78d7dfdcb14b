#include "nn/adapter/toolkit.hpp"

#include "nn/adapter/low_rank.hpp"
#include "nn/adapter/toolkit_parts.hpp"
#include "nn/memory_manager.hpp"

namespace vram::nn::adapter {
namespace {

using shadow::Node;
using shadow::NodeRef;
using shadow::Op;

// Places in Adapter::own; of a full rank there is no lora_up.
enum : std::size_t { lora_down, lora_up };

const Parameter& runtime_scale(const Adapter& adapter) { return *adapter.own[adapter.own.size() - 2]; }

void build(Weights& weights, Adapter& adapter) {
    add_low_rank(weights, adapter);
    register_scalars(weights, adapter);
}

void build_full_rank(Weights& weights, Adapter& adapter) {
    adapter.own.push_back(&weights.adapter(adapter.sizes, weights.rules().adapter_dtype));
    register_scalars(weights, adapter);
}

// Mirrors ToolkitModuleMixin.forward. The network's multiplier, one number an item, lives with the network.
Tensor forward_low_rank(const Layer& layer, Tensor argument, bool full_rank) {
    const Tensor held = std::move(argument);  // by Module.__call__
    const Tensor org_forwarded = layer.base(held);
    const Tensor lora_input = shadow::to(held, layer.adapter->own[lora_down]->value.dtype());
    Parameter* up = full_rank ? nullptr : layer.adapter->own[lora_up];
    const Tensor lora_output =
        call_forward(layer, lora_input, *layer.adapter->own[lora_down], up, runtime_scale(*layer.adapter).value);
    const Tensor multiplier = multiplier_of(layer, lora_output);
    Tensor scaled_lora_output = shadow::mul(lora_output, multiplier);
    scaled_lora_output = shadow::to(scaled_lora_output, org_forwarded.dtype());
    return shadow::add(org_forwarded, scaled_lora_output);
}
Tensor forward(const Layer& layer, Tensor x) { return forward_low_rank(layer, std::move(x), false); }
Tensor forward_full_rank(const Layer& layer, Tensor x) { return forward_low_rank(layer, std::move(x), true); }

/// Whether the layer's weight stands on the host, in full: where it is quantised later, nothing has its place yet.
bool is_on_host(const Adapter& adapter) {
    return adapter.weight == nullptr || adapter.weight->value.storage()->slot < 0;
}

/// ToolkitModuleMixin.merge_in: weight + multiplier * (up @ down) * scale, in fp32 and where the adapter is, cast back
/// and copied.
void merge(Weights& weights, const Adapter& adapter, bool untrained) {
    Run& run = weights.run();
    const bool on_host = is_on_host(adapter);
    Tensor up_weight = shadow::clone(adapter.own[lora_up]->value.detach());
    up_weight = shadow::to_float(std::move(up_weight));
    Tensor down_weight = shadow::clone(adapter.own[lora_down]->value.detach());
    down_weight = shadow::to_float(std::move(down_weight));
    any(run);
    if (untrained) return;
    any(run);
    Tensor weight = on_host ? run.empty(adapter.sizes, Dtype::f32, Op::to_device)
                            : shadow::to_float(adapter.weight->value.detach());
    Tensor made = run.empty(adapter.sizes, Dtype::f32, Op::mm);
    Tensor conved;  // a name of its own, where a kernel is made by a convolution
    if (adapter.sizes.rank() > 2 && adapter.sizes[2] * adapter.sizes[3] > 1) conved = made;
    Tensor product = run.empty(adapter.sizes, Dtype::f32, Op::mul);
    made = Tensor();
    product = run.empty(adapter.sizes, Dtype::f32, Op::mul);
    weight = run.empty(adapter.sizes, Dtype::f32, Op::add);
    product = Tensor();
    if (on_host) return;
    const Tensor cast = shadow::to(weight, weights.rules().dtype);
}

// Not zero even before it is trained.
void merge_full_rank(Weights& weights, const Adapter& adapter, bool) {
    Run& run = weights.run();
    const Tensor down_weight = shadow::clone(adapter.own[lora_down]->value.detach());
    any(run);
    Tensor weight = shadow::to_float(adapter.weight->value.detach());
    Tensor product = run.empty(adapter.sizes, Dtype::f32, Op::mul);
    product = run.empty(adapter.sizes, Dtype::f32, Op::mul);
    weight = run.empty(adapter.sizes, Dtype::f32, Op::add);
    product = Tensor();
    const Tensor cast = shadow::to(weight, weights.rules().dtype);
}

}  // namespace

void register_scalars(Weights& weights, Adapter& adapter) {
    adapter.own.push_back(&weights.adapter({}, weights.rules().adapter_dtype, true));  // _runtime_scale
    adapter.own.push_back(&weights.adapter({}, Dtype::i64, true));                     // alpha
}

Tensor multiplier_of(const Layer& layer, const Tensor& lora_output) {
    Run& run = lora_output.run();
    const Dtype dtype = layer.weights->rules().adapter_dtype;
    const std::int64_t items = layer.weights->multipliers;
    Dims each{lora_output.size(0)};
    while (each.rank() < lora_output.rank()) each.push_back(1);
    if (items != 0 && items != lora_output.size(0)) return run.empty(each, dtype, Op::clone);  // repeat_interleave
    return run.on_cpu(each, dtype);
}

Tensor mean_multiplier(const Layer& layer) {
    Run& run = layer.weights->run();
    return run.empty({}, layer.weights->rules().adapter_dtype, Op::mean);
}

void any(Run& run) { const Tensor answer = run.empty({}, Dtype::boolean, Op::any); }

namespace {
/// One of the adapter's linears as a memory manager brings it.
Tensor managed(const Layer& layer, Tensor x, Parameter& matrix) {
    Linear linear;
    linear.weights = layer.weights;
    linear.weight = &matrix;
    return layer.manager->linear(linear, std::move(x));
}
}  // namespace

// Mirrors ToolkitModuleMixin._call_forward.
Tensor call_forward(const Layer& layer, const Tensor& x, Parameter& down, Parameter* up, const Tensor& runtime_scale) {
    Run& run = x.run();
    const Adaptation& how = layer.adapter->how;
    const bool training = layer.weights->adapters_training();
    Tensor lx = down.stays_on_host ? managed(layer, x, down) : layer.down(x, down.value);  // [.., r]
    if (how.dropout && training) lx = shadow::native_dropout(std::move(lx));
    Tensor scale = runtime_scale, mask;
    if (how.rank_dropout && training) {
        {
            const Tensor drawn = run.empty({lx.size(0), how.rank}, Dtype::f32, Op::noise);
            mask = shadow::compare_scalar(drawn);
        }
        while (mask.rank() < lx.rank()) mask = shadow::unsqueeze(std::move(mask), lx.rank() == 3 ? 1 : -1);
        lx = shadow::mul(lx, mask);
        scale = shadow::mul_scalar(runtime_scale);
    }
    if (up != nullptr) lx = up->stays_on_host ? managed(layer, lx, *up) : layer.up(lx, up->value);  // [.., out]
    return shadow::mul(lx, scale);
}

const AdapterStyle toolkit{"toolkit", build, forward, merge};
const AdapterStyle toolkit_full_rank{"toolkit_full_rank", build_full_rank, forward_full_rank, merge_full_rank};

}  // namespace vram::nn::adapter
