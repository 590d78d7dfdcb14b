// `arch: sd1`, `sd15`, `sd2` and `sdxl`: the branches of StableDiffusion for UNets (toolkit/stable_diffusion_model.py,
// 27a03a91), diffusers' StableDiffusionPipeline and StableDiffusionXLPipeline; and what all of that class share.
#include "trainers/ai_toolkit/architectures/stable_diffusion.hpp"

#include <utility>

#include "shadow/ops.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"

namespace vram::trainers::ai_toolkit {
namespace {

using shadow::Category;
using shadow::ComponentScope;
using shadow::NoGrad;
using shadow::Op;
using shadow::StageScope;

constexpr std::string_view flowmatch = "flowmatch";
constexpr std::int64_t train_timesteps = 1000;

}  // namespace

StableDiffusion::StableDiffusion(const Architecture& architecture, const job::Job& job_in,
                                 const profile::Catalogue& catalogue, Run& run_in, std::int64_t latent_channels,
                                 bool is_flow_matching)
    : Pipeline(architecture, job_in, catalogue, run_in),
      latent_channels_(latent_channels),
      is_flow_matching_(is_flow_matching) {}

Dims StableDiffusion::latents(const job::Batch& batch) const {
    return {batch.count, latent_channels_, batch.height / 8, batch.width / 8};
}

Tensor StableDiffusion::encode_images(Tensor image_list, const job::Batch& batch) {
    return encode_kl(std::move(image_list), batch);
}

bool StableDiffusion::flow_matches() const { return std::get<job::Training>(job.work).noise_scheduler == flowmatch; }

Tensor StableDiffusion::set_train_timesteps() {
    if (flow_matches()) return Pipeline::set_train_timesteps();
    return run.empty({train_timesteps}, Dtype::i64, Op::to_device);
}

Tensor StableDiffusion::add_noise(const Tensor& original_sample, const Tensor& noise, const Tensor& timestep) {
    if (flow_matches()) return Pipeline::add_noise(original_sample, noise, timestep);
    // DDPMScheduler.add_noise: its table goes to the GPU once, and is cast to the samples' type every time.
    if (!alphas_cumprod_.defined()) alphas_cumprod_ = run.empty({train_timesteps}, Dtype::f32, Op::to_device);
    const Tensor alphas_cumprod = shadow::to(alphas_cumprod_, original_sample.dtype());
    Dims each{timestep.size(0)};
    Tensor sqrt_alpha_prod = run.empty(each, alphas_cumprod.dtype(), Op::index);
    sqrt_alpha_prod = shadow::pow_scalar(std::move(sqrt_alpha_prod));
    Tensor sqrt_one_minus_alpha_prod = run.empty(each, alphas_cumprod.dtype(), Op::index);
    sqrt_one_minus_alpha_prod = shadow::rsub_scalar(std::move(sqrt_one_minus_alpha_prod));
    sqrt_one_minus_alpha_prod = shadow::pow_scalar(std::move(sqrt_one_minus_alpha_prod));
    while (each.rank() < original_sample.rank()) each.push_back(1);
    const Tensor kept = shadow::mul(shadow::view(sqrt_alpha_prod, each), original_sample);
    Tensor added = shadow::mul(shadow::view(sqrt_one_minus_alpha_prod, each), noise);
    return shadow::add(kept, std::move(added));
}

Tensor StableDiffusion::get_loss_target(const Tensor& noise, const Tensor& batch_latents) {
    if (is_flow_matching_ || flow_matches()) return Pipeline::get_loss_target(noise, batch_latents);
    return noise;
}

void StableDiffusion::add_all_snr() {
    if (flow_matches()) return;  // it has no alphas_cumprod
    const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
    all_snr_ = run.empty({train_timesteps}, Dtype::f32, Op::to_device);
}

void StableDiffusion::finish_loading() {
    vae->to_gpu();
    transformer.to_gpu();
    vae->to_cpu();
    flush();
}

StableDiffusion::Clip StableDiffusion::encode_clip(Part& text_encoder, std::int64_t count, bool projected) {
    models::Request request;
    request.batch = count;
    request.text_tokens = clip_tokens;
    request.dtype = job.pipeline.text_encoder_dtype;
    request.all_hidden_states = true;
    Clip out;
    {
        const Tensors tokens = on_device(run, text_encoder.model->inputs(request));
        // {before the first layer, after each, last_hidden_state, pooled}: hidden_states[-2]
        const Tensors prompt_embeds = text_encoder.forward(tokens, request);
        out.pooled = prompt_embeds[prompt_embeds.size() - (projected ? 1 : 2)];
        out.prompt_embeds = prompt_embeds[prompt_embeds.size() - 4];
    }
    out.prompt_embeds = shadow::repeat(out.prompt_embeds, {1, 1, 1});
    return out;
}

void StableDiffusion::set_timesteps(Loop& loop) const {
    const std::int64_t steps = job.sampling.steps;
    if (job.sampling.sampler == flowmatch) {
        loop.timesteps = run.empty({steps}, Dtype::f32, Op::to_device);
        loop.sigmas = run.empty({steps + 1}, Dtype::f32, Op::cat);
    } else {
        loop.timesteps = run.empty({steps}, Dtype::i64, Op::to_device);
    }
}

Tensor StableDiffusion::prepare_latents(const job::Batch& image, bool scaled) const {
    Tensor latents = run.empty(this->latents(image), job.dtype, Op::to_device);
    if (scaled) latents = shadow::mul_scalar(latents);
    return latents;
}

void StableDiffusion::denoise(Loop& loop, const Predict& predict, bool learned_sigma) {
    for (int i = 0; i < 2; ++i) {
        const Tensor t = shadow::slice(loop.timesteps, 0, 0, 1);
        loop.latent_model_input = guides() ? shadow::cat({loop.latents, loop.latents}, 0) : loop.latents;
        loop.noise_pred = predict(loop.latent_model_input, t);
        if (guides()) {
            const Tensors chunks = shadow::chunk(loop.noise_pred, 2, 0);
            loop.noise_pred_uncond = chunks[0];
            loop.noise_pred_text = chunks[1];
            Tensor guided = shadow::sub(loop.noise_pred_text, loop.noise_pred_uncond);
            guided = shadow::mul_scalar(std::move(guided));
            loop.noise_pred = shadow::add(loop.noise_pred_uncond, std::move(guided));
        }
        if (learned_sigma) loop.noise_pred = shadow::chunk(loop.noise_pred, 2, 1)[0];
        loop.latents = step(loop.noise_pred, loop.latents);
    }
}

Tensor StableDiffusion::step(const Tensor& model_output, const Tensor& sample) const {
    if (job.sampling.sampler == flowmatch) {
        // FlowMatchEulerDiscreteScheduler.step: in fp32.
        const Tensor sample_float = shadow::to_float(sample);
        Tensor moved = shadow::mul_scalar(model_output);
        Tensor prev_sample = shadow::add(sample_float, std::move(moved));
        return shadow::to(std::move(prev_sample), model_output.dtype());
    }
    // DDPMScheduler.step; its table is on the host, so its factors are numbers.
    Tensor pred_original_sample;
    {
        Tensor rest = shadow::mul_scalar(model_output);
        rest = shadow::sub(sample, std::move(rest));
        pred_original_sample = shadow::div_scalar(std::move(rest));
    }
    Tensor pred_prev_sample;
    {
        const Tensor original = shadow::mul_scalar(pred_original_sample);
        Tensor current = shadow::mul_scalar(sample);
        pred_prev_sample = shadow::add(original, std::move(current));
    }
    const Tensor variance_noise = run.empty(model_output.sizes(), model_output.dtype(), Op::to_device);
    const Tensor variance = shadow::mul_scalar(variance_noise);
    return shadow::add(pred_prev_sample, variance);
}

bool StableDiffusion::upcast_vae() {
    if (job.pipeline.vae_dtype != Dtype::f16) return false;
    vae_to(Dtype::f32);
    return true;
}

void StableDiffusion::vae_to(Dtype dtype) {
    const ComponentScope scope(run, vae->component(), Category::weights);
    for (shadow::Parameter& parameter : vae->weights.all_base())
        if (is_floating(parameter.value.dtype()))
            parameter.value = run.empty(parameter.value.sizes(), dtype, Op::to_copy);
}

namespace {

/// UNET_TARGET_REPLACE_MODULE, and with convolutions UNET_TARGET_REPLACE_MODULE_CONV2D_3X3 (toolkit/lora_special.py).
constexpr ModuleTree::Root unet_roots[] = {{"Transformer2DModel", ".attentions."},
                                           {"ResnetBlock2D", ".resnets."},
                                           {"Downsample2D", ".downsamplers."},
                                           {"Upsample2D", ".upsamplers."}};
constexpr std::string_view unet_untuned[] = {"time_embedding."};
constexpr ModuleTree unet_modules{
    .prefix = "lora_unet", .dot = '_', .roots = unet_roots, .tuned_prefix = "unet", .untuned = unet_untuned};

/// A CLIPTextModel whose parameters the keymap has, but for these.
constexpr TrainedText tuned_clip(std::string_view prefix, std::span<const std::string_view> untuned = {}) {
    TrainedText out = trained_clip(prefix, '_');
    out.is_tuned = true;
    out.untuned = untuned;
    return out;
}
/// OpenCLIP's own checkpoints have one matrix for the three, which no parameter of CLIPTextModel is mapped to.
constexpr std::string_view openclip_untuned[] = {"q_proj", "k_proj", "v_proj", "text_projection"};

}  // namespace

namespace sd1 {
namespace {

class UNet final : public StableDiffusion {
  public:
    UNet(const Architecture& architecture, const job::Job& job_in, const profile::Catalogue& catalogue, Run& run_in)
        : StableDiffusion(architecture, job_in, catalogue, run_in, 4, false) {}

    void load_model(Loading&) override {
        text_encoders[0]->to_gpu();
        finish_loading();
    }

    /// train_tools.py, encode_prompts
    [[nodiscard]] PromptEmbeds get_prompt_embeds(const Prompts& prompts) override {
        Part& text_encoder = *text_encoders[0];
        models::Request request;
        request.batch = prompts.count;
        request.text_tokens = clip_tokens;
        request.dtype = job.pipeline.text_encoder_dtype;
        const Tensors tokens = on_device(run, text_encoder.model->inputs(request));
        PromptEmbeds out;
        out.text_embeds = {text_encoder.forward(tokens, request)[0]};
        return out;
    }

    [[nodiscard]] Tensor get_noise_prediction(const Tensor& latent_model_input, const Tensor& timestep,
                                              const PromptEmbeds& text_embeddings, const job::Batch& batch) override {
        return transform({latent_model_input, timestep, text_embeddings.text_embeds[0]},
                         request_of(batch, text_embeddings));
    }

    /// StableDiffusionPipeline.__call__ with given embeds.
    void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds& unconditional_embeds,
                               const job::Batch& image) override {
        Loop loop;
        Tensor prompt_embeds, negative_prompt_embeds;
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        {
            const StageScope stage(run, "denoise");
            prompt_embeds = shadow::repeat(conditional_embeds.text_embeds[0], {1, 1, 1});
            job::Batch batch = image;
            if (guides()) {
                batch.count = 2;
                negative_prompt_embeds = shadow::repeat(unconditional_embeds.text_embeds[0], {1, 1, 1});
                prompt_embeds = shadow::cat({negative_prompt_embeds, prompt_embeds}, 0);
            }
            set_timesteps(loop);
            loop.latents = prepare_latents(image, true);
            const models::Request request = request_of(batch, conditional_embeds);
            denoise(loop, [&](const Tensor& latent_model_input, const Tensor& t) {
                return transform({latent_model_input, t, prompt_embeds}, request);
            });
        }
        const StageScope stage(run, "decode");
        decode(shadow::div_scalar(loop.latents), image);
    }
};

constexpr std::string_view names[] = {"sd1", "sd15"};
constexpr std::string_view text_encoders[] = {"clip_l"};
constexpr TrainedText trained_text[] = {tuned_clip("lora_te.text_model")};

bool plays(const profile::ModelProfile& profile) {
    return profile.family == "unet" && profile.config.integer("cross_attention_dim") == 768;
}

// There is one net of this architecture; what is trained from it has its shapes.
std::string_view taken_for(std::string_view, std::string_view) { return "sd15"; }

std::unique_ptr<Pipeline> make(const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
    return std::make_unique<UNet>(architecture, job, catalogue, run);
}

}  // namespace

// Buckets: stable_diffusion_model.py, get_bucket_divisibility: twice what the VAE makes of a pixel.
const Architecture architecture{
    .names = names,
    .title = "Stable Diffusion 1",
    .models = "Stable Diffusion 1",
    .vae = "vae_sd_4ch",
    .text_encoders = text_encoders,
    .text_tokens = clip_tokens,
    .bucket_step = 16,
    .divisible_by = 8,
    .denoiser = "unet",
    .quantizes = false,
    .any_scheduler = true,
    .modules = unet_modules,
    .trained_text = trained_text,
    .text_encoders_have_backward = true,
    .plays = plays,
    .taken_for = taken_for,
    .make = make,
};

}  // namespace sd1

namespace sd2 {
namespace {

constexpr std::string_view names[] = {"sd2"};
constexpr std::string_view text_encoders[] = {"openclip_h"};
constexpr TrainedText trained_text[] = {tuned_clip("lora_te.text_model", openclip_untuned)};

bool plays(const profile::ModelProfile& profile) {
    return profile.family == "unet" && profile.config.integer("cross_attention_dim") == 1024;
}

std::string_view taken_for(std::string_view, std::string_view) { return "sd21"; }

std::unique_ptr<Pipeline> make(const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
    return std::make_unique<sd1::UNet>(architecture, job, catalogue, run);
}

}  // namespace

const Architecture architecture{
    .names = names,
    .title = "Stable Diffusion 2",
    .models = "Stable Diffusion 2",
    .vae = "vae_sd_4ch",
    .text_encoders = text_encoders,
    .text_tokens = clip_tokens,
    .bucket_step = 16,
    .divisible_by = 8,
    .denoiser = "unet",
    .quantizes = false,
    .any_scheduler = true,
    .modules = unet_modules,
    .trained_text = trained_text,
    .text_encoders_have_backward = true,
    .plays = plays,
    .taken_for = taken_for,
    .make = make,
};

}  // namespace sd2

namespace sdxl {
namespace {

class StableDiffusionXL final : public StableDiffusion {
  public:
    StableDiffusionXL(const job::Job& job_in, const profile::Catalogue& catalogue, Run& run_in)
        : StableDiffusion(architecture, job_in, catalogue, run_in, 4, false) {}

    void load_model(Loading&) override {
        flush();
        for (const std::unique_ptr<Part>& text_encoder : text_encoders) text_encoder->to_gpu();
        finish_loading();
    }

    /// train_tools.py, encode_prompts_xl: both encoders, whatever use_text_encoder_1 and _2 say.
    [[nodiscard]] PromptEmbeds get_prompt_embeds(const Prompts& prompts) override {
        Clip first = encode_clip(*text_encoders[0], prompts.count, false);
        Clip second = encode_clip(*text_encoders[1], prompts.count, true);
        first.pooled = Tensor();  // the second's has its name now
        PromptEmbeds out;
        second.pooled = shadow::repeat(second.pooled, {1, 1});
        out.pooled_embeds = second.pooled;
        out.text_embeds = {shadow::cat({first.prompt_embeds, second.prompt_embeds}, 2)};
        return out;
    }

    [[nodiscard]] Tensor get_noise_prediction(const Tensor& latent_model_input, const Tensor& timestep,
                                              const PromptEmbeds& text_embeddings, const job::Batch& batch) override {
        Tensor add_time_ids;
        {
            const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
            const NoGrad no_grad(run);
            const Tensor one = run.empty({1, 6}, job.dtype, Op::to_device);  // get_time_ids_from_latents
            add_time_ids = run.empty({batch.count, 6}, job.dtype, Op::cat);
        }
        return transform(
            {latent_model_input, timestep, text_embeddings.text_embeds[0], text_embeddings.pooled_embeds, add_time_ids},
            request_of(batch, text_embeddings));
    }

    /// StableDiffusionXLPipeline.__call__ with given embeds.
    void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds& unconditional_embeds,
                               const job::Batch& image) override {
        Loop loop;
        Tensor prompt_embeds, negative_prompt_embeds, pooled_prompt_embeds, negative_pooled_prompt_embeds;
        Tensor add_text_embeds, add_time_ids;
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        {
            const StageScope stage(run, "denoise");
            prompt_embeds = shadow::repeat(conditional_embeds.text_embeds[0], {1, 1, 1});
            if (guides()) negative_prompt_embeds = shadow::repeat(unconditional_embeds.text_embeds[0], {1, 1, 1});
            pooled_prompt_embeds = shadow::repeat(conditional_embeds.pooled_embeds, {1, 1});
            if (guides()) negative_pooled_prompt_embeds = shadow::repeat(unconditional_embeds.pooled_embeds, {1, 1});
            set_timesteps(loop);
            loop.latents = prepare_latents(image, true);
            add_text_embeds = pooled_prompt_embeds;
            job::Batch batch = image;
            if (guides()) {
                batch.count = 2;
                prompt_embeds = shadow::cat({negative_prompt_embeds, prompt_embeds}, 0);
                add_text_embeds = shadow::cat({negative_pooled_prompt_embeds, add_text_embeds}, 0);
            }
            add_time_ids = run.empty({batch.count, 6}, job.dtype, Op::to_device);
            add_time_ids = shadow::repeat(add_time_ids, {1, 1});
            const models::Request request = request_of(batch, conditional_embeds);
            denoise(loop, [&](const Tensor& latent_model_input, const Tensor& t) {
                return transform({latent_model_input, t, prompt_embeds, add_text_embeds, add_time_ids}, request);
            });
        }
        const StageScope stage(run, "decode");
        const bool needs_upcasting = upcast_vae();
        if (needs_upcasting) loop.latents = shadow::to_float(loop.latents);
        loop.latents = shadow::div_scalar(loop.latents);
        decode(loop.latents, image);
        if (needs_upcasting) vae_to(Dtype::f16);
    }
};

/// unloader.py, FakeTextEncoder has no config.
constexpr std::string_view cached_samples_fail =
    "the pipeline asks the freed text encoder for its projection_dim; set disable_sampling: true";
constexpr std::string_view names[] = {"sdxl"};
constexpr std::string_view text_encoders[] = {"clip_l", "openclip_bigg"};
constexpr TrainedText trained_text[] = {tuned_clip("lora_te1.text_model"),
                                        tuned_clip("lora_te2.text_model", openclip_untuned)};

// With the pooled text and the sizes in its timestep; Kolors is told its text by another encoder.
bool plays(const profile::ModelProfile& profile) {
    return profile.family == "unet" && profile.config.text("addition_embed_type", "none") == "text_time" &&
           profile.config.integer("encoder_hid_dim", 0) == 0;
}

// What is trained from SDXL has its shapes; what was distilled from it has fewer layers, and no profile.
std::string_view taken_for(std::string_view, std::string_view name) {
    for (const std::string_view other : {"ssd-1b", "ssd_1b", "vega", "segmind", "refiner", "kolors"})
        if (name.find(other) != std::string_view::npos) return {};
    return "sdxl";
}

std::unique_ptr<Pipeline> make(const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
    return std::make_unique<StableDiffusionXL>(job, catalogue, run);
}

}  // namespace

const Architecture architecture{
    .names = names,
    .title = "SDXL",
    .models = "SDXL",
    .vae = "vae_sd_4ch",
    .text_encoders = text_encoders,
    .text_tokens = clip_tokens,
    .bucket_step = 16,
    .divisible_by = 8,
    .denoiser = "unet",
    .quantizes = false,
    .any_scheduler = true,
    .cached_samples_fail = cached_samples_fail,
    .modules = unet_modules,
    .trained_text = trained_text,
    .text_encoders_have_backward = true,
    .plays = plays,
    .taken_for = taken_for,
    .make = make,
};

}  // namespace sdxl

// SSD-1B and Segmind-Vega: StableDiffusion.is_xl is true of `arch: sdxl` alone, so that both encoders are called as
// one.
namespace ssd {
namespace {

constexpr std::string_view names[] = {"ssd", "vega"};
bool plays(const profile::ModelProfile&) { return false; }
std::string_view taken_for(std::string_view, std::string_view) { return {}; }
std::unique_ptr<Pipeline> make(const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
    return sdxl::architecture.make(job, catalogue, run);
}

}  // namespace

const Architecture architecture{
    .names = names,
    .title = "SSD-1B and Vega",
    .models = "none of SSD-1B and Vega",
    .fails_with =
        "it encodes prompts as those of Stable Diffusion 1, and there are two text encoders; write arch: sdxl",
    .modules = unet_modules,
    .plays = plays,
    .taken_for = taken_for,
    .make = make,
};

}  // namespace ssd

}  // namespace vram::trainers::ai_toolkit
