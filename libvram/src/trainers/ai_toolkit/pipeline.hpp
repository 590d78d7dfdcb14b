#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/model.hpp"
#include "nn/quantize/quanto.hpp"
#include "vram/job/job.hpp"
#include "vram/profile/catalogue.hpp"
#include "vram/run/facts.hpp"

namespace vram::trainers::ai_toolkit {

using shadow::Dims;
using shadow::Run;
using shadow::Tensor;
using shadow::Tensors;

/// toolkit/prompt_utils.py, PromptEmbeds.
struct PromptEmbeds {
    Tensor text_embeds;    // [B, T, D]
    Tensor pooled_embeds;  // [B, D], of architectures that pool; else undefined
};
/// Of each tensor a copy. `detach` is one, too: PromptEmbeds.detach clones.
[[nodiscard]] PromptEmbeds clone(const PromptEmbeds& embeds);
/// concat_prompt_embeds([embeds] * count).
[[nodiscard]] PromptEmbeds repeated(const PromptEmbeds& embeds, std::int64_t count);

/// One model of the pipeline, and where it stands. The adapter's matrices are no part of the model: they stay where
/// they are.
class Part {
  public:
    Part(Run& run, std::string component, nn::Rules rules, const profile::ModelProfile& profile);

    [[nodiscard]] Tensors forward(const Tensors& args, const models::Request& request);
    /// Whether forward has an argument of this name.
    [[nodiscard]] bool takes(std::string_view argument, const models::Request& request) const;
    /// module.to(device).
    void to_gpu();
    void to_cpu();
    void move(bool to_gpu_if_true) { to_gpu_if_true ? to_gpu() : to_cpu(); }
    [[nodiscard]] bool on_gpu() const noexcept { return on_gpu_; }
    /// from_pretrained, .to(gpu) in full, quanto's quantize and freeze.
    void load_full() { loader_.load(); }
    void quantize();
    void loaded() { on_gpu_ = true; }

    nn::Weights weights;
    std::unique_ptr<models::Model> model;

  private:
    std::string component_;
    nn::quantize::QuantoLoader loader_;
    bool on_gpu_ = false;
};

/// The two phases in which models arrive: `load`, and from `quantizes` on `quantize`.
class Loading {
  public:
    Loading(Run& run, run::Facts& facts);
    void quantizes();

  private:
    void begin(const char* name);

    Run& run_;
    run::Facts& facts_;
    std::optional<shadow::PhaseScope> phase_;
};

/// BaseModel (toolkit/models/base_model.py): the models of a job, where they stand, and what each architecture does its
/// own way. Plays call it in the trainer's order.
class Pipeline {
  public:
    virtual ~Pipeline() = default;
    Pipeline(const Pipeline&) = delete;
    Pipeline& operator=(const Pipeline&) = delete;

    struct Placement {
        bool vae = false, transformer = false, text_encoder = false;
        bool operator==(const Placement&) const = default;
    };
    [[nodiscard]] Placement placement() const;
    /// set_device_state, in its order: the VAE, the transformer, the text encoders; then flush.
    void place(const Placement& where);
    /// unload_text_encoder: what is cached needs no encoder any more.
    void free_text_encoders();
    void park_text_encoders();  ///< text_encoder_to("cpu"), then flush

    /// Where the models arrive, until all of them stand where the loop will look for them.
    virtual void load_model(Loading& loading) = 0;
    /// Of `count` prompts.
    [[nodiscard]] virtual PromptEmbeds get_prompt_embeds(std::int64_t count) = 0;
    /// Latents of this batch.
    [[nodiscard]] virtual Dims latents(const job::Batch& batch) const = 0;
    /// encode_images: [B, 3, H, W] → latents, through the VAE's distribution.
    [[nodiscard]] virtual Tensor encode_images(Tensor image_list, const job::Batch& batch) = 0;
    /// What predict_noise leaves to the architecture: `latent_model_input` is scaled already, `timestep` [B] counts to
    /// 1000.
    [[nodiscard]] virtual Tensor get_noise_prediction(const Tensor& latent_model_input, const Tensor& timestep,
                                                      const PromptEmbeds& text_embeddings, const job::Batch& batch) = 0;
    /// generate_single_image, and diffusers' pipeline under it: stages denoise and decode.
    virtual void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds& unconditional_embeds,
                                       const job::Batch& image) = 0;

    void flush();  ///< torch.cuda.empty_cache()

    Run& run;
    const job::Job& job;
    Part transformer;
    std::unique_ptr<Part> vae;
    std::vector<std::unique_ptr<Part>> text_encoders;
    std::vector<run::InputTensor>* handed = nullptr;  // where the transformer's next call tells what it is handed

  protected:
    /// The last text encoder is quantised, if any is.
    Pipeline(const job::Job& job, const profile::Catalogue& catalogue, Run& run);

    /// Of a batch of this size, in the model's dtype.
    [[nodiscard]] models::Request request_of(const job::Batch& batch, const PromptEmbeds& embeds) const;
    /// Of `count` items of this size, in the VAE's dtype.
    [[nodiscard]] models::Request vae_request(const job::Batch& batch, std::int64_t count,
                                              models::Request::Operation operation) const;
    /// transformer(**args)[0]
    [[nodiscard]] Tensor transform(const Tensors& args, const models::Request& request);
    /// vae.encode(images).latent_dist.sample(): the distribution dies with it.
    [[nodiscard]] Tensor sample_latents(const Tensor& images, const job::Batch& batch);
    /// vae.decode(latents).sample of one picture, and VaeImageProcessor.postprocess of it.
    void decode(const Tensor& latents, const job::Batch& image);
};

/// What a tokenizer or a host hands over.
[[nodiscard]] Tensors on_device(Run& run, const std::vector<models::Value>& values);

}  // namespace vram::trainers::ai_toolkit
