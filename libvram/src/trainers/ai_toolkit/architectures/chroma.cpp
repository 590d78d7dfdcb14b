// `arch: chroma`: ChromaModel and its ChromaPipeline (extensions_built_in/diffusion_models/chroma, 27a03a91).
#include "shadow/ops.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/architectures/flux_pipeline.hpp"

namespace vram::trainers::ai_toolkit::chroma {
namespace {

using shadow::Category;
using shadow::ComponentScope;
using shadow::NoGrad;
using shadow::Op;
using shadow::StageScope;

class Chroma final : public FluxPipeline {
  public:
    Chroma(const job::Job& job_in, const profile::Catalogue& catalogue, Run& run_in)
        : FluxPipeline(architecture, job_in, catalogue, run_in) {}

    // The VAE comes, too, and stays until something sends it away.
    void load_model(Loading& loading) override {
        load_on_gpu(loading);
        vae->to_gpu();
        flush();
    }

    [[nodiscard]] PromptEmbeds get_prompt_embeds(const Prompts& prompts) override {
        PromptEmbeds out;
        {
            const Tensor ids = run.empty({prompts.count, job.text_tokens}, Dtype::i64, Op::to_device);
            models::Request request;
            request.batch = prompts.count;
            request.text_tokens = job.text_tokens;
            request.dtype = job.pipeline.text_encoder_dtype;
            out.text_embeds = {text_encoders[0]->forward({ids}, request)[0]};
        }
        // It waits on the host until it is asked for.
        out.attention_mask = run.empty({prompts.count, job.text_tokens}, job.dtype, Op::to_device);
        return out;
    }

    [[nodiscard]] Tensor get_noise_prediction(const Tensor& latent_model_input, const Tensor& timestep,
                                              const PromptEmbeds& text_embeddings, const job::Batch& batch) override {
        const models::Request request = request_of(batch, text_embeddings);
        Tensor latent_model_input_packed, img_ids, txt_ids, guidance;
        {
            const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
            const NoGrad no_grad(run);
            latent_model_input_packed = packed(latent_model_input);
            img_ids = run.empty({batch.count, latent_model_input_packed.size(1), 3}, Dtype::f32, Op::to_device);
            txt_ids = run.empty({batch.count, request.text_tokens, 3}, Dtype::f32, Op::to_device);
            guidance = run.empty({1}, Dtype::f32, Op::full);
            guidance = shadow::expand(std::move(guidance), {batch.count});
        }
        Tensor noise_pred =
            predict(latent_model_input_packed, img_ids, text_embeddings, txt_ids, timestep, guidance, request);
        return unpacked(std::move(noise_pred), batch);
    }

    /// ChromaPipeline.__call__ with given embeds.
    void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds& unconditional_embeds,
                               const job::Batch& image) override {
        const models::Request request = request_of(image, conditional_embeds);
        const bool guides = job.sampling.guidance > 1.00001;
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        Call call;
        Tensor negative_text_ids, noise_pred_text, noise_pred_uncond;
        {
            const StageScope stage(run, "denoise");
            call.text_ids = run.empty({1, request.text_tokens, 3}, Dtype::bf16, Op::to_device);
            if (guides) negative_text_ids = run.empty({1, request.text_tokens, 3}, Dtype::bf16, Op::to_device);
            prepare_latents(call, image, request);
            call.latent_image_ids = shadow::unsqueeze(std::move(call.latent_image_ids), 0);
            retrieve_timesteps(call, request);
            for (int i = 0; i < 2; ++i) {
                call.timestep = run.empty({1}, job.dtype, Op::to_copy);
                noise_pred_text = predict(call.latents, call.latent_image_ids, conditional_embeds, call.text_ids,
                                          call.timestep, call.guidance, request);
                if (guides) {
                    noise_pred_uncond = predict(call.latents, call.latent_image_ids, unconditional_embeds,
                                                negative_text_ids, call.timestep, call.guidance, request);
                    Tensor away = shadow::sub(noise_pred_text, noise_pred_uncond);
                    away = shadow::mul_scalar(std::move(away));
                    call.noise_pred = shadow::add(noise_pred_uncond, std::move(away));
                } else {
                    call.noise_pred = noise_pred_text;
                }
                scheduler_step(call);
            }
        }
        const StageScope stage(run, "decode");
        decode_latents(call, image);
    }

  private:
    /// transformer(**args)
    [[nodiscard]] Tensor predict(const Tensor& img, const Tensor& img_ids, const PromptEmbeds& embeds,
                                 const Tensor& txt_ids, const Tensor& timestep, const Tensor& guidance,
                                 const models::Request& request) {
        Tensor timesteps;
        {
            const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
            timesteps = shadow::div_scalar(timestep);  // timestep / 1000
        }
        return transform(
            {img, img_ids, embeds.text_embeds[0], txt_ids, embeds.attention_mask, std::move(timesteps), guidance},
            request);
    }
};

constexpr std::string_view names[] = {"chroma"};
/// lora_special.py, create_modules: what it asks of a model that has `single_blocks`. Both lists end so.
constexpr std::string_view block_names[] = {"single_blocks", "double_blocks"};
constexpr std::string_view text_encoders[] = {"t5_xxl"};

bool plays(const profile::ModelProfile& profile) { return profile.family == "chroma"; }

std::string_view taken_for(std::string_view, std::string_view) { return "chroma1"; }

std::unique_ptr<Pipeline> make(const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
    return std::make_unique<Chroma>(job, catalogue, run);
}

}  // namespace

const Architecture architecture{
    .names = names,
    .title = "Chroma",
    .models = "Chroma",
    .vae = "vae_flux1",
    .text_encoders = text_encoders,
    .text_tokens = 512,
    .bucket_step = 32,
    .divisible_by = FluxPipeline::pixels_a_token,
    .own_denoiser = "chroma_ai_toolkit",
    .text_encoder_by_qtype = true,
    .modules = {.block_names = block_names},
    .plays = plays,
    .taken_for = taken_for,
    .make = make,
};

}  // namespace vram::trainers::ai_toolkit::chroma
