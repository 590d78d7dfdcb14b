// `arch: flux_kontext`: FluxKontextModel (extensions_built_in/diffusion_models/flux_kontext/flux_kontext.py, 27a03a91),
// and diffusers' FluxKontextPipeline. A control image is as large as its item: its tokens stand behind the noisy ones.
#include "shadow/ops.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/architectures/flux_pipeline.hpp"

namespace vram::trainers::ai_toolkit::flux_kontext {
namespace {

using shadow::Category;
using shadow::ComponentScope;
using shadow::NoGrad;
using shadow::Op;
using shadow::StageScope;

class FluxKontext final : public FluxPipeline {
  public:
    FluxKontext(const job::Job& job_in, const profile::Catalogue& catalogue, Run& run_in)
        : FluxPipeline(architecture, job_in, catalogue, run_in) {}

    void load_model(Loading& loading) override { load_on_gpu(loading); }

    /// The control image stands beside the noise in channels until get_noise_prediction takes them apart.
    [[nodiscard]] Tensor condition_noisy_latents(const Tensor& latents, const job::Batch& batch) override {
        if (batch.references.empty()) return latents;
        vae->to_gpu();  // where it stays
        // The loader's pixels are scaled on the host.
        const Tensor control_tensor = run.empty({batch.count, 3, batch.height, batch.width}, job.dtype, Op::to_device);
        Tensor control_latent = encode_images(control_tensor, batch);
        control_latent = shadow::to(std::move(control_latent), latents.dtype());
        return shadow::cat({latents, control_latent}, 1);
    }

    [[nodiscard]] Tensor get_noise_prediction(const Tensor& latent_model_input, const Tensor& timestep,
                                              const PromptEmbeds& text_embeddings, const job::Batch& batch) override {
        const bool has_control = latent_model_input.size(1) == 32;
        const models::Request request = conditioned(batch, text_embeddings, has_control);
        const std::int64_t tokens = batch.height / pixels_a_token * (batch.width / pixels_a_token);
        Tensor stacked = latent_model_input, latent_model_input_packed, img_ids, ctrl_ids, txt_ids, guidance, latent,
               control;
        {
            const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
            const NoGrad no_grad(run);
            if (has_control) stacked = shadow::cat(shadow::chunk(latent_model_input, 2, 1), 0);
            latent_model_input_packed = packed(stacked);
            img_ids = run.empty({batch.count, tokens, 3}, Dtype::f32, Op::to_device);
            if (has_control) {
                ctrl_ids = shadow::clone(img_ids);
                img_ids = shadow::cat({img_ids, ctrl_ids}, 1);
            }
            txt_ids = run.empty({batch.count, request.text_tokens, 3}, Dtype::f32, Op::to_device);
            if (takes_guidance(request)) {
                guidance = run.empty({1}, Dtype::f32, Op::to_device);
                guidance = shadow::expand(std::move(guidance), {batch.count});
            }
            txt_ids = shadow::select(std::move(txt_ids), 0, 0);
            img_ids = shadow::select(std::move(img_ids), 0, 0);
            if (has_control) {
                const Tensors halves = shadow::chunk(latent_model_input_packed, 2, 0);
                latent = halves[0];
                control = halves[1];
                latent_model_input_packed = shadow::cat({latent, control}, 1);
            }
        }
        Tensor noise_pred =
            flux_transform(latent_model_input_packed, timestep, text_embeddings, img_ids, txt_ids, guidance, request);
        noise_pred = shadow::slice(std::move(noise_pred), 1, 0, tokens);
        return unpacked(std::move(noise_pred), batch);
    }

    /// FluxKontextPipeline.__call__ with given embeds. The trainer asks for a control image and scales it to the size
    /// of the sample.
    void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds&,
                               const job::Batch& image) override {
        const models::Request request = conditioned(image, conditional_embeds, true);
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        Call call;
        Tensor image_latents, image_ids;
        {
            const StageScope stage(run, "denoise");
            call.text_ids = run.empty({request.text_tokens, 3}, job.dtype, Op::to_device);
            {
                const Tensor control = run.empty({1, 3, image.height, image.width}, job.dtype, Op::to_device);
                image_latents = encode_vae_image(control, image);
                image_latents = shadow::cat({image_latents}, 0);
                image_latents = packed(image_latents);
                image_ids = run.empty({image_latents.size(1), 3}, job.dtype, Op::to_device);
                // The ids come before the noise here.
                call.latent_image_ids = run.empty({image_latents.size(1), 3}, job.dtype, Op::to_device);
                prepare_latents(call, image, request);
            }
            call.latent_image_ids = shadow::cat({call.latent_image_ids, image_ids}, 0);
            retrieve_timesteps(call, request);
            for (int i = 0; i < 2; ++i) {
                call.latent_model_input = call.latents;
                call.latent_model_input = shadow::cat({call.latents, image_latents}, 1);
                call.timestep = run.empty({1}, job.dtype, Op::to_copy);
                call.noise_pred = flux_transform(call.latent_model_input, call.timestep, conditional_embeds,
                                                 call.latent_image_ids, call.text_ids, call.guidance, request);
                call.noise_pred = shadow::slice(std::move(call.noise_pred), 1, 0, call.latents.size(1));
                scheduler_step(call);
            }
        }
        const StageScope stage(run, "decode");
        decode_latents(call, image);
    }

  private:
    [[nodiscard]] models::Request conditioned(const job::Batch& batch, const PromptEmbeds& embeds,
                                              bool has_control) const {
        models::Request request = request_of(batch, embeds);
        if (has_control) request.reference_images = {{batch.width, batch.height}};
        return request;
    }

    // _encode_vae_image: the distribution's mode, shifted and scaled
    [[nodiscard]] Tensor encode_vae_image(const Tensor& image, const job::Batch& size) {
        const Tensor image_latents = vae->forward({image}, vae_request(size, 1, models::Request::Operation::encode))[1];
        Tensor shifted = shadow::add_scalar(image_latents);
        return shadow::mul_scalar(std::move(shifted));
    }
};

constexpr std::string_view names[] = {"flux_kontext"};
constexpr std::string_view block_names[] = {"transformer_blocks"};
constexpr std::string_view text_encoders[] = {"clip_l", "t5_xxl"};
constexpr TrainedText trained_text[] = {trained_clip("lora_te1.text_model", '$')};

bool plays(const profile::ModelProfile& profile) {
    return profile.family == "flux" && profile.reference_images && profile.config.integer("in_channels") == 64;
}

std::string_view taken_for(std::string_view, std::string_view) { return "flux1_kontext"; }

std::unique_ptr<Pipeline> make(const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
    return std::make_unique<FluxKontext>(job, catalogue, run);
}

}  // namespace

const Architecture architecture{
    .names = names,
    .title = "FLUX.1 Kontext",
    .models = "FLUX.1 Kontext",
    .vae = "vae_flux1",
    .text_encoders = text_encoders,
    .text_tokens = 512,
    .bucket_step = 16,
    .divisible_by = FluxPipeline::pixels_a_token,
    .most_references = 1,
    .controls_in_latents = true,
    .samples_need_reference = true,
    .takes_quantize_kwargs = true,
    .text_encoder_by_qtype = true,
    .modules = {.block_names = block_names},
    .trained_text = trained_text,
    .text_encoders_have_backward = true,
    .plays = plays,
    .taken_for = taken_for,
    .make = make,
};

}  // namespace vram::trainers::ai_toolkit::flux_kontext
