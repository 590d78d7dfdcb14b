#pragma once

#include <memory>

#include "models/model.hpp"
#include "nn/weights.hpp"
#include "shadow/run.hpp"

namespace vram::bench {

/// A denoiser of its profile's own size on the GPU, with PEFT's LoRA of rank 16 on its attention, checkpointed, and one
/// sample's inputs: ready to step.
struct Resident {
    explicit Resident(const profile::ModelProfile& profile, bool memo);

    /// Forward, loss and backward, as the plain loop does them.
    void step();

    shadow::Run run;
    nn::Weights weights;
    std::unique_ptr<models::Model> model;
    models::Request request;
    shadow::Tensors inputs, targets;
};

}  // namespace vram::bench
