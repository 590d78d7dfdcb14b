#include "resident.hpp"

#include "nn/adapter/peft.hpp"
#include "nn/adapter/targets.hpp"
#include "shadow/ops.hpp"

namespace vram::bench {
namespace {

nn::Rules rules(const profile::ModelProfile& profile) {
    nn::Rules rules;
    rules.keep_in_fp32 = profile.keep_in_fp32;
    rules.adapts = nn::adapter::peft_of(nn::adapter::targets({"attention"}), 16);
    return rules;
}

models::Request request_of(const profile::ModelProfile& profile) {
    models::Request request;
    request.width = profile.defaults.width;
    request.height = profile.defaults.height;
    request.frames = profile.defaults.frames;
    request.text_tokens = profile.defaults.text_tokens;
    if (profile.reference_images) request.reference_images = {{request.width, request.height}};
    return request;
}

}  // namespace

Resident::Resident(const profile::ModelProfile& profile, bool memo)
    : run({}, memo),
      weights(run, "transformer", rules(profile)),
      model(models::build(weights, profile)),
      request(request_of(profile)) {
    model->gradient_checkpointing = true;
    weights.to_gpu();
    for (const models::Value& value : model->inputs(request))
        inputs.push_back(run.empty(value.shape, value.dtype, shadow::Op::input));
    for (const shadow::Dims& sizes : model->outputs(request))
        targets.push_back(run.empty(sizes, Dtype::bf16, shadow::Op::target));
}

void Resident::step() {
    shadow::Tensors preds = model->forward(inputs, request);
    shadow::Tensor loss;
    for (std::size_t i = 0; i < targets.size(); ++i) {
        shadow::Tensor prediction = shadow::to_float(preds[i]);
        shadow::Tensor wanted = shadow::to_float(targets[i]);
        shadow::Tensor part = shadow::mse_loss(std::move(prediction), std::move(wanted));
        loss = loss.defined() ? shadow::add(std::move(loss), std::move(part)) : std::move(part);
    }
    preds.clear();
    run.backward(loss);
}

}  // namespace vram::bench
