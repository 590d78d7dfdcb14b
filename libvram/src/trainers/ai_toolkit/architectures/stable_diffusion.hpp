#pragma once

#include <cstdint>
#include <functional>

#include "trainers/ai_toolkit/pipeline.hpp"

namespace vram::trainers::ai_toolkit {

/// CLIP's tokenizers pad to it. do_long_prompts is False.
inline constexpr std::int64_t clip_tokens = 77;

/// StableDiffusion (toolkit/stable_diffusion_model.py, 27a03a91), the class of all architectures that have none of
/// their own: its noise schedulers (toolkit/sampler.py), and what diffusers' pipelines do alike while they sample.
class StableDiffusion : public Pipeline {
  public:
    [[nodiscard]] Dims latents(const job::Batch& batch) const override;
    [[nodiscard]] Tensor encode_images(Tensor image_list, const job::Batch& batch) override;
    [[nodiscard]] Tensor set_train_timesteps() override;
    [[nodiscard]] Tensor add_noise(const Tensor& original_sample, const Tensor& noise, const Tensor& timestep) override;
    [[nodiscard]] Tensor get_loss_target(const Tensor& noise, const Tensor& batch_latents) override;
    void add_all_snr() override;

  protected:
    /// `is_flow_matching`: whatever scheduler is asked for, the target is that of flow matching.
    StableDiffusion(const Architecture& architecture, const job::Job& job, const profile::Catalogue& catalogue,
                    Run& run, std::int64_t latent_channels, bool is_flow_matching);

    /// pipe.vae.to(gpu), unet.to(gpu); BaseSDTrainProcess.run: vae.to("cpu").
    void finish_loading();
    /// The hidden state that a CLIP encoder of SDXL and SD 3 is asked for, a copy, and its pooled output.
    struct Clip {
        Tensor prompt_embeds, pooled;
    };
    /// `projected`: the class has a projection, and its first output is the pooled one; else it is the last hidden
    /// state.
    [[nodiscard]] Clip encode_clip(Part& text_encoder, std::int64_t count, bool projected);

    [[nodiscard]] bool guides() const { return job.sampling.guidance > 1; }
    /// What a pipeline's call has names for until it returns.
    struct Loop {
        Tensor timesteps, sigmas;  // the scheduler's
        Tensor latents, latent_model_input, noise_pred, noise_pred_uncond, noise_pred_text;
    };
    /// noise_scheduler.set_timesteps
    void set_timesteps(Loop& loop) const;
    /// prepare_latents: noise from the host, where `scaled` times init_noise_sigma.
    [[nodiscard]] Tensor prepare_latents(const job::Batch& image, bool scaled) const;
    /// Two steps of the loop. `predict`: {latent_model_input [2 or 1, ..], timestep [1]} → noise_pred; `learned_sigma`:
    /// of its channels the first half.
    using Predict = std::function<Tensor(const Tensor& latent_model_input, const Tensor& timestep)>;
    void denoise(Loop& loop, const Predict& predict, bool learned_sigma = false);
    /// scheduler.step → prev_sample
    [[nodiscard]] Tensor step(const Tensor& model_output, const Tensor& sample) const;
    /// upcast_vae, where the VAE overflows in fp16: true if it is in fp32 now.
    [[nodiscard]] bool upcast_vae();
    /// vae.to(dtype=), of a VAE on the GPU: one parameter after the other.
    void vae_to(Dtype dtype);

  private:
    [[nodiscard]] bool flow_matches() const;  ///< the training's scheduler

    std::int64_t latent_channels_;
    bool is_flow_matching_;
    Tensor alphas_cumprod_, all_snr_;  // of the training's scheduler, once they are on the GPU
};

}  // namespace vram::trainers::ai_toolkit
