#include "trainers/ai_toolkit/architectures/wan.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "shadow/ops.hpp"
#include "trainers/named_model.hpp"

namespace vram::trainers::ai_toolkit::wan {

using shadow::Category;
using shadow::ComponentScope;
using shadow::Op;
using shadow::StageScope;

Wan21::Wan21(const Architecture& architecture, const job::Job& job_in, const profile::Catalogue& catalogue, Run& run_in)
    : Pipeline(architecture, job_in, catalogue, run_in),
      z_dim(catalogue.model_of(job.pipeline.vae).config.integer("z_dim")),
      spatial(catalogue.model_of(job.pipeline.vae).config.integer("scale_factor_spatial", 8)),
      in_channels(profile_of(job, catalogue, job.model).config.integer("in_channels")) {}

void Wan21::begin_quantizing(Loading& loading) {
    if (!std::exchange(quantizing_, true)) loading.quantizes();
}

void Wan21::arrive(Part& part) {
    if (!job.pipeline.low_vram) job.quantization == job::Quantization::none ? part.to_gpu() : part.load_full();
    flush();
}

void Wan21::quantize(Part& part, Loading& loading) {
    if (job.quantization == job::Quantization::none) return;
    begin_quantizing(loading);
    part.quantize_model();
    flush();
}

void Wan21::load_wan_transformer(Loading& loading) {
    arrive(transformer);
    quantize(transformer, loading);
    transformer.attach_memory_manager();
}

void Wan21::load_model(Loading& loading) {
    load_wan_transformer(loading);
    flush();
    Part& text_encoder = *text_encoders[0];
    if (job.pipeline.text_encoder_quantization == job::Quantization::none) {
        text_encoder.to_gpu();
        flush();
    } else {
        text_encoder.load_full();
        flush();
        begin_quantizing(loading);
        text_encoder.quantize();
        text_encoder.loaded();
        flush();
    }
    text_encoder.attach_memory_manager();
    // The VAE stays on the host. With low_vram the transformer comes back now, without it where it was quantised.
    transformer_to(true);
    flush();
}

// WanPipeline.encode_prompt
PromptEmbeds Wan21::get_prompt_embeds(const Prompts& prompts) {
    Part& text_encoder = *text_encoders[0];
    text_encoder.to_gpu();
    models::Request request;
    request.batch = prompts.count;
    request.text_tokens = max_sequence_length;
    request.dtype = job.pipeline.text_encoder_dtype;
    request.attention_mask = true;
    Tensor prompt_embeds;
    {
        const Tensors ids_and_mask = on_device(run, text_encoder.model->inputs(request));
        prompt_embeds = text_encoder.forward(ids_and_mask, request)[0];
    }
    {
        // Each cut to its tokens, and zeros put behind them. How many these are moves nothing but the zeros, which are
        // taken for those of a prompt of one token.
        std::vector<Tensor> padded;
        for (std::int64_t i = 0; i < prompts.count; ++i) {
            const Tensor u = shadow::slice(shadow::select(prompt_embeds, 0, i), 0, 0, 1);
            const Tensor zeros =
                run.empty({max_sequence_length - 1, prompt_embeds.size(2)}, prompt_embeds.dtype(), Op::zeros);
            padded.push_back(shadow::cat({u, zeros}, 0));
        }
        prompt_embeds = shadow::stack(padded, 0);
    }
    prompt_embeds = shadow::repeat(prompt_embeds, {1, 1, 1});
    PromptEmbeds out;
    out.text_embeds = {prompt_embeds};
    return out;
}

Dims Wan21::latents(const job::Batch& batch) const {
    return {batch.count, z_dim, (batch.frames - 1) / temporal + 1, batch.height / spatial, batch.width / spatial};
}

Tensors Wan21::statistics(Dtype dtype) {
    const Tensor latents_mean = run.empty({1, z_dim, 1, 1, 1}, dtype, Op::to_device);
    Tensor deviation = run.empty({1, z_dim, 1, 1, 1}, dtype, Op::to_device);
    const Tensor latents_std = shadow::rdiv_scalar(std::move(deviation));
    return {latents_mean, latents_std};
}

Tensor Wan21::encode_video(const Tensor& video) {
    job::Batch clip;  // the VAE takes sizes from the tensor
    clip.count = video.size(0);
    clip.frames = video.size(2);
    clip.height = video.size(3);
    clip.width = video.size(4);
    return sample_latents(video, clip);
}

Tensor Wan21::encode_images(Tensor image_list_in, const job::Batch&) {
    const Tensor image_list = std::move(image_list_in);
    vae->to_gpu();
    const ComponentScope scope(run, "vae");
    const std::vector<Tensor> norm_images = clips_of(image_list);
    const Tensor images = shadow::stack(norm_images, 0);
    Tensor latents = encode_video(images);
    const Tensors mean_and_std = statistics(latents.dtype());
    Tensor centred = shadow::sub(latents, mean_and_std[0]);
    latents = shadow::mul(std::move(centred), mean_and_std[1]);
    return latents;
}

Tensor Wan21::call(Part& part, const Tensors& args, const models::Request& request) {
    return part.forward(args, request)[0];
}

Tensor Wan21::model(const Tensors& args, const models::Request& request) { return transform(args, request); }

Tensor Wan21::get_noise_prediction(const Tensor& latent_model_input, const Tensor& timestep,
                                   const PromptEmbeds& text_embeddings, const job::Batch& batch) {
    return model({latent_model_input, timestep, text_embeddings.text_embeds[0]}, request_of(batch, text_embeddings));
}

bool Wan21::option(const std::string& key, bool fallback) const { return is_true(job.pipeline.options, key, fallback); }

bool Wan21::use_vae_tiling() const { return job.pipeline.low_vram || option("vae_tiling", false); }

Tensor Wan21::prepare_latents(const job::Batch& image, Dtype dtype) {
    return run.empty(this->latents(image), dtype, Op::to_device);  // drawn on the host
}

void Wan21::predict(Part& part, const Tensors& args, const PromptEmbeds& prompt_embeds,
                    const PromptEmbeds& negative_prompt_embeds, const job::Batch& image, Predicted& names) {
    const auto with = [&](const PromptEmbeds& embeds) {
        Tensors out{args[0], args[1], embeds.text_embeds[0]};
        for (std::size_t i = 2; i < args.size(); ++i) out.push_back(args[i]);
        return out;
    };
    const models::Request request = request_of(image, prompt_embeds);
    names.noise_pred = call(part, with(prompt_embeds), request);
    if (job.sampling.guidance <= 1) return;
    names.noise_uncond = call(part, with(negative_prompt_embeds), request);
    Tensor guided = shadow::sub(names.noise_pred, names.noise_uncond);
    guided = shadow::mul_scalar(std::move(guided));
    names.noise_pred = shadow::add(names.noise_uncond, std::move(guided));
}

void Wan21::decode_video(Tensor& latents, const job::Batch& image, bool tiling) {
    latents = shadow::to(latents, job.pipeline.vae_dtype);
    const Tensors mean_and_std = statistics(latents.dtype());
    Tensor scaled = shadow::div(latents, mean_and_std[1]);
    latents = shadow::add(std::move(scaled), mean_and_std[0]);
    models::Request request = vae_request(image, 1, models::Request::Operation::decode);
    request.tiling = tiling;
    const Tensor video = vae->forward({latents}, request)[0];
    postprocess_video(video);
}

void Wan21::generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds& unconditional_embeds,
                                  const job::Batch& image) {
    const bool unloads = job.pipeline.low_vram;
    if (unloads) {
        vae->to_cpu();
        for (const std::unique_ptr<Part>& text_encoder : text_encoders) {
            text_encoder->to_gpu();
            text_encoder->to_cpu();
        }
        transformer.to_gpu();
    }
    const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
    Tensor latents, mask, latent_model_input, timestep;
    Predicted names;
    const Tensors schedule = set_timesteps();
    {
        const StageScope stage(run, "denoise");
        latents = prepare_latents(image, Dtype::f32);
        if (!unloads) mask = run.empty(latents.sizes(), Dtype::f32, Op::ones);
        for (std::int64_t i = 0; i < 2; ++i) {
            latent_model_input = shadow::to(latents, job.dtype);
            timestep = shadow::slice(schedule[0], 0, 0, 1);  // t.expand
            predict(transformer, {latent_model_input, timestep}, conditional_embeds, unconditional_embeds, image,
                    names);
            latents = scheduler_step(names.noise_pred, latents);
        }
    }
    {
        const StageScope stage(run, "decode");
        if (unloads) vae->to_gpu();  // the transformer stays
        decode_video(latents, image, use_vae_tiling());
    }
}

Tensor Wan21::add_first_frame_conditioning(const Tensor& latent_model_input, const Tensor& first_frame_in) {
    const std::int64_t batch_size = latent_model_input.size(0), num_latent_frames = latent_model_input.size(2),
                       latent_height = latent_model_input.size(3), latent_width = latent_model_input.size(4);
    const Dtype dtype = latent_model_input.dtype();
    const Dims clip{batch_size, 3, (num_latent_frames - 1) * temporal + 1, latent_height * spatial,
                    latent_width * spatial};
    Tensor first_frame, zero_frame, video_condition;
    if (first_frame_in.defined()) {
        first_frame = run.empty({batch_size, 3, clip[3], clip[4]}, first_frame_in.dtype(), Op::upsample);  // bilinear
        first_frame = shadow::unsqueeze(std::move(first_frame), 2);
        zero_frame = run.empty_like(first_frame, Op::zeros);
        video_condition = run.empty(clip, first_frame.dtype(), Op::cat);
    }
    Tensor latent_condition;
    {
        const Tensor video = video_condition.defined() ? video_condition : run.empty(clip, dtype, Op::to_device);
        const ComponentScope scope(run, "vae");
        latent_condition = encode_video(video);
    }
    const Tensors mean_and_std = statistics(dtype);
    {
        Tensor centred = shadow::sub(latent_condition, mean_and_std[0]);
        latent_condition = shadow::mul(std::move(centred), mean_and_std[1]);
    }
    const Tensor mask_lat_size =
        run.empty({batch_size, temporal, num_latent_frames, latent_height, latent_width}, dtype, Op::to_device);
    const Tensor first_frame_condition = shadow::cat({mask_lat_size, latent_condition}, 1);
    return shadow::cat({latent_model_input, first_frame_condition}, 1);
}

bool is_true(const std::map<std::string, std::string>& options, const std::string& key, bool fallback) {
    const auto at = options.find(key);
    if (at == options.end()) return fallback;
    constexpr std::array<std::string_view, 6> falsy{"false", "False", "null", "0", "0.0", ""};
    return std::find(falsy.begin(), falsy.end(), at->second) == falsy.end();
}

bool is_wan(const profile::ModelProfile& profile, std::int64_t in_channels, std::int64_t out_channels) {
    return profile.family == "wan" && profile.config.integer("in_channels") == in_channels &&
           profile.config.integer("out_channels", in_channels) == out_channels;
}

std::int64_t rounded_frames(std::int64_t frames) {
    return std::max<std::int64_t>(frames % temporal != 1 ? frames / temporal * temporal + 1 : frames, 1);
}

std::int64_t floored_frames(std::int64_t frames) { return (frames - 1) / temporal * temporal + 1; }

}  // namespace vram::trainers::ai_toolkit::wan
