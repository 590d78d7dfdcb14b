#pragma once

#include <functional>

#include "trainers/sd_scripts/network_trainer.hpp"

namespace vram::trainers::sd_scripts {

/// What NetworkTrainer does for Stable Diffusion and SDXL alike: epsilon or velocity of a UNet, and samples by the long
/// prompt weighting pipelines (library/lpw_stable_diffusion.py, sdxl_lpw_stable_diffusion.py).
class UnetTrainer : public NetworkTrainer {
  protected:
    using NetworkTrainer::NetworkTrainer;

    /// noise_pred, under autocast.
    [[nodiscard]] virtual Tensor call_unet(const Tensor& noisy_latents, const Tensor& timesteps,
                                           const Tensors& text_conds, const Batch& batch) = 0;
    [[nodiscard]] Prediction get_noise_pred_and_target(const Batch& batch, const Tensor& latents,
                                                       Tensors& text_encoder_conds) final;

    /// The names of a pipeline's __call__.
    struct Loop {
        Tensor timesteps, latent_timestep, latents, latent_model_input, noise_pred, noise_pred_uncond, noise_pred_text;

        /// As the call returns its latents: what `denoise` has set beside them dies.
        void end();
    };
    /// __call__: a prompt's embeddings and its latents, denoised.
    virtual void render(Loop& loop, const job::Batch& image) = 0;
    void sample_all() final;

    [[nodiscard]] bool guides() const { return job.sampling.guidance > 1; }
    /// The scheduler's timesteps on the GPU.
    void set_timesteps(Loop& loop);
    void prepare_latents(Loop& loop, const job::Batch& image, Dtype dtype);
    /// Two steps: latent_model_input, timestep → noise_pred, in the type that guidance is reckoned in.
    using Predict = std::function<Tensor(const Tensor& latent_model_input, const Tensor& t)>;
    void denoise(Loop& loop, const Predict& predict);

  private:
    /// latents_to_image
    void decode_latents(const Tensor& latents, const job::Batch& image);
};

}  // namespace vram::trainers::sd_scripts
