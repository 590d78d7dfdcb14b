// `arch: lumina2`: the branches of StableDiffusion for Lumina-Image 2.0 (toolkit/stable_diffusion_model.py, 27a03a91),
// and diffusers' Lumina2Pipeline. The forward stands in `accelerator.autocast()`, which does nothing: the trainer makes
// its Accelerator without mixed_precision (toolkit/accelerator.py).
#include "shadow/ops.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/architectures/stable_diffusion.hpp"

namespace vram::trainers::ai_toolkit::lumina2 {
namespace {

using shadow::Category;
using shadow::ComponentScope;
using shadow::Op;
using shadow::StageScope;

/// The tokenizer pads to it. The net's context refiner sees all of them; its other blocks only those of the prompt.
constexpr std::int64_t max_sequence_length = 256;

class Lumina2 final : public StableDiffusion {
  public:
    Lumina2(const job::Job& job_in, const profile::Catalogue& catalogue, Run& run_in)
        : StableDiffusion(architecture, job_in, catalogue, run_in, 16, true),
          layers_(catalogue.model_of(job_in.pipeline.text_encoders[0]).config.integer("num_hidden_layers")) {}

    void load_model(Loading& loading) override {
        const bool quantizes_text = job.pipeline.text_encoder_quantization != job::Quantization::none;
        load_transformer(loading, job.quantization != job::Quantization::none || quantizes_text);
        load_text_encoder(*text_encoders[0], quantizes_text);
        finish_loading();
    }

    /// Lumina2Pipeline.encode_prompt, without guidance.
    [[nodiscard]] PromptEmbeds get_prompt_embeds(const Prompts& prompts) override {
        Part& text_encoder = *text_encoders[0];
        models::Request request;
        request.batch = prompts.count;
        request.text_tokens = max_sequence_length;
        request.dtype = job.pipeline.text_encoder_dtype;
        request.attention_mask = request.all_hidden_states = request.use_cache = true;
        Tensor prompt_embeds, prompt_attention_mask;
        {
            const Tensor text_input_ids = tokens(prompts.count, max_sequence_length);
            const Tensor untruncated_ids = tokens(prompts.count, job.text_tokens);
            prompt_attention_mask = tokens(prompts.count, max_sequence_length);
            // {last_hidden_state, what went into the first layer, of each layer, …}: hidden_states[-2]
            const Tensors output = text_encoder.forward({text_input_ids, prompt_attention_mask}, request);
            prompt_embeds = output[static_cast<std::size_t>(layers_)];
        }
        PromptEmbeds out;
        out.text_embeds = {shadow::repeat(prompt_embeds, {1, 1, 1})};
        out.attention_mask = shadow::repeat(prompt_attention_mask, {1, 1});
        return out;
    }

    [[nodiscard]] Tensor get_noise_prediction(const Tensor& latent_model_input, const Tensor& timestep,
                                              const PromptEmbeds& text_embeddings, const job::Batch& batch) override {
        Tensor t;
        Tensors args{latent_model_input, text_embeddings.text_embeds[0]};
        {
            const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
            t = shadow::div_scalar(timestep);
            t = shadow::rsub_scalar(std::move(t));
            args.push_back(shadow::to(text_embeddings.attention_mask, Dtype::i64));
        }
        args.push_back(t);
        Tensor noise_pred = transform(args, request(batch, text_embeddings));
        args.clear();
        noise_pred = shadow::neg(noise_pred);
        return noise_pred;
    }

    /// Lumina2Pipeline.__call__ with given embeds.
    void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds& unconditional_embeds,
                               const job::Batch& image) override {
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        // The wrapper of torch.no_grad() holds what the call was handed.
        const Tensor handed_mask = shadow::to(conditional_embeds.attention_mask, Dtype::i64);
        const Tensor negative_mask = shadow::to(unconditional_embeds.attention_mask, Dtype::i64);
        Loop loop;
        Tensor prompt_embeds, prompt_attention_mask, current_timestep, noise_pred_cond, cond_norm, noise_norm;
        {
            const StageScope stage(run, "denoise");
            prompt_embeds = shadow::repeat(conditional_embeds.text_embeds[0], {1, 1, 1});
            prompt_attention_mask = shadow::repeat(handed_mask, {1, 1});
            loop.latents = prepare_latents(image, false);
            set_timesteps(loop);
            const models::Request request = this->request(image, conditional_embeds);
            for (int i = 0; i < 2; ++i) {
                Tensor timestep = shadow::div_scalar(shadow::slice(loop.timesteps, 0, 0, 1));
                current_timestep = shadow::rsub_scalar(std::move(timestep));
                noise_pred_cond =
                    transform({loop.latents, prompt_embeds, prompt_attention_mask, current_timestep}, request);
                if (guides()) {
                    loop.noise_pred_uncond = transform(
                        {loop.latents, unconditional_embeds.text_embeds[0], negative_mask, current_timestep}, request);
                    Tensor guided = shadow::sub(noise_pred_cond, loop.noise_pred_uncond);
                    guided = shadow::mul_scalar(std::move(guided));
                    loop.noise_pred = shadow::add(loop.noise_pred_uncond, std::move(guided));
                    cond_norm = norm(noise_pred_cond);
                    noise_norm = norm(loop.noise_pred);
                    Tensor ratio = shadow::div(cond_norm, noise_norm);
                    loop.noise_pred = shadow::mul(loop.noise_pred, std::move(ratio));
                } else {
                    loop.noise_pred = noise_pred_cond;
                }
                loop.noise_pred = shadow::neg(loop.noise_pred);
                loop.latents = step(loop.noise_pred, loop.latents);
            }
        }
        const StageScope stage(run, "decode");
        Tensor scaled = shadow::div_scalar(loop.latents);
        loop.latents = shadow::add_scalar(std::move(scaled));
        decode(loop.latents, image);
    }

  private:
    [[nodiscard]] Tensor tokens(std::int64_t count, std::int64_t length) const {
        return run.empty({count, length}, Dtype::i64, Op::to_device);
    }

    /// torch.norm(x, dim=-1, keepdim=True)
    [[nodiscard]] Tensor norm(const Tensor& x) const {
        Dims sizes = x.sizes();
        sizes[sizes.rank() - 1] = 1;
        return run.empty(sizes, x.dtype(), Op::sum);
    }

    [[nodiscard]] models::Request request(const job::Batch& batch, const PromptEmbeds& embeds) const {
        models::Request request = request_of(batch, embeds);
        request.text_tokens = job.text_tokens;  // those that the mask lets through
        return request;
    }

    std::int64_t layers_;
};

constexpr std::string_view names[] = {"lumina2"};
constexpr std::string_view text_encoders[] = {"gemma2_2b"};
/// What lora_special.py asks for in names of this class.
constexpr std::string_view block_names[] = {"layers", "noise_refiner", "context_refiner"};

bool plays(const profile::ModelProfile& profile) { return profile.family == "lumina2"; }

std::string_view taken_for(std::string_view, std::string_view) { return "lumina2"; }

std::unique_ptr<Pipeline> make(const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
    return std::make_unique<Lumina2>(job, catalogue, run);
}

}  // namespace

const Architecture architecture{
    .names = names,
    .title = "Lumina 2",
    .models = "Lumina-Image 2.0",
    .vae = "vae_flux1",
    .text_encoders = text_encoders,
    .text_tokens = max_sequence_length,
    .most_text_tokens = max_sequence_length,
    .bucket_step = 16,
    .divisible_by = 16,
    .any_scheduler = true,
    .modules = {.block_names = block_names},
    .plays = plays,
    .taken_for = taken_for,
    .make = make,
};

}  // namespace vram::trainers::ai_toolkit::lumina2
