// `arch: pixart`: the branches of StableDiffusion for PixArt-Sigma (toolkit/stable_diffusion_model.py, 27a03a91), and
// diffusers' PixArtSigmaPipeline.
#include <array>
#include <cmath>
#include <cstdlib>

#include "shadow/ops.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/architectures/stable_diffusion.hpp"

namespace vram::trainers::ai_toolkit {
namespace pixart {
namespace {

using shadow::Category;
using shadow::ComponentScope;
using shadow::NoGrad;
using shadow::Op;
using shadow::StageScope;

/// The sizes that a net for 1024 pixels is asked for (pipeline_pixart_alpha.py, ASPECT_RATIO_1024_BIN), and the ratio
/// that each is chosen by.
struct Bin {
    double ratio;
    std::int64_t height, width;
};
constexpr std::array<Bin, 33> bins{{
    {0.25, 512, 2048}, {0.28, 512, 1856}, {0.32, 576, 1792}, {0.33, 576, 1728}, {0.35, 576, 1664}, {0.4, 640, 1600},
    {0.42, 640, 1536}, {0.48, 704, 1472}, {0.5, 704, 1408},  {0.52, 704, 1344}, {0.57, 768, 1344}, {0.6, 768, 1280},
    {0.68, 832, 1216}, {0.72, 832, 1152}, {0.78, 896, 1152}, {0.82, 896, 1088}, {0.88, 960, 1088}, {0.94, 960, 1024},
    {1.0, 1024, 1024}, {1.07, 1024, 960}, {1.13, 1088, 960}, {1.21, 1088, 896}, {1.29, 1152, 896}, {1.38, 1152, 832},
    {1.46, 1216, 832}, {1.67, 1280, 768}, {1.75, 1344, 768}, {2.0, 1408, 704},  {2.09, 1472, 704}, {2.4, 1536, 640},
    {2.5, 1600, 640},  {3.0, 1728, 576},  {4.0, 2048, 512},
}};

/// classify_height_width_bin
job::Batch binned(job::Batch image) {
    const double ratio = static_cast<double>(image.height) / static_cast<double>(image.width);
    const Bin* closest = &bins.front();
    for (const Bin& bin : bins)
        if (std::abs(bin.ratio - ratio) < std::abs(closest->ratio - ratio)) closest = &bin;
    image.height = closest->height;
    image.width = closest->width;
    return image;
}

class PixArt final : public StableDiffusion {
  public:
    PixArt(const Architecture& architecture_in, const job::Job& job_in, const profile::Catalogue& catalogue,
           Run& run_in)
        : StableDiffusion(architecture_in, job_in, catalogue, run_in, 4, false) {}

    void load_model(Loading&) override {
        text_encoders[0]->to_gpu();
        transformer.to_gpu();
        flush();
        finish_loading();
    }

    /// train_tools.py, encode_prompts_pixart
    [[nodiscard]] PromptEmbeds get_prompt_embeds(const Prompts& prompts) override {
        Part& text_encoder = *text_encoders[0];
        models::Request request;
        request.batch = prompts.count;
        request.text_tokens = job.text_tokens;
        request.dtype = job.pipeline.text_encoder_dtype;
        request.attention_mask = true;
        PromptEmbeds out;
        Tensor prompt_attention_mask;
        {
            const Dims sizes{request.batch, request.text_tokens};
            prompt_attention_mask = run.empty(sizes, Dtype::i64, Op::to_device);
            const Tensor text_input_ids = run.empty(sizes, Dtype::i64, Op::to_device);
            out.text_embeds = {text_encoder.forward({text_input_ids, prompt_attention_mask}, request)[0]};
        }
        out.attention_mask = shadow::to(prompt_attention_mask, job.dtype);  // PromptEmbeds.to(device, dtype)
        return out;
    }

    [[nodiscard]] Tensor get_noise_prediction(const Tensor& latent_model_input, const Tensor& timestep,
                                              const PromptEmbeds& text_embeddings, const job::Batch& batch) override {
        Tensor resolution, aspect_ratio;  // a net for 1024 pixels is handed them; Sigma's looks at neither
        {
            const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
            resolution = run.empty({batch.count, 2}, job.dtype, Op::to_device);
            aspect_ratio = run.empty({batch.count, 1}, job.dtype, Op::to_device);
        }
        const Tensor noise_pred =
            transform({latent_model_input, text_embeddings.text_embeds[0], text_embeddings.attention_mask, timestep},
                      request_of(batch, text_embeddings));
        return shadow::chunk(noise_pred, 2, 1)[0];  // learned sigma
    }

    /// PixArtSigmaPipeline.__call__ with given embeds. Every picture is rendered at about 1024 x 1024, and resized.
    void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds& unconditional_embeds,
                               const job::Batch& image) override {
        const job::Batch rendered = binned(image);
        Loop loop;
        Tensor prompt_embeds, prompt_attention_mask, negative_prompt_embeds, negative_prompt_attention_mask;
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        {
            const StageScope stage(run, "denoise");
            prompt_embeds = shadow::repeat(conditional_embeds.text_embeds[0], {1, 1, 1});
            prompt_attention_mask = shadow::repeat(conditional_embeds.attention_mask, {1, 1});
            job::Batch batch = rendered;
            if (guides()) {
                batch.count = 2;
                negative_prompt_embeds = shadow::repeat(unconditional_embeds.text_embeds[0], {1, 1, 1});
                negative_prompt_attention_mask = shadow::repeat(unconditional_embeds.attention_mask, {1, 1});
                prompt_embeds = shadow::cat({negative_prompt_embeds, prompt_embeds}, 0);
                prompt_attention_mask = shadow::cat({negative_prompt_attention_mask, prompt_attention_mask}, 0);
            }
            set_timesteps(loop);
            loop.latents = prepare_latents(rendered, true);
            const models::Request request = request_of(batch, conditional_embeds);
            denoise(
                loop,
                [&](const Tensor& input, const Tensor& t) {
                    const Tensor current_timestep = shadow::expand(t, {batch.count});
                    return transform({input, prompt_embeds, prompt_attention_mask, current_timestep}, request);
                },
                true);
        }
        const StageScope stage(run, "decode");
        decode(shadow::div_scalar(loop.latents), rendered);
    }
};

constexpr std::string_view names[] = {"pixart"};
constexpr std::string_view text_encoders[] = {"t5_xxl"};
/// Of this class alone the network looks into a T5EncoderModel, which is the root: every linear.
constexpr TrainedText trained_text[] = {{.is_adapted = true, .modules = {.prefix = "lora_te", .dot = '_'}}};
constexpr std::string_view block_names[] = {"transformer_blocks"};

bool plays(const profile::ModelProfile& profile) { return profile.family == "pixart"; }

std::string_view taken_for(std::string_view, std::string_view name) {
    return name.find("sigma") != std::string_view::npos ? "pixart_sigma" : std::string_view{};
}

std::unique_ptr<Pipeline> make(const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
    return std::make_unique<PixArt>(architecture, job, catalogue, run);
}

}  // namespace

const Architecture architecture{
    .names = names,
    .title = "PixArt",
    .models = "PixArt-Sigma",
    .vae = "vae_sd_4ch",
    .text_encoders = text_encoders,
    .text_tokens = 120,
    .bucket_step = 16,
    .divisible_by = 16,
    .sample_step = 8,
    .quantizes = false,
    .any_scheduler = true,
    .modules = {.prefix = "lora_transformer", .dot = '_', .block_names = block_names},
    .trained_text = trained_text,
    .text_encoders_have_backward = true,
    .plays = plays,
    .taken_for = taken_for,
    .make = make,
};

}  // namespace pixart

// `arch: pixart` and `is_pixart_sigma: true`: its prompts are longer.
namespace pixart_sigma {
namespace {

constexpr std::string_view names[] = {"pixart:sigma"};

std::unique_ptr<Pipeline> make(const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
    return std::make_unique<pixart::PixArt>(architecture, job, catalogue, run);
}

}  // namespace

const Architecture architecture{
    .names = names,
    .title = "PixArt-Sigma",
    .models = "PixArt-Sigma",
    .vae = "vae_sd_4ch",
    .text_encoders = pixart::text_encoders,
    .text_tokens = 300,
    .bucket_step = 16,
    .divisible_by = 16,
    .sample_step = 8,
    .quantizes = false,
    .any_scheduler = true,
    .modules = {.prefix = "lora_transformer", .dot = '_', .block_names = pixart::block_names},
    .trained_text = pixart::trained_text,
    .text_encoders_have_backward = true,
    .plays = pixart::plays,
    .taken_for = pixart::taken_for,
    .make = make,
};

}  // namespace pixart_sigma

// Without `arch: pixart` StableDiffusion.is_pixart is false: it looks for a UNet in the pipeline.
namespace pixart_sigma_alone {
namespace {

constexpr std::string_view names[] = {"pixart_sigma"};
bool plays(const profile::ModelProfile&) { return false; }

}  // namespace

const Architecture architecture{
    .names = names,
    .title = "PixArt-Sigma",
    .models = "PixArt-Sigma",
    .fails_with = "it looks for a UNet in PixArt's pipeline; write arch: pixart and is_pixart_sigma: true",
    .plays = plays,
    .taken_for = pixart::taken_for,
    .make = pixart_sigma::make,
};

}  // namespace pixart_sigma_alone
}  // namespace vram::trainers::ai_toolkit
