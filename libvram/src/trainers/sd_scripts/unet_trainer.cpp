#include "trainers/sd_scripts/unet_trainer.hpp"

#include <utility>

#include "shadow/ops.hpp"

namespace vram::trainers::sd_scripts {

using shadow::AutocastScope;
using shadow::ComponentScope;
using shadow::Op;
using shadow::StageScope;

Prediction UnetTrainer::get_noise_pred_and_target(const Batch& batch, const Tensor& latents,
                                                  Tensors& text_encoder_conds) {
    const Noisy noisy = prepare(latents, text_encoder_conds);
    Prediction out;
    {
        const StageScope stage(run, "forward");
        const AutocastScope autocast(run, amp());
        out.noise_pred = call_unet(noisy.noisy_latents, noisy.timesteps, text_encoder_conds, batch);
    }
    forward_ended();
    out.target = target_of(latents, noisy);
    out.timesteps = noisy.timesteps;
    return out;
}

void UnetTrainer::Loop::end() {
    latent_timestep = latent_model_input = noise_pred = Tensor();
    noise_pred_uncond = noise_pred_text = Tensor();
}

void UnetTrainer::sample_all() {
    const bool vae_was_there = vae->on_gpu();
    vae->to_gpu();
    for (const job::Batch& image : job.sampling.images) {
        Loop loop;
        render(loop, image);
        clean_memory_on_device();
        decode_latents(loop.latents, image);
    }
    vae->move(vae_was_there);
}

void UnetTrainer::set_timesteps(Loop& loop) {
    loop.timesteps = run.empty({job.sampling.steps}, Dtype::i64, Op::to_device);
}

void UnetTrainer::prepare_latents(Loop& loop, const job::Batch& image, Dtype dtype) {
    loop.latent_timestep = run.empty({1}, Dtype::i64, Op::repeat);
    const Tensor drawn = run.empty({1, latent_channels(), image.height / 8, image.width / 8}, dtype, Op::noise);
    loop.latents = shadow::mul_scalar(drawn);
}

void UnetTrainer::denoise(Loop& loop, const Predict& predict) {
    for (int i = 0; i < 2; ++i) {
        const Tensor t = shadow::slice(loop.timesteps, 0, 0, 1);
        loop.latent_model_input = guides() ? shadow::cat({loop.latents, loop.latents}, 0) : loop.latents;
        loop.noise_pred = predict(loop.latent_model_input, t);
        if (guides()) {
            const Tensors halves = shadow::chunk(loop.noise_pred, 2, 0);
            loop.noise_pred_uncond = halves[0];
            loop.noise_pred_text = halves[1];
            Tensor guided = shadow::sub(loop.noise_pred_text, loop.noise_pred_uncond);
            guided = shadow::mul_scalar(std::move(guided));
            loop.noise_pred = shadow::add(loop.noise_pred_uncond, std::move(guided));
        }
        // DDIMScheduler.step
        const Tensor prev_timestep = run.empty({}, Dtype::i64, Op::sub);
        Tensor pred_original_sample;
        {
            Tensor away = shadow::mul_scalar(loop.noise_pred);
            away = shadow::sub(loop.latents, std::move(away));
            pred_original_sample = shadow::div_scalar(std::move(away));
        }
        pred_original_sample = shadow::clamp(pred_original_sample);
        const Tensor pred_sample_direction = shadow::mul_scalar(loop.noise_pred);
        Tensor prev_sample = shadow::mul_scalar(pred_original_sample);
        prev_sample = shadow::add(std::move(prev_sample), pred_sample_direction);
        loop.latents = std::move(prev_sample);
    }
}

void UnetTrainer::decode_latents(const Tensor& latents_in, const job::Batch& image) {
    const StageScope stage(run, "decode");
    const ComponentScope scope(run, "vae");
    models::Request request = request_of(image);
    request.batch = 1;
    request.dtype = job.pipeline.vae_dtype;
    request.operation = models::Request::Operation::decode;
    Tensor latents = shadow::to(latents_in, job.pipeline.vae_dtype);
    latents = shadow::mul_scalar(latents);
    const Tensor decoded = vae->forward({latents}, request)[0];
    Tensor pixels = shadow::div_scalar(decoded);
    pixels = shadow::add_scalar(std::move(pixels));
    pixels = shadow::clamp(std::move(pixels));
}

}  // namespace vram::trainers::sd_scripts
