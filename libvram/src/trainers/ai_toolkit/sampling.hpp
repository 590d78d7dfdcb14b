#pragma once

#include "trainers/ai_toolkit/training.hpp"

namespace vram::trainers::ai_toolkit {

/// BaseSDTrainProcess.sample and StableDiffusion.generate_images over FluxPipeline, inside an open phase: stages text,
/// denoise, decode for each size; two denoising steps stand for all. An adapter over plain weights is merged into
/// them, which allocates unless it is still zero.
void sample(Pipeline& pipeline, Resident& resident, const run::Optimizer& optimizer, bool adapter_is_zero);

/// BaseSDTrainProcess.save of an adapter: tensors go to the host one by one.
void save(Pipeline& pipeline, Resident& resident, const run::Optimizer& optimizer);

}  // namespace vram::trainers::ai_toolkit
