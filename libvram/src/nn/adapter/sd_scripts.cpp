#include "nn/adapter/sd_scripts.hpp"

#include <utility>

#include "nn/adapter/low_rank.hpp"

namespace vram::nn::adapter {
namespace {

using shadow::Op;

// Places in Adapter::own.
enum : std::size_t { lora_down, lora_up };

void build(Weights& weights, Adapter& adapter) {
    add_low_rank(weights, adapter);
    adapter.own.push_back(&weights.adapter({}, weights.rules().adapter_dtype, true));  // alpha
}

/// torch.rand of a sample's ranks, compared.
Tensor mask_of_ranks(const Layer& layer, const Tensor& lx) {
    Tensor mask;
    {
        const Tensor drawn = lx.run().empty({lx.size(0), layer.adapter->how.rank}, Dtype::f32, Op::noise);
        mask = shadow::compare_scalar(drawn);
    }
    if (lx.rank() == 3) mask = shadow::unsqueeze(std::move(mask), 1);
    while (mask.rank() < lx.rank()) mask = shadow::unsqueeze(std::move(mask), -1);
    return mask;
}

// Mirrors LoRAModule.forward.
Tensor forward(const Layer& layer, Tensor argument) {
    const Adapter& adapter = *layer.adapter;
    const bool training = layer.weights->adapters_training();
    const Tensor x = std::move(argument);
    const Tensor org_forwarded = layer.base(x);
    Tensor lx = layer.down(x, adapter.own[lora_down]->value);
    if (adapter.how.dropout && training) lx = shadow::native_dropout(lx);
    Tensor mask;
    if (adapter.how.rank_dropout && training) {
        mask = mask_of_ranks(layer, lx);
        lx = shadow::mul(lx, mask);
    }
    lx = layer.up(lx, adapter.own[lora_up]->value);
    Tensor scaled = shadow::mul_scalar(lx);
    scaled = shadow::mul_scalar(std::move(scaled));
    return shadow::add(org_forwarded, std::move(scaled));
}

}  // namespace

const AdapterStyle sd_scripts{"sd_scripts", build, forward};

}  // namespace vram::nn::adapter
