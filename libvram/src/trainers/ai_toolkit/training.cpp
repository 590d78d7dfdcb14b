#include "trainers/ai_toolkit/training.hpp"

#include <utility>

#include "shadow/ops.hpp"

namespace vram::trainers::ai_toolkit {
namespace {

using shadow::Category;
using shadow::ComponentScope;
using shadow::Dims;
using shadow::Node;
using shadow::NodeRef;
using shadow::NoGrad;
using shadow::Op;
using shadow::StageScope;

Bytes bytes_of(const Tensor& tensor) { return tensor.defined() ? round_up(tensor.layout()->bytes, 512) : 0; }

// mse_loss(reduction="none"): keeps both; its backward makes one tensor.
void squared_error_backward(Run& run, Node& node, Tensors&, Tensors& out) {
    const Tensor input = run.unpack(node.saved[0]);
    const Tensor target = run.unpack(node.saved[1]);
    if (node.needs(0)) out[0] = run.empty_like(input, Op::mse_loss_backward);
}
Tensor squared_error(Tensor input_in, Tensor target_in) {
    const Tensor input = std::move(input_in), target = std::move(target_in);
    Run& run = input.run();
    NodeRef node = run.record(Op::mse_loss, squared_error_backward, {&input, &target});
    if (node) {
        run.save(*node, input);
        run.save(*node, target);
    }
    Tensor out = run.empty_like(input, Op::mse_loss);
    Run::attach(out, node);
    return out;
}

/// Of all models that train, in their order.
std::vector<shadow::Parameter*> trainable(Pipeline& pipeline) {
    std::vector<shadow::Parameter*> all;
    for (Part* part : pipeline.trained()) {
        const std::vector<shadow::Parameter*> own = part->weights.trainable();
        all.insert(all.end(), own.begin(), own.end());
    }
    return all;
}

}  // namespace

Bytes Resident::bytes() const {
    return bytes_of(torch_multiplier) + unconditional_embeds.bytes() + cached_blank_embeds.bytes();
}

Training::Training(Pipeline& pipeline, Resident& resident, run::Facts& facts)
    : optimizer(pipeline.run, std::get<job::Training>(pipeline.job.work).optimizer, trainable(pipeline)),
      pipeline_(pipeline),
      resident_(resident),
      facts_(facts),
      run_(pipeline.run),
      training_(std::get<job::Training>(pipeline.job.work)) {}

void Training::step(const std::string& name, const job::Batch& batch) {
    const shadow::PhaseScope phase(run_, name);
    const ComponentScope scope(run_, pipeline_.transformer.component());
    cleanup();

    // hook_train_loop
    optimizer.zero_grad();
    Tensor total_loss, loss;
    for (std::int64_t i = 0; i < training_.gradient_accumulation; ++i) {
        // From the second round on every one is alike, but for the latents that each leaves until the next step.
        if (i > 1 && i + 1 < training_.gradient_accumulation) {
            const StageScope stage(run_, "prepare");
            const ComponentScope scope_of_batch(run_, "batch", Category::latents_and_embeddings);
            const NoGrad no_grad(run_);
            (void)process_general_training_batch(batch, batch_latents_.emplace_back());
            continue;
        }
        loss = train_single_accumulation(batch, batch_latents_.emplace_back());
        if (!total_loss.defined()) total_loss = loss;
        if (training_.gradient_accumulation > 1 && pipeline_.job.pipeline.low_vram) pipeline_.flush();
    }
    facts_.gradients = optimizer.gradient_bytes();
    {
        const StageScope stage(run_, "clip");
        optimizer.clip_grad_norm();
    }
    {
        const StageScope stage(run_, "optimizer");
        optimizer.step();
        optimizer.zero_grad();
    }
    if (training_.ema) {
        const StageScope stage(run_, "ema");
        update_ema();
    }
    facts_.phases.push_back({name, "train", {batch.width, batch.height, batch.frames}, batch.count, kept_});
}

Bytes Training::kept_without_checkpointing(const job::Batch& batch) {
    const Tensor scheduler_timesteps = scheduler_timesteps_;  // given back before the aside ends
    const shadow::Aside aside(run_);
    bool& checkpointing = pipeline_.transformer.model->gradient_checkpointing;
    const bool before = std::exchange(checkpointing, false);
    const ComponentScope scope(run_, pipeline_.transformer.component());
    Prepared prepared;
    PromptEmbeds embeds_to_use, embeds;
    Tensor conditioned, latents, batch_latents;
    {
        const NoGrad no_grad(run_);
        prepared = process_general_training_batch(batch, batch_latents);
        embeds = conditional_embeds(batch, embeds_to_use);
        conditioned = pipeline_.condition_noisy_latents(prepared.noisy_latents, batch);
        latents = shadow::to(conditioned, pipeline_.job.dtype);
    }
    const Bytes start = run_.live();
    const Tensor noise_pred = predict_noise(latents, prepared.timesteps, embeds, batch);
    const Bytes kept = run_.live() - start;
    scheduler_timesteps_ = scheduler_timesteps;
    checkpointing = before;
    run_.drop_recordings();
    return kept;
}

void Training::cleanup() { batch_latents_.clear(); }

Tensor Training::train_single_accumulation(const job::Batch& batch, Tensor& batch_latents) {
    const Dtype dtype = pipeline_.job.dtype;
    Prepared prepared;
    Tensor loss_multiplier, mask_multiplier;
    PromptEmbeds embeds_to_use, embeds;
    Tensor noisy_latents;  // what stands beside the noise, too; noisy_latents_list holds those without
    Tensor latents;        // the cast that predict_noise is handed; its frame holds it
    const Bytes start = run_.live();
    {
        const StageScope stage(run_, "prepare");
        const ComponentScope scope(run_, "batch", Category::latents_and_embeddings);
        const NoGrad no_grad(run_);
        prepared = process_general_training_batch(batch, batch_latents);
        loss_multiplier = run_.empty({batch.count, 1, 1, 1}, dtype, Op::ones);
        mask_multiplier = run_.empty({batch.count, 1, 1, 1}, dtype, Op::ones);
        embeds = conditional_embeds(batch, embeds_to_use);
        noisy_latents = pipeline_.condition_noisy_latents(prepared.noisy_latents, batch);
        latents = shadow::to(noisy_latents, dtype);
    }
    const Bytes before = run_.live();
    if (first_) facts_.inputs = before - start + resident_.bytes();
    first_ = false;
    const shadow::AttentionCalls calls = run_.attention_calls;
    Tensor noise_pred;
    {
        const StageScope stage(run_, "forward");
        noise_pred = predict_noise(latents, prepared.timesteps, embeds, batch);
        kept_ = run_.live() - before;
    }
    latents = Tensor();
    Tensor loss;
    {
        const StageScope stage(run_, "loss");
        loss = calculate_loss(noise_pred, prepared.noise, batch_latents, mask_multiplier);
    }
    Tensor divided;  // Accelerator.backward: loss / gradient_accumulation_steps, which is 1
    {
        const StageScope stage(run_, "backward");
        loss = shadow::mul(loss, shadow::mean_all(loss_multiplier));
        divided = shadow::div_scalar(loss);
        run_.backward(divided);
    }
    run::Counts& counts = facts_.counts;
    counts.attention_flash += run_.attention_calls.flash - calls.flash;
    counts.attention_efficient += run_.attention_calls.efficient - calls.efficient;
    counts.attention_cudnn += run_.attention_calls.cudnn - calls.cudnn;
    counts.attention_math += run_.attention_calls.math - calls.math;
    return loss.detach();
}

Training::Prepared Training::process_general_training_batch(const job::Batch& batch, Tensor& batch_latents) {
    const Dtype dtype = pipeline_.job.dtype;
    const Dims shape = pipeline_.latents(batch);
    Prepared out;
    Tensor latents;
    if (!pipeline_.job.pipeline.cache_latents) {
        const Dims pixels = pipeline_.pixels(batch);
        out.imgs = run_.empty(pixels, dtype, Op::to_device);
        {
            // reduce_contrast: (tensor - mean) * factor + mean, clamped.
            const Tensor mean = run_.empty({}, dtype, Op::mean);
            Tensor adjusted = run_.empty(pixels, dtype, Op::sub);
            adjusted = run_.empty(pixels, dtype, Op::mul);
            adjusted = run_.empty(pixels, dtype, Op::add);
            out.imgs = run_.empty(pixels, dtype, Op::clamp);
        }
        latents = pipeline_.encode_images(out.imgs, batch);
    } else {
        latents = run_.empty(shape, dtype, Op::to_device);  // batch.latents.to(device)
    }
    batch_latents = latents;

    scheduler_timesteps_ = pipeline_.set_train_timesteps();
    const Tensor timestep_indices = run_.empty({batch.count}, Dtype::i64, Op::noise);
    out.timesteps = run_.empty({batch.count}, Dtype::f32, Op::index);

    out.noise = run_.empty(shape, dtype, Op::noise);  // randn_like(latents)
    out.noise = shadow::mul_scalar(out.noise);        // * noise_multiplier
    latents = shadow::mul_scalar(latents);            // * latent_multiplier
    batch_latents = latents;

    {
        std::vector<Tensor> noisy_latents_chunks;
        for (std::int64_t idx = 0; idx < batch.count; ++idx) {
            const Tensor original_sample = shadow::slice(latents, 0, idx, idx + 1);
            const Tensor noise = shadow::slice(out.noise, 0, idx, idx + 1);
            const Tensor timestep = shadow::slice(out.timesteps, 0, idx, idx + 1);
            noisy_latents_chunks.push_back(pipeline_.add_noise(original_sample, noise, timestep));
        }
        out.noisy_latents = shadow::cat(noisy_latents_chunks, 0);
    }
    return out;
}

PromptEmbeds Training::conditional_embeds(const job::Batch& batch, PromptEmbeds& embeds_to_use) {
    const job::Pipeline& pipeline = pipeline_.job.pipeline;
    // batch.prompt_embeds lie in host memory: cloned there, then brought over.
    if (pipeline.cache_text) return resident_.caption_embeds.to_gpu(run_, batch.count);
    if (pipeline.unload_text) {
        embeds_to_use = clone(resident_.cached_blank_embeds);
        embeds_to_use = clone(embeds_to_use);  // .detach()
        return repeated(embeds_to_use, batch.count);
    }
    const PromptEmbeds encoded = pipeline_.get_prompt_embeds({batch.count, false, batch.references});
    return clone(encoded);  // .detach()
}

// SDTrainer.predict_noise has cast `latents`; this is the model's predict_noise up to what architectures differ in.
Tensor Training::predict_noise(const Tensor& latents, const Tensor& timestep, const PromptEmbeds& text_embeddings,
                               const job::Batch& batch) {
    Tensor latent_model_input;
    {
        const ComponentScope scope(run_, "batch", Category::latents_and_embeddings);
        const NoGrad no_grad(run_);
        latent_model_input = run_.empty(latents.sizes(), pipeline_.job.dtype, Op::cat);  // scale_model_input
    }
    if (facts_.input_tensors.empty()) pipeline_.handed = &facts_.input_tensors;
    return pipeline_.get_noise_prediction(latent_model_input, timestep, text_embeddings, batch);
}

Tensor Training::calculate_loss(const Tensor& noise_pred, const Tensor& noise, const Tensor& batch_latents,
                                const Tensor& mask_multiplier) {
    const Tensor loss_multiplier = run_.empty({noise.size(0)}, Dtype::f32, Op::to_device);
    const Tensor target = pipeline_.get_loss_target(noise, batch_latents);
    facts_.targets = bytes_of(target);
    Tensor loss;
    {
        Tensor prediction = shadow::to_float(noise_pred);
        Tensor wanted = shadow::to_float(target);
        loss = squared_error(std::move(prediction), std::move(wanted));
    }
    loss = shadow::mul_scalar(loss);  // * local_loss_scale
    const int dims = noise_pred.rank();
    Tensor mask = mask_multiplier;
    if (dims == 5) mask = shadow::repeat(shadow::unsqueeze(std::move(mask), 2), {1, 1, noise_pred.size(2), 1, 1});
    loss = shadow::mul(loss, mask);
    loss = shadow::mean(shadow::flatten(loss, 1, dims - 1), 1, false);  // mean([1, 2, 3])
    loss = shadow::mul(loss, loss_multiplier);
    loss = shadow::mean_all(loss);
    loss = shadow::add_scalar(loss);  // + additional_loss
    return loss;
}

// ExponentialMovingAverage.update: one parameter after the other; `tmp` lives until the next one's is there.
void Training::update_ema() {
    const ComponentScope scope(run_, "ema", Category::ema);
    Tensor s_param_float, param_float, tmp;
    for (std::size_t i = 0; i < resident_.shadow_params.size(); ++i) {
        const Tensor& s_param = resident_.shadow_params[i];
        s_param_float = shadow::to_float(s_param);
        param_float = shadow::to_float(optimizer.parameters()[i]->value.detach());
        tmp = run_.empty_like(s_param_float, Op::sub);
        if (s_param.dtype() != Dtype::f32) const Tensor random = run_.empty_like(s_param_float, Dtype::i32, Op::noise);
    }
}

}  // namespace vram::trainers::ai_toolkit
