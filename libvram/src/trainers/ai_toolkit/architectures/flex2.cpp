// `arch: flex2`: Flex2 (extensions_built_in/flex2/flex2.py, 27a03a91), and its Flex2Pipeline. Beside the noise stand,
// in channels, a masked picture with its mask and a control image, or zeros and ones for them.
#include <limits>

#include "shadow/ops.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/architectures/flux_pipeline.hpp"

namespace vram::trainers::ai_toolkit::flex2 {
namespace {

using shadow::Category;
using shadow::ComponentScope;
using shadow::NoGrad;
using shadow::Op;
using shadow::StageScope;

class Flex2 final : public FluxPipeline {
  public:
    Flex2(const job::Job& job_in, const profile::Catalogue& catalogue, Run& run_in)
        : FluxPipeline(architecture, job_in, catalogue, run_in) {}

    void load_model(Loading& loading) override { load_on_gpu(loading); }

    /// What is dropped by chance is played as if it never were: with a mask where there may be one, and with one of the
    /// control images.
    [[nodiscard]] Tensor condition_noisy_latents(const Tensor& latents, const job::Batch& batch) override {
        Tensor inpainting_latent = masked_latent(latents, batch);
        if (batch.references.empty()) {
            Tensor ctrl = run.empty(latents.sizes(), latents.dtype(), Op::zeros);
            ctrl = shadow::cat({inpainting_latent, ctrl}, 1);
            return shadow::cat({latents, ctrl}, 1);
        }
        const Tensor control_tensor = run.empty({batch.count, 3, batch.height, batch.width}, job.dtype, Op::to_device);
        Tensor control_latent = encode_images(control_tensor, batch);
        control_latent = shadow::to(std::move(control_latent), latents.dtype());
        control_latent = shadow::cat({inpainting_latent, control_latent}, 1);
        return shadow::cat({latents, control_latent}, 1);
    }

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
            if (takes_guidance(request)) {
                guidance = run.empty({1}, Dtype::f32, Op::to_device);
                guidance = shadow::expand(std::move(guidance), {batch.count});
            }
            txt_ids = shadow::select(std::move(txt_ids), 0, 0);
            img_ids = shadow::select(std::move(img_ids), 0, 0);
        }
        Tensor noise_pred =
            flux_transform(latent_model_input_packed, timestep, text_embeddings, img_ids, txt_ids, guidance, request);
        return unpacked(std::move(noise_pred), batch);
    }

    /// Flex2Pipeline.__call__ with given embeds, and a control image if there is one.
    void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds&,
                               const job::Batch& image) override {
        const models::Request request = request_of(image, conditional_embeds);
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        Call call;
        Tensor control_image;
        Tensors control_image_list;
        {
            const StageScope stage(run, "denoise");
            call.text_ids = run.empty({request.text_tokens, 3}, job.dtype, Op::to_device);
            if (!image.references.empty()) {
                control_image = run.empty({1, 3, image.height, image.width}, job.pipeline.vae_dtype, Op::to_device);
                control_image = sample_latents(control_image, image);
                Tensor shifted = shadow::add_scalar(control_image);
                control_image = shadow::mul_scalar(std::move(shifted));
                control_image = packed(control_image);
            }
            prepare_latents(call, image, request);
            retrieve_timesteps(call, request);
            for (int i = 0; i < 2; ++i) {
                control_image_list = blank_controls(call.latents);
                if (control_image.defined()) control_image_list[1] = control_image;
                call.latent_model_input = shadow::cat({call.latents, control_image_list[0], control_image_list[1]}, 2);
                call.timestep = run.empty({1}, job.dtype, Op::to_copy);
                call.noise_pred = flux_transform(call.latent_model_input, call.timestep, conditional_embeds,
                                                 call.latent_image_ids, call.text_ids, call.guidance, request);
                scheduler_step(call);
            }
        }
        const StageScope stage(run, "decode");
        decode_latents(call, image);
    }

  private:
    [[nodiscard]] bool says(const char* option) const {
        const auto found = job.pipeline.options.find(option);
        return found != job.pipeline.options.end() && found->second != "false" && found->second != "0" &&
               found->second != "0.0";
    }

    /// The picture where it is not to be painted anew, and the mask: [B, 17, h, w] fp32.
    [[nodiscard]] Tensor masked_latent(const Tensor& latents, const job::Batch& batch) {
        Tensor mask, inpainting_latent;
        const auto& training = std::get<job::Training>(job.work);
        const Dims picture{batch.count, 1, latents.size(2), latents.size(3)};
        if (says("inpaint") || training.objective.masks) {
            // The alpha channel, as large as the pixels, then as the latents.
            mask = run.empty({batch.count, 1, batch.height, batch.width}, latents.dtype(), Op::to_device);
            mask = run.empty(picture, latents.dtype(), Op::upsample);
        } else if (says("do_random_inpainting")) {
            // Blobs; what draws them takes some dozen pictures of this size.
            const Tensor blobs = run.empty(picture, Dtype::f32, Op::zeros);
            mask = shadow::rsub_scalar(blobs);
            mask = run.empty(picture, latents.dtype(), Op::upsample);
        } else {
            inpainting_latent = run.empty(latents.sizes(), latents.dtype(), Op::zeros);
            Tensor ones = run.empty(picture, latents.dtype(), Op::ones);
            return shadow::cat({inpainting_latent, std::move(ones)}, 1);
        }
        if (says("invert_inpaint_mask_chance")) mask = shadow::rsub_scalar(mask);
        inpainting_latent = run.empty(latents.sizes(), latents.dtype(), Op::mul);
        if (says("random_dialate_mask")) {
            Tensor dilated = run.empty(picture, Dtype::f32, Op::conv);
            dilated = shadow::compare_scalar(dilated);
            dilated = shadow::to_float(dilated);
            mask = run.empty(picture, Dtype::f32, Op::cat);
        }
        mask = shadow::rsub_scalar(mask);
        return shadow::cat({inpainting_latent, mask}, 1);
    }

    /// Of packed latents: zeros and a mask of ones, then zeros.
    [[nodiscard]] Tensors blank_controls(const Tensor& latents) {
        Tensor inpaint;
        {
            const Tensor zeros = run.empty_like(latents, Op::zeros);
            const Tensor ones = run.empty({1, latents.size(1), 4}, latents.dtype(), Op::ones);
            inpaint = shadow::cat({zeros, ones}, 2);
        }
        return {inpaint, run.empty_like(latents, Op::zeros)};
    }
};

constexpr std::string_view names[] = {"flex2"};
constexpr std::string_view block_names[] = {"transformer_blocks"};
constexpr std::string_view text_encoders[] = {"clip_l", "t5_xxl"};
constexpr TrainedText trained_text[] = {trained_clip("lora_te1.text_model", '$')};
constexpr std::string_view options[] = {"invert_inpaint_mask_chance", "inpaint_dropout",  "control_dropout",
                                        "inpaint_random_chance",      "random_blur_mask", "random_dialate_mask",
                                        "do_random_inpainting"};

bool plays(const profile::ModelProfile& profile) {
    return profile.family == "flux" && profile.config.integer("in_channels") == 196;
}

std::string_view taken_for(std::string_view, std::string_view) { return "flex2"; }

std::unique_ptr<Pipeline> make(const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
    return std::make_unique<Flex2>(job, catalogue, run);
}

}  // namespace

const Architecture architecture{
    .names = names,
    .title = "Flex.2",
    .models = "Flex.2",
    .vae = "vae_flux1",
    .text_encoders = text_encoders,
    .text_tokens = 512,
    .bucket_step = 16,
    .divisible_by = FluxPipeline::pixels_a_token,
    .most_references = std::numeric_limits<std::int64_t>::max(),  // of an item's one is taken at random
    .controls_in_latents = true,
    .controls_need_pixels = true,
    .wants_conditioned_latents = true,
    .takes_quantize_kwargs = true,
    .text_encoder_by_qtype = true,
    .options = options,
    .modules = {.block_names = block_names},
    .trained_text = trained_text,
    .text_encoders_have_backward = true,
    .plays = plays,
    .taken_for = taken_for,
    .make = make,
};

}  // namespace vram::trainers::ai_toolkit::flex2
