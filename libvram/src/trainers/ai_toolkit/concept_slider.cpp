#include "trainers/ai_toolkit/concept_slider.hpp"

#include <array>
#include <utility>

#include "shadow/checkpoint.hpp"
#include "shadow/ops.hpp"

namespace vram::trainers::ai_toolkit {
namespace {

using shadow::Category;
using shadow::ComponentScope;
using shadow::NoGrad;
using shadow::Op;
using shadow::StageScope;

/// Places in Resident::own_prompts.
enum : std::size_t { positive, target_class, negative, anchor_class };

/// tensor.mean() or .std() of all elements
Tensor statistic(const Tensor& tensor) { return tensor.run().empty({}, tensor.dtype(), Op::mean); }

Tensor norm_like_tensor(const Tensor& tensor, const Tensor& target) {
    const Tensor tensor_mean = statistic(tensor), tensor_std = statistic(tensor);
    const Tensor target_mean = statistic(target), target_std = statistic(target);
    Tensor normalized_tensor = shadow::sub(tensor, tensor_mean);
    {
        const Tensor divisor = shadow::add_scalar(tensor_std);
        normalized_tensor = shadow::div(std::move(normalized_tensor), divisor);
    }
    normalized_tensor = shadow::mul(std::move(normalized_tensor), target_std);
    return shadow::add(std::move(normalized_tensor), target_mean);
}

/// (a - neutral) - (b - neutral)
Tensor apart(const Tensor& a, const Tensor& b, const Tensor& neutral) {
    const Tensor of_a = shadow::sub(a, neutral);
    const Tensor of_b = shadow::sub(b, neutral);
    return shadow::sub(of_a, of_b);
}

}  // namespace

struct ConceptSlider::Guided {
    Tensor pred, class_pred, anchor_pred;
    Tensor enhance_loss, erase_loss, anchor_loss;
    Tensor anchor_target;
};

ConceptSlider::ConceptSlider(Pipeline& pipeline, Resident& resident, run::Facts& facts, const Slider& slider)
    : Training(pipeline, resident, facts), slider_(slider) {}

// network.set_multiplier: whatever predicts with the network does it with one number for all items.
void ConceptSlider::take_one_multiplier() {
    for (Part* part : pipeline_.trained()) part->weights.multipliers = 1;
}

void ConceptSlider::encode_static_prompts() {
    // "make sure model is on cpu for this part so we don't oom"
    if (pipeline_.job.pipeline.cache_text) pipeline_.transformer_to(false);
    const NoGrad no_grad(run_);
    for (const Slider::Prompt prompt :
         {slider_.positive, slider_.target_class, slider_.negative, slider_.anchor_class}) {
        if (prompt == Slider::Prompt::none) continue;
        const ComponentScope scope(run_, "batch", Category::latents_and_embeddings);
        const PromptEmbeds encoded = pipeline_.get_prompt_embeds({.blank = prompt == Slider::Prompt::blank});
        const PromptEmbeds cast = to(encoded, pipeline_.job.dtype);
        resident_.own_prompts.push_back(clone(cast));  // .detach()
    }
}

PromptEmbeds ConceptSlider::batch_of(std::size_t prompt, std::int64_t count) {
    return repeated(resident_.own_prompts[prompt], count);
}

// With an anchor it stands behind the target class in one call; then `noisy_latents` and the timesteps are bound anew.
ConceptSlider::Handed ConceptSlider::handed(const job::Batch& batch, const Frame& frame, Tensor noisy_latents,
                                            const PromptEmbeds& target, const PromptEmbeds& anchor) {
    const ComponentScope scope(run_, "batch", Category::latents_and_embeddings);
    const NoGrad no_grad(run_);
    Handed out{std::move(noisy_latents), frame.prepared.timesteps, target, batch};
    if (!anchor.is_there()) return out;
    out.embeds = concat_prompt_embeds(std::array{target, anchor});
    out.latents = shadow::cat({out.latents, out.latents}, 0);
    out.timesteps = shadow::cat({out.timesteps, out.timesteps}, 0);
    out.batch.count *= 2;
    return out;
}

Bytes ConceptSlider::kept_by_prediction(const job::Batch& batch, Frame& frame, const Tensor& latents) {
    take_one_multiplier();
    PromptEmbeds target, anchor;
    {
        const ComponentScope scope(run_, "batch", Category::latents_and_embeddings);
        const NoGrad no_grad(run_);
        target = batch_of(target_class, batch.count);
        if (resident_.own_prompts.size() > anchor_class) anchor = batch_of(anchor_class, batch.count);
    }
    Handed given = handed(batch, frame, latents, target, anchor);
    const Bytes start = live();
    const Tensor pred = predict_noise(given.latents, given.timesteps, given.embeds, {}, given.batch);
    return live() - start;
}

Tensor ConceptSlider::predict_and_compare(const job::Batch& batch, const Tensor&, Frame& frame, Tensor noisy_latents,
                                          Bytes) {
    const bool anchored = resident_.own_prompts.size() > anchor_class;
    const std::int64_t num_embeds = anchored ? 4 : 3;
    take_one_multiplier();
    for (Part* part : pipeline_.trained()) part->weights.set_adapters(false, true);
    PromptEmbeds positive_embeds, target_class_embeds, negative_embeds, anchor_embeds, combo_embeds;
    Tensor combo_pred, positive_target, negative_target;
    Tensors predictions;
    Targets targets;
    Guided guided;
    Handed given;
    {
        const NoGrad no_grad(run_);
        Handed combined;
        {
            const StageScope stage(run_, "prepare");
            const ComponentScope scope(run_, "batch", Category::latents_and_embeddings);
            positive_embeds = batch_of(positive, batch.count);
            target_class_embeds = batch_of(target_class, batch.count);
            negative_embeds = batch_of(negative, batch.count);
            if (anchored) anchor_embeds = batch_of(anchor_class, batch.count);
            std::vector<PromptEmbeds> all{positive_embeds, target_class_embeds, negative_embeds};
            if (anchored) all.push_back(anchor_embeds);
            combo_embeds = concat_prompt_embeds(all);
        }
        {
            const StageScope stage(run_, "forward");
            {
                const ComponentScope scope(run_, "batch", Category::latents_and_embeddings);
                const auto times = static_cast<std::size_t>(num_embeds);
                combined.latents = shadow::cat(std::vector<Tensor>(times, noisy_latents), 0);
                combined.timesteps = shadow::cat(std::vector<Tensor>(times, frame.prepared.timesteps), 0);
                combined.batch = batch;
                combined.batch.count *= num_embeds;
            }
            combo_pred = predict_noise(combined.latents, combined.timesteps, combo_embeds, {}, combined.batch);
            combined = {};
        }
        const StageScope stage(run_, "loss");
        predictions = shadow::chunk(combo_pred, num_embeds, 0);
        const Tensor &positive_pred = predictions[0], &neutral_pred = predictions[1], &negative_pred = predictions[2];
        if (anchored) guided.anchor_target = predictions[3];
        positive_target = apart(positive_pred, negative_pred, neutral_pred);
        negative_target = apart(negative_pred, positive_pred, neutral_pred);
        const auto beyond = [&](const Tensor& direction, bool towards) {
            const Tensor moved = shadow::mul_scalar(direction);
            return towards ? shadow::add(neutral_pred, moved) : shadow::sub(neutral_pred, moved);
        };
        targets.enhance_positive = beyond(positive_target, true);
        targets.enhance_negative = beyond(negative_target, true);
        targets.erase_negative = beyond(negative_target, false);
        targets.erase_positive = beyond(positive_target, false);
        for (Tensor* target :
             {&targets.enhance_positive, &targets.enhance_negative, &targets.erase_negative, &targets.erase_positive})
            *target = norm_like_tensor(*target, neutral_pred);
    }
    for (Part* part : pipeline_.trained()) part->weights.set_adapters(true, true);
    {
        const StageScope stage(run_, "prepare");
        given = handed(batch, frame, std::move(noisy_latents), target_class_embeds, anchor_embeds);
        if (!anchored) target_class_embeds = {};  // one object with those that are handed on
    }
    facts_.targets = bytes_of(targets.enhance_positive) + bytes_of(targets.erase_negative);

    Tensor total_pos_loss, total_neg_loss;
    const auto predict = [&](double multiplier) {
        set_multiplier({multiplier, 0});
        const StageScope stage(run_, "forward");
        const Bytes before = live();
        guided.pred = predict_noise(given.latents, given.timesteps, given.embeds, {}, given.batch);
        if (multiplier > 0) kept_since(before);
        guided.class_pred = guided.pred;
        if (!anchored) return;
        const Tensors chunks = shadow::chunk(guided.pred, 2, 0);
        guided.class_pred = chunks[0];
        guided.anchor_pred = chunks[1];
    };
    predict(1);
    compare_and_go_back(guided, targets.enhance_positive, targets.erase_negative, total_pos_loss);
    predict(-1);
    compare_and_go_back(guided, targets.enhance_negative, targets.erase_positive, total_neg_loss);
    set_multiplier({1, 0});

    const StageScope stage(run_, "loss");
    Tensor total_loss = shadow::add(total_pos_loss, total_neg_loss);
    total_loss = shadow::div_scalar(std::move(total_loss));
    shadow::requires_grad_(total_loss);
    return total_loss;
}

void ConceptSlider::compare_and_go_back(Guided& guided, const Tensor& enhance_target, const Tensor& erase_target,
                                        Tensor& total) {
    {
        const StageScope stage(run_, "loss");
        guided.enhance_loss = shadow::mse_loss(guided.class_pred, enhance_target);
        guided.erase_loss = shadow::mse_loss(guided.class_pred, erase_target);
        if (guided.anchor_target.defined())
            guided.anchor_loss = shadow::mse_loss(guided.anchor_pred, guided.anchor_target);
        else
            guided.anchor_loss = run_.empty_like(guided.erase_loss, Op::zeros);
        guided.anchor_loss = shadow::mul_scalar(guided.anchor_loss);
        total = shadow::add(guided.enhance_loss, guided.erase_loss);
        total = shadow::add(std::move(total), guided.anchor_loss);
        total = shadow::div_scalar(std::move(total));
    }
    const StageScope stage(run_, "backward");
    run_.backward(total);
    total = total.detach();
}

}  // namespace vram::trainers::ai_toolkit
