// `arch: zimage`: ZImageModel (extensions_built_in/diffusion_models/z_image/z_image.py, 27a03a91), and diffusers'
// ZImagePipeline.
#include <array>
#include <vector>

#include "shadow/ops.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/pipeline.hpp"

namespace vram::trainers::ai_toolkit::z_image {
namespace {

using shadow::Category;
using shadow::ComponentScope;
using shadow::NoGrad;
using shadow::Op;
using shadow::StageScope;

/// Two by two latent pixels are a token.
constexpr std::int64_t pixels_a_token = 16;
/// The tokenizer pads to it; what is padding is cut off behind the encoder.
constexpr std::int64_t max_sequence_length = 512;
/// Of an empty prompt the chat template leaves as many tokens.
constexpr std::int64_t template_tokens = 8;

class ZImage final : public Pipeline {
  public:
    ZImage(const job::Job& job_in, const profile::Catalogue& catalogue, Run& run_in)
        : Pipeline(architecture, job_in, catalogue, run_in),
          layers_(catalogue.model_of("qwen3_4b_causal").config.integer("num_hidden_layers")) {}

    void load_model(Loading& loading) override { load_on_host(loading); }

    /// ZImagePipeline.encode_prompt, without guidance.
    [[nodiscard]] PromptEmbeds get_prompt_embeds(const Prompts& prompts) override {
        Part& text_encoder = *text_encoders[0];
        text_encoder.to_gpu();
        models::Request request;
        request.batch = prompts.count;
        request.text_tokens = max_sequence_length;
        request.dtype = job.pipeline.text_encoder_dtype;
        request.attention_mask = request.all_hidden_states = request.use_cache = true;
        const Tensor text_input_ids = run.empty({prompts.count, max_sequence_length}, Dtype::i64, Op::to_device);
        Tensor prompt_masks = run.empty({prompts.count, max_sequence_length}, Dtype::i64, Op::to_device);
        prompt_masks = shadow::to(prompt_masks, Dtype::boolean);
        Tensor prompt_embeds;
        {
            // {logits, what went into the first layer, of each layer, …}: hidden_states[-2]
            const Tensors output = text_encoder.forward({text_input_ids, prompt_masks}, request);
            prompt_embeds = output[static_cast<std::size_t>(layers_)];
        }
        PromptEmbeds out;
        out.is_list = true;
        const std::int64_t tokens = prompts.blank ? template_tokens : job.text_tokens;
        for (std::int64_t i = 0; i < prompts.count; ++i)
            out.text_embeds.push_back(run.empty({tokens, prompt_embeds.size(2)}, prompt_embeds.dtype(), Op::index));
        return out;
    }

    [[nodiscard]] Dims latents(const job::Batch& batch) const override {
        return {batch.count, 16, batch.height / 8, batch.width / 8};
    }

    [[nodiscard]] Tensor encode_images(Tensor image_list, const job::Batch& batch) override {
        return encode_kl(std::move(image_list), batch);
    }

    [[nodiscard]] Tensor get_noise_prediction(const Tensor& latent_model_input, const Tensor& timestep,
                                              const PromptEmbeds& text_embeddings, const job::Batch& batch) override {
        const models::Request request = request_of(batch, text_embeddings);
        const Tensors args = arguments(latent_model_input, timestep, text_embeddings);
        const Tensors model_out_list = transform_all(args, request);
        Tensor noise_pred = stacked(model_out_list);
        noise_pred = shadow::squeeze(std::move(noise_pred), 2);
        noise_pred = shadow::neg(noise_pred);
        return noise_pred;
    }

    /// ZImagePipeline.__call__ with given embeds.
    void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds& unconditional_embeds,
                               const job::Batch& image) override {
        transformer.to_gpu();
        const bool guides = job.sampling.guidance > 1;  // the pipeline's scale begins at 0
        Tensor latents;
        Tensors schedule;  // the scheduler's, which outlives the pictures
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        {
            const StageScope stage(run, "denoise");
            latents = run.empty(this->latents(image), Dtype::f32, Op::to_device);
            schedule = set_timesteps();
            PromptEmbeds prompt_embeds = conditional_embeds;
            job::Batch batch = image;
            if (guides) {
                batch.count = 2;
                for (const Tensor& one : unconditional_embeds.text_embeds) prompt_embeds.text_embeds.push_back(one);
            }
            const models::Request request = request_of(batch, prompt_embeds);
            if (guides) {  // _precomputed_t_norms, as a list of numbers
                Tensor norms = shadow::rsub_scalar(schedule[0]);
                norms = shadow::div_scalar(std::move(norms));
            }
            // Names of the function, which hold what they have until they are bound again.
            Tensor timestep, timestep_model_input, latents_typed, latent_model_input, noise_pred, pos, neg, pred;
            Tensors args, model_out_list;
            for (int i = 0; i < 2; ++i) {
                timestep = Tensor();
                timestep = run.empty({1}, Dtype::f32, Op::sub);
                timestep = shadow::div_scalar(std::move(timestep));
                if (guides) {
                    latents_typed = shadow::to(latents, job.dtype);
                    latent_model_input = shadow::repeat(latents_typed, {2, 1, 1, 1});
                    timestep_model_input = shadow::repeat(timestep, {2});
                } else {
                    latent_model_input = shadow::to(latents, job.dtype);
                    timestep_model_input = timestep;
                }
                latent_model_input = shadow::unsqueeze(std::move(latent_model_input), 2);
                args = shadow::unbind(latent_model_input, 0);
                args.push_back(timestep_model_input);
                for (const Tensor& one : prompt_embeds.text_embeds) args.push_back(one);
                model_out_list = transform_all(args, request);
                if (guides) {
                    noise_pred = Tensor();
                    pos = shadow::to_float(model_out_list[0]);
                    neg = shadow::to_float(model_out_list[1]);
                    Tensor apart = shadow::sub(pos, neg);
                    apart = shadow::mul_scalar(std::move(apart));
                    pred = shadow::add(pos, std::move(apart));
                    noise_pred = shadow::stack(std::array{pred}, 0);
                } else {
                    noise_pred = stacked(model_out_list);
                }
                noise_pred = shadow::squeeze(std::move(noise_pred), 2);
                noise_pred = shadow::neg(noise_pred);
                latents = scheduler_step(noise_pred, latents);
            }
        }
        {
            const StageScope stage(run, "decode");
            latents = shadow::to(latents, job.pipeline.vae_dtype);
            Tensor scaled = shadow::div_scalar(latents);
            latents = shadow::add_scalar(std::move(scaled));
            decode(latents, image);
        }
    }

  private:
    /// {x each, t, cap_feats each}
    [[nodiscard]] Tensors arguments(const Tensor& latent_model_input, const Tensor& timestep,
                                    const PromptEmbeds& text_embeddings) {
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        Tensors args = shadow::unbind(shadow::unsqueeze(latent_model_input, 2), 0);
        Tensor timestep_model_input = shadow::rsub_scalar(timestep);
        timestep_model_input = shadow::div_scalar(std::move(timestep_model_input));
        args.push_back(timestep_model_input);
        for (const Tensor& one : text_embeddings.text_embeds) args.push_back(one);
        return args;
    }

    /// torch.stack([t.float() for t in list], dim=0)
    static Tensor stacked(const Tensors& list) {
        std::vector<Tensor> floats;
        for (const Tensor& one : list) floats.push_back(shadow::to_float(one));
        return shadow::stack(floats, 0);
    }

    std::int64_t layers_;
};

constexpr std::string_view names[] = {"zimage"};
constexpr std::string_view text_encoders[] = {"qwen3_4b_causal"};
constexpr std::string_view block_names[] = {"layers"};
/// toolkit/models/v2/z_image.py, get_quantization_exclude_modules
constexpr std::string_view quantization_exclude[] = {"t_embedder*", "cap_embedder*", "all_x_embedder*",
                                                     "all_final_layer*", "siglip_embedder*"};

/// By their size on the hub, bf16 matrices of the linears in `layers`: v1 has 170 MB; v2 340,194,488 bytes, of which
/// 340,131,840 are those of rank 64.
constexpr Assistant::Published published_adapters[] = {{"zimage_turbo_training_adapter_v1", 32},
                                                       {"zimage_turbo_training_adapter_v2", 64}};

bool plays(const profile::ModelProfile& profile) { return profile.family == "z_image"; }

// There is one net; turbo and its de-distilled sisters have the same shapes.
std::string_view taken_for(std::string_view, std::string_view) { return "z_image"; }

std::unique_ptr<Pipeline> make(const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
    return std::make_unique<ZImage>(job, catalogue, run);
}

}  // namespace

const Architecture architecture{
    .names = names,
    .title = "Z-Image",
    .models = "Z-Image",
    .vae = "vae_flux1",
    .text_encoders = text_encoders,
    .text_tokens = max_sequence_length,
    .bucket_step = 16,
    .divisible_by = pixels_a_token,
    .quantizes_blocks = true,
    .quantization_exclude = quantization_exclude,
    .assistant = {.merges = true,
                  .rank_at = "diffusion_model.layers.0.attention.to_k.lora_A.weight",
                  .published = published_adapters},
    .modules = {.block_names = block_names},
    .offloading = {.attaches = true, .text_encoder_first = true},
    .plays = plays,
    .taken_for = taken_for,
    .make = make,
};

}  // namespace vram::trainers::ai_toolkit::z_image
