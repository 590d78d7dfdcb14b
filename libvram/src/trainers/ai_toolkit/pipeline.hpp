#pragma once

#include <memory>
#include <string>

#include "models/model.hpp"
#include "nn/quantize/quanto.hpp"
#include "vram/job/job.hpp"
#include "vram/profile/catalogue.hpp"

namespace vram::trainers::ai_toolkit {

using shadow::Run;
using shadow::Tensor;
using shadow::Tensors;

/// toolkit/prompt_utils.py, PromptEmbeds, as FLUX has them.
struct PromptEmbeds {
    Tensor text_embeds;    // [B, T, 4096]
    Tensor pooled_embeds;  // [B, 768]
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

/// StableDiffusion (toolkit/stable_diffusion_model.py) with a FLUX model.
class Pipeline {
  public:
    Pipeline(const job::Job& job, const profile::Catalogue& catalogue, Run& run);

    struct Placement {
        bool vae = false, transformer = false, text_encoder = false;
        bool operator==(const Placement&) const = default;
    };
    [[nodiscard]] Placement placement() const;
    /// set_device_state, in its order: the VAE, the transformer, the text encoders; then flush.
    void place(const Placement& where);
    /// unload_text_encoder: what is cached needs no encoder any more.
    void free_text_encoders();

    /// encode_prompts_flux for `count` prompts.
    [[nodiscard]] PromptEmbeds encode_prompt(std::int64_t count);
    /// encode_images: [B, 3, H, W] → [B, 16, H/8, W/8], through the VAE's distribution.
    [[nodiscard]] Tensor encode_images(Tensor image_list, const job::Batch& batch);
    /// vae.decode of latents [1, 16, H/8, W/8] → [1, 3, H, W].
    [[nodiscard]] Tensor decode(Tensor latents, const job::Batch& batch);

    void flush();  ///< torch.cuda.empty_cache()

    Run& run;
    const job::Job& job;
    Part transformer;
    std::unique_ptr<Part> vae, text_encoder, text_encoder_2;
};

}  // namespace vram::trainers::ai_toolkit
