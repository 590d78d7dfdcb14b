// `arch: flux` and `flex1`: the branches of StableDiffusion for FLUX (toolkit/stable_diffusion_model.py, 27a03a91), and
// diffusers' FluxPipeline.
#include "shadow/ops.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/architectures/flux_pipeline.hpp"

namespace vram::trainers::ai_toolkit::flux {
namespace {

using shadow::Category;
using shadow::ComponentScope;
using shadow::NoGrad;
using shadow::Op;
using shadow::StageScope;

class Flux final : public FluxPipeline {
  public:
    Flux(const job::Job& job_in, const profile::Catalogue& catalogue, Run& run_in)
        : FluxPipeline(architecture, job_in, catalogue, run_in) {}

    void load_model(Loading& loading) override {
        const bool quantizes_text = job.pipeline.text_encoder_quantization != job::Quantization::none;
        load_transformer(loading, job.quantization != job::Quantization::none || quantizes_text);
        load_text_encoder(*text_encoders[1], quantizes_text);
        text_encoders[0]->to_gpu();
        flush();
        vae->to_gpu();
        vae->to_cpu();
        flush();
    }

    /// StableDiffusion.predict_noise, its branch for FLUX.
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
            img_ids = shadow::select(std::move(img_ids), 0, 0);
            txt_ids = shadow::select(std::move(txt_ids), 0, 0);
            if (takes_guidance(request)) {
                guidance = run.empty({1}, Dtype::f32, Op::to_device);
                guidance = shadow::expand(std::move(guidance), {batch.count});
            }
        }
        Tensor noise_pred =
            flux_transform(latent_model_input_packed, timestep, text_embeddings, img_ids, txt_ids, guidance, request);
        return unpacked(std::move(noise_pred), batch);
    }

    /// FluxPipeline.__call__ with given embeds.
    void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds&,
                               const job::Batch& image) override {
        const models::Request request = request_of(image, conditional_embeds);
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        Call call;
        {
            const StageScope stage(run, "denoise");
            prepare_latents(call, image, request);
            retrieve_timesteps(call, request);
            for (int i = 0; i < 2; ++i) {
                call.timestep = run.empty({1}, job.dtype, Op::to_copy);
                call.noise_pred = flux_transform(call.latents, call.timestep, conditional_embeds, call.latent_image_ids,
                                                 call.text_ids, call.guidance, request);
                scheduler_step(call);
            }
        }
        const StageScope stage(run, "decode");
        decode_latents(call, image);
    }
};

constexpr std::string_view names[] = {"flux", "flex1"};
constexpr std::string_view block_names[] = {"transformer_blocks"};  // "single_" is in front of it, too
constexpr std::string_view text_encoders[] = {"clip_l", "t5_xxl"};
constexpr TrainedText trained_text[] = {trained_clip("lora_te1.text_model", '$')};

// Text to image alone: no pictures behind the noisy tokens, none beside the noisy channels.
bool plays(const profile::ModelProfile& profile) {
    return profile.family == "flux" && !profile.reference_images && profile.config.integer("in_channels") == 64;
}

std::string_view taken_for(std::string_view arch, std::string_view name) {
    const auto holds = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
    if (arch == "flex1" || holds("flex.1") || holds("flex1")) return "flex1";
    if (holds("schnell")) return "flux1_schnell";
    if (holds("flux") && holds("dev")) return "flux1_dev";
    return {};
}

std::unique_ptr<Pipeline> make(const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
    return std::make_unique<Flux>(job, catalogue, run);
}

}  // namespace

// Buckets: stable_diffusion_model.py, get_bucket_divisibility. Prompts are padded to 512.
const Architecture architecture{
    .names = names,
    .title = "FLUX",
    .models = "FLUX.1 and Flex.1",
    .vae = "vae_flux1",
    .text_encoders = text_encoders,
    .text_tokens = 512,
    .bucket_step = 32,
    .divisible_by = FluxPipeline::pixels_a_token,
    .takes_quantize_kwargs = true,
    .text_encoder_by_qtype = true,
    .modules = {.block_names = block_names},
    .trained_text = trained_text,
    .text_encoders_have_backward = true,
    .plays = plays,
    .taken_for = taken_for,
    .make = make,
};

}  // namespace vram::trainers::ai_toolkit::flux
