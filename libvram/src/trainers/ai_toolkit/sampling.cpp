#include "trainers/ai_toolkit/sampling.hpp"

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

/// network.merge_in: every module in turn, by its own rule.
void merge_in(Part& part, bool adapter_is_zero) {
    nn::Weights& weights = part.weights;
    const ComponentScope scope(weights.run(), part.component());
    for (const nn::Adapter& adapter : weights.adapters)
        if (adapter.how.style->merge != nullptr) adapter.how.style->merge(weights, adapter, adapter_is_zero);
}

}  // namespace

void sample(Pipeline& pipeline, Resident& resident, const run::Optimizer& optimizer, bool adapter_is_zero) {
    Run& run = pipeline.run;
    const NoGrad no_grad(run);
    const job::Pipeline& parts = pipeline.job.pipeline;
    pipeline.flush();
    const Averaged averaged(pipeline, resident, optimizer);
    pipeline.flush();
    for (Part* part : pipeline.trained()) part->activate_assistant();
    const bool merges = pipeline.job.sampling.merges_adapter;
    if (merges) {
        pipeline.transformer_to(true);
        for (Part* part : pipeline.trained()) merge_in(*part, adapter_is_zero);
    }
    const std::int64_t multipliers = pipeline.trained().front()->weights.multipliers;  // of training's predictions
    for (Part* part : pipeline.trained()) {
        part->weights.set_adapters(!merges, false);  // network.eval()
        part->weights.multipliers = 1;
    }
    const Pipeline::Placement before = pipeline.placement();
    pipeline.set_device_state_preset({true, true, true});
    pipeline.flush();
    Tensors ctrl_img, ctrl_img_names;  // ctrl_img, ctrl_img_1, …
    for (std::size_t i = 0; i < pipeline.job.sampling.images.size(); ++i) {
        const job::Batch& image = pipeline.job.sampling.images[i];
        PromptEmbeds conditional_embeds, unconditional_embeds;
        {
            const StageScope stage(run, "text");
            const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
            if (parts.cache_text || parts.unload_text) {
                const Resident::SamplePrompts& cached = resident.sample_prompts_cache[i];
                const std::int64_t rendered = pipeline.job.sampling.rendered[i];
                while (static_cast<std::int64_t>(resident.rendered_prompts.size()) < rendered) {
                    PromptEmbeds conditional = cached.conditional.to_gpu(run, 1, pipeline.job.dtype);
                    PromptEmbeds unconditional = cached.unconditional.to_gpu(run, 1, pipeline.job.dtype);
                    pipeline.pad_embeds(conditional);
                    pipeline.pad_embeds(unconditional);
                    resident.rendered_prompts.push_back({std::move(conditional), std::move(unconditional)});
                }
                const Resident::RenderedPrompts& own =
                    resident.rendered_prompts[static_cast<std::size_t>(rendered - 1)];
                conditional_embeds = own.conditional;
                unconditional_embeds = own.unconditional;
            } else {
                ctrl_img.clear();
                ctrl_img = pipeline.load_control_images(image.references, ctrl_img_names);
                Tensors* control_images = ctrl_img.empty() ? nullptr : &ctrl_img;
                conditional_embeds = pipeline.get_prompt_embeds({1, false, image.references, control_images});
                unconditional_embeds = pipeline.get_prompt_embeds({1, true, image.references, control_images});
                conditional_embeds = to(conditional_embeds, pipeline.job.dtype);
                unconditional_embeds = to(unconditional_embeds, pipeline.job.dtype);
                pipeline.pad_embeds(conditional_embeds);
                pipeline.pad_embeds(unconditional_embeds);
            }
        }
        pipeline.generate_single_image(conditional_embeds, unconditional_embeds, image);
        pipeline.flush();
    }
    pipeline.flush();
    pipeline.place(before);
    pipeline.transformer_to(true);
    if (merges) {
        // merge_out: the same with the sign turned
        for (Part* part : pipeline.trained()) merge_in(*part, adapter_is_zero);
    }
    for (Part* part : pipeline.trained()) {
        part->weights.set_adapters(true, true);
        part->weights.multipliers = multipliers;
        part->deactivate_assistant();
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
