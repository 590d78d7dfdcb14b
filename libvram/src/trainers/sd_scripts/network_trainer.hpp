#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "run/asides.hpp"
#include "run/optimizer.hpp"
#include "shadow/run.hpp"
#include "trainers/sd_scripts/network.hpp"
#include "trainers/sd_scripts/part.hpp"
#include "vram/job/job.hpp"
#include "vram/run/facts.hpp"

namespace vram::profile {
class Catalogue;
}

namespace vram::trainers::sd_scripts {

using shadow::Dims;
using shadow::Run;
using shadow::Tensor;
using shadow::Tensors;

inline constexpr std::int64_t clip_tokens = 77;  // model_max_length of CLIP's tokenizers

/// What the data loader hands over, on the GPU (library/train_util.py, BaseDataset.__getitem__).
struct Batch {
    job::Batch sizes;
    Tensor loss_weights;                // [B]
    Tensors text_encoder_outputs_list;  // where they are cached: fp32, in the order of encode_tokens
    Tensors input_ids_list;             // where an encoder runs in the step
    Tensor images;                      // [B, 3, H, W] fp32, where latents are not cached
    Tensor latents;                     // [B, C, h, w]
    Tensor original_sizes_hw, crop_top_lefts, target_sizes_hw, network_multipliers;
};

/// What get_noise_pred_and_target returns.
struct Prediction {
    Tensor noise_pred, target, timesteps, weighting;
};

/// NetworkTrainer (train_network.py), and what its subclasses do their own way. Names and lifetimes are those of the
/// methods.
class NetworkTrainer {
  public:
    virtual ~NetworkTrainer() = default;
    NetworkTrainer(const NetworkTrainer&) = delete;
    NetworkTrainer& operator=(const NetworkTrainer&) = delete;

    /// train(): every phase of the job into the run's trace.
    [[nodiscard]] run::Facts train(run::Asides asides);

  protected:
    NetworkTrainer(const job::Job& job, const profile::Catalogue& catalogue, Run& run, const Adapts& unet_adapts);

    /// Of one batch: the text encoders' outputs, in the order that the strategy has them; undefined those that are
    /// cached.
    [[nodiscard]] virtual Tensors encode_tokens(const Tensors& input_ids, std::int64_t batch) = 0;
    /// What they are once they were cached, in fp32 on the host: shapes for so many captions.
    [[nodiscard]] virtual std::vector<models::Value> cached_text(std::int64_t batch) const = 0;
    /// What the tokenizers make of so many captions, and comes along where a text encoder runs in the step.
    [[nodiscard]] virtual std::vector<Dims> token_sizes(std::int64_t batch) const;
    [[nodiscard]] virtual Prediction get_noise_pred_and_target(const Batch& batch, const Tensor& latents,
                                                               Tensors& text_encoder_conds) = 0;
    /// cache_text_encoder_outputs_if_needed, where they are.
    virtual void cache_text_encoder_outputs();
    /// encode_images_to_latents: [B, 3, H, W] in the VAE's type → [B, C, h, w]
    [[nodiscard]] virtual Tensor encode_images_to_latents(const Tensor& images, const job::Batch& sizes);
    [[nodiscard]] virtual Tensor shift_scale_latents(const Tensor& latents);
    [[nodiscard]] virtual std::int64_t latent_channels() const { return 4; }
    /// A network's own look at its gradients: update_grad_norms. Nothing as it stands here.
    virtual void update_grad_norms() {}
    /// What is logged of them behind the optimizer's step.
    virtual void log_norms() {}
    /// noise_scheduler of train().
    virtual void get_noise_scheduler();
    /// sample_images, of all images: stages text, denoise, decode.
    virtual void sample_all() = 0;
    [[nodiscard]] Run::Autocast amp() const { return {training.autocast.enabled, training.autocast.dtype}; }
    /// Whether the text encoders' network is applied: their outputs have a history.
    [[nodiscard]] bool trains_text() const { return training.text_encoders.trains; }
    /// A text encoder as process_batch calls it: prepared where it trains.
    [[nodiscard]] Tensors call(const Part& text_encoder, const Tensors& args, const models::Request& request) const;
    [[nodiscard]] models::Request request_of(const job::Batch& sizes) const;
    /// A text encoder's, of `sequences` of 77 tokens.
    [[nodiscard]] models::Request text_request(std::int64_t sequences, bool all_hidden_states) const;
    /// Rows of 77 tokens to a caption: max_token_length / 75.
    [[nodiscard]] std::int64_t chunks() const { return (job.text_tokens - 2) / 75; }
    /// Hidden states [B N, 77, D] of long captions → [B, N 75 + 2, D]: those in front and behind, and what lies
    /// between.
    [[nodiscard]] Tensor joined(Tensor hidden_states, std::int64_t batch) const;
    /// get_noise_noisy_latents_and_timesteps
    struct Noisy {
        Tensor noise, noisy_latents, timesteps;
    };
    [[nodiscard]] Noisy get_noise_noisy_latents_and_timesteps(const Tensor& latents);
    /// The noise, or with v_parameterization the velocity.
    [[nodiscard]] Tensor target_of(const Tensor& latents, const Noisy& noisy);
    /// Of get_noise_pred_and_target what stands before the prediction.
    [[nodiscard]] Noisy prepare(const Tensor& latents, Tensors& text_encoder_conds);
    /// x.requires_grad_(True): a leaf, which the step's graph holds, and its gradient with it, for as long as train()'s
    /// `loss` holds the graph. Nothing where x has a history, or grad mode is off.
    void requires_grad_(Tensor& x);
    /// Where the prediction's autocast has closed: what lives then is kept for backward.
    void forward_ended() { kept_ = run.live() - start_; }
    void clean_memory_on_device();

    const job::Job& job;
    const job::Training& training;
    Run& run;
    Part unet;
    std::unique_ptr<Part> vae;
    std::vector<std::unique_ptr<Part>> text_encoders;
    run::Facts facts;

  private:
    void tell(std::string name, std::string kind);
    void load();
    void cache_latents();
    void sample_images(const std::string& name);
    [[nodiscard]] Batch next_batch(const job::Batch& sizes);
    void step(const std::string& name, const job::Batch& sizes, run::Optimizer& optimizer);
    [[nodiscard]] Tensor process_batch(Batch& batch);
    [[nodiscard]] Bytes kept_without_checkpointing(const job::Batch& sizes);
    [[nodiscard]] Tensors text_conds(Batch& batch);
    void apply_max_norm_regularization();
    void apply_noise_offset(const Tensor& latents, Tensor& noise);
    void pyramid_noise_like(Tensor& noise);
    [[nodiscard]] Tensor encode_in_chunks(const Batch& batch, Tensors& list_latents);
    void all_reduce_network(const run::Optimizer& optimizer);
    [[nodiscard]] Dtype latents_dtype() const;  ///< of a batch's
    void checkpoint(bool on);
    [[nodiscard]] run::Parameters trainable();

    [[nodiscard]] Tensor mixed(const Tensor& first, const Tensor& second, Dtype dtype);

    Tensor all_snr_, alphas_cumprod_;  // of the noise scheduler; the latter where it stands on the GPU
    Batch batch_;                      // train()'s name for one, until the next one is there
    struct Scaler {
        Tensor scale, growth_tracker, found_inf;
    };
    /// scaler.scale(loss), scaler.unscale_(optimizer), scaler.update(), with fp16; the first makes the scale.
    [[nodiscard]] bool scales() const;
    [[nodiscard]] Tensor scaled(const Tensor& loss);
    void unscale();

    Scaler scaler_;
    Tensor loss_;
    std::deque<shadow::Parameter> leaves_;  // of the graph of `loss`
    Bytes start_ = 0, kept_ = 0;            // what lives as a step begins; and above that, as its forward has ended
};

// One a file: stable_diffusion.cpp, sdxl.cpp, flux.cpp. `job`, `catalogue` and `run` outlive what they return.

/// train_network.py's own NetworkTrainer, of Stable Diffusion 1 and 2.
[[nodiscard]] std::unique_ptr<NetworkTrainer> make_stable_diffusion(const job::Job& job,
                                                                    const profile::Catalogue& catalogue, Run& run);
/// SdxlNetworkTrainer, sdxl_train_network.py.
[[nodiscard]] std::unique_ptr<NetworkTrainer> make_sdxl(const job::Job& job, const profile::Catalogue& catalogue,
                                                        Run& run);
/// FluxNetworkTrainer, flux_train_network.py.
[[nodiscard]] std::unique_ptr<NetworkTrainer> make_flux(const job::Job& job, const profile::Catalogue& catalogue,
                                                        Run& run);

}  // namespace vram::trainers::sd_scripts
