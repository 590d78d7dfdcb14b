#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "run/optimizer.hpp"
#include "trainers/ai_toolkit/pipeline.hpp"
#include "vram/run/facts.hpp"

namespace vram::trainers::ai_toolkit {

/// What SDTrainer keeps on the GPU from before the loop on, beside the models.
struct Resident {
    PromptEmbeds unconditional_embeds, cached_blank_embeds, cached_dop_class_embeds;
    PromptEmbeds diff_output_preservation_embeds;
    /// Of captions where they are cached; those with other control images are others.
    struct Caption {
        std::vector<job::PictureSize> references;
        HostEmbeds embeds;
    };
    std::vector<Caption> caption_embeds;
    [[nodiscard]] const HostEmbeds& caption_of(const std::vector<job::PictureSize>& references) const;
    /// Of each of the job's samples, where the text encoder leaves.
    struct SamplePrompts {
        HostEmbeds conditional, unconditional;
    };
    std::vector<SamplePrompts> sample_prompts_cache;
    /// Of those that were rendered once: `.to(device)` moves what is cached itself.
    struct RenderedPrompts {
        PromptEmbeds conditional, unconditional;
    };
    std::vector<RenderedPrompts> rendered_prompts;
    HostEmbeds validation_embeds;
    Tensor torch_multiplier;                // the network's, one number an item
    std::vector<Tensor> shadow_params;      // of the moving average
    std::vector<PromptEmbeds> own_prompts;  // of a process beside SDTrainer's
    [[nodiscard]] Bytes bytes() const;      ///< of the prompts and the multiplier
};

/// SDTrainer's steps (extensions_built_in/sd_trainer/SDTrainer.py): hook_train_loop, and under it
/// train_single_accumulation, process_general_training_batch, predict_noise, calculate_loss. Names and lifetimes are
/// those of the methods.
class Training {
  public:
    Training(Pipeline& pipeline, Resident& resident, run::Facts& facts);
    virtual ~Training() = default;
    Training(const Training&) = delete;
    Training& operator=(const Training&) = delete;

    /// What a process encodes of its own before SDTrainer.hook_before_train_loop does.
    virtual void encode_static_prompts() {}

    /// Pass `number`, from 1, of the loop in BaseSDTrainProcess.run, as a phase of this name, with stages prepare,
    /// text (where text encoders train), forward, loss, backward, clip, optimizer and ema.
    void step(const std::string& name, std::int64_t number, const job::Batch& batch);

    /// batch.cleanup(), and the next step's batch_list = []. A step begins with it; call it before anything else is
    /// played.
    void cleanup();

    /// validate(): each picture predicted at all its noise levels at once, as a phase of this name.
    void validate(const std::string& name);

    /// What a step's forward would keep; leaves no trace.
    [[nodiscard]] Bytes kept_without_checkpointing(const job::Batch& batch);

    run::Optimizer optimizer;

  protected:
    struct Prepared {
        Tensor noisy_latents, noise, timesteps, imgs;
    };
    /// What train_single_accumulation's frame holds from the batch on to its end.
    struct Frame {
        Prepared prepared;
        Tensor control_images;  // prompt_kwargs
        Tensor loss_multiplier, mask_multiplier;
        Tensor noisy_latents;  // with what stands beside the noise; `prepared` holds those without
        PromptEmbeds embeds_to_use, conditional_embeds, unconditional_embeds, prior_embeds_to_use, preservation_embeds;
        Tensor prior_pred;
        Tensor noise_pred, preservation_pred, preservation_loss;
        Bytes kept_by_text = 0;  // for the backward through text encoders, without the embeds
    };
    /// From the first prediction with gradients to the loss that train_single_accumulation multiplies and goes back
    /// from. `latents`: in the model's dtype; `before`: what lived as the step's first prediction began.
    [[nodiscard]] virtual Tensor predict_and_compare(const job::Batch& batch, const Tensor& batch_latents, Frame& frame,
                                                     Tensor latents, Bytes before);
    /// What the first of these predictions keeps.
    [[nodiscard]] virtual Bytes kept_by_prediction(const job::Batch& batch, Frame& frame, const Tensor& latents);
    [[nodiscard]] Bytes live() const;  ///< without the slots of offloaded layers, which a call changes as it goes
    Tensor train_single_accumulation(const job::Batch& batch, Tensor& batch_latents);
    void prepare(const job::Batch& batch, Tensor& batch_latents, Frame& frame);
    Prepared process_general_training_batch(const job::Batch& batch, Tensor& batch_latents);
    [[nodiscard]] Tensor add_noise(const Tensor& original_samples, const Tensor& noise, const Tensor& timesteps);
    [[nodiscard]] Tensor get_mask_multiplier(const job::Batch& batch, const Tensor& noisy_latents);
    [[nodiscard]] PromptEmbeds conditional_embeds(const job::Batch& batch, Frame& frame);
    [[nodiscard]] PromptEmbeds unconditional_embeds(const job::Batch& batch, const Frame& frame);
    void encode_in_training(const job::Batch& batch, Frame& frame);
    void encode_preservation(const job::Batch& batch, const Frame& frame);
    /// encode_prompt(…).to(dtype), with the step's control images.
    [[nodiscard]] PromptEmbeds encoded(const job::Batch& batch, bool blank, const Frame& frame);
    [[nodiscard]] PromptEmbeds preservation_embeds(std::int64_t count) const;
    /// condition_noisy_latents; and the cast that predict_noise is handed, whose frame holds it.
    [[nodiscard]] Tensor condition(const job::Batch& batch, Frame& frame);
    [[nodiscard]] Tensor cast(const Frame& frame);
    /// `before`: what lives as the prediction begins.
    [[nodiscard]] Tensor get_prior_prediction(const job::Batch& batch, const Frame& frame, Bytes& before);
    /// No unconditional embeds: no guidance.
    [[nodiscard]] Tensor predict_noise(const Tensor& latents, Tensor timestep, PromptEmbeds& conditional_embeds,
                                       const PromptEmbeds& unconditional_embeds, job::Batch batch);
    [[nodiscard]] Tensor calculate_loss(const Tensor& noise_pred, const Tensor& batch_latents, const Frame& frame,
                                        const job::Batch& batch);
    [[nodiscard]] Tensor prior_mask_multiplier(const job::Batch& batch, const Tensor& noise_pred);
    [[nodiscard]] Tensor guided_target(const Tensor& target, const Frame& frame, const job::Batch& batch);
    void update_ema();
    /// network.multiplier = value: a number, or as many as there are items. Nothing where it is so already.
    struct Multiplier {
        double value = 1;
        std::int64_t items = 0;  // 0: a number
        bool operator==(const Multiplier&) const = default;
    };
    void set_multiplier(const Multiplier& value);
    /// How much more lives than `before` as a forward with gradients ends.
    void kept_since(Bytes before) { kept_ = live() - before; }

    Pipeline& pipeline_;
    Resident& resident_;
    run::Facts& facts_;
    Run& run_;
    const job::Training& training_;
    Tensor scheduler_timesteps_;        // noise_scheduler.timesteps
    std::deque<Tensor> batch_latents_;  // batch.latents of the step's batches

  private:
    Multiplier multiplier_;
    Bytes kept_ = 0;
    bool first_ = true;
};

/// The loop of the job's process.
[[nodiscard]] std::unique_ptr<Training> make_training(Pipeline& pipeline, Resident& resident, run::Facts& facts);

}  // namespace vram::trainers::ai_toolkit
