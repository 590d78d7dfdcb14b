#include "trainers/sd_scripts/network_trainer.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/blocks.hpp"
#include "shadow/layout.hpp"
#include "shadow/ops.hpp"
#include "trainers/named_model.hpp"
#include "vram/profile/catalogue.hpp"

namespace vram::trainers::sd_scripts {
namespace {

using shadow::AutocastScope;
using shadow::Category;
using shadow::ComponentScope;
using shadow::Dims;
using shadow::NoGrad;
using shadow::Op;
using shadow::PhaseScope;
using shadow::StageScope;

constexpr std::int64_t train_timesteps = 1000;

nn::Rules rules_of(const job::Job& job, Dtype dtype, const Adapts& adapts) {
    const auto& lora = std::get<job::Lora>(std::get<job::Training>(job.work).method);
    nn::Rules rules;
    rules.dtype = dtype;
    rules.adapts = adapts;
    rules.adapter_dtype = lora.dtype;
    return rules;
}

Dtype unet_dtype(const job::Job& job) { return job.pipeline.options.contains("fp8_base") ? Dtype::f8 : job.dtype; }

std::string option(const job::Job& job, const char* name, const char* otherwise) {
    const auto found = job.pipeline.options.find(name);
    return found == job.pipeline.options.end() ? otherwise : found->second;
}

std::string bucket_name(const job::Batch& sizes) {
    return "bucket " + std::to_string(sizes.width) + "x" + std::to_string(sizes.height);
}

}  // namespace

NetworkTrainer::NetworkTrainer(const job::Job& job_in, const profile::Catalogue& catalogue, Run& run_in,
                               const Adapts& unet_adapts)
    : job(job_in),
      training(std::get<job::Training>(job_in.work)),
      run(run_in),
      unet(run_in, "transformer", rules_of(job_in, unet_dtype(job_in), unet_adapts),
           profile_of(job_in, catalogue, job_in.model)) {
    const job::Pipeline& parts = job.pipeline;
    vae = std::make_unique<Part>(run, "vae", rules_of(job, parts.vae_dtype, {}), profile_of(job, catalogue, parts.vae));
    int number = 0;
    for (const std::string& id : parts.text_encoders) {
        const std::string name = number++ == 0 ? "text_encoder" : "text_encoder_" + std::to_string(number);
        const profile::ModelProfile& profile = profile_of(job, catalogue, id);
        const bool trains = trains_text() && profile.family == "clip_text";
        const Adapts adapts = trains ? clip_network(std::get<job::Lora>(training.method)) : Adapts();
        nn::Rules rules = rules_of(job, parts.text_encoder_dtype, adapts);
        // prepare_text_encoder_grad_ckpt_workaround: these have gradients that nobody ever lets go.
        rules.train_base = trains && training.gradient_checkpointing;
        rules.trains = [](std::string_view part) { return part.starts_with("embeddings."); };
        text_encoders.push_back(std::make_unique<Part>(run, name, std::move(rules), profile));
    }
}

run::Facts NetworkTrainer::train(run::Asides asides) {
    load();
    if (job.pipeline.cache_latents) cache_latents();
    {
        const PhaseScope phase(run, "cache_text");
        tell("cache_text", "cache");
        if (job.pipeline.cache_text) {
            // network.apply_to comes later.
            for (const auto& text_encoder : text_encoders) text_encoder->weights.set_adapters(false, true);
            cache_text_encoder_outputs();
            for (const auto& text_encoder : text_encoders) text_encoder->weights.set_adapters(true, true);
        } else {
            for (const auto& text_encoder : text_encoders) text_encoder->to_gpu();
        }
    }
    run::Optimizer optimizer(run, training.optimizer, trainable());
    {
        const PhaseScope phase(run, "prepare");
        tell("prepare", "load");
        unet.to_gpu();
        for (const auto& text_encoder : text_encoders) text_encoder->weights.adapter_to_gpu();
        unet.weights.adapter_to_gpu();
        optimizer.start();
        if (!job.pipeline.cache_latents) vae->to_gpu();
        get_noise_scheduler();
        checkpoint(training.gradient_checkpointing);
        // t_enc.train(), whichever of them trains: T5 drops out.
        for (const auto& text_encoder : text_encoders) text_encoder->weights.train(training.gradient_checkpointing);
    }
    if (job.sampling.baseline) sample_images("baseline_sample");
    clean_memory_on_device();

    const std::vector<job::Batch>& batches = training.batches;
    step("step 1", batches.front(), optimizer);
    optimizer.settle();
    step("step 2", batches.front(), optimizer);
    facts.kept_for_backward = facts.phases.back().kept_for_backward;
    facts.checkpointing = training.gradient_checkpointing;
    facts.kept_without_checkpointing = training.gradient_checkpointing && asides == run::Asides::played
                                           ? kept_without_checkpointing(batches.front())
                                           : facts.kept_for_backward;
    for (std::size_t i = 1; i < batches.size(); ++i) step(bucket_name(batches[i]), batches[i], optimizer);
    if (job.sampling.periodic) sample_images("sample");

    facts.weights = unet.weights.base_bytes();
    facts.counts.parameters = unet.weights.base_parameters();
    const auto count_adapter = [this](const nn::Weights& weights) {
        facts.adapter += weights.adapter_bytes();
        facts.counts.adapted_modules += weights.adapted_modules;
        facts.counts.adapter_parameters += weights.adapter_parameters();
    };
    for (const auto& text_encoder : text_encoders) count_adapter(text_encoder->weights);
    count_adapter(unet.weights);
    facts.optimizer_state = optimizer.state_bytes();
    facts.counts.attention_flash = run.attention_calls.flash;
    facts.counts.attention_efficient = run.attention_calls.efficient;
    facts.counts.attention_cudnn = run.attention_calls.cudnn;
    facts.counts.attention_math = run.attention_calls.math;
    return std::move(facts);
}

void NetworkTrainer::tell(std::string name, std::string kind) {
    facts.phases.push_back({std::move(name), std::move(kind), {}, 0, 0});
}

void NetworkTrainer::clean_memory_on_device() { run.mark(shadow::MarkKind::empty_cache); }

// Everything arrives in host memory.
void NetworkTrainer::load() {
    const PhaseScope phase(run, "load");
    tell("load", "load");
    clean_memory_on_device();
}

void NetworkTrainer::cache_latents() {
    const PhaseScope phase(run, "cache_latents");
    tell("cache_latents", "cache");
    const NoGrad no_grad(run);
    vae->to_gpu();
    const std::int64_t vae_batch_size = std::stoll(option(job, "vae_batch_size", "1"));
    std::vector<job::Batch> seen;
    for (job::Batch sizes : training.batches) {
        sizes.count = vae_batch_size;
        if (std::find(seen.begin(), seen.end(), sizes) != seen.end()) continue;
        seen.push_back(sizes);
        {
            const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
            const Tensor img_tensor =
                run.empty({sizes.count, 3, sizes.height, sizes.width}, job.pipeline.vae_dtype, Op::to_device);
            const Tensor latents = encode_images_to_latents(img_tensor, sizes);
        }
        clean_memory_on_device();
    }
    vae->to_cpu();
    clean_memory_on_device();
}

void NetworkTrainer::cache_text_encoder_outputs() {}

void NetworkTrainer::get_noise_scheduler() {
    const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
    all_snr_ = run.empty({train_timesteps}, Dtype::f32, Op::to_device);
}

Tensor NetworkTrainer::encode_images_to_latents(const Tensor& images, const job::Batch& sizes) {
    models::Request request = request_of(sizes);
    request.batch = images.size(0);
    request.dtype = job.pipeline.vae_dtype;
    request.operation = models::Request::Operation::encode;
    const Tensors distribution = vae->forward({images}, request);
    const Tensor &mean = distribution[1], &std = distribution[3];
    const Tensor noise = run.empty(mean.sizes(), mean.dtype(), Op::noise);
    Tensor spread = shadow::mul(std, noise);
    return shadow::add(mean, std::move(spread));
}

Tensor NetworkTrainer::shift_scale_latents(const Tensor& latents) { return shadow::mul_scalar(latents); }

models::Request NetworkTrainer::request_of(const job::Batch& sizes) const {
    models::Request request;
    request.batch = sizes.count;
    request.width = sizes.width;
    request.height = sizes.height;
    request.text_tokens = job.text_tokens;
    request.dtype = job.dtype;
    return request;
}

models::Request NetworkTrainer::text_request(std::int64_t sequences, bool all_hidden_states) const {
    models::Request request;
    request.batch = sequences;
    request.text_tokens = clip_tokens;
    request.dtype = job.pipeline.text_encoder_dtype;
    request.all_hidden_states = all_hidden_states;
    return request;
}

Tensors NetworkTrainer::call(const Part& text_encoder, const Tensors& args, const models::Request& request) const {
    return trains_text() ? text_encoder.prepared(args, request, amp()) : text_encoder.forward(args, request);
}

Tensor NetworkTrainer::joined(Tensor hidden_states, std::int64_t batch) const {
    hidden_states = shadow::reshape(std::move(hidden_states), {batch, -1, hidden_states.size(-1)});
    if (chunks() == 1) return hidden_states;
    Tensors states_list{shadow::slice(hidden_states, 1, 0, 1)};
    for (std::int64_t i = 1; i < chunks() * clip_tokens; i += clip_tokens)
        states_list.push_back(shadow::slice(hidden_states, 1, i, i + clip_tokens - 2));
    const std::int64_t last = hidden_states.size(1) - 1;
    states_list.push_back(shadow::slice(hidden_states, 1, last, last + 1));
    return shadow::cat(states_list, 1);
}

Batch NetworkTrainer::next_batch(const job::Batch& sizes) {
    const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
    const std::int64_t count = sizes.count;
    const auto arrive = [this](const Dims& dims, Dtype dtype) { return run.empty(dims, dtype, Op::to_device); };
    Batch batch;
    batch.sizes = sizes;
    batch.loss_weights = arrive({count}, Dtype::f32);
    if (job.pipeline.cache_text)
        for (const models::Value& value : cached_text(count))
            batch.text_encoder_outputs_list.push_back(arrive(value.shape, value.dtype));
    if (!job.pipeline.cache_text || trains_text())
        for (const Dims& sizes_of_ids : token_sizes(count))
            batch.input_ids_list.push_back(arrive(sizes_of_ids, Dtype::i64));
    if (job.pipeline.cache_latents) {
        batch.latents = arrive({count, latent_channels(), sizes.height / 8, sizes.width / 8}, latents_dtype());
    } else {
        batch.images = arrive({count, 3, sizes.height, sizes.width}, Dtype::f32);
    }
    batch.original_sizes_hw = arrive({count, 2}, Dtype::i64);
    batch.crop_top_lefts = arrive({count, 2}, Dtype::i64);
    batch.target_sizes_hw = arrive({count, 2}, Dtype::i64);
    batch.network_multipliers = arrive({count}, Dtype::f32);
    return batch;
}

// In host memory they keep the VAE's type; a file's are read as a FloatTensor.
Dtype NetworkTrainer::latents_dtype() const {
    return option(job, "cache_latents_to_disk", "false") == "true" ? Dtype::f32 : job.pipeline.vae_dtype;
}

void NetworkTrainer::step(const std::string& name, const job::Batch& sizes, run::Optimizer& optimizer) {
    const PhaseScope phase(run, name);
    const ComponentScope scope(run, unet.component());
    // From the second round on every one is alike: gradients are there, and are added to in place.
    const std::int64_t rounds = std::min<std::int64_t>(training.gradient_accumulation, 3);
    for (std::int64_t i = 0; i < rounds; ++i) {
        {
            Batch next = next_batch(sizes);
            batch_ = std::move(next);
        }
        {
            std::deque<shadow::Parameter> leaves = std::exchange(leaves_, {});
            Tensor loss = process_batch(batch_);
            loss_ = std::move(loss);
        }
        const StageScope stage(run, "backward");
        const Tensor divided = shadow::div_scalar(loss_);  // Accelerator.backward
        if (scales()) {
            run.backward(scaled(divided));
        } else {
            run.backward(divided);
        }
        facts.gradients = optimizer.gradient_bytes();
    }
    {
        const StageScope stage(run, "reduce");
        all_reduce_network(optimizer);
    }
    if (option(job, "max_grad_norm", "1") != "0") {
        const StageScope stage(run, "clip");
        if (scales()) unscale();
        optimizer.clip_all_grad_norms();
    }
    update_grad_norms();
    {
        const StageScope stage(run, "optimizer");
        if (scales() && !scaler_.found_inf.defined()) unscale();
        optimizer.step();
        scaler_.found_inf = Tensor();
        optimizer.zero_grad();
    }
    if (job.pipeline.options.contains("scale_weight_norms")) {
        const StageScope stage(run, "scale_weight_norms");
        apply_max_norm_regularization();
    }
    {
        const StageScope stage(run, "logs");
        log_norms();
    }
    facts.phases.push_back({name, "train", {sizes.width, sizes.height, sizes.frames}, sizes.count, kept_});
}

// LoRANetwork.apply_max_norm_regularization (networks/lora.py): of each module the product of its weights. The names of
// one module live until the next one has its own.
void NetworkTrainer::apply_max_norm_regularization() {
    const NoGrad no_grad(run);
    Tensor scale, updown, norm, desired, scalednorm;
    const auto regularize = [&](const nn::Adapter& lora) {
        const Dtype dtype = lora.own[0]->value.dtype();
        scale = run.empty({}, dtype, Op::div);
        updown = run.empty(lora.sizes, dtype, Op::mm);
        {
            const Tensor length = run.empty({}, dtype, Op::norm);
            norm = run.empty({}, dtype, Op::clamp);
        }
        desired = run.empty({}, dtype, Op::clamp);
        const Tensor length = run.empty({}, dtype, Op::norm);
        scalednorm = run.empty({}, dtype, Op::mul);
    };
    for (const auto& text_encoder : text_encoders)
        for (const nn::Adapter& lora : text_encoder->weights.adapters) regularize(lora);
    for (const nn::Adapter& lora : unet.weights.adapters) regularize(lora);
}

bool NetworkTrainer::scales() const { return training.autocast.enabled && training.autocast.dtype == Dtype::f16; }

Tensor NetworkTrainer::scaled(const Tensor& loss) {
    if (!scaler_.scale.defined()) {
        scaler_.scale = run.empty({}, Dtype::f32, Op::full);
        scaler_.growth_tracker = run.empty({}, Dtype::i32, Op::full);
    }
    return shadow::mul(loss, scaler_.scale);
}

void NetworkTrainer::unscale() {
    const NoGrad no_grad(run);
    Tensor inv_scale = shadow::to(scaler_.scale, Dtype::f64);
    inv_scale = shadow::reciprocal(inv_scale);
    inv_scale = shadow::to_float(inv_scale);
    const Tensor found_inf = run.empty({}, Dtype::f32, Op::full);
    scaler_.found_inf = run.empty({}, Dtype::f32, Op::to_device);  // _MultiDeviceReplicator.get
    const Tensor inv_scale_there = run.empty({}, Dtype::f32, Op::to_device);
}

// accelerate's reduce copies a tensor even where there is one process.
void NetworkTrainer::all_reduce_network(const run::Optimizer& optimizer) {
    const NoGrad no_grad(run);
    for (shadow::Parameter* parameter : optimizer.parameters()) {
        if (!parameter->grad.defined()) continue;
        Tensor reduced = shadow::clone(parameter->grad);
        parameter->grad = std::move(reduced);
    }
}

std::vector<Dims> NetworkTrainer::token_sizes(std::int64_t batch) const {
    return std::vector<Dims>(text_encoders.size(), Dims{batch, chunks(), clip_tokens});
}

// What is encoded anew stands in the batch's own list from then on.
Tensors NetworkTrainer::text_conds(Batch& batch) {
    Tensors& conds = batch.text_encoder_outputs_list;
    const bool cached = conds.size() > 0;
    if (cached && !trains_text()) return conds;
    const StageScope stage(run, "text");
    const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
    std::optional<NoGrad> no_grad;
    if (!trains_text()) no_grad.emplace(run);
    Tensors encoded;
    {
        const AutocastScope autocast(run, amp());
        encoded = encode_tokens(batch.input_ids_list, batch.sizes.count);
        if (job.pipeline.options.contains("full_fp16"))
            for (Tensor& one : encoded)
                if (one.defined()) one = shadow::to(one, job.dtype);
    }
    if (!cached) return encoded;
    for (std::size_t i = 0; i < encoded.size(); ++i)
        if (encoded[i].defined()) conds[i] = encoded[i];
    return conds;
}

// vae_batch_size pictures at a time; process_batch has a name for the list.
Tensor NetworkTrainer::encode_in_chunks(const Batch& batch, Tensors& list_latents) {
    const std::int64_t chunk = std::stoll(option(job, "vae_batch_size", "1")), count = batch.sizes.count;
    if (count <= chunk) {
        const Tensor images = shadow::to(batch.images, job.pipeline.vae_dtype);
        return encode_images_to_latents(images, batch.sizes);
    }
    for (std::int64_t i = 0; i < count; i += chunk) {
        const Tensor part = shadow::slice(batch.images, 0, i, std::min(i + chunk, count));
        const Tensor images = shadow::to(part, job.pipeline.vae_dtype);
        list_latents.push_back(encode_images_to_latents(images, batch.sizes));
    }
    return shadow::cat(list_latents, 0);
}

Tensor NetworkTrainer::process_batch(Batch& batch) {
    start_ = run.live();
    Tensor latents;
    Tensors list_latents;
    {
        const StageScope stage(run, "prepare");
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        const NoGrad no_grad(run);
        if (batch.latents.defined()) {
            latents = batch.latents;
        } else {
            latents = encode_in_chunks(batch, list_latents);
            const Tensor is_nan = shadow::compare(latents, latents);
            const Tensor any = run.empty({}, Dtype::boolean, Op::any);
        }
        latents = shift_scale_latents(latents);
    }
    Tensors text_encoder_conds = text_conds(batch);
    Prediction predicted = get_noise_pred_and_target(batch, latents, text_encoder_conds);

    const StageScope stage(run, "loss");
    Tensor loss;
    {
        Tensor prediction = shadow::to_float(predicted.noise_pred);
        Tensor wanted = shadow::to_float(predicted.target);
        loss = shadow::mse_loss_each(std::move(prediction), std::move(wanted));
    }
    if (predicted.weighting.defined()) loss = shadow::mul(loss, predicted.weighting);
    loss = shadow::mean(shadow::flatten(loss, 1, loss.rank() - 1), 1, false);
    loss = shadow::mul(loss, batch.loss_weights);
    return shadow::mean_all(loss);
}

Bytes NetworkTrainer::kept_without_checkpointing(const job::Batch& sizes) {
    const shadow::Aside aside(run);
    const ComponentScope scope(run, unet.component());
    checkpoint(false);
    Bytes kept = 0;
    {
        Batch batch = next_batch(sizes);
        const Bytes before = kept_;
        const Tensor table = alphas_cumprod_;
        std::deque<shadow::Parameter> leaves = std::exchange(leaves_, {});
        const Tensor loss = process_batch(batch);
        kept = std::exchange(kept_, before);
        leaves_.swap(leaves);
        alphas_cumprod_ = table;
    }
    checkpoint(true);
    run.drop_recordings();
    return kept;
}

// custom_train_functions.apply_noise_offset: a number a channel is drawn in fp32, and the noise is in fp32 from then
// on.
void NetworkTrainer::apply_noise_offset(const Tensor& latents, Tensor& noise) {
    const Dims each{latents.size(0), latents.size(1), 1, 1};
    Tensor noise_offset;
    if (job.pipeline.options.contains("adaptive_noise_scale")) {
        {
            Tensor mean = run.empty(each, latents.dtype(), Op::mean);
            const Tensor latent_mean = run.empty(each, latents.dtype(), Op::abs);
            mean = Tensor();
            Tensor scaled = shadow::mul_scalar(latent_mean);
            noise_offset = shadow::add_scalar(std::move(scaled));
        }
        noise_offset = shadow::clamp(noise_offset);
    }
    Tensor drawn = run.empty(each, Dtype::f32, Op::noise);
    drawn = noise_offset.defined() ? shadow::mul(noise_offset, drawn) : shadow::mul_scalar(drawn);
    noise = shadow::add(noise, std::move(drawn));
}

// custom_train_functions.pyramid_noise_like: noise of ever fewer places is spread and added in place. The first one has
// as many as the latents; the sizes of the others are drawn.
void NetworkTrainer::pyramid_noise_like(Tensor& noise) {
    {
        Tensor drawn = run.empty(noise.sizes(), Dtype::f32, Op::to_device);
        const Tensor spread = run.empty(noise.sizes(), Dtype::f32, Op::upsample);
        drawn = Tensor();
        const Tensor discounted = shadow::mul_scalar(spread);
    }
    const Tensor deviation = run.empty({}, noise.dtype(), Op::norm);
    noise = shadow::div_scalar(noise);
}

NetworkTrainer::Noisy NetworkTrainer::get_noise_noisy_latents_and_timesteps(const Tensor& latents) {
    Noisy out;
    out.noise = run.empty_like(latents, Op::noise);
    if (job.pipeline.options.contains("noise_offset")) apply_noise_offset(latents, out.noise);
    if (job.pipeline.options.contains("multires_noise_iterations")) pyramid_noise_like(out.noise);
    out.timesteps = run.empty({latents.size(0)}, Dtype::i64, Op::to_device);
    // The scheduler's table comes to the GPU, if it is not there, and goes back to the host behind it.
    if (!alphas_cumprod_.defined()) alphas_cumprod_ = run.empty({train_timesteps}, Dtype::f32, Op::to_device);
    out.noisy_latents = mixed(latents, out.noise, latents.dtype());
    alphas_cumprod_ = Tensor();
    return out;
}

// What DDPMScheduler.add_noise and get_velocity do alike: the table in the samples' type, two numbers an item.
Tensor NetworkTrainer::mixed(const Tensor& first, const Tensor& second, Dtype dtype) {
    const Tensor alphas_cumprod = shadow::to(alphas_cumprod_, dtype);
    Dims each{first.size(0)};
    Tensor sqrt_alpha_prod = run.empty(each, dtype, Op::index);
    sqrt_alpha_prod = shadow::pow_scalar(std::move(sqrt_alpha_prod));
    Tensor sqrt_one_minus_alpha_prod = run.empty(each, dtype, Op::index);
    sqrt_one_minus_alpha_prod = shadow::rsub_scalar(std::move(sqrt_one_minus_alpha_prod));
    sqrt_one_minus_alpha_prod = shadow::pow_scalar(std::move(sqrt_one_minus_alpha_prod));
    while (each.rank() < first.rank()) each.push_back(1);
    Tensor kept = shadow::mul(shadow::view(sqrt_alpha_prod, each), first);
    Tensor added = shadow::mul(shadow::view(sqrt_one_minus_alpha_prod, each), second);
    return shadow::add(std::move(kept), std::move(added));
}

// Its table stays on the GPU until the next batch has its noise.
Tensor NetworkTrainer::target_of(const Tensor& latents, const Noisy& noisy) {
    if (!job.pipeline.options.contains("v_parameterization")) return noisy.noise;
    const StageScope stage(run, "loss");
    const NoGrad no_grad(run);
    alphas_cumprod_ = run.empty({train_timesteps}, Dtype::f32, Op::to_device);
    return mixed(noisy.noise, latents, latents.dtype());
}

void NetworkTrainer::requires_grad_(Tensor& x) {
    if (x.requires_grad() || !run.grad_enabled()) return;
    shadow::Parameter& leaf = leaves_.emplace_back();
    leaf.value = x;
    run.make_leaf(leaf);
    x = leaf.value;
}

NetworkTrainer::Noisy NetworkTrainer::prepare(const Tensor& latents, Tensors& text_encoder_conds) {
    const StageScope stage(run, "noise");
    const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
    Noisy noisy = get_noise_noisy_latents_and_timesteps(latents);
    if (training.gradient_checkpointing)
        for (Tensor& t : text_encoder_conds) requires_grad_(t);
    requires_grad_(noisy.noisy_latents);
    return noisy;
}

void NetworkTrainer::checkpoint(bool on) {
    unet.model->gradient_checkpointing = on;
    for (const auto& text_encoder : text_encoders)
        text_encoder->model->gradient_checkpointing = on && text_encoder->weights.adapted_modules > 0;
}

// prepare_optimizer_params: a group of the text encoders, then one of the UNet.
run::Parameters NetworkTrainer::trainable() {
    std::vector<shadow::Parameter*> text;
    for (const auto& text_encoder : text_encoders) {
        for (shadow::Parameter& parameter : text_encoder->weights.all_adapter())
            if (!parameter.buffer) text.push_back(&parameter);
    }
    std::vector<std::vector<shadow::Parameter*>> groups;
    if (!text.empty()) groups.push_back(text);
    groups.push_back(unet.weights.trainable());
    return run::Parameters(groups);
}

void NetworkTrainer::sample_images(const std::string& name) {
    const PhaseScope phase(run, name);
    tell(name, "sample");
    const NoGrad no_grad(run);
    sample_all();
    clean_memory_on_device();
}

}  // namespace vram::trainers::sd_scripts
