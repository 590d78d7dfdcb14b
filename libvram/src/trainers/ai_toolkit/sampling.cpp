#include "trainers/ai_toolkit/sampling.hpp"

#include <deque>

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
void merge_in(Part& part, bool adapter_is_zero) {
    nn::Weights& weights = part.weights;
    Run& run = weights.run();
    const ComponentScope scope(run, part.component());
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

}  // namespace

void sample(Pipeline& pipeline, Resident& resident, const run::Optimizer& optimizer, bool adapter_is_zero) {
    Run& run = pipeline.run;
    const NoGrad no_grad(run);
    const job::Pipeline& parts = pipeline.job.pipeline;
    pipeline.flush();
    const Averaged averaged(pipeline, resident, optimizer);
    pipeline.flush();
    const bool merges = pipeline.job.sampling.merges_adapter;
    if (merges) {
        pipeline.transformer_to(true);
        for (Part* part : pipeline.trained()) {
            merge_in(*part, adapter_is_zero);
            part->weights.adapters_active = false;
        }
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
                conditional_embeds = resident.caption_embeds.to_gpu(run, 1);
                unconditional_embeds = HostEmbeds(resident.cached_blank_embeds).to_gpu(run, 1);
            } else {
                conditional_embeds = pipeline.get_prompt_embeds({1, false, image.references});
                unconditional_embeds = pipeline.get_prompt_embeds({1, true, image.references});
            }
        }
        pipeline.generate_single_image(conditional_embeds, unconditional_embeds, image);
        pipeline.flush();
    }
    pipeline.flush();
    pipeline.place(before);
    pipeline.transformer_to(true);
    if (merges) {
        for (Part* part : pipeline.trained()) {
            merge_in(*part, adapter_is_zero);  // merge_out: the same with the sign turned
            part->weights.adapters_active = true;
        }
    }
    pipeline.flush();
}

void save(Pipeline& pipeline, Resident& resident, const run::Optimizer& optimizer) {
    const NoGrad no_grad(pipeline.run);
    pipeline.flush();
    {
        const Averaged averaged(pipeline, resident, optimizer);
        // A whole model is written from where it stands.
        for (Part* part : pipeline.trained()) {
            const ComponentScope scope(pipeline.run, part->component(), Category::adapter);
            for (const Parameter& parameter : part->weights.all_adapter())
                const Tensor copy = shadow::clone(parameter.value.detach());
        }
    }
    pipeline.flush();
}

}  // namespace vram::trainers::ai_toolkit
