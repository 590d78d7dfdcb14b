// `arch: omnigen2`: OmniGen2Model (extensions_built_in/diffusion_models/omnigen2, 27a03a91) and the OmniGen2Pipeline
// beside it.
#include <algorithm>
#include <cmath>
#include <vector>

#include "shadow/ops.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/pipeline.hpp"

namespace vram::trainers::ai_toolkit::omnigen2 {
namespace {

using job::PictureSize;
using shadow::Category;
using shadow::ComponentScope;
using shadow::Op;
using shadow::StageScope;

/// Two by two latent pixels are a token.
constexpr std::int64_t pixels_a_token = 16;
/// Prompts are cut to it, and padded to the longest of them.
constexpr std::int64_t max_sequence_length = 256;
/// Of an empty prompt the chat template, put around it twice, leaves as many.
constexpr std::int64_t template_tokens = 50;
/// The pipeline renders at most so many pixels, and scales references to them and to the longest side.
constexpr double max_pixels = 1024 * 1024, max_input_image_side_length = 1024;

PictureSize scaled(const PictureSize& size, double ratio) {
    const auto side = [&](std::int64_t length) {
        const auto pixels = static_cast<std::int64_t>(static_cast<double>(length) * std::min(ratio, 1.0));
        return pixels / pixels_a_token * pixels_a_token;
    };
    return {side(size[0]), side(size[1])};
}
double to_most_pixels(const PictureSize& size) {
    return std::sqrt(max_pixels / static_cast<double>(size[0] * size[1]));
}

class OmniGen2 final : public Pipeline {
  public:
    OmniGen2(const job::Job& job_in, const profile::Catalogue& catalogue, Run& run_in)
        : Pipeline(architecture, job_in, catalogue, run_in),
          layers_(catalogue.model_of(job_in.pipeline.text_encoders[0]).config.integer("num_hidden_layers")) {}

    void load_model(Loading& loading) override {
        const job::Pipeline& parts = job.pipeline;
        const bool quantizes = job.quantization != job::Quantization::none;
        const bool quantizes_text = parts.text_encoder_quantization != job::Quantization::none;
        Part& mllm = *text_encoders[0];
        if (quantizes_text) {
            mllm.load_full();
            loading.quantizes();
            mllm.quantize();
            mllm.loaded();
        } else {
            mllm.to_gpu();
        }
        if (parts.low_vram) mllm.to_cpu();
        flush();
        if (quantizes && !quantizes_text) loading.quantizes();
        if (quantizes && !parts.low_vram) {
            transformer.load_full();
            transformer.quantize();
            transformer.loaded();
        } else if (!parts.low_vram) {
            transformer.to_gpu();
        }
        flush();
        vae->to_gpu();
        flush();
        if (parts.low_vram) {
            transformer.to_gpu();  // quantised on the host
            mllm.to_gpu();
        }
        flush();
        vae->to_cpu();  // BaseSDTrainProcess.run
        flush();
    }

    /// OmniGen2Pipeline.encode_prompt, without guidance.
    [[nodiscard]] PromptEmbeds get_prompt_embeds(const Prompts& prompts) override {
        Part& mllm = *text_encoders[0];
        mllm.to_gpu();
        const Dims sizes{prompts.count, prompts.blank ? template_tokens : job.text_tokens};
        models::Request request;
        request.batch = prompts.count;
        request.text_tokens = sizes[1];
        request.dtype = job.pipeline.text_encoder_dtype;
        request.all_hidden_states = request.use_cache = true;
        // Padded to the longest of them: one alone has no padding, and its mask is left away.
        request.attention_mask = prompts.count > 1;
        Tensor prompt_embeds, prompt_attention_mask;
        {
            const Tensor text_input_ids = run.empty(sizes, Dtype::i64, Op::to_device);
            prompt_attention_mask = run.empty(sizes, Dtype::i64, Op::to_device);
            Tensors args{text_input_ids};
            if (request.attention_mask) args.push_back(prompt_attention_mask);
            // {logits, what went into the first layer, of each layer, …}: hidden_states[-1]
            const Tensors output = mllm.forward(args, request);
            prompt_embeds = output[static_cast<std::size_t>(layers_) + 1];
        }
        PromptEmbeds out;
        out.text_embeds = {shadow::repeat(prompt_embeds, {1, 1, 1})};
        out.attention_mask = shadow::repeat(prompt_attention_mask, {1, 1});
        return out;
    }

    [[nodiscard]] Dims latents(const job::Batch& batch) const override {
        return {batch.count, 16, batch.height / 8, batch.width / 8};
    }

    [[nodiscard]] Tensor encode_images(Tensor image_list, const job::Batch& batch) override {
        return encode_kl(std::move(image_list), batch);
    }

    [[nodiscard]] Tensor get_loss_target(const Tensor& noise, const Tensor& batch_latents) override {
        return shadow::sub(batch_latents, noise);
    }

    /// The control image's latents, in the noisy ones' fp32, stay until the next call.
    [[nodiscard]] Tensor condition_noisy_latents(const Tensor& latents, const job::Batch& batch) override {
        control_latent_ = Tensor();
        if (batch.references.empty()) return latents;
        vae->to_gpu();
        const auto [width, height] = batch.references[0];
        Tensor control_tensor = run.empty({batch.count, 3, height, width}, job.dtype, Op::to_device);
        if (height != batch.height || width != batch.width)
            control_tensor = run.empty({batch.count, 3, batch.height, batch.width}, job.dtype, Op::upsample);
        const Tensor control_latent = encode_images(control_tensor, batch);
        control_latent_ = shadow::to(control_latent, latents.dtype());
        return latents;
    }

    [[nodiscard]] Tensor get_noise_prediction(const Tensor& latent_model_input, const Tensor& timestep_in,
                                              const PromptEmbeds& text_embeddings, const job::Batch& batch) override {
        Tensor timestep, timesteps;
        {
            const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
            timestep = shadow::to(timestep_in, latent_model_input.dtype());
            timesteps = shadow::div_scalar(timestep);
            timestep = shadow::rsub_scalar(timesteps);
        }
        models::Request request = request_of(batch, text_embeddings);
        Tensors args{latent_model_input, timestep, text_embeddings.text_embeds[0], text_embeddings.attention_mask};
        if (control_latent_.defined()) {
            request.reference_images = {{batch.width, batch.height}};
            for (std::int64_t i = 0; i < control_latent_.size(0); ++i)
                args.push_back(shadow::select(control_latent_, 0, i));
        }
        return transform(args, request);
    }

    /// OmniGen2Pipeline.__call__ with given embeds: rendered at 1 MP or less, and resized.
    void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds& unconditional_embeds,
                               const job::Batch& image) override {
        transformer.to_gpu();
        const PictureSize wanted{image.width, image.height}, rendered = scaled(wanted, to_most_pixels(wanted));
        job::Batch batch = image;
        batch.width = rendered[0];
        batch.height = rendered[1];
        const bool guides = job.sampling.guidance > 1;
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        Tensor prompt_embeds, prompt_attention_mask, ref_latents, noise, latents, timesteps, scheduler_timesteps,
            model_pred, model_pred_uncond;
        std::vector<PictureSize> references;
        {
            const StageScope stage(run, "denoise");
            prompt_embeds = shadow::repeat(conditional_embeds.text_embeds[0], {1, 1, 1});
            prompt_attention_mask = shadow::repeat(conditional_embeds.attention_mask, {1, 1});
            if (!image.references.empty()) ref_latents = prepare_image(wanted, references);
            noise = run.empty(this->latents(batch), job.dtype, Op::to_device);
            latents = noise;  // __call__ has a name for it, too
            timesteps = run.empty({job.sampling.steps}, Dtype::f32, Op::to_device);
            scheduler_timesteps = run.empty({job.sampling.steps + 1}, Dtype::f32, Op::cat);
            models::Request request = request_of(batch, conditional_embeds);
            request.reference_images = references;
            const auto predict = [&](const Tensor& embeds, const Tensor& mask) {
                const Tensor timestep = run.empty({1}, job.dtype, Op::to_copy);
                request.text_tokens = embeds.size(1);
                Tensors args{latents, timestep, embeds, mask};
                if (ref_latents.defined()) args.push_back(ref_latents);
                return transform(args, request);
            };
            for (int i = 0; i < 2; ++i) {
                model_pred = predict(prompt_embeds, prompt_attention_mask);
                if (guides) {
                    model_pred_uncond =
                        predict(unconditional_embeds.text_embeds[0], unconditional_embeds.attention_mask);
                    Tensor guided = shadow::sub(model_pred, model_pred_uncond);
                    guided = shadow::mul_scalar(std::move(guided));
                    model_pred = shadow::add(model_pred_uncond, std::move(guided));
                }
                // FlowMatchEulerDiscreteScheduler.step of src/schedulers: in fp32.
                const Tensor sample = shadow::to_float(latents);
                Tensor prev_sample;
                {
                    const Tensor moved = shadow::mul_scalar(model_pred);
                    prev_sample = run.empty(sample.sizes(), Dtype::f32, Op::add);
                }
                prev_sample = shadow::to(prev_sample, job.dtype);
                latents = prev_sample;
            }
        }
        const StageScope stage(run, "decode");
        latents = shadow::div_scalar(latents);
        latents = shadow::add_scalar(latents);
        Tensor picture = vae->forward({latents}, vae_request(batch, 1, models::Request::Operation::decode))[0];
        latents = model_pred = model_pred_uncond = Tensor();  // what `processing` has names for
        picture = run.empty({1, 3, image.height, image.width}, picture.dtype(), Op::upsample);
        postprocess(picture);
    }

    [[nodiscard]] std::vector<Tensor*> left_by_steps() override { return {&control_latent_}; }

  private:
    /// prepare_image of the control image, which is as large as the sample: [16, h, w], and in `references` its pixels.
    [[nodiscard]] Tensor prepare_image(const PictureSize& size, std::vector<PictureSize>& references) {
        const double side = max_input_image_side_length / static_cast<double>(size[1] > size[0] ? size[1] : size[0]);
        const PictureSize fitted = scaled(size, std::min(to_most_pixels(size), side));
        references = {fitted};
        job::Batch batch;
        batch.width = fitted[0];
        batch.height = fitted[1];
        const Tensor img = run.empty({1, 3, batch.height, batch.width}, Dtype::f32, Op::to_device);
        Tensor z0 = sample_latents(shadow::to(img, job.pipeline.vae_dtype), batch);
        z0 = shadow::add_scalar(z0);
        z0 = shadow::mul_scalar(z0);
        return shadow::squeeze(std::move(z0), 0);
    }

    std::int64_t layers_;
    Tensor control_latent_;
};

constexpr std::string_view names[] = {"omnigen2"};
constexpr std::string_view text_encoders[] = {"qwen25_vl_3b"};
/// get_transformer_block_names, without `use_image_refiner`
constexpr std::string_view block_names[] = {"noise_refiner", "context_refiner", "layers"};
constexpr std::string_view options[] = {"use_image_refiner"};

std::string_view refuses(const std::map<std::string, std::string>& said) {
    const auto found = said.find("use_image_refiner");
    const bool asks = found != said.end() && found->second != "false";
    return asks ? "use_image_refiner is not played: it adapts ref_image_refiner, too" : std::string_view{};
}

bool plays(const profile::ModelProfile& profile) { return profile.family == "omnigen2"; }

std::string_view taken_for(std::string_view, std::string_view) { return "omnigen2"; }

std::unique_ptr<Pipeline> make(const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
    return std::make_unique<OmniGen2>(job, catalogue, run);
}

}  // namespace

const Architecture architecture{
    .names = names,
    .title = "OmniGen2",
    .models = "OmniGen2",
    .vae = "vae_flux1",
    .text_encoders = text_encoders,
    .text_tokens = max_sequence_length,
    .most_text_tokens = max_sequence_length,
    .bucket_step = 16,
    .divisible_by = pixels_a_token,
    .most_references = 1,
    .options = options,
    .modules = {.block_names = block_names},
    .refuses = refuses,
    .plays = plays,
    .taken_for = taken_for,
    .make = make,
};

}  // namespace vram::trainers::ai_toolkit::omnigen2
