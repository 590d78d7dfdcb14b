#pragma once

#include "trainers/ai_toolkit/slider.hpp"
#include "trainers/ai_toolkit/training.hpp"

namespace vram::trainers::ai_toolkit {

/// ConceptSliderTrainer's steps (extensions_built_in/concept_slider/ConceptSliderTrainer.py, 27a03a91): SDTrainer's,
/// but for get_guided_loss. The network is off for one prediction of all prompts at once, without gradients; then it
/// predicts the target class, and the anchor class beside it, with the multiplier 1 and with −1, and each goes
/// backward by itself.
class ConceptSlider final : public Training {
  public:
    ConceptSlider(Pipeline& pipeline, Resident& resident, run::Facts& facts, const Slider& slider);

    /// hook_before_train_loop, up to super(): {positive, target class, negative, anchor class}.
    void encode_static_prompts() override;

  protected:
    /// get_guided_loss. A stage forward holds the prediction without gradients, too, and a stage loss the targets.
    [[nodiscard]] Tensor predict_and_compare(const job::Batch& batch, const Tensor& batch_latents, Frame& frame,
                                             Tensor latents, Bytes before) override;
    [[nodiscard]] Bytes kept_by_prediction(const job::Batch& batch, Frame& frame, const Tensor& latents) override;

  private:
    /// What a prediction is handed of a batch.
    struct Handed {
        Tensor latents, timesteps;
        PromptEmbeds embeds;
        job::Batch batch;
    };
    struct Targets {
        Tensor enhance_positive, enhance_negative, erase_negative, erase_positive;
    };
    /// get_guided_loss's names from its first prediction on.
    struct Guided;

    void take_one_multiplier();
    [[nodiscard]] Handed handed(const job::Batch& batch, const Frame& frame, Tensor noisy_latents,
                                const PromptEmbeds& target_class, const PromptEmbeds& anchor);
    [[nodiscard]] PromptEmbeds batch_of(std::size_t prompt, std::int64_t count);
    void compare_and_go_back(Guided& guided, const Tensor& enhance_target, const Tensor& erase_target, Tensor& total);

    const Slider slider_;
};

}  // namespace vram::trainers::ai_toolkit
