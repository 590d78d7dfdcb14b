// `arch: wan21` and `wan21_i2v`: Wan21 and Wan21I2V (toolkit/models/wan21/, 27a03a91).
#include "shadow/ops.hpp"
#include "trainers/ai_toolkit/architectures/wan.hpp"

namespace vram::trainers::ai_toolkit {
namespace wan {
namespace {

using shadow::Category;
using shadow::ComponentScope;
using shadow::NoGrad;
using shadow::Op;
using shadow::StageScope;

/// With diffusers' WanImageToVideoPipeline or, where low_vram is on, AggressiveWanI2VUnloadPipeline.
class Wan21I2V final : public Wan21 {
  public:
    Wan21I2V(const Architecture& architecture, const job::Job& job_in, const profile::Catalogue& catalogue, Run& run_in)
        : Wan21(architecture, job_in, catalogue, run_in),
          image_encoder(run, "image_encoder", plain_rules(job.dtype), catalogue.model_of("clip_vision_h")) {}

    void load_model(Loading& loading) override {
        Wan21::load_model(loading);
        if (job.pipeline.low_vram) text_encoders[0]->to_cpu();
        image_encoder.to_gpu();
        if (job.pipeline.low_vram) image_encoder.to_cpu();
        flush();
    }

    // With low_vram presets do nothing, but generate_images clears the GPU before it asks for one.
    void set_device_state_preset(const Placement& where) override {
        if (!job.pipeline.low_vram) {
            Wan21::set_device_state_preset(where);
            return;
        }
        if (where != Placement{true, true, true}) return;
        image_encoder.to_cpu();
        vae->to_cpu();
        transformer.to_cpu();
        flush();
    }

    [[nodiscard]] Tensor get_noise_prediction(const Tensor& latent_model_input, const Tensor& timestep,
                                              const PromptEmbeds& text_embeddings, const job::Batch& batch) override {
        Tensor preprocessed_frames, image_embeds, conditioned_latent;
        Tensors image_embeds_full;
        {
            const NoGrad no_grad(run);
            const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
            // The first frame is made small on the host.
            preprocessed_frames = run.empty({batch.count, 3, clip_side, clip_side}, job.dtype, Op::to_device);
            image_encoder.to_gpu();
            image_embeds_full = image_encoder.forward({preprocessed_frames}, clip_request(batch.count));
            image_embeds = hidden_states_before_last(image_embeds_full);
            conditioned_latent = add_first_frame_conditioning(latent_model_input, {});
        }
        return model({conditioned_latent, timestep, text_embeddings.text_embeds[0], image_embeds},
                     request_of(batch, text_embeddings));
    }

    void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds& unconditional_embeds,
                               const job::Batch& image) override {
        const bool unloads = job.pipeline.low_vram;
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        if (unloads) {
            for (const std::unique_ptr<Part>& text_encoder : text_encoders) text_encoder->to_gpu();
            vae->to_cpu();
            image_encoder.to_cpu();
            flush();
            for (const std::unique_ptr<Part>& text_encoder : text_encoders) text_encoder->to_cpu();
            transformer.to_gpu();
            flush();
            image_encoder.to_gpu();
            vae->to_gpu();
        }
        Tensor image_embeds, pixels, latents, latents_outputs, condition, latent_model_input, timestep;
        Predicted names;
        Tensors schedule;
        {
            const StageScope stage(run, "denoise");
            image_embeds = encode_image();
            image_embeds = shadow::repeat(image_embeds, {1, 1, 1});
            schedule = set_timesteps();
            pixels = run.empty({1, 3, image.height, image.width}, Dtype::f32, Op::to_device);
            latents = prepare_latents(image, unloads ? Dtype::bf16 : Dtype::f32);
            if (!unloads) latents_outputs = latents;  // diffusers keeps the tuple of both
            condition = condition_of(pixels, image.frames, latents.dtype());
            if (unloads) {
                image_encoder.to_cpu();
                vae->to_cpu();
                flush();
            }
            for (std::int64_t i = 0; i < 2; ++i) {
                {
                    const Tensor both = shadow::cat({latents, condition}, 1);
                    latent_model_input = shadow::to(both, job.dtype);
                }
                timestep = shadow::slice(schedule[0], 0, 0, 1);  // t.expand
                predict(transformer, {latent_model_input, timestep, image_embeds}, conditional_embeds,
                        unconditional_embeds, image, names);
                latents = scheduler_step(names.noise_pred, latents);
            }
        }
        {
            const StageScope stage(run, "decode");
            if (unloads) vae->to_gpu();  // the transformer stays
            decode_video(latents, image, false);
        }
    }

    Part image_encoder;

  private:
    static constexpr std::int64_t clip_side = 224;

    [[nodiscard]] models::Request clip_request(std::int64_t count) const {
        models::Request request;
        request.batch = count;
        request.dtype = job.dtype;
        request.all_hidden_states = true;
        return request;
    }

    /// hidden_states[-2], of {hidden states, last_hidden_state, pooler_output}
    static Tensor hidden_states_before_last(const Tensors& output) { return output[output.size() - 4]; }

    /// encode_image: only one of the hidden states is left.
    [[nodiscard]] Tensor encode_image() {
        const Tensor pixel_values =
            run.empty({1, 3, clip_side, clip_side}, job.pipeline.low_vram ? job.dtype : Dtype::f32, Op::to_device);
        const Tensors image_embeds = image_encoder.forward({pixel_values}, clip_request(1));
        return hidden_states_before_last(image_embeds);
    }

    /// WanImageToVideoPipeline.prepare_latents, what stands beside the noise.
    [[nodiscard]] Tensor condition_of(const Tensor& pixels, std::int64_t num_frames, Dtype dtype) {
        Tensor video_condition;
        {
            const Tensor image = shadow::unsqueeze(pixels, 2);
            const Tensor black =
                run.empty({1, 3, num_frames - 1, pixels.size(2), pixels.size(3)}, pixels.dtype(), Op::zeros);
            video_condition = shadow::cat({image, black}, 2);
        }
        video_condition = shadow::to(video_condition, job.pipeline.vae_dtype);
        const Tensors mean_and_std = statistics(dtype);
        Tensor latent_condition;
        {
            // retrieve_latents, "argmax": the mean, which the distribution made into a tensor of its own
            models::Request request;
            request.dtype = job.pipeline.vae_dtype;
            request.operation = models::Request::Operation::encode;
            const Tensors distribution = vae->forward({video_condition}, request);
            latent_condition = distribution[1];
        }
        latent_condition = shadow::repeat(latent_condition, {1, 1, 1, 1, 1});
        latent_condition = shadow::to(latent_condition, dtype);
        {
            Tensor centred = shadow::sub(latent_condition, mean_and_std[0]);
            latent_condition = shadow::mul(std::move(centred), mean_and_std[1]);
        }
        const Tensor mask_lat_size =
            run.empty({1, temporal, latent_condition.size(2), latent_condition.size(3), latent_condition.size(4)},
                      Dtype::f32, Op::to_device);
        return shadow::cat({mask_lat_size, latent_condition}, 1);
    }
};

bool holds(std::string_view name, std::string_view part) { return name.find(part) != std::string_view::npos; }

template <class Class, const Architecture* architecture>
std::unique_ptr<Pipeline> made(const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
    return std::make_unique<Class>(*architecture, job, catalogue, run);
}

}  // namespace
}  // namespace wan

namespace wan21 {
namespace {

constexpr std::string_view names[] = {"wan21"};
constexpr std::string_view options[] = {"vae_tiling"};

bool plays(const profile::ModelProfile& profile) {
    return wan::is_wan(profile, 16, 16) && !profile.id.starts_with("wan22");
}

std::string_view taken_for(std::string_view, std::string_view name) {
    if (wan::holds(name, "1.3b") || wan::holds(name, "1_3b")) return "wan21_t2v_1_3b";
    return wan::holds(name, "14b") && !wan::holds(name, "i2v") ? "wan21_t2v_14b" : "";
}

// AggressiveWanUnloadPipeline makes latents of whatever it is asked for.
std::int64_t sample_frames(std::int64_t frames, bool low_vram) {
    return low_vram ? wan::floored_frames(frames) : wan::rounded_frames(frames);
}

}  // namespace

const Architecture architecture{
    .names = names,
    .title = "Wan 2.1",
    .models = "Wan 2.1",
    .vae = "vae_wan21",
    .text_encoders = wan::text_encoders,
    .text_tokens = wan::max_sequence_length,
    .bucket_step = 16,
    .divisible_by = 16,
    .frame_step = wan::temporal,
    .drops_frames = true,
    .quantizes_blocks = true,
    .text_encoder_by_qtype = true,
    .options = options,
    .modules = {.block_names = wan::block_names},
    .offloading = {.attaches = true, .leaves_parameters = true},
    .sample_frames = sample_frames,
    .plays = plays,
    .taken_for = taken_for,
    .make = wan::made<wan::Wan21, &architecture>,
};

}  // namespace wan21

namespace wan21_i2v {
namespace {

constexpr std::string_view names[] = {"wan21_i2v"};

bool plays(const profile::ModelProfile& profile) {
    return wan::is_wan(profile, 36, 16) && profile.config.integer("image_dim", 0) > 0;
}

std::string_view taken_for(std::string_view, std::string_view) { return "wan21_i2v_14b"; }

}  // namespace

const Architecture architecture{
    .names = names,
    .title = "Wan 2.1 I2V",
    .models = "Wan 2.1 I2V",
    .vae = "vae_wan21",
    .text_encoders = wan::text_encoders,
    .text_tokens = wan::max_sequence_length,
    .bucket_step = 16,
    .divisible_by = 16,
    .frame_step = wan::temporal,
    .drops_frames = true,
    .most_references = 1,
    .needs_pixels = true,
    .samples_need_reference = true,
    .quantizes_blocks = true,
    .text_encoder_by_qtype = true,
    .modules = {.block_names = wan::block_names},
    .offloading = {.attaches = true, .leaves_parameters = true},
    .sample_frames = wan21::sample_frames,
    .plays = plays,
    .taken_for = taken_for,
    .make = wan::made<wan::Wan21I2V, &architecture>,
};

}  // namespace wan21_i2v
}  // namespace vram::trainers::ai_toolkit
