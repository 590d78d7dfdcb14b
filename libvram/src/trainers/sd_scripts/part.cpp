#include "trainers/sd_scripts/part.hpp"

#include <utility>

namespace vram::trainers::sd_scripts {

using shadow::Tensor;
using shadow::Tensors;

Part::Part(shadow::Run& run, std::string component, nn::Rules rules, const profile::ModelProfile& profile)
    : weights(run, component, std::move(rules)),
      model(models::build(weights, profile)),
      component_(std::move(component)) {}

void Part::to_gpu() {
    if (on_gpu_) return;
    weights.base_to_gpu();
    on_gpu_ = true;
}

void Part::to_cpu() {
    if (!on_gpu_) return;
    weights.base_to_cpu();
    on_gpu_ = false;
}

Tensors Part::forward(const Tensors& args, const models::Request& request) const {
    const shadow::ComponentScope scope(weights.run(), component_);
    return model->forward(args, request);
}

Tensors Part::arguments(const models::Request& request) const {
    Tensors out;
    for (const models::Value& value : model->inputs(request))
        out.push_back(weights.run().empty(value.shape, value.dtype, shadow::Op::to_device));
    return out;
}

// accelerate 1.6.0, utils/operations.py, ConvertOutputsToFp32 around the context of native_amp.
Tensors Part::prepared(const Tensors& args, const models::Request& request, const shadow::Run::Autocast& autocast,
                       bool in_class) const {
    shadow::Run& run = weights.run();
    const shadow::ComponentScope scope(run, component_);
    Tensors outputs;
    {
        const shadow::AutocastScope amp(run, autocast);
        outputs = model->forward(args, request);
    }
    if (!autocast.enabled || in_class) return outputs;
    // Of an encoder: {hidden states, last_hidden_state, pooled}; in the class the hidden states come last.
    Tensors converted;
    converted.resize(outputs.size());
    const std::size_t count = outputs.size();
    const auto convert = [&](std::size_t i) { converted[i] = shadow::to_float(outputs[i]); };
    const std::size_t behind = count > 1 ? count - 2 : 0;
    if (count > 1) {
        convert(pooled_first ? count - 1 : count - 2);
        convert(pooled_first ? count - 2 : count - 1);
    }
    for (std::size_t i = 0; i < (count > 1 ? behind : count); ++i) convert(i);
    return converted;
}

}  // namespace vram::trainers::sd_scripts
