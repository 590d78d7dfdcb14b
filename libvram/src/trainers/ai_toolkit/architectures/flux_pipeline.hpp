#pragma once

#include "trainers/ai_toolkit/pipeline.hpp"

namespace vram::trainers::ai_toolkit {

/// What the classes share that train FLUX.1 and what became of it: CLIP and T5, an AutoencoderKL of 16 channels, two by
/// two latent pixels a token. Source: train_tools.py, flux_kontext.py, flex2.py (27a03a91), and diffusers' pipelines.
class FluxPipeline : public Pipeline {
  public:
    /// train_tools.py, encode_prompts_flux
    [[nodiscard]] PromptEmbeds get_prompt_embeds(const Prompts& prompts) override;
    [[nodiscard]] Dims latents(const job::Batch& batch) const override;
    [[nodiscard]] Tensor encode_images(Tensor image_list, const job::Batch& batch) override;

    static constexpr std::int64_t pixels_a_token = 16;

  protected:
    using Pipeline::Pipeline;

    /// load_model of classes that bring the transformer to the GPU in full, whatever low_vram says, then T5, then CLIP;
    /// the VAE stays on the host. Without CLIP there is one text encoder.
    void load_on_gpu(Loading& loading);

    /// T5's last hidden states, padded to job.text_tokens.
    [[nodiscard]] Tensor encode_t5(Part& text_encoder, std::int64_t count);

    /// "b c (h ph) (w pw) -> b (h w) (c ph pw)", a copy; _pack_latents
    [[nodiscard]] static Tensor packed(const Tensor& latents);
    /// The way back, a copy; of a batch's noise the same as _unpack_latents.
    [[nodiscard]] static Tensor unpacked(Tensor noise_pred, const job::Batch& batch);

    /// transformer(**args): what follows hidden_states there.
    [[nodiscard]] Tensor flux_transform(Tensor hidden_states, const Tensor& timestep, const PromptEmbeds& embeds,
                                        const Tensor& img_ids, const Tensor& txt_ids, const Tensor& guidance,
                                        const models::Request& request);
    /// Whether the net embeds guidance.
    [[nodiscard]] bool takes_guidance(const models::Request& request) const;

    /// What a pipeline's __call__ holds from its first line to its last.
    struct Call {
        Tensor text_ids, latents, latent_image_ids, timesteps, sigmas, guidance;
        Tensor latent_model_input, timestep, noise_pred;
    };
    /// prepare_latents without control images, and what encode_prompt makes.
    void prepare_latents(Call& call, const job::Batch& image, const models::Request& request);
    /// retrieve_timesteps, and guidance where there is some.
    void retrieve_timesteps(Call& call, const models::Request& request);
    /// FlowMatchEulerDiscreteScheduler.step: in fp32.
    void scheduler_step(Call& call);
    /// What follows the loop.
    void decode_latents(Call& call, const job::Batch& image);
};

}  // namespace vram::trainers::ai_toolkit
