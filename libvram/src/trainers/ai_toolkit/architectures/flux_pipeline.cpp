#include "trainers/ai_toolkit/architectures/flux_pipeline.hpp"

#include "shadow/ops.hpp"

namespace vram::trainers::ai_toolkit {

using shadow::Category;
using shadow::ComponentScope;
using shadow::Op;

PromptEmbeds FluxPipeline::get_prompt_embeds(const Prompts& prompts) {
    Part &text_encoder = *text_encoders[0], &text_encoder_2 = *text_encoders[1];
    text_encoder.to_gpu();
    PromptEmbeds out;
    models::Request request;
    request.batch = prompts.count;
    request.text_tokens = 77;
    request.dtype = job.pipeline.text_encoder_dtype;
    const Tensors prompt_embeds = text_encoder.forward(on_device(run, text_encoder.model->inputs(request)), request);
    out.pooled_embeds = prompt_embeds[1];  // pooler_output
    out.text_embeds = {encode_t5(text_encoder_2, prompts.count)};
    return out;
}

Tensor FluxPipeline::encode_t5(Part& text_encoder, std::int64_t count) {
    models::Request request;
    request.batch = count;
    request.text_tokens = job.text_tokens;
    request.dtype = job.pipeline.text_encoder_dtype;
    return text_encoder.forward(on_device(run, text_encoder.model->inputs(request)), request)[0];
}

Dims FluxPipeline::latents(const job::Batch& batch) const {
    return {batch.count, 16, batch.height / 8, batch.width / 8};
}

Tensor FluxPipeline::encode_images(Tensor image_list, const job::Batch& batch) {
    return encode_kl(std::move(image_list), batch);
}

void FluxPipeline::load_on_gpu(Loading& loading) {
    const bool quantizes = job.quantization != job::Quantization::none;
    const bool quantizes_text = job.pipeline.text_encoder_quantization != job::Quantization::none;
    if (quantizes)
        transformer.load_full();
    else
        transformer.to_gpu();
    if (quantizes || quantizes_text) loading.quantizes();
    if (quantizes) {
        transformer.quantize();
        transformer.loaded();
    }
    flush();
    load_text_encoder(*text_encoders.back(), quantizes_text);
    for (const std::unique_ptr<Part>& text_encoder : text_encoders) text_encoder->to_gpu();
    flush();
}

Tensor FluxPipeline::packed(const Tensor& latents) {
    const std::int64_t batch = latents.size(0), channels = latents.size(1), height = latents.size(2) / 2,
                       width = latents.size(3) / 2;
    Tensor out = shadow::view(latents, {batch, channels, height, 2, width, 2});
    out = shadow::permute(std::move(out), {0, 2, 4, 1, 3, 5});
    return shadow::reshape(std::move(out), {batch, height * width, channels * 4});
}

Tensor FluxPipeline::unpacked(Tensor noise_pred, const job::Batch& batch) {
    const std::int64_t height = batch.height / pixels_a_token, width = batch.width / pixels_a_token;
    noise_pred = shadow::view(std::move(noise_pred), {batch.count, height, width, 16, 2, 2});
    noise_pred = shadow::permute(std::move(noise_pred), {0, 3, 1, 4, 2, 5});
    return shadow::reshape(std::move(noise_pred), {batch.count, 16, 2 * height, 2 * width});
}

Tensor FluxPipeline::flux_transform(Tensor hidden_states, const Tensor& timestep, const PromptEmbeds& embeds,
                                    const Tensor& img_ids, const Tensor& txt_ids, const Tensor& guidance,
                                    const models::Request& request) {
    Tensors args{std::move(hidden_states), embeds.text_embeds[0], embeds.pooled_embeds};
    {
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        args.push_back(shadow::div_scalar(timestep));  // timestep / 1000
    }
    args.push_back(img_ids);
    args.push_back(txt_ids);
    if (guidance.defined()) args.push_back(guidance);
    return transform(args, request);
}

bool FluxPipeline::takes_guidance(const models::Request& request) const {
    return transformer.takes("guidance", request);
}

void FluxPipeline::prepare_latents(Call& call, const job::Batch& image, const models::Request& request) {
    if (!call.text_ids.defined()) call.text_ids = run.empty({request.text_tokens, 3}, job.dtype, Op::to_device);
    {
        const Tensor noise = run.empty(latents(image), job.dtype, Op::to_device);
        call.latents = packed(noise);
    }
    if (!call.latent_image_ids.defined())
        call.latent_image_ids = run.empty({call.latents.size(1), 3}, job.dtype, Op::to_device);
}

void FluxPipeline::retrieve_timesteps(Call& call, const models::Request& request) {
    {
        const Tensor sigmas = run.empty({job.sampling.steps}, Dtype::f32, Op::to_device);
        call.timesteps = shadow::mul_scalar(sigmas);
        const Tensor last = run.empty({1}, Dtype::f32, Op::zeros);
        call.sigmas = shadow::cat({sigmas, last}, 0);
    }
    if (takes_guidance(request)) call.guidance = run.empty({1}, Dtype::f32, Op::full);
}

void FluxPipeline::scheduler_step(Call& call) {
    const Tensor sample = shadow::to_float(call.latents);
    const Tensor dt = run.empty({}, Dtype::f32, Op::sub);
    Tensor prev_sample;
    {
        const Tensor moved = shadow::mul_scalar(call.noise_pred);
        prev_sample = run.empty(sample.sizes(), Dtype::f32, Op::add);
    }
    prev_sample = shadow::to(prev_sample, job.dtype);
    call.latents = prev_sample;
}

void FluxPipeline::decode_latents(Call& call, const job::Batch& image) {
    call.latents = unpacked(call.latents, image);
    Tensor scaled = shadow::div_scalar(call.latents);
    call.latents = shadow::add_scalar(std::move(scaled));
    decode(call.latents, image);
}

}  // namespace vram::trainers::ai_toolkit
