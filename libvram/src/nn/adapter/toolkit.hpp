#pragma once

#include <cstdint>
#include <utility>

#include "nn/module.hpp"

/// ai-toolkit's modules around a layer (27a03a91). Matrices are in Rules::adapter_dtype, which is fp32 there: force_to
/// in BaseSDTrainProcess.run. What each registers, keeps and needs stands in docs/networks.md.
namespace vram::nn::adapter {

/// LoRAModule of a linear or a convolution: the layer's input is cast to the matrices' type and kept, the result scaled
/// twice (scale, multiplier) before it is cast back. Two scalar buffers a module: _runtime_scale, alpha. Source:
/// toolkit/network_mixins.py, ToolkitModuleMixin.forward and _call_forward; toolkit/lora_special.py, LoRAModule.
extern const AdapterStyle toolkit;

/// LoRAModule of type fullrank: one matrix of the weight's own shape, `lora_up` an identity.
extern const AdapterStyle toolkit_full_rank;

/// DoRAModule of a linear: a LoRA, and beside it the whole weight in fp32, three times, for each call. Source:
/// toolkit/models/DoRA.py, apply_dora.
extern const AdapterStyle toolkit_dora;

/// LokrModule. Of a linear the two factors are applied one after the other, in the layer's type; of a convolution their
/// product is made, in fp32 first. `rank` decides whether the second factor is taken apart. Source:
/// toolkit/models/lokr.py.
extern const AdapterStyle toolkit_lokr;

/// FullModule of any layer that has a weight: a difference of the weight's shape, added to it for each call. Source:
/// toolkit/lora_special.py.
extern const AdapterStyle toolkit_full;

/// A dimension as the product of two: the second is the larger. Source: toolkit/models/lokr.py, factorization.
[[nodiscard]] std::pair<std::int64_t, std::int64_t> factorization(std::int64_t dimension, std::int64_t factor);

}  // namespace vram::nn::adapter
