// `arch: sd3`: the branches of StableDiffusion for Stable Diffusion 3 and 3.5 (toolkit/stable_diffusion_model.py,
// 27a03a91), and diffusers' StableDiffusion3Pipeline.
#include "shadow/ops.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/architectures/stable_diffusion.hpp"

namespace vram::trainers::ai_toolkit::sd3 {
namespace {

using shadow::Category;
using shadow::ComponentScope;
using shadow::StageScope;

/// _get_t5_prompt_embeds pads to it.
constexpr std::int64_t t5_tokens = 256;

class StableDiffusion3 final : public StableDiffusion {
  public:
    StableDiffusion3(const job::Job& job_in, const profile::Catalogue& catalogue, Run& run_in)
        : StableDiffusion(architecture, job_in, catalogue, run_in, 16, true) {}

    void load_model(Loading& loading) override {
        const bool quantizes = job.quantization != job::Quantization::none;
        load_transformer(loading, quantizes);
        load_text_encoder(*text_encoders[2], quantizes);
        text_encoders[0]->to_gpu();
        text_encoders[1]->to_gpu();
        finish_loading();
    }

    /// train_tools.py, encode_prompts_sd3
    [[nodiscard]] PromptEmbeds get_prompt_embeds(const Prompts& prompts) override {
        Part& text_encoder_3 = *text_encoders[2];
        const Clip first = encode_projected(*text_encoders[0], prompts.count);
        const Clip second = encode_projected(*text_encoders[1], prompts.count);
        Tensor clip_prompt_embeds = shadow::cat({first.prompt_embeds, second.prompt_embeds}, -1);
        Tensor t5_prompt_embed;
        {
            models::Request request;
            request.batch = prompts.count;
            request.text_tokens = t5_tokens;
            request.dtype = job.pipeline.text_encoder_dtype;
            t5_prompt_embed = text_encoder_3.forward(on_device(run, text_encoder_3.model->inputs(request)), request)[0];
        }
        t5_prompt_embed = shadow::repeat(t5_prompt_embed, {1, 1, 1});
        clip_prompt_embeds = shadow::pad(clip_prompt_embeds, {0, t5_prompt_embed.size(2) - clip_prompt_embeds.size(2)});
        PromptEmbeds out;
        out.text_embeds = {shadow::cat({clip_prompt_embeds, t5_prompt_embed}, 1)};
        out.pooled_embeds = shadow::cat({first.pooled, second.pooled}, -1);
        return out;
    }

    [[nodiscard]] Tensor get_noise_prediction(const Tensor& latent_model_input, const Tensor& timestep,
                                              const PromptEmbeds& text_embeddings, const job::Batch& batch) override {
        return transform({latent_model_input, text_embeddings.text_embeds[0], text_embeddings.pooled_embeds, timestep},
                         request_of(batch, text_embeddings));
    }

    /// StableDiffusion3Pipeline.__call__ with given embeds.
    void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds& unconditional_embeds,
                               const job::Batch& image) override {
        Loop loop;
        Tensor prompt_embeds = conditional_embeds.text_embeds[0],
               pooled_prompt_embeds = conditional_embeds.pooled_embeds;
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        {
            const StageScope stage(run, "denoise");
            job::Batch batch = image;
            if (guides()) {
                batch.count = 2;
                prompt_embeds = shadow::cat({unconditional_embeds.text_embeds[0], prompt_embeds}, 0);
                pooled_prompt_embeds = shadow::cat({unconditional_embeds.pooled_embeds, pooled_prompt_embeds}, 0);
            }
            loop.latents = prepare_latents(image, false);
            set_timesteps(loop);
            const models::Request request = request_of(batch, conditional_embeds);
            denoise(loop, [&](const Tensor& latent_model_input, const Tensor& t) {
                const Tensor timestep = shadow::expand(t, {batch.count});
                return transform({latent_model_input, prompt_embeds, pooled_prompt_embeds, timestep}, request);
            });
        }
        const StageScope stage(run, "decode");
        Tensor scaled = shadow::div_scalar(loop.latents);
        loop.latents = shadow::add_scalar(std::move(scaled));
        decode(loop.latents, image);
    }

  private:
    /// _get_clip_prompt_embeds: the pooled output is repeated, too.
    [[nodiscard]] Clip encode_projected(Part& text_encoder, std::int64_t count) {
        Clip out = encode_clip(text_encoder, count, true);
        out.pooled = shadow::repeat(out.pooled, {1, 1});
        return out;
    }
};

constexpr std::string_view names[] = {"sd3"};
constexpr std::string_view text_encoders[] = {"clip_l_projection", "openclip_bigg", "t5_xxl"};
constexpr TrainedText trained_text[] = {trained_clip("lora_te1.text_model", '$'),
                                        trained_clip("lora_te2.text_model", '$')};
constexpr std::string_view block_names[] = {"transformer_blocks"};

bool plays(const profile::ModelProfile& profile) { return profile.family == "sd3"; }

std::string_view taken_for(std::string_view, std::string_view name) {
    const auto holds = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
    const bool is_35 = holds("3.5") || holds("35") || holds("3_5") || holds("3-5");
    if (holds("large")) return "sd35_large";
    if (holds("medium")) return is_35 ? "sd35_medium" : "sd3_medium";
    return {};
}

std::unique_ptr<Pipeline> make(const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
    return std::make_unique<StableDiffusion3>(job, catalogue, run);
}

}  // namespace

// Buckets: stable_diffusion_model.py, get_bucket_divisibility. The T5 is quantised by `quantize` and `qtype`.
const Architecture architecture{
    .names = names,
    .title = "Stable Diffusion 3",
    .models = "Stable Diffusion 3 and 3.5",
    .vae = "vae_sd3_16ch",
    .text_encoders = text_encoders,
    .text_tokens = clip_tokens + t5_tokens,
    .bucket_step = 32,
    .divisible_by = 16,
    .text_encoder_by_qtype = true,
    .text_encoder_by_quantize = true,
    .any_scheduler = true,
    .modules = {.block_names = block_names},
    .trained_text = trained_text,
    .text_encoders_have_backward = true,
    .plays = plays,
    .taken_for = taken_for,
    .make = make,
};

}  // namespace vram::trainers::ai_toolkit::sd3
