// `arch: auraflow`: the branches of StableDiffusion for AuraFlow (toolkit/stable_diffusion_model.py, 27a03a91), and
// diffusers' AuraFlowPipeline.
#include "shadow/ops.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/architectures/stable_diffusion.hpp"

namespace vram::trainers::ai_toolkit::auraflow {
namespace {

using shadow::Category;
using shadow::ComponentScope;
using shadow::NoGrad;
using shadow::Op;
using shadow::StageScope;

class AuraFlow final : public StableDiffusion {
  public:
    AuraFlow(const job::Job& job_in, const profile::Catalogue& catalogue, Run& run_in)
        : StableDiffusion(architecture, job_in, catalogue, run_in, 4, true) {}

    /// Nothing moves the text encoder: until something asks for it, it encodes on the host.
    void load_model(Loading&) override {
        transformer.to_gpu();
        flush();
        finish_loading();
    }

    /// train_tools.py, encode_prompts_auraflow. The mask is as wide as the embeds.
    [[nodiscard]] PromptEmbeds get_prompt_embeds(const Prompts& prompts) override {
        Part& text_encoder = *text_encoders[0];
        models::Request request;
        request.batch = prompts.count;
        request.text_tokens = job.text_tokens;
        request.dtype = job.pipeline.text_encoder_dtype;
        request.attention_mask = true;
        PromptEmbeds out;
        const Dims wide = text_encoder.model->outputs(request)[0];
        if (!text_encoder.on_gpu()) {
            out.text_embeds = {run.empty(wide, request.dtype, Op::to_device)};
        } else {
            const Tensors text_inputs = on_device(run, text_encoder.model->inputs(request));
            const Tensor prompt_embeds = text_encoder.forward(text_inputs, request)[0];
            const Tensor mask = shadow::expand(shadow::unsqueeze(text_inputs[1], -1), wide);
            out.text_embeds = {shadow::mul(prompt_embeds, mask)};
        }
        out.attention_mask = run.empty(wide, job.dtype, Op::to_copy);  // PromptEmbeds.to(device, dtype)
        return out;
    }

    [[nodiscard]] Tensor get_noise_prediction(const Tensor& latent_model_input, const Tensor&,
                                              const PromptEmbeds& text_embeddings, const job::Batch& batch) override {
        const Tensor t = timesteps(batch.count);
        return transform({latent_model_input, text_embeddings.text_embeds[0], t}, request_of(batch, text_embeddings));
    }

    /// AuraFlowPipeline.__call__ with given embeds.
    void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds& unconditional_embeds,
                               const job::Batch& image) override {
        Loop loop;
        Tensor prompt_embeds, prompt_attention_mask, negative_prompt_embeds, negative_prompt_attention_mask, timestep;
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        {
            const StageScope stage(run, "denoise");
            prompt_embeds = shadow::repeat(conditional_embeds.text_embeds[0], {1, 1, 1});
            prompt_attention_mask = flat(conditional_embeds.attention_mask);
            job::Batch batch = image;
            if (guides()) {
                batch.count = 2;
                negative_prompt_embeds = shadow::repeat(unconditional_embeds.text_embeds[0], {1, 1, 1});
                negative_prompt_attention_mask = flat(unconditional_embeds.attention_mask);
                prompt_embeds = shadow::cat({negative_prompt_embeds, prompt_embeds}, 0);
            }
            set_timesteps(loop);
            loop.latents = prepare_latents(image, false);
            const models::Request request = request_of(batch, conditional_embeds);
            denoise(loop, [&](const Tensor& latent_model_input, const Tensor&) {
                timestep = timesteps(batch.count);
                return transform({latent_model_input, prompt_embeds, timestep}, request);
            });
        }
        const StageScope stage(run, "decode");
        const bool needs_upcasting = upcast_vae();  // and nothing casts it back
        if (needs_upcasting) loop.latents = shadow::to_float(loop.latents);
        decode(shadow::div_scalar(loop.latents), image);
    }

  private:
    /// torch.tensor([timestep / 1000]).expand(count).to(gpu, dtype), which takes batches of one item.
    [[nodiscard]] Tensor timesteps(std::int64_t count) const { return run.empty({count}, job.dtype, Op::to_device); }

    /// mask.reshape(1, -1).repeat(1, 1)
    static Tensor flat(const Tensor& mask) { return shadow::repeat(shadow::reshape(mask, {1, -1}), {1, 1}); }
};

constexpr std::string_view names[] = {"auraflow"};
constexpr std::string_view text_encoders[] = {"pile_t5_xl"};

bool plays(const profile::ModelProfile& profile) { return profile.family == "auraflow"; }

std::string_view taken_for(std::string_view, std::string_view name) {
    const auto holds = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
    return holds("aura") && (holds("0.2") || holds("0.3")) ? "auraflow" : std::string_view{};
}

std::unique_ptr<Pipeline> make(const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
    return std::make_unique<AuraFlow>(job, catalogue, run);
}

}  // namespace

const Architecture architecture{
    .names = names,
    .title = "AuraFlow",
    .models = "AuraFlow",
    .vae = "vae_sd_4ch",
    .text_encoders = text_encoders,
    .text_tokens = 256,
    .bucket_step = 16,
    .divisible_by = 16,
    .unplayed_text_training = "whether its text encoder drops anything out in training mode is not known",
    .quantizes = false,
    .any_scheduler = true,
    .most_items = 1,
    .modules = {.prefix = "lora_transformer", .dot = '_'},
    .plays = plays,
    .taken_for = taken_for,
    .make = make,
};

}  // namespace vram::trainers::ai_toolkit::auraflow
