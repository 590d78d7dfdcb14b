#pragma once

#include <deque>
#include <string>
#include <vector>

#include "run/optimizer.hpp"
#include "trainers/ai_toolkit/pipeline.hpp"
#include "vram/run/facts.hpp"

namespace vram::trainers::ai_toolkit {

/// What SDTrainer keeps on the GPU from before the loop on, beside the models.
struct Resident {
    PromptEmbeds unconditional_embeds, cached_blank_embeds;
    HostEmbeds caption_embeds;          // where captions are cached
    Tensor torch_multiplier;            // the network's, one number an item
    std::vector<Tensor> shadow_params;  // of the moving average
    [[nodiscard]] Bytes bytes() const;  ///< of the prompts and the multiplier
};

/// SDTrainer's steps (extensions_built_in/sd_trainer/SDTrainer.py): hook_train_loop, and under it
/// train_single_accumulation, process_general_training_batch, predict_noise, calculate_loss. Names and lifetimes are
/// those of the methods.
class Training {
  public:
    Training(Pipeline& pipeline, Resident& resident, run::Facts& facts);

    /// One pass of the loop in BaseSDTrainProcess.run, as a phase of this name, with stages prepare, forward, loss,
    /// backward, clip, optimizer and ema.
    void step(const std::string& name, const job::Batch& batch);

    /// batch.cleanup(), and the next step's batch_list = []. A step begins with it; call it before anything else is
    /// played.
    void cleanup();

    /// What a step's forward would keep; leaves no trace.
    [[nodiscard]] Bytes kept_without_checkpointing(const job::Batch& batch);

    run::Optimizer optimizer;

  private:
    struct Prepared {
        Tensor noisy_latents, noise, timesteps, imgs;
    };
    Tensor train_single_accumulation(const job::Batch& batch, Tensor& batch_latents);
    Prepared process_general_training_batch(const job::Batch& batch, Tensor& batch_latents);
    Tensor predict_noise(const Tensor& latents, const Tensor& timestep, const PromptEmbeds& text_embeddings,
                         const job::Batch& batch);
    Tensor calculate_loss(const Tensor& noise_pred, const Tensor& noise, const Tensor& batch_latents,
                          const Tensor& mask_multiplier);
    PromptEmbeds conditional_embeds(const job::Batch& batch, PromptEmbeds& embeds_to_use);
    void update_ema();

    Pipeline& pipeline_;
    Resident& resident_;
    run::Facts& facts_;
    Run& run_;
    const job::Training& training_;
    Tensor scheduler_timesteps_;        // noise_scheduler.timesteps
    std::deque<Tensor> batch_latents_;  // batch.latents of the step's batches
    Bytes kept_ = 0;
    bool first_ = true;
};

}  // namespace vram::trainers::ai_toolkit
