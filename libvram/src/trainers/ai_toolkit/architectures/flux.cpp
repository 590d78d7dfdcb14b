// `arch: flux` and `flex1`: the branches of StableDiffusion for FLUX (toolkit/stable_diffusion_model.py, 27a03a91), and
// diffusers' FluxPipeline.
#include "shadow/ops.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/pipeline.hpp"

namespace vram::trainers::ai_toolkit::flux {
namespace {

using shadow::Category;
using shadow::ComponentScope;
using shadow::NoGrad;
using shadow::Op;
using shadow::StageScope;

/// Two by two latent pixels are a token.
constexpr std::int64_t pixels_a_token = 16;

class Flux final : public Pipeline {
  public:
    Flux(const job::Job& job_in, const profile::Catalogue& catalogue, Run& run_in)
        : Pipeline(architecture, job_in, catalogue, run_in) {}

    void load_model(Loading& loading) override {
        const job::Pipeline& parts = job.pipeline;
        const bool quantizes = job.quantization != job::Quantization::none;
        const bool quantizes_text = parts.text_encoder_quantization != job::Quantization::none;
        if (!quantizes)
            transformer.to_gpu();
        else if (!parts.low_vram)
            transformer.load_full();  // with low_vram it waits on the host
        flush();
        if (quantizes || quantizes_text) loading.quantizes();
        if (quantizes && !parts.low_vram) {
            transformer.quantize();
            transformer.loaded();
        }
        transformer.to_gpu();
        flush();
        Part &text_encoder = *text_encoders[0], &text_encoder_2 = *text_encoders[1];
        if (!quantizes_text) {
            text_encoder_2.to_gpu();
            flush();
        } else {
            text_encoder_2.load_full();
            flush();
            text_encoder_2.quantize();
            text_encoder_2.loaded();
            flush();
        }
        text_encoder.to_gpu();
        flush();
        vae->to_gpu();
        vae->to_cpu();
        flush();
    }

    /// train_tools.py, encode_prompts_flux
    [[nodiscard]] PromptEmbeds get_prompt_embeds(const Prompts& prompts) override {
        Part &text_encoder = *text_encoders[0], &text_encoder_2 = *text_encoders[1];
        PromptEmbeds out;
        models::Request request;
        request.batch = prompts.count;
        request.text_tokens = 77;
        request.dtype = job.pipeline.text_encoder_dtype;
        Tensors prompt_embeds = text_encoder.forward(on_device(run, text_encoder.model->inputs(request)), request);
        out.pooled_embeds = prompt_embeds[1];  // pooler_output
        request.text_tokens = job.text_tokens;
        prompt_embeds = text_encoder_2.forward(on_device(run, text_encoder_2.model->inputs(request)), request);
        out.text_embeds = {prompt_embeds[0]};
        return out;
    }

    [[nodiscard]] Dims latents(const job::Batch& batch) const override {
        return {batch.count, 16, batch.height / 8, batch.width / 8};
    }

    [[nodiscard]] Tensor encode_images(Tensor image_list, const job::Batch& batch) override {
        return encode_kl(std::move(image_list), batch);
    }

    /// StableDiffusion.predict_noise, its branch for FLUX.
    [[nodiscard]] Tensor get_noise_prediction(const Tensor& latent_model_input, const Tensor& timestep,
                                              const PromptEmbeds& text_embeddings, const job::Batch& batch) override {
        const models::Request request = request_of(batch, text_embeddings);
        const std::int64_t height = batch.height / pixels_a_token, width = batch.width / pixels_a_token;
        Tensor latent_model_input_packed, img_ids, txt_ids, guidance;
        {
            const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
            const NoGrad no_grad(run);
            latent_model_input_packed = run.empty({batch.count, height * width, latent_model_input.size(1) * 4},
                                                  job.dtype, Op::clone);  // rearrange
            img_ids = run.empty({batch.count, height * width, 3}, Dtype::f32, Op::to_device);
            txt_ids = run.empty({batch.count, request.text_tokens, 3}, Dtype::f32, Op::to_device);
            img_ids = shadow::select(std::move(img_ids), 0, 0);
            txt_ids = shadow::select(std::move(txt_ids), 0, 0);
        }
        Tensors args{latent_model_input_packed, text_embeddings.text_embeds[0], text_embeddings.pooled_embeds};
        {
            const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
            if (transformer.takes("guidance", request)) {
                guidance = run.empty({1}, Dtype::f32, Op::to_device);
                guidance = shadow::expand(std::move(guidance), {batch.count});
            }
            args.push_back(shadow::div_scalar(timestep));  // timestep / 1000
            args.push_back(img_ids);
            args.push_back(txt_ids);
            if (guidance.defined()) args.push_back(guidance);
        }
        Tensor noise_pred = transform(args, request);
        args.clear();
        // rearrange "b (h w) (c ph pw) -> b c (h ph) (w pw)": a copy.
        noise_pred = shadow::view(std::move(noise_pred), {batch.count, height, width, 16, 2, 2});
        noise_pred = shadow::permute(std::move(noise_pred), {0, 3, 1, 4, 2, 5});
        noise_pred = shadow::reshape(std::move(noise_pred), {batch.count, 16, 2 * height, 2 * width});
        return noise_pred;
    }

    /// FluxPipeline.__call__ with given embeds.
    void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds&,
                               const job::Batch& image) override {
        const std::int64_t height = image.height / pixels_a_token, width = image.width / pixels_a_token;
        const std::int64_t tokens = height * width;
        const models::Request request = request_of(image, conditional_embeds);
        Tensor latents, noise_pred;
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        {
            const StageScope stage(run, "denoise");
            const Tensor text_ids = run.empty({request.text_tokens, 3}, job.dtype, Op::to_device);
            {
                const Tensor noise = run.empty(this->latents(image), job.dtype, Op::to_device);
                latents = run.empty({1, tokens, 64}, job.dtype, Op::clone);  // _pack_latents
            }
            const Tensor latent_image_ids = run.empty({tokens, 3}, job.dtype, Op::to_device);
            const Tensor timesteps = run.empty({job.sampling.steps}, Dtype::f32, Op::to_device);
            const Tensor sigmas = run.empty({job.sampling.steps + 1}, Dtype::f32, Op::cat);
            Tensor guidance;
            if (transformer.takes("guidance", request)) guidance = run.empty({1}, Dtype::f32, Op::to_device);
            Tensor timestep;
            for (int i = 0; i < 2; ++i) {
                timestep = run.empty({1}, job.dtype, Op::to_copy);
                {
                    Tensors args{latents, conditional_embeds.text_embeds[0], conditional_embeds.pooled_embeds};
                    args.push_back(shadow::div_scalar(timestep));
                    args.push_back(latent_image_ids);
                    args.push_back(text_ids);
                    if (guidance.defined()) args.push_back(guidance);
                    noise_pred = transform(args, request);
                }
                // FlowMatchEulerDiscreteScheduler.step: in fp32.
                const Tensor sample = shadow::to_float(latents);
                Tensor prev_sample;
                {
                    const Tensor moved = shadow::mul_scalar(noise_pred);
                    prev_sample = run.empty(sample.sizes(), Dtype::f32, Op::add);
                }
                prev_sample = shadow::to(prev_sample, job.dtype);
                latents = prev_sample;
            }
        }
        {
            const StageScope stage(run, "decode");
            latents = run.empty(this->latents(image), job.dtype, Op::clone);  // _unpack_latents
            Tensor scaled = shadow::div_scalar(latents);
            latents = shadow::add_scalar(std::move(scaled));
            decode(latents, image);
        }
    }
};

constexpr std::string_view names[] = {"flux", "flex1"};
constexpr std::string_view block_names[] = {"transformer_blocks"};  // "single_" is in front of it, too
constexpr std::string_view text_encoders[] = {"clip_l", "t5_xxl"};

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
    .divisible_by = pixels_a_token,
    .modules = {.block_names = block_names},
    .plays = plays,
    .taken_for = taken_for,
    .make = make,
};

}  // namespace vram::trainers::ai_toolkit::flux
