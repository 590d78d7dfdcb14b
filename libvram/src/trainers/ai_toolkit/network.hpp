#pragma once

#include <functional>
#include <string_view>

#include "nn/weights.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "vram/job/job.hpp"

namespace vram::trainers::ai_toolkit {

/// Which layers of the model get which module: LoRASpecialNetwork.create_modules (toolkit/lora_special.py:451-671).
[[nodiscard]] std::function<nn::Adaptation(const nn::LayerFacts&)> adapts(const job::Lora& lora,
                                                                          const ModuleTree& modules);

/// Which parameters of the model a full fine-tune trains, by qualified name: StableDiffusion.prepare_optimizer_params
/// (toolkit/stable_diffusion_model.py:2697).
[[nodiscard]] std::function<bool(std::string_view)> trains(const job::NameParts& names, const ModuleTree& modules);

}  // namespace vram::trainers::ai_toolkit
