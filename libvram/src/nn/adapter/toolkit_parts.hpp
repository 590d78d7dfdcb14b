#pragma once

#include "nn/module.hpp"

/// What ai-toolkit's modules have in common: toolkit/network_mixins.py, ToolkitModuleMixin (27a03a91).
namespace vram::nn::adapter {

/// The buffers _runtime_scale and alpha, the last two of Adapter::own.
void register_scalars(Weights& weights, Adapter& adapter);

/// network.torch_multiplier as it is multiplied with a layer's output: it lives with the network, but is repeated where
/// it has not as many items as the batch.
[[nodiscard]] Tensor multiplier_of(const Layer& layer, const Tensor& lora_output);
/// torch_multiplier.mean()
[[nodiscard]] Tensor mean_multiplier(const Layer& layer);

/// weight.any(), whose answer the caller knows.
void any(Run& run);

/// _call_forward; `up` null: an identity.
[[nodiscard]] Tensor call_forward(const Layer& layer, const Tensor& x, Parameter& down, Parameter* up,
                                  const Tensor& runtime_scale);

}  // namespace vram::nn::adapter
