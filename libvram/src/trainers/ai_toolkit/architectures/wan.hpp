#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/pipeline.hpp"

namespace vram::trainers::ai_toolkit::wan {

/// What UMT5 is called with, and what its output is padded to.
inline constexpr std::int64_t max_sequence_length = 512;
/// get_transformer_block_names
inline constexpr std::string_view block_names[] = {"blocks"};
/// A latent frame is of so many frames, but for the first one.
inline constexpr std::int64_t temporal = 4;

/// Wan21 (toolkit/models/wan21/wan21.py, 27a03a91), from which the trainer's other classes derive, with diffusers'
/// WanPipeline or, where low_vram is on, its own AggressiveWanUnloadPipeline.
class Wan21 : public Pipeline {
  public:
    Wan21(const Architecture& architecture, const job::Job& job, const profile::Catalogue& catalogue, Run& run);

    void load_model(Loading& loading) override;
    [[nodiscard]] PromptEmbeds get_prompt_embeds(const Prompts& prompts) override;
    [[nodiscard]] Dims latents(const job::Batch& batch) const override;
    [[nodiscard]] Tensor encode_images(Tensor image_list, const job::Batch& batch) override;
    [[nodiscard]] Tensor get_noise_prediction(const Tensor& latent_model_input, const Tensor& timestep,
                                              const PromptEmbeds& text_embeddings, const job::Batch& batch) override;
    void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds& unconditional_embeds,
                               const job::Batch& image) override;

  protected:
    /// load_wan_transformer
    virtual void load_wan_transformer(Loading& loading);
    /// One transformer, as load_wan_transformer brings it, and then quantises it.
    void arrive(Part& part);
    void quantize(Part& part, Loading& loading);
    void begin_quantizing(Loading& loading);

    /// self.model(…)[0]; the two transformers of Wan 2.2 decide by the timestep which of them it is.
    [[nodiscard]] virtual Tensor model(const Tensors& args, const models::Request& request);
    /// A transformer's forward where the caller says which.
    [[nodiscard]] static Tensor call(Part& part, const Tensors& args, const models::Request& request);

    /// Two names of a denoising loop: the second lives on into the next step.
    struct Predicted {
        Tensor noise_pred, noise_uncond;
    };
    /// A prediction, and with guidance a second one without the prompt. `args` are {hidden_states, timestep}, then what
    /// comes behind the prompt.
    void predict(Part& part, const Tensors& args, const PromptEmbeds& prompt_embeds,
                 const PromptEmbeds& negative_prompt_embeds, const job::Batch& image, Predicted& names);
    /// prepare_latents of noise: [1, C, f, h, w].
    [[nodiscard]] Tensor prepare_latents(const job::Batch& image, Dtype dtype);
    /// The end of every pipeline: latents → frames on the host.
    void decode_video(Tensor& latents, const job::Batch& image, bool tiling);
    /// use_vae_tiling
    [[nodiscard]] bool use_vae_tiling() const;

    /// latents_mean and 1 / latents_std in this dtype: {mean, std}.
    [[nodiscard]] Tensors statistics(Dtype dtype);
    /// vae.encode(video).latent_dist.sample(), without the statistics.
    [[nodiscard]] Tensor encode_video(const Tensor& video);
    /// add_first_frame_conditioning (wan_utils.py): the latents, a mask of four channels and a clip of the first frame
    /// and black ones. `first_frame` is undefined where it is in host memory, as that of a batch is.
    [[nodiscard]] Tensor add_first_frame_conditioning(const Tensor& latent_model_input, const Tensor& first_frame);
    /// Whether a key of model_kwargs is true to Python.
    [[nodiscard]] bool option(const std::string& key, bool fallback) const;

    const std::int64_t z_dim, spatial;  // of the VAE
    const std::int64_t in_channels;     // of the transformer

  private:
    bool quantizing_ = false;
};

/// Whether a spelled option is true to Python.
[[nodiscard]] bool is_true(const std::map<std::string, std::string>& options, const std::string& key, bool fallback);

inline constexpr std::string_view text_encoders[] = {"umt5_xxl"};

/// Whether a profile is of the family and has so many channels, in and out.
[[nodiscard]] bool is_wan(const profile::ModelProfile& profile, std::int64_t in_channels, std::int64_t out_channels);

/// diffusers' pipelines make of a number that does not fit the next one.
[[nodiscard]] std::int64_t rounded_frames(std::int64_t frames);
/// What latents are made of without it.
[[nodiscard]] std::int64_t floored_frames(std::int64_t frames);

}  // namespace vram::trainers::ai_toolkit::wan
