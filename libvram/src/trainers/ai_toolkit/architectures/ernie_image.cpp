// `arch: ernie_image`: ErnieImageModel (extensions_built_in/diffusion_models/ernie_image/ernie_image.py, 27a03a91), and
// diffusers' ErnieImagePipeline.
#include <vector>

#include "shadow/ops.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/pipeline.hpp"

namespace vram::trainers::ai_toolkit::ernie_image {
namespace {

using shadow::Category;
using shadow::ComponentScope;
using shadow::NoGrad;
using shadow::Op;
using shadow::StageScope;

/// A latent of the VAE is 8 pixels wide, and two by two of these are packed into one of the net's.
constexpr std::int64_t pixels_a_token = 16, channels = 128, vae_channels = 32;
/// Of a caption that says nothing about its length; an empty prompt is the tokenizer's first token.
constexpr std::int64_t caption_tokens = 512, most_caption_tokens = 4096, blank_tokens = 1;

class ErnieImage final : public Pipeline {
  public:
    ErnieImage(const job::Job& job_in, const profile::Catalogue& catalogue, Run& run_in)
        : Pipeline(architecture, job_in, catalogue, run_in),
          text_in_dim_(catalogue.model_of(job_in.pipeline.text_encoders[0]).config.integer("hidden_size")),
          layers_(catalogue.model_of(job_in.pipeline.text_encoders[0]).config.integer("num_hidden_layers")) {}

    void load_model(Loading& loading) override {
        const job::Pipeline& parts = job.pipeline;
        const bool quantizes = job.quantization != job::Quantization::none;
        const bool quantizes_text = parts.text_encoder_quantization != job::Quantization::none;
        if (quantizes || quantizes_text) loading.quantizes();
        if (quantizes) transformer.quantize_model();
        flush();
        transformer.attach_memory_manager();
        Part& text_encoder = *text_encoders[0];
        text_encoder.attach_memory_manager();
        load_text_encoder(text_encoder, quantizes_text);
        vae->to_gpu();
        if (!parts.low_vram) transformer.to_gpu();
        flush();
        transformer.to_gpu();  // BaseSDTrainProcess.run
        vae->to_cpu();
        flush();
    }

    /// A prompt at a time, as long as it is; the encoder's output lives until the next one's is there.
    [[nodiscard]] PromptEmbeds get_prompt_embeds(const Prompts& prompts) override {
        Part& text_encoder = *text_encoders[0];
        text_encoder.to_gpu();
        models::Request request;
        request.text_tokens = prompts.blank ? blank_tokens : job.text_tokens;
        request.dtype = job.pipeline.text_encoder_dtype;
        request.all_hidden_states = request.use_cache = true;
        PromptEmbeds out;
        out.is_list = true;
        Tensor input_ids;
        Tensors outputs;
        for (std::int64_t i = 0; i < prompts.count; ++i) {
            input_ids = run.empty({1, request.text_tokens}, Dtype::i64, Op::to_device);
            outputs = text_encoder.forward({input_ids}, request);
            // {last_hidden_state, what went into the first layer, of each layer, …}: hidden_states[-2][0]
            out.text_embeds.push_back(shadow::select(outputs[static_cast<std::size_t>(layers_)], 0, 0));
        }
        return out;
    }

    [[nodiscard]] Dims latents(const job::Batch& batch) const override {
        return {batch.count, channels, batch.height / pixels_a_token, batch.width / pixels_a_token};
    }

    [[nodiscard]] Tensor encode_images(Tensor image_list_in, const job::Batch& batch) override {
        const Tensor image_list = std::move(image_list_in);
        vae->to_gpu();
        const ComponentScope scope(run, "vae");
        const Tensor image = run.empty_like(image_list, Op::stack);
        Tensor latents = sample_latents(image, batch);
        // _patchify_latents
        const std::int64_t count = latents.size(0), height = latents.size(2) / 2, width = latents.size(3) / 2;
        latents = shadow::view(std::move(latents), {count, vae_channels, height, 2, width, 2});
        latents = shadow::permute(std::move(latents), {0, 1, 3, 5, 2, 4});
        latents = shadow::reshape(std::move(latents), {count, channels, height, width});
        const Tensor bn_std = running_std();
        Tensor centred = shadow::sub(latents, statistics());
        return shadow::div(std::move(centred), bn_std);
    }

    [[nodiscard]] Tensor get_noise_prediction(const Tensor& latent_model_input, const Tensor& timestep,
                                              const PromptEmbeds& text_embeddings, const job::Batch& batch) override {
        Tensor text_lens;
        const Tensor text_bth = pad_text(text_embeddings.text_embeds, text_lens);
        return transform({latent_model_input, timestep, text_bth, text_lens}, request_of(batch, text_embeddings));
    }

    /// ErnieImagePipeline.__call__ with given embeds.
    void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds& unconditional_embeds,
                               const job::Batch& image) override {
        transformer.to_gpu();
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        const bool guides = job.sampling.guidance > 1;
        Tensor latents, timesteps, sigmas, text_bth, text_lens, latent_model_input, t_batch, pred, pred_uncond,
            pred_cond;
        {
            const StageScope stage(run, "denoise");
            job::Batch batch = image;
            PromptEmbeds cfg_text_hiddens = conditional_embeds;
            if (guides) {
                batch.count = 2;
                cfg_text_hiddens.text_embeds = unconditional_embeds.text_embeds;
                for (const Tensor& one : conditional_embeds.text_embeds) cfg_text_hiddens.text_embeds.push_back(one);
            }
            latents = run.empty(this->latents(image), job.dtype, Op::to_device);
            timesteps = run.empty({job.sampling.steps}, Dtype::f32, Op::to_device);
            sigmas = run.empty({job.sampling.steps + 1}, Dtype::f32, Op::cat);
            text_bth = pad_text(cfg_text_hiddens.text_embeds, text_lens);
            const models::Request request = request_of(batch, cfg_text_hiddens);
            for (int i = 0; i < 2; ++i) {
                latent_model_input = guides ? shadow::cat({latents, latents}, 0) : latents;
                t_batch = run.empty({batch.count}, job.dtype, Op::full);
                pred = transform({latent_model_input, t_batch, text_bth, text_lens}, request);
                if (guides) {
                    const Tensors halves = shadow::chunk(pred, 2, 0);
                    pred_uncond = halves[0];
                    pred_cond = halves[1];
                    Tensor away = shadow::sub(pred_cond, pred_uncond);
                    away = shadow::mul_scalar(std::move(away));
                    pred = shadow::add(pred_uncond, std::move(away));
                }
                // FlowMatchEulerDiscreteScheduler.step: in fp32.
                const Tensor sample = shadow::to_float(latents);
                Tensor moved = shadow::mul_scalar(pred);
                Tensor prev_sample = shadow::add(sample, std::move(moved));
                latents = shadow::to(std::move(prev_sample), job.dtype);
            }
        }
        const StageScope stage(run, "decode");
        const Tensor bn_std = running_std();
        Tensor scaled = shadow::mul(latents, bn_std);
        latents = shadow::add(std::move(scaled), statistics());
        // _unpatchify_latents
        const std::int64_t height = latents.size(2), width = latents.size(3);
        latents = shadow::reshape(std::move(latents), {1, vae_channels, 2, 2, height, width});
        latents = shadow::permute(std::move(latents), {0, 1, 4, 2, 5, 3});
        latents = shadow::reshape(std::move(latents), {1, vae_channels, height * 2, width * 2});
        decode(latents, image);
    }

  private:
    /// ErnieImagePipeline._pad_text: [B, longest, D], and in `text_lens` how long each is.
    [[nodiscard]] Tensor pad_text(const Tensors& text_hiddens, Tensor& text_lens) {
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        const auto count = static_cast<std::int64_t>(text_hiddens.size());
        std::int64_t longest = 0;
        for (const Tensor& one : text_hiddens) longest = std::max(longest, one.size(0));
        text_lens = run.empty({count}, Dtype::i64, Op::to_device);
        static_cast<void>(run.empty({}, Dtype::i64, Op::max));
        return run.empty({count, longest, text_in_dim_}, job.dtype, Op::zeros);
    }

    /// One of the VAE's statistics of a packed channel, which lie beside its weights.
    [[nodiscard]] Tensor statistics() { return run.on_cpu({1, channels, 1, 1}, job.pipeline.vae_dtype); }
    /// torch.sqrt(running_var + 1e-5)
    [[nodiscard]] Tensor running_std() {
        const Tensor shifted = run.empty({1, channels, 1, 1}, job.pipeline.vae_dtype, Op::add);
        return shadow::sqrt(shifted);
    }

    std::int64_t text_in_dim_, layers_;
};

constexpr std::string_view names[] = {"ernie_image"};
constexpr std::string_view text_encoders[] = {"ministral3_3b"};
constexpr std::string_view block_names[] = {"layers"};
/// load_model names x_embedder, whose convolution is managed nonetheless.
constexpr std::string_view moved[] = {"x_embedder.proj"};

bool plays(const profile::ModelProfile& profile) { return profile.family == "ernie_image"; }

// Turbo is the same net.
std::string_view taken_for(std::string_view, std::string_view) { return "ernie_image"; }

std::unique_ptr<Pipeline> make(const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
    return std::make_unique<ErnieImage>(job, catalogue, run);
}

}  // namespace

const Architecture architecture{
    .names = names,
    .title = "ERNIE-Image",
    .models = "ERNIE-Image",
    .vae = "vae_flux2",
    .text_encoders = text_encoders,
    .text_tokens = caption_tokens,
    .most_text_tokens = most_caption_tokens,
    .bucket_step = 32,
    .divisible_by = pixels_a_token,
    .sample_step = 32,
    .own_denoiser = "ernie_image_ai_toolkit",
    .quantizes_blocks = true,
    .modules = {.block_names = block_names},
    .offloading = {.attaches = true, .text_encoder_first = true, .moved = moved},
    .plays = plays,
    .taken_for = taken_for,
    .make = make,
};

}  // namespace vram::trainers::ai_toolkit::ernie_image
