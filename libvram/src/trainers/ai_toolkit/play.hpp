#pragma once

#include "run/asides.hpp"
#include "vram/job/job.hpp"
#include "vram/run/facts.hpp"

namespace vram::profile {
class Catalogue;
}
namespace vram::shadow {
class Run;
}

namespace vram::trainers::ai_toolkit {

/// Plays a job as ai-toolkit 0.12.26 (27a03a91) runs it. The job must be one that ai_toolkit::resolve made.
///
/// Phases, in order: load (the models arrive), quantize (from the first layer that is quantised until all stands ready:
/// text encoders, VAE, adapter, moving average), cache_latents, cache_text (prompts are encoded before the loop, at
/// least the empty one; then what training does not need leaves the GPU), baseline_sample, step 1, step 2, a `bucket
/// WxH` for each further bucket, sample, save. The figures `counts.attention_*` are the denoiser's in the steps.
/// Source: jobs/process/BaseSDTrainProcess.py, run; extensions_built_in/sd_trainer/SDTrainer.py,
/// hook_before_train_loop.
[[nodiscard]] run::Facts play(const job::Job& job, const profile::Catalogue& catalogue, shadow::Run& run,
                              run::Asides asides = run::Asides::played);

}  // namespace vram::trainers::ai_toolkit
