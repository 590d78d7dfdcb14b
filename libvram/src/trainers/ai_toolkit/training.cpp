#include "trainers/ai_toolkit/training.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <stdexcept>
#include <utility>

#include "shadow/ops.hpp"
#include "trainers/ai_toolkit/concept_slider.hpp"

namespace vram::trainers::ai_toolkit {
namespace {

using shadow::Category;
using shadow::ComponentScope;
using shadow::Dims;
using shadow::NoGrad;
using shadow::Op;
using shadow::StageScope;

void checkpoint(Pipeline& pipeline, bool on) {
    for (Part* part : pipeline.trained()) part->model->gradient_checkpointing = on;
}

std::vector<shadow::Parameter*> trainable(const std::vector<Part*>& parts) {
    std::vector<shadow::Parameter*> all;
    for (Part* part : parts) {
        const std::vector<shadow::Parameter*> own = part->weights.trainable();
        all.insert(all.end(), own.begin(), own.end());
    }
    return all;
}

/// prepare_optimizer_params: a network's group of the text encoders comes first, and where it has modules there;
/// without a network theirs is the second.
run::Parameters trainable(Pipeline& pipeline) {
    const auto& training = std::get<job::Training>(pipeline.job.work);
    std::vector<std::vector<shadow::Parameter*>> groups{trainable(pipeline.denoisers())};
    const std::vector<shadow::Parameter*> text = trainable(pipeline.trained_text_encoders());
    if (!text.empty())
        groups.insert(std::holds_alternative<job::Lora>(training.method) ? groups.begin() : groups.end(), text);
    return run::Parameters(groups);
}

/// train_device_state_preset, as long as a step lasts: text encoders that train are in training mode.
class TrainingMode {
  public:
    TrainingMode(Pipeline& pipeline, const job::Training& training)
        : pipeline_(pipeline), trains_(training.text_encoders.trains) {
        if (trains_) pipeline_.train_text_encoders(true);
    }
    ~TrainingMode() {
        if (trains_) pipeline_.train_text_encoders(false);
    }
    TrainingMode(const TrainingMode&) = delete;
    TrainingMode& operator=(const TrainingMode&) = delete;

  private:
    Pipeline& pipeline_;
    const bool trains_;
};

/// A name that gets its value back.
template <class T>
class GivenBack {
  public:
    explicit GivenBack(T& name) : name_(name), value_(name) {}
    ~GivenBack() { name_ = std::move(value_); }
    GivenBack(const GivenBack&) = delete;
    GivenBack& operator=(const GivenBack&) = delete;

  private:
    T& name_;
    T value_;
};

/// torch.isfinite of the loss: (loss.abs() != inf) * (loss == loss)
void check_finite(const Tensor& loss) {
    const NoGrad no_grad(loss.run());
    const Tensor size = loss.run().empty_like(loss, Op::abs);
    const Tensor is_less = shadow::compare_scalar(size);
    const Tensor is_number = shadow::compare(loss, loss);
    const Tensor is_finite = shadow::mul(is_less, is_number);
}

/// Whether the batch is predicted without the adapter first.
bool predicts_prior(const job::Objective& objective) {
    return objective.preservation != job::Objective::Preservation::none || objective.prior_target ||
           objective.prior_divergence || objective.inverted_mask_prior;
}

}  // namespace

Bytes Resident::bytes() const {
    Bytes sum = bytes_of(torch_multiplier) + unconditional_embeds.bytes() + cached_blank_embeds.bytes() +
                cached_dop_class_embeds.bytes();
    for (const PromptEmbeds& prompt : own_prompts) sum += prompt.bytes();
    return sum;
}

const HostEmbeds& Resident::caption_of(const std::vector<job::PictureSize>& references) const {
    const auto found = std::find_if(caption_embeds.begin(), caption_embeds.end(),
                                    [&](const Caption& one) { return one.references == references; });
    if (found == caption_embeds.end()) throw std::logic_error("no caption was cached with these control images");
    return found->embeds;
}

Training::Training(Pipeline& pipeline, Resident& resident, run::Facts& facts)
    : optimizer(pipeline.run, std::get<job::Training>(pipeline.job.work).optimizer, trainable(pipeline)),
      pipeline_(pipeline),
      resident_(resident),
      facts_(facts),
      run_(pipeline.run),
      training_(std::get<job::Training>(pipeline.job.work)),
      multiplier_{1, training_.batches.front().count} {}

void Training::step(const std::string& name, std::int64_t number, const job::Batch& batch) {
    const shadow::PhaseScope phase(run_, name);
    const ComponentScope scope(run_, pipeline_.transformer.component());
    const TrainingMode mode(pipeline_, training_);
    cleanup();

    // hook_train_loop
    optimizer.zero_grad();
    for (Part* part : pipeline_.trained()) part->weights.multipliers = batch.count;  // network.multiplier, a list
    Tensor total_loss, loss;
    std::int64_t alike = 0;  // rounds of one stage in a row
    for (std::int64_t i = 0; i < training_.gradient_accumulation; ++i) {
        const std::int64_t of_the_run = (number - 1) * training_.gradient_accumulation + i;
        alike = pipeline_.next_batch(of_the_run) ? alike + 1 : 1;
        // From a stage's second round on every one is alike, but for the latents that each leaves until the next step.
        if (i > 1 && alike > 2 && i + 1 < training_.gradient_accumulation) {
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
    const shadow::Aside aside(run_);
    // What the step leaves goes back before the aside ends.
    const GivenBack timesteps(scheduler_timesteps_);
    const GivenBack preservation(resident_.diff_output_preservation_embeds);
    const GivenBack multiplier(multiplier_);
    const GivenBack torch_multiplier(resident_.torch_multiplier);
    const GivenBack device_state(pipeline_.device_state);
    std::deque<GivenBack<Tensor>> left;
    for (Tensor* one : pipeline_.left_by_steps()) left.emplace_back(*one);
    const bool before = pipeline_.active().model->gradient_checkpointing;
    const TrainingMode mode(pipeline_, training_);
    checkpoint(pipeline_, false);
    const ComponentScope scope(run_, pipeline_.active().component());
    Frame frame;
    Tensor batch_latents;
    prepare(batch, batch_latents, frame);
    const Tensor latents = condition(batch, frame);
    const Bytes kept = kept_by_prediction(batch, frame, latents) + frame.kept_by_text;
    checkpoint(pipeline_, before);
    run_.drop_recordings();
    return kept;
}

Bytes Training::kept_by_prediction(const job::Batch& batch, Frame& frame, const Tensor& latents) {
    const Bytes start = live();
    const Tensor noise_pred =
        predict_noise(latents, frame.prepared.timesteps, frame.conditional_embeds, frame.unconditional_embeds, batch);
    return live() - start;
}

Bytes Training::live() const { return run_.live() - pipeline_.device_state.bytes(); }

void Training::cleanup() {
    batch_latents_.clear();
    pipeline_.cleanup();
}

Tensor Training::train_single_accumulation(const job::Batch& batch, Tensor& batch_latents) {
    const ComponentScope scope_of_stage(run_, pipeline_.active().component());
    using Preservation = job::Objective::Preservation;
    const job::Objective& objective = training_.objective;
    Frame frame;
    const Bytes start = live();
    prepare(batch, batch_latents, frame);
    const shadow::AttentionCalls calls = run_.attention_calls;
    Bytes before = 0;  // the first prediction
    if (predicts_prior(objective)) {
        if (objective.preservation != Preservation::none) frame.prior_embeds_to_use = preservation_embeds(batch.count);
        frame.prior_pred = get_prior_prediction(batch, frame, before);
    }
    Tensor loss;
    {
        Tensor latents = condition(batch, frame);
        if (before == 0) before = live();
        loss = predict_and_compare(batch, batch_latents, frame, std::move(latents), before);
    }
    if (first_) facts_.inputs = before - start - frame.kept_by_text + resident_.bytes();
    first_ = false;
    Tensor divided;  // Accelerator.backward: loss / gradient_accumulation_steps, which is 1
    {
        const StageScope stage(run_, "backward");
        check_finite(loss);
        loss = shadow::mul(loss, shadow::mean_all(frame.loss_multiplier));
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

Tensor Training::predict_and_compare(const job::Batch& batch, const Tensor& batch_latents, Frame& frame, Tensor latents,
                                     Bytes before) {
    using Preservation = job::Objective::Preservation;
    {
        const StageScope stage(run_, "forward");
        frame.noise_pred = predict_noise(latents, frame.prepared.timesteps, frame.conditional_embeds,
                                         frame.unconditional_embeds, batch);
        kept_since(before - frame.kept_by_text);
    }
    latents = Tensor();
    Tensor loss;
    {
        const StageScope stage(run_, "loss");
        loss = calculate_loss(frame.noise_pred, batch_latents, frame, batch);
    }
    if (training_.objective.preservation == Preservation::none) return loss;
    {
        const StageScope stage(run_, "loss");
        frame.preservation_embeds = preservation_embeds(batch.count);
        latents = cast(frame);
    }
    {
        const StageScope stage(run_, "forward");
        frame.preservation_pred = predict_noise(latents, frame.prepared.timesteps, frame.preservation_embeds,
                                                frame.unconditional_embeds, batch);
        kept_since(before - frame.kept_by_text);
    }
    latents = Tensor();
    const StageScope stage(run_, "preservation_loss");
    {
        const Tensor distance = shadow::mse_loss(frame.preservation_pred, frame.prior_pred);
        frame.preservation_loss = shadow::mul_scalar(distance);
    }
    return shadow::add(loss, frame.preservation_loss);
}

void Training::prepare(const job::Batch& batch, Tensor& batch_latents, Frame& frame) {
    const Dtype dtype = pipeline_.job.dtype;
    const job::Objective& objective = training_.objective;
    const ComponentScope scope(run_, "batch", Category::latents_and_embeddings);
    const NoGrad no_grad(run_);
    std::optional<StageScope> stage(std::in_place, run_, "prepare");
    frame.prepared = process_general_training_batch(batch, batch_latents);
    frame.noisy_latents = frame.prepared.noisy_latents;
    frame.loss_multiplier = run_.empty({batch.count, 1, 1, 1}, dtype, Op::ones);
    frame.mask_multiplier = run_.empty({batch.count, 1, 1, 1}, dtype, Op::ones);
    if (objective.masks) frame.mask_multiplier = get_mask_multiplier(batch, frame.noisy_latents);
    set_multiplier({1, batch.count});  // network_weight_list
    frame.control_images = pipeline_.control_tensor(batch);
    if (training_.text_encoders.trains) {
        stage.reset();
        encode_in_training(batch, frame);
        return;
    }
    frame.conditional_embeds = conditional_embeds(batch, frame);
    if (objective.classifier_free_guidance) frame.unconditional_embeds = unconditional_embeds(batch, frame);
    if (objective.preservation == job::Objective::Preservation::class_prompt) encode_preservation(batch, frame);
}

// ToolkitNetworkMixin._update_torch_multiplier
void Training::set_multiplier(const Multiplier& value) {
    if (multiplier_ == value) return;
    multiplier_ = value;
    const ComponentScope scope(run_, "batch", Category::latents_and_embeddings);
    const NoGrad no_grad(run_);
    const Tensor tensor_multiplier = run_.empty({std::max<std::int64_t>(value.items, 1)}, Dtype::f32, Op::to_device);
    resident_.torch_multiplier = shadow::clone(tensor_multiplier);
}

// The mask of an item has one channel, and is made as small as the latents.
Tensor Training::get_mask_multiplier(const job::Batch& batch, const Tensor& noisy_latents) {
    const int rank = noisy_latents.rank();
    const Dims size{noisy_latents.size(rank - 2), noisy_latents.size(rank - 1)};
    Tensor mask_multiplier = run_.empty({batch.count, 1, batch.height, batch.width}, Dtype::f16, Op::to_device);
    mask_multiplier = shadow::upsample_nearest_to(mask_multiplier, size);
    mask_multiplier = shadow::expand(std::move(mask_multiplier), {-1, noisy_latents.size(1), -1, -1});
    mask_multiplier = run_.empty(mask_multiplier.sizes(), pipeline_.job.dtype, Op::to_copy);
    const Tensor mean = shadow::mean_all(mask_multiplier);
    return shadow::div(mask_multiplier, mean);
}

Training::Prepared Training::process_general_training_batch(const job::Batch& batch, Tensor& batch_latents) {
    const Dtype dtype = pipeline_.job.dtype;
    const Dims shape = pipeline_.latents(batch);
    Prepared out;
    Tensor latents;
    const bool encodes = !pipeline_.job.pipeline.cache_latents;
    if (encodes || pipeline_.job.pipeline.loads_pixels) {
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
    }
    if (encodes)
        latents = pipeline_.encode_images(out.imgs, batch);
    else
        latents = run_.empty(shape, dtype, Op::to_device);  // batch.latents.to(device)
    batch_latents = latents;

    scheduler_timesteps_ = pipeline_.set_train_timesteps();
    const Tensors held = pipeline_.adjust_multistage_timesteps(scheduler_timesteps_);
    const Tensor timestep_indices = run_.empty({batch.count}, Dtype::i64, Op::noise);
    out.timesteps = run_.empty({batch.count}, scheduler_timesteps_.dtype(), Op::index);

    out.noise = run_.empty(shape, dtype, Op::noise);  // randn_like(latents)
    out.noise = shadow::mul_scalar(out.noise);        // * noise_multiplier
    latents = shadow::mul_scalar(latents);            // * latent_multiplier
    batch_latents = latents;

    out.noisy_latents = add_noise(latents, out.noise, out.timesteps);
    return out;
}

PromptEmbeds Training::encoded(const job::Batch& batch, bool blank, const Frame& frame) {
    Tensors control_images{frame.control_images};
    const PromptEmbeds embeds = pipeline_.get_prompt_embeds(
        {batch.count, blank, batch.references, frame.control_images.defined() ? &control_images : nullptr});
    return to(embeds, pipeline_.job.dtype);
}

PromptEmbeds Training::conditional_embeds(const job::Batch& batch, Frame& frame) {
    const job::Pipeline& pipeline = pipeline_.job.pipeline;
    const Dtype dtype = pipeline_.job.dtype;
    // batch.prompt_embeds lie in host memory: cloned there, then brought over.
    if (pipeline.cache_text) return resident_.caption_of(batch.references).to_gpu(run_, batch.count, dtype);
    if (pipeline.unload_text) {
        frame.embeds_to_use = clone(resident_.cached_blank_embeds);
        frame.embeds_to_use = clone(frame.embeds_to_use);  // .detach()
        frame.embeds_to_use = to(frame.embeds_to_use, dtype);
        return repeated(frame.embeds_to_use, batch.count);
    }
    const PromptEmbeds embeds = encoded(batch, false, frame);
    return clone(embeds);  // .detach()
}

// The branch of grad_on_text_encoder. Diff output preservation is refused beside it.
void Training::encode_in_training(const job::Batch& batch, Frame& frame) {
    const StageScope stage(run_, "text");
    const shadow::EnableGrad grad(run_);
    const Bytes before = live();
    frame.conditional_embeds = encoded(batch, false, frame);
    frame.kept_by_text = live() - before - frame.conditional_embeds.bytes();
    // Detached before the prediction: what its encoding kept goes then.
    if (training_.objective.classifier_free_guidance) frame.unconditional_embeds = encoded(batch, true, frame);
}

PromptEmbeds Training::unconditional_embeds(const job::Batch& batch, const Frame& frame) {
    const job::Pipeline& pipeline = pipeline_.job.pipeline;
    if (pipeline.cache_text || pipeline.unload_text) {
        PromptEmbeds blank = clone(resident_.cached_blank_embeds);
        blank = clone(blank);  // .detach()
        blank = to(blank, pipeline_.job.dtype);
        return repeated(blank, batch.count);
    }
    const PromptEmbeds embeds = encoded(batch, true, frame);
    return clone(embeds);  // .detach()
}

// The captions with the class for the trigger word; they stay until the next batch has its own.
void Training::encode_preservation(const job::Batch& batch, const Frame& frame) {
    const job::Pipeline& pipeline = pipeline_.job.pipeline;
    if (pipeline.cache_text)
        resident_.diff_output_preservation_embeds =
            resident_.caption_of(batch.references).to_gpu(run_, batch.count, pipeline_.job.dtype);
    else if (pipeline.unload_text)
        resident_.diff_output_preservation_embeds = resident_.cached_dop_class_embeds;
    else
        resident_.diff_output_preservation_embeds = encoded(batch, false, frame);
}

PromptEmbeds Training::preservation_embeds(std::int64_t count) const {
    const ComponentScope scope(run_, "batch", Category::latents_and_embeddings);
    const NoGrad no_grad(run_);
    if (training_.objective.preservation == job::Objective::Preservation::class_prompt)
        return clone(resident_.diff_output_preservation_embeds);  // expand_to_batch
    // Where text encoders stay, the blank prompt was never kept, and the trainer stops; read_train refuses that.
    PromptEmbeds blank = clone(resident_.cached_blank_embeds);
    blank = clone(blank);  // .detach()
    return repeated(blank, count);
}

Tensor Training::condition(const job::Batch& batch, Frame& frame) {
    const StageScope stage(run_, "prepare");
    const ComponentScope scope(run_, "batch", Category::latents_and_embeddings);
    const NoGrad no_grad(run_);
    if (frame.unconditional_embeds.is_there())
        frame.unconditional_embeds = clone(frame.unconditional_embeds);  // .detach()
    frame.noisy_latents = pipeline_.condition_noisy_latents(frame.prepared.noisy_latents, batch);
    return cast(frame);
}

Tensor Training::cast(const Frame& frame) {
    const ComponentScope scope(run_, "batch", Category::latents_and_embeddings);
    return shadow::to(frame.noisy_latents, pipeline_.job.dtype);
}

Tensor Training::get_prior_prediction(const job::Batch& batch, const Frame& frame, Bytes& before) {
    const NoGrad no_grad(run_);
    for (Part* part : pipeline_.trained()) part->weights.set_adapters(false, true);
    Tensor latents;
    PromptEmbeds embeds_to_use, handed, unconditional;
    {
        const StageScope stage(run_, "prepare");
        const ComponentScope scope(run_, "batch", Category::latents_and_embeddings);
        const bool has_own = frame.prior_embeds_to_use.is_there();
        embeds_to_use = clone(has_own ? frame.prior_embeds_to_use : frame.conditional_embeds);
        embeds_to_use = clone(embeds_to_use);  // .detach()
        if (frame.unconditional_embeds.is_there()) unconditional = clone(frame.unconditional_embeds);
        latents = cast(frame);
        handed = clone(embeds_to_use);
    }
    before = live();
    const StageScope stage(run_, "forward");
    Tensor prior_pred = predict_noise(latents, frame.prepared.timesteps, handed, unconditional, batch);
    for (Part* part : pipeline_.trained()) part->weights.set_adapters(true, true);
    return prior_pred;
}

// SDTrainer.predict_noise has nothing to add; this is the model's, up to what architectures differ in.
Tensor Training::predict_noise(const Tensor& latents, Tensor timestep, PromptEmbeds& conditional_embeds,
                               const PromptEmbeds& unconditional_embeds, job::Batch batch) {
    const bool guides = unconditional_embeds.is_there();
    PromptEmbeds both;
    Tensor latent_model_input = latents;
    {
        const ComponentScope scope(run_, "batch", Category::latents_and_embeddings);
        if (guides) both = concat_prompt_embeds(std::array{unconditional_embeds, conditional_embeds});
        const NoGrad no_grad(run_);
        if (guides) {
            latent_model_input = shadow::cat({latents, latents}, 0);
            timestep = shadow::cat({timestep, timestep}, 0);
            batch.count *= 2;
        }
        latent_model_input = run_.empty(latent_model_input.sizes(), pipeline_.job.dtype, Op::cat);  // scale_model_input
        pipeline_.pad_embeds(guides ? both : conditional_embeds);
    }
    const PromptEmbeds& text_embeddings = guides ? both : conditional_embeds;
    if (facts_.input_tensors.empty()) pipeline_.handed = &facts_.input_tensors;
    Tensor noise_pred = pipeline_.get_noise_prediction(latent_model_input, timestep, text_embeddings, batch);
    if (!guides) return noise_pred;
    const Tensors halves = shadow::chunk(noise_pred, 2, 0);  // unconditional, conditional
    Tensor away = shadow::sub(halves[1], halves[0]);
    away = shadow::mul_scalar(std::move(away));
    return shadow::add(halves[0], std::move(away));
}

Tensor Training::calculate_loss(const Tensor& noise_pred, const Tensor& batch_latents, const Frame& frame,
                                const job::Batch& batch) {
    const job::Objective& objective = training_.objective;
    const Tensor& noise = frame.prepared.noise;
    // What preserves is compared in a loss of its own.
    const Tensor prior_pred =
        objective.preservation == job::Objective::Preservation::none || objective.inverted_mask_prior ? frame.prior_pred
                                                                                                      : Tensor();
    const Tensor loss_multiplier = run_.empty({noise.size(0)}, Dtype::f32, Op::to_device);
    Tensor prior_mask;
    if (objective.inverted_mask_prior) prior_mask = prior_mask_multiplier(batch, noise_pred);
    const bool aims_at_prior = prior_pred.defined() && !objective.prior_divergence && !objective.inverted_mask_prior;
    Tensor target = aims_at_prior ? prior_pred : pipeline_.get_loss_target(noise, batch_latents);
    if (objective.guidance_loss) target = guided_target(target, frame, batch);
    facts_.targets = bytes_of(target);
    Tensor loss;
    {
        Tensor prediction = shadow::to_float(noise_pred);
        Tensor wanted = shadow::to_float(target);
        loss = shadow::mse_loss_each(std::move(prediction), std::move(wanted));
    }
    loss = shadow::mul_scalar(loss);  // * local_loss_scale
    loss = pipeline_.scale_loss(std::move(loss));
    if (objective.prior_divergence) {
        Tensor prediction = shadow::to_float(noise_pred);
        Tensor prior = shadow::to_float(prior_pred);
        Tensor nearness = shadow::mse_loss_each(std::move(prediction), std::move(prior));
        nearness = shadow::mul_scalar(std::move(nearness));
        loss = shadow::add(loss, std::move(nearness));
    }
    const int dims = noise_pred.rank();
    Tensor mask = frame.mask_multiplier;
    if (dims == 5) mask = shadow::repeat(shadow::unsqueeze(std::move(mask), 2), {1, 1, noise_pred.size(2), 1, 1});
    loss = shadow::mul(loss, mask);
    Tensor prior_loss;
    if (objective.inverted_mask_prior) {
        {
            Tensor prediction = shadow::to_float(noise_pred);
            Tensor prior = shadow::to_float(prior_pred);
            prior_loss = shadow::mse_loss_each(std::move(prediction), std::move(prior));
        }
        prior_loss = shadow::mul(prior_loss, prior_mask);
        prior_loss = shadow::mul_scalar(prior_loss);
        prior_loss = shadow::mean(shadow::flatten(prior_loss, 1, dims - 1), 1, false);
    }
    loss = shadow::mean(shadow::flatten(loss, 1, dims - 1), 1, false);  // mean([1, 2, 3])
    loss = shadow::mul(loss, loss_multiplier);
    if (prior_loss.defined()) loss = shadow::add(loss, prior_loss);
    loss = shadow::mean_all(loss);
    loss = pipeline_.add_audio_loss(std::move(loss));
    loss = shadow::add_scalar(loss);  // + additional_loss
    return loss;
}

Tensor Training::prior_mask_multiplier(const job::Batch& batch, const Tensor& noise_pred) {
    const NoGrad no_grad(run_);
    const int rank = noise_pred.rank();
    Tensor prior_mask = run_.empty({batch.count, 1, batch.height, batch.width}, pipeline_.job.dtype, Op::to_device);
    prior_mask = shadow::upsample_nearest_to(prior_mask, {noise_pred.size(rank - 2), noise_pred.size(rank - 1)});
    // prior_mask[:1], once a channel: of the first item alone
    const std::vector<Tensor> channels(static_cast<std::size_t>(noise_pred.size(1)),
                                       shadow::slice(prior_mask, 0, 0, 1));
    prior_mask = shadow::cat(channels, 1);
    if (rank == 5)
        prior_mask = shadow::repeat(shadow::unsqueeze(std::move(prior_mask), 2), {1, 1, noise_pred.size(2), 1, 1});
    const Tensor multiplier = shadow::rsub_scalar(prior_mask);
    return shadow::div(multiplier, shadow::mean_all(multiplier));
}

// The blank prompt's prediction, and the target beyond it.
Tensor Training::guided_target(const Tensor& target, const Frame& frame, const job::Batch& batch) {
    const NoGrad no_grad(run_);
    PromptEmbeds unconditional;
    {
        const ComponentScope scope(run_, "batch", Category::latents_and_embeddings);
        unconditional = repeated(resident_.unconditional_embeds, batch.count);
    }
    const Tensor latents = cast(frame);
    Tensor unconditional_target = predict_noise(latents, frame.prepared.timesteps, unconditional, {}, batch);
    unconditional_target = shadow::mul_scalar(unconditional_target);  // * alpha
    Tensor away = shadow::sub(target, unconditional_target);
    away = shadow::mul_scalar(std::move(away));
    return shadow::add(unconditional_target, std::move(away));
}

void Training::validate(const std::string& name) {
    if (training_.validation.batches.empty()) return;
    const shadow::PhaseScope phase(run_, name);
    const ComponentScope scope(run_, "batch", Category::latents_and_embeddings);
    const NoGrad no_grad(run_);
    for (Part* part : pipeline_.trained()) part->weights.multipliers = 1;  // network.multiplier = 1.0
    const Dtype dtype = pipeline_.job.dtype;
    const Tensor timesteps = run_.empty({training_.validation.batches.front().count}, Dtype::f32, Op::to_device);
    Tensor latents, noise, batch_latents, batch_noise, noisy_latents, noise_pred, target;
    PromptEmbeds batch_embeds;
    std::vector<Tensor> losses;
    for (const job::Batch& batch : training_.validation.batches) {
        Dims one = pipeline_.latents(batch);
        one[0] = 1;
        latents = run_.empty(one, dtype, Op::to_device);
        noise = run_.empty(one, dtype, Op::to_device);
        const auto times = static_cast<std::size_t>(batch.count);
        batch_latents = shadow::cat(std::vector<Tensor>(times, latents), 0);
        batch_noise = shadow::cat(std::vector<Tensor>(times, noise), 0);
        {
            const PromptEmbeds embeds = resident_.validation_embeds.to_gpu(run_, 1, pipeline_.job.dtype);
            batch_embeds = repeated(embeds, batch.count);
        }
        noisy_latents = add_noise(batch_latents, batch_noise, timesteps);
        {
            const Tensor handed = shadow::to(noisy_latents, dtype);
            noise_pred = predict_noise(handed, timesteps, batch_embeds, {}, batch);
        }
        target = pipeline_.get_loss_target(batch_noise, batch_latents);
        {
            Tensor prediction = shadow::to_float(noise_pred);
            Tensor wanted = shadow::to_float(target);
            losses.push_back(shadow::mse_loss(std::move(prediction), std::move(wanted)));
        }
    }
    facts_.phases.push_back({name, "sample", {}, 0, 0});
}

// sd.add_noise: item by item, then joined.
Tensor Training::add_noise(const Tensor& original_samples, const Tensor& noise, const Tensor& timesteps) {
    std::vector<Tensor> noisy_latents_chunks;
    for (std::int64_t idx = 0; idx < original_samples.size(0); ++idx) {
        const Tensor original_sample = shadow::slice(original_samples, 0, idx, idx + 1);
        const Tensor noise_chunk = shadow::slice(noise, 0, idx, idx + 1);
        const Tensor timestep = shadow::slice(timesteps, 0, idx, idx + 1);
        noisy_latents_chunks.push_back(pipeline_.add_noise(original_sample, noise_chunk, timestep));
    }
    return shadow::cat(noisy_latents_chunks, 0);
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

std::unique_ptr<Training> make_training(Pipeline& pipeline, Resident& resident, run::Facts& facts) {
    if (const std::optional<Slider> slider = slider_of(pipeline.job.pipeline.options))
        return std::make_unique<ConceptSlider>(pipeline, resident, facts, *slider);
    return std::make_unique<Training>(pipeline, resident, facts);
}

}  // namespace vram::trainers::ai_toolkit
