#include "trainers/ai_toolkit/sampling.hpp"

#include <utility>

#include "shadow/ops.hpp"

namespace vram::trainers::ai_toolkit {
namespace {

using shadow::Category;
using shadow::ComponentScope;
using shadow::Dims;
using shadow::NoGrad;
using shadow::Op;
using shadow::Parameter;
using shadow::StageScope;

/// ExponentialMovingAverage.eval … train: a copy of what trains, while the average stands in its place.
class Averaged {
  public:
    Averaged(Pipeline& pipeline, const Resident& resident, const run::Optimizer& optimizer) {
        if (resident.shadow_params.empty()) return;
        const ComponentScope scope(pipeline.run, "ema", Category::ema);
        for (const Parameter* parameter : optimizer.parameters())
            collected_params_.push_back(shadow::clone(parameter->value.detach()));
    }

  private:
    std::vector<Tensor> collected_params_;
};

/// ToolkitModuleMixin.merge_in of every module: weight + multiplier * (up @ down) * scale, in fp32, then cast back and
/// copied.
void merge_in(Pipeline& pipeline, bool adapter_is_zero) {
    nn::Weights& weights = pipeline.transformer.weights;
    Run& run = pipeline.run;
    const ComponentScope scope(run, "transformer");
    std::deque<Parameter>& all = weights.all_adapter();
    for (std::size_t i = 0; i + 1 < all.size(); ++i) {
        if (all[i].buffer || all[i + 1].buffer) continue;  // down, up, two scalars
        const Tensor up_weight = shadow::clone(all[i + 1].value.detach());
        const Tensor down_weight = shadow::clone(all[i].value.detach());
        if (adapter_is_zero) continue;
        const Dims sizes{up_weight.size(0), down_weight.size(1)};
        Tensor weight = run.empty(sizes, Dtype::f32, Op::to_copy);
        Tensor product = run.empty(sizes, Dtype::f32, Op::mm);
        product = run.empty(sizes, Dtype::f32, Op::mul);
        product = run.empty(sizes, Dtype::f32, Op::mul);
        weight = run.empty(sizes, Dtype::f32, Op::add);
        product = Tensor();
        const Tensor cast = run.empty(sizes, weights.rules().dtype, Op::to_copy);
    }
}

/// FluxPipeline.__call__ with given embeds.
void generate(Pipeline& pipeline, const PromptEmbeds& embeds, const job::Batch& image) {
    Run& run = pipeline.run;
    const Dtype dtype = pipeline.job.dtype;
    const std::int64_t height = image.height / 16, width = image.width / 16, tokens = height * width;
    models::Request request;
    request.width = image.width;
    request.height = image.height;
    request.text_tokens = embeds.text_embeds.size(1);
    request.dtype = dtype;

    Tensor latents, noise_pred;
    const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
    {
        const StageScope stage(run, "denoise");
        const Tensor text_ids = run.empty({request.text_tokens, 3}, dtype, Op::to_device);
        {
            const Tensor noise = run.empty({1, 16, 2 * height, 2 * width}, dtype, Op::to_device);
            latents = run.empty({1, tokens, 64}, dtype, Op::clone);  // _pack_latents
        }
        const Tensor latent_image_ids = run.empty({tokens, 3}, dtype, Op::to_device);
        const Tensor timesteps = run.empty({pipeline.job.sampling.steps}, Dtype::f32, Op::to_device);
        const Tensor sigmas = run.empty({pipeline.job.sampling.steps + 1}, Dtype::f32, Op::cat);
        Tensor guidance;
        if (pipeline.transformer.takes("guidance", request)) guidance = run.empty({1}, Dtype::f32, Op::to_device);
        Tensor timestep;
        for (int i = 0; i < 2; ++i) {
            timestep = run.empty({1}, dtype, Op::to_copy);
            {
                Tensors args{
                    latents, embeds.text_embeds, embeds.pooled_embeds, shadow::div_scalar(timestep), latent_image_ids,
                    text_ids};
                if (guidance.defined()) args.push_back(guidance);
                noise_pred = pipeline.transformer.forward(args, request)[0];
            }
            // FlowMatchEulerDiscreteScheduler.step: in fp32.
            const Tensor sample = shadow::to_float(latents);
            Tensor prev_sample;
            {
                const Tensor moved = shadow::mul_scalar(noise_pred);
                prev_sample = run.empty(sample.sizes(), Dtype::f32, Op::add);
            }
            prev_sample = shadow::to(prev_sample, dtype);
            latents = prev_sample;
        }
    }
    {
        const StageScope stage(run, "decode");
        latents = run.empty({1, 16, 2 * height, 2 * width}, dtype, Op::clone);  // _unpack_latents
        Tensor scaled = shadow::div_scalar(latents);
        latents = shadow::add_scalar(std::move(scaled));
        const Tensor decoded = pipeline.decode(latents, image);
        // VaeImageProcessor.denormalize and its stack.
        Tensor pixels = shadow::mul_scalar(decoded);
        pixels = shadow::add_scalar(pixels);
        pixels = shadow::clamp(pixels);
        pixels = run.empty_like(pixels, Op::stack);
    }
}

}  // namespace

void sample(Pipeline& pipeline, Resident& resident, const run::Optimizer& optimizer, bool adapter_is_zero) {
    Run& run = pipeline.run;
    const NoGrad no_grad(run);
    const job::Pipeline& parts = pipeline.job.pipeline;
    pipeline.flush();
    const Averaged averaged(pipeline, resident, optimizer);
    pipeline.flush();
    nn::Weights& weights = pipeline.transformer.weights;
    const bool merges = pipeline.job.sampling.merges_adapter;
    if (merges) {
        pipeline.transformer.to_gpu();
        merge_in(pipeline, adapter_is_zero);
        weights.adapters_active = false;
    }
    const Pipeline::Placement before = pipeline.placement();
    pipeline.place({true, true, true});
    pipeline.flush();
    for (const job::Batch& image : pipeline.job.sampling.images) {
        PromptEmbeds conditional_embeds, unconditional_embeds;
        {
            const StageScope stage(run, "text");
            const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
            if (parts.cache_text || parts.unload_text) {
                // sample_prompts_cache, from host memory.
                for (PromptEmbeds* embeds : {&conditional_embeds, &unconditional_embeds}) {
                    embeds->text_embeds = run.empty(resident.cached_blank_embeds.text_embeds.layout(), Op::to_device);
                    embeds->pooled_embeds =
                        run.empty(resident.cached_blank_embeds.pooled_embeds.layout(), Op::to_device);
                }
            } else {
                conditional_embeds = pipeline.encode_prompt(1);
                unconditional_embeds = pipeline.encode_prompt(1);
            }
        }
        generate(pipeline, conditional_embeds, image);
        pipeline.flush();
    }
    pipeline.flush();
    pipeline.place(before);
    pipeline.transformer.to_gpu();
    if (merges) {
        merge_in(pipeline, adapter_is_zero);  // merge_out: the same with the sign turned
        weights.adapters_active = true;
    }
    pipeline.flush();
}

void save(Pipeline& pipeline, Resident& resident, const run::Optimizer& optimizer) {
    const NoGrad no_grad(pipeline.run);
    pipeline.flush();
    {
        const Averaged averaged(pipeline, resident, optimizer);
        // A whole model is written from where it stands.
        const ComponentScope scope(pipeline.run, "transformer", Category::adapter);
        for (const Parameter& parameter : pipeline.transformer.weights.all_adapter())
            const Tensor copy = shadow::clone(parameter.value.detach());
    }
    pipeline.flush();
}

}  // namespace vram::trainers::ai_toolkit
