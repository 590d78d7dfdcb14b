#include "trainers/ai_toolkit/pipeline.hpp"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/blocks.hpp"
#include "nn/quantize/formats.hpp"
#include "shadow/ops.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/network.hpp"
#include "trainers/named_model.hpp"

namespace vram::trainers::ai_toolkit {
namespace {

using shadow::Op;

models::Request sized(const job::Batch& batch) {
    models::Request request;
    request.batch = batch.count;
    request.width = batch.width;
    request.height = batch.height;
    request.frames = batch.frames;
    return request;
}

profile::ModelProfile text_encoder_of(const Architecture& architecture, profile::ModelProfile profile) {
    const std::string_view deleted = architecture.deleted_from_text_encoders;
    if (!deleted.empty())
        std::erase_if(profile.config.values, [&](const auto& entry) { return entry.first.starts_with(deleted); });
    return profile;
}

/// The profile as a class of the trainer's own has it; no family: as it is.
profile::ModelProfile built_by(profile::ModelProfile profile, std::string_view family) {
    if (!family.empty()) profile.family = family;
    return profile;
}

/// Whether a set of fnmatch, "[a-z]" or "[!ab]", at the front of `pattern` takes the letter; `length` is what the set
/// spans, 0 where no set is closed and the bracket stands for itself.
bool is_in_set(char letter, std::string_view pattern, std::size_t& length) {
    std::size_t first = 1;
    const bool inverted = pattern.size() > 1 && pattern[1] == '!';
    if (inverted) first = 2;
    const std::size_t end = pattern.find(']', first + 1);
    length = end == std::string_view::npos ? 0 : end + 1;
    if (length == 0) return letter == '[';
    bool found = false;
    for (std::size_t i = first; i < end; ++i) {
        if (i + 2 < end && pattern[i + 1] == '-') {
            found = found || (pattern[i] <= letter && letter <= pattern[i + 2]);
            i += 2;
        } else {
            found = found || pattern[i] == letter;
        }
    }
    return found != inverted;
}

/// Python's fnmatch.
bool matches(std::string_view name, std::string_view pattern) {
    constexpr std::size_t none = std::string_view::npos;
    std::size_t at = 0, star = none, after_star = 0;
    std::size_t sign = 0;
    while (at < name.size()) {
        std::size_t length = 1;
        bool same = false;
        if (sign < pattern.size() && pattern[sign] == '*') {
            star = sign++;
            after_star = at;
            continue;
        }
        if (sign < pattern.size() && pattern[sign] == '[') {
            same = is_in_set(name[at], pattern.substr(sign), length);
            length = std::max<std::size_t>(length, 1);
        } else if (sign < pattern.size()) {
            same = pattern[sign] == '?' || pattern[sign] == name[at];
        }
        if (same) {
            sign += length;
            ++at;
        } else if (star != none) {  // the star takes one letter more
            sign = star + 1;
            at = ++after_star;
        } else {
            return false;
        }
    }
    return pattern.find_first_not_of('*', sign) == none;
}

template <class Patterns>
bool matches_any(std::string_view name, const Patterns& patterns) {
    return std::any_of(patterns.begin(), patterns.end(),
                       [&](std::string_view pattern) { return matches(name, pattern); });
}

shadow::LayoutRef layout_of(const Tensor& tensor) { return tensor.defined() ? tensor.layout() : nullptr; }

nn::Rules with(nn::Rules rules, nn::Weights* recovery, nn::Weights* assistant) {
    rules.inner = recovery != nullptr ? recovery : assistant;
    if (recovery == nullptr) return rules;
    // Other layers go to uint8, which quantises nothing.
    rules.quantizes = [adapts = recovery->rules().adapts](std::string_view name) {
        return adapts({.name = name}).style != nullptr;
    };
    return rules;
}

}  // namespace

Bytes bytes_of(const Tensor& tensor) { return tensor.defined() ? in_blocks(tensor.layout()->bytes) : 0; }

std::int64_t PromptEmbeds::tokens() const {
    std::int64_t most = 0;
    for (const Tensor& one : text_embeds) most = std::max(most, one.size(is_list ? 0 : 1));
    return most;
}

std::int64_t PromptEmbeds::count() const {
    return is_list ? static_cast<std::int64_t>(text_embeds.size()) : text_embeds[0].size(0);
}

Bytes PromptEmbeds::bytes() const {
    Bytes sum = bytes_of(pooled_embeds) + bytes_of(attention_mask);
    for (const Tensor& one : text_embeds) sum += bytes_of(one);
    return sum;
}

PromptEmbeds mapped(const PromptEmbeds& embeds, const std::function<Tensor(const Tensor&)>& change) {
    PromptEmbeds out;
    out.is_list = embeds.is_list;
    for (const Tensor& one : embeds.text_embeds) out.text_embeds.push_back(change(one));
    if (embeds.pooled_embeds.defined()) out.pooled_embeds = change(embeds.pooled_embeds);
    if (embeds.attention_mask.defined()) out.attention_mask = change(embeds.attention_mask);
    return out;
}

PromptEmbeds to(const PromptEmbeds& embeds, Dtype dtype) {
    return mapped(embeds, [&](const Tensor& one) { return shadow::to(one, dtype); });
}

PromptEmbeds clone(const PromptEmbeds& embeds) {
    return mapped(embeds, [](const Tensor& one) { return shadow::clone(one); });
}

PromptEmbeds concat_prompt_embeds(std::span<const PromptEmbeds> prompt_embeds) {
    PromptEmbeds out;
    out.is_list = prompt_embeds.front().is_list;
    const auto concat = [&](auto&& of, bool pads) {
        std::int64_t max_len = 0;
        for (const PromptEmbeds& p : prompt_embeds) max_len = std::max(max_len, of(p).size(1));
        std::vector<Tensor> padded;
        for (const PromptEmbeds& p : prompt_embeds) {
            Tensor t = of(p);
            if (pads && t.size(1) < max_len) {
                Dims missing = t.sizes();
                missing[1] = max_len - t.size(1);
                const Tensor pad = t.run().empty(missing, t.dtype(), Op::zeros);
                t = shadow::cat({t, pad}, 1);
            }
            padded.push_back(std::move(t));
        }
        return shadow::cat(padded, 0);
    };
    if (out.is_list) {
        for (const PromptEmbeds& p : prompt_embeds)
            for (const Tensor& one : p.text_embeds) out.text_embeds.push_back(one);
    } else {
        out.text_embeds.push_back(
            concat([](const PromptEmbeds& p) -> const Tensor& { return p.text_embeds[0]; }, true));
    }
    if (prompt_embeds.front().pooled_embeds.defined())
        out.pooled_embeds = concat([](const PromptEmbeds& p) -> const Tensor& { return p.pooled_embeds; }, false);
    if (prompt_embeds.front().attention_mask.defined())
        out.attention_mask = concat([](const PromptEmbeds& p) -> const Tensor& { return p.attention_mask; }, true);
    return out;
}

PromptEmbeds repeated(const PromptEmbeds& embeds, std::int64_t count) {
    const std::vector<PromptEmbeds> all(static_cast<std::size_t>(count), embeds);
    return concat_prompt_embeds(all);
}

HostEmbeds::HostEmbeds(const PromptEmbeds& embeds)
    : is_list_(embeds.is_list),
      pooled_embeds_(layout_of(embeds.pooled_embeds)),
      attention_mask_(layout_of(embeds.attention_mask)) {
    for (const Tensor& one : embeds.text_embeds) text_embeds_.push_back(one.layout());
}

PromptEmbeds HostEmbeds::to_gpu(Run& run, std::int64_t count, Dtype dtype) const {
    const auto brought = [&](shadow::LayoutRef layout) {
        if (layout == nullptr) return Tensor();
        Dims sizes = layout->sizes;
        sizes[0] = count;
        return run.empty(sizes, dtype, Op::to_device);
    };
    PromptEmbeds out;
    out.is_list = is_list_;
    for (const shadow::LayoutRef one : text_embeds_) {
        if (!is_list_) {
            out.text_embeds.push_back(brought(one));
            continue;
        }
        for (std::int64_t i = 0; i < count; ++i) out.text_embeds.push_back(run.empty(one->sizes, dtype, Op::to_device));
    }
    out.pooled_embeds = brought(pooled_embeds_);
    out.attention_mask = brought(attention_mask_);
    return out;
}

Tensors on_device(Run& run, const std::vector<models::Value>& values) {
    Tensors out;
    for (const models::Value& value : values) out.push_back(run.empty(value.shape, value.dtype, Op::to_device));
    return out;
}

Part::Part(Run& run, std::string component, nn::Rules rules, const profile::ModelProfile& profile,
           std::optional<nn::Rules> recovery_rules, std::optional<nn::Rules> assistant_rules)
    : recovery(recovery_rules
                   ? std::make_unique<nn::Weights>(run, "accuracy_recovery_adapter", *std::move(recovery_rules))
                   : nullptr),
      assistant(assistant_rules ? std::make_unique<nn::Weights>(run, "assistant_lora", *std::move(assistant_rules))
                                : nullptr),
      weights(run, component, with(std::move(rules), recovery.get(), assistant.get())),
      model(models::build(weights, profile)),
      component_(std::move(component)),
      loader_(weights) {}

Tensors Part::forward(const Tensors& args, const models::Request& request) {
    const shadow::ComponentScope scope(weights.run(), component_);
    if (!request.use_cache || !weights.training() || !model->gradient_checkpointing)
        return model->forward(args, request);
    models::Request without_cache = request;  // GradientCheckpointingLayer of transformers leaves no cache
    without_cache.use_cache = false;
    return model->forward(args, without_cache);
}

bool Part::takes(std::string_view argument, const models::Request& request) const {
    const std::vector<models::Value> inputs = model->inputs(request);
    return std::any_of(inputs.begin(), inputs.end(),
                       [&](const models::Value& value) { return value.name == argument; });
}

void Part::to_gpu() {
    alone_to_gpu();
    for (Part* part : along) part->to_gpu();
}

void Part::alone_to_gpu() {
    if (on_gpu_) return;
    weights.base_to_gpu();
    loader_.constants();
    on_gpu_ = true;
}

void Part::to_cpu() {
    for (Part* part : along) part->to_cpu();
    if (!on_gpu_) return;
    weights.base_to_cpu();
    on_gpu_ = false;
}

void Part::quantize() { loader_.quantize(); }

void Part::attach_recovery(bool first) {
    if (recovery == nullptr || recovery->multipliers != 0) return;
    recovery->adapter_to_gpu();
    recovery->multipliers = 1;
    if (first) update_torch_multiplier(*recovery);
}

void Part::update_torch_multiplier(const nn::Weights& network) {
    Run& run = weights.run();
    const shadow::ComponentScope scope(run, network.component(), shadow::Category::adapter);
    const Dtype dtype = network.rules().adapter_dtype;
    const Tensor tensor_multiplier = run.empty({1}, dtype, Op::to_device);
    torch_multiplier_ = run.empty({1}, dtype, Op::clone);
}

void Part::load_training_adapter() {
    if (assistant == nullptr) return;
    assistant->adapter_to_gpu();
    assistant->multipliers = 1;
    update_torch_multiplier(*assistant);
    {
        const shadow::NoGrad no_grad(weights.run());
        const shadow::ComponentScope scope(weights.run(), assistant->component());
        for (const nn::Adapter& adapter : assistant->adapters)
            adapter.how.style->merge(*assistant, adapter, adapter.how.untrained);
    }
    update_torch_multiplier(*assistant);  // multiplier = -1.0
    assistant->modes_at = 3;
    assistant->set_adapters(false, true);
}

void Part::activate_assistant() {
    if (assistant == nullptr) return;
    assistant->set_adapters(true, true);
    assistant->adapter_to_gpu();
}

void Part::deactivate_assistant() {
    if (assistant == nullptr) return;
    assistant->set_adapters(false, true);
    assistant->to_cpu();
}

void Part::quantize_model() {
    if (recovery == nullptr) {
        loader_.quantize_model(block_lists);
        return;
    }
    attach_recovery();
    if (loader_.quantize_each()) loaded();
}

void Part::quantize_blocks_first() {
    loader_.quantize_blocks_first(block_lists);
    loaded();
}

Loading::Loading(Run& run, run::Facts& facts) : run_(run), facts_(facts) { begin("load"); }

void Loading::quantizes() {
    phase_.reset();
    begin("quantize");
}

void Loading::begin(const char* name) {
    phase_.emplace(run_, name);
    facts_.phases.push_back({name, name, {}, 0, 0});
}

Pipeline::Pipeline(const Architecture& architecture, const job::Job& job_in, const profile::Catalogue& catalogue,
                   Run& run_in)
    : run(run_in),
      job(job_in),
      encode_control_in_text_embeddings(architecture.encode_control_in_text_embeddings),
      use_raw_control_images(architecture.use_raw_control_images),
      transformer(run, std::string(architecture.denoiser), transformer_rules(architecture),
                  built_by(profile_of(job, catalogue, job.model), architecture.own_denoiser),
                  recovery_rules(architecture, job,
                                 architecture.recovery_prefix.empty() ? architecture.modules.prefix
                                                                      : architecture.recovery_prefix),
                  assistant_rules(architecture, job)) {
    const job::Pipeline& parts = job.pipeline;
    transformer.block_lists.assign(architecture.modules.block_names.begin(), architecture.modules.block_names.end());
    if (!parts.vae.empty())
        vae = std::make_unique<Part>(run, "vae", plain_rules(parts.vae_dtype),
                                     built_by(catalogue.model_of(parts.vae), architecture.own_vae));
    for (std::size_t i = 0; i < parts.text_encoders.size(); ++i) {
        std::string component = "text_encoder" + (i == 0 ? std::string() : "_" + std::to_string(i + 1));
        nn::Rules rules = text_encoder_rules(architecture, i);
        rules.manager = managing(parts.offloaded_text_encoder, {}, architecture.offloading.left_of_text_encoder);
        if (rules.manager != nullptr) rules.manager->before_quantize = architecture.offloading.text_encoder_first;
        text_encoders.push_back(
            std::make_unique<Part>(run, std::move(component), std::move(rules),
                                   text_encoder_of(architecture, catalogue.model_of(parts.text_encoders[i]))));
    }
}

nn::Rules Pipeline::plain_rules(Dtype dtype, job::Quantization quantization) {
    nn::Rules rules;
    rules.dtype = dtype;
    rules.quantizer = nn::quantize::format_named(job::to_text(quantization));
    return rules;
}

void Pipeline::load_transformer_on_host(Loading& loading) {
    const bool quantizes = job.quantization != job::Quantization::none;
    transformer.load_training_adapter();
    if (quantizes || quantizes_text()) loading.quantizes();
    if (quantizes) transformer.quantize_model();
    flush();
    transformer.attach_memory_manager();
}

void Pipeline::load_on_host(Loading& loading) {
    const job::Pipeline& parts = job.pipeline;
    load_transformer_on_host(loading);
    Part& text_encoder = *text_encoders[0];
    text_encoder.attach_memory_manager();
    load_text_encoder(text_encoder, quantizes_text());
    if (!parts.low_vram) transformer.to_gpu();
    flush();
    transformer.to_gpu();  // BaseSDTrainProcess.run
    flush();
}

void Pipeline::load_transformer(Loading& loading, bool quantizes_any) {
    const bool quantizes = job.quantization != job::Quantization::none;
    if (!quantizes)
        transformer.to_gpu();
    else if (!job.pipeline.low_vram)
        transformer.load_full();
    flush();
    if (quantizes_any) loading.quantizes();
    if (quantizes && !job.pipeline.low_vram) {
        transformer.quantize();
        transformer.loaded();
    }
    transformer.to_gpu();
    flush();
}

void Pipeline::load_text_encoder(Part& text_encoder, bool quantizes) {
    if (quantizes) {
        text_encoder.load_full();
        flush();
        text_encoder.quantize();
        text_encoder.loaded();
    } else {
        text_encoder.to_gpu();
    }
    flush();
}

std::optional<nn::Rules> Pipeline::recovery_rules(const Architecture& architecture, const job::Job& job,
                                                  std::string_view prefix) {
    const job::Recovery& recovery = job.pipeline.recovery;
    if (recovery.file.empty()) return std::nullopt;
    job::Lora lora;
    lora.targets = {recovery.only.empty() ? "blocks" : "all"};
    lora.rank = recovery.rank;
    lora.names.only = recovery.only;
    ModuleTree modules = architecture.modules;
    modules.prefix = prefix;
    nn::Rules rules;
    rules.dtype = rules.adapter_dtype = job.dtype;
    rules.adapts = adapts(lora, modules);
    return rules;
}

std::optional<nn::Rules> Pipeline::assistant_rules(const Architecture& architecture, const job::Job& job) {
    const job::Assistant& assistant = job.pipeline.assistant;
    if (assistant.file.empty()) return std::nullopt;
    const ModuleTree& modules = architecture.modules;
    job::Lora lora;
    lora.targets = {architecture.assistant.blocks_only ? "blocks" : "all"};
    lora.rank = assistant.rank;
    job::Lora filled = lora;
    filled.targets = {assistant.filled.empty() ? "blocks" : "all"};
    filled.names.only = assistant.filled;
    nn::Rules rules;
    rules.dtype = rules.adapter_dtype = job.dtype;
    rules.adapts = [takes = adapts(lora, modules), fills = adapts(filled, modules)](const nn::LayerFacts& layer) {
        nn::Adaptation out = takes(layer);
        out.untrained = fills(layer).style == nullptr;
        return out;
    };
    return rules;
}

nn::MemoryManager memory_manager(nn::DeviceState& state, double share, std::span<const std::string_view> moved,
                                 std::span<const std::string_view> left) {
    using Taken = nn::MemoryManager::Taken;
    // Which layers are left out is drawn at random; of each shape as many are taken as by an even draw.
    const auto takes = [share, moved, drawn = std::map<std::int64_t, double>()](const nn::LayerFacts& layer) mutable {
        std::int64_t elements = 1;
        for (const std::int64_t size : layer.sizes) elements *= size;
        double& so_far = drawn[elements];
        so_far += share;
        if (so_far < 1) return Taken::no;
        so_far -= 1;
        return matches_any(layer.name, moved) ? Taken::moved : Taken::yes;
    };
    return {state, takes, [left](std::string_view name) { return matches_any(name, left); }};
}

nn::MemoryManager* Pipeline::managing(double share, std::span<const std::string_view> moved,
                                      std::span<const std::string_view> left) {
    if (share <= 0) return nullptr;
    return &memory_managers.emplace_back(memory_manager(device_state, share, moved, left));
}

nn::Rules Pipeline::text_encoder_rules(const Architecture& architecture, std::size_t place) {
    const job::Pipeline& parts = job.pipeline;
    const auto behind = static_cast<std::int64_t>(parts.text_encoders.size() - place);
    const bool quantized = behind <= architecture.quantized_text_encoders;
    nn::Rules rules =
        plain_rules(parts.text_encoder_dtype, quantized ? parts.text_encoder_quantization : job::Quantization::none);
    const auto& training = std::get<job::Training>(job.work);
    const job::TextEncoderTraining& text = training.text_encoders;
    if (!text.trains || place >= architecture.trained_text.size()) return rules;
    const TrainedText& trained = architecture.trained_text[place];
    const bool taken = place >= text.takes.size() || text.takes[place];
    if (const auto* denoisers = std::get_if<job::Lora>(&training.method)) {
        if (!trained.is_adapted || !taken) return rules;
        job::Lora lora = *denoisers;  // of its own are the classes alone: transformer_only is the denoiser's
        lora.targets = {"all"};
        lora.layers.classes.assign(std::begin(clip_classes), std::end(clip_classes));
        rules.adapts = adapts(lora, trained.modules);
        rules.adapter_dtype = lora.dtype;
    } else if (trained.is_tuned && (taken || parts.text_encoders.size() == 1)) {  // one alone is not asked about
        rules.train_base = true;
        rules.trains = [untuned = trained.untuned](std::string_view name) {
            return std::none_of(untuned.begin(), untuned.end(),
                                [name](std::string_view part) { return name.find(part) != std::string_view::npos; });
        };
    }
    return rules;
}

std::vector<Part*> Pipeline::trained_text_encoders() {
    std::vector<Part*> out;
    for (const std::unique_ptr<Part>& text_encoder : text_encoders)
        if (!text_encoder->weights.trainable().empty()) out.push_back(text_encoder.get());
    return out;
}

std::vector<Part*> Pipeline::trained() {
    std::vector<Part*> out = denoisers();
    const std::vector<Part*> text = trained_text_encoders();
    out.insert(out.end(), text.begin(), text.end());
    return out;
}

void Pipeline::train_text_encoders(bool mode) {
    for (const std::unique_ptr<Part>& text_encoder : text_encoders) text_encoder->weights.train(mode);
}

nn::Rules Pipeline::transformer_rules(const Architecture& architecture) {
    nn::Rules rules;
    rules.manager = managing(job.pipeline.offloaded, architecture.offloading.moved, architecture.offloading.left);
    rules.dtype = job.dtype;  // unet.to(device, dtype): what the class keeps in fp32 is cast like all else
    rules.quantizer = nn::quantize::format_named(job::to_text(job.quantization));
    const job::NameParts& quantized = job.pipeline.quantized;
    if (!architecture.quantization_exclude.empty() || quantized != job::NameParts{})
        rules.quantizes = [excluded = architecture.quantization_exclude, quantized](std::string_view name) {
            if (matches_any(name, excluded) || matches_any(name, quantized.ignore)) return false;
            return quantized.only.empty() || matches_any(name, quantized.only);
        };
    const auto& training = std::get<job::Training>(job.work);
    if (const auto* lora = std::get_if<job::Lora>(&training.method)) {
        rules.adapts = adapts(*lora, architecture.modules);
        rules.adapter_dtype = lora->dtype;
    } else {
        rules.train_base = true;
        const job::NameParts& names = std::get<job::FullFinetune>(training.method).names;
        if (names != job::NameParts{} || !architecture.modules.untuned.empty())
            rules.trains = trains(names, architecture.modules);
    }
    return rules;
}

Pipeline::Placement Pipeline::placement() const {
    return {vae && vae->on_gpu(), transformer.on_gpu(), !text_encoders.empty() && text_encoders.back()->on_gpu()};
}

void Pipeline::place(const Placement& where) {
    if (vae) vae->move(where.vae);
    transformer_to(where.transformer);
    for (const std::unique_ptr<Part>& text_encoder : text_encoders) text_encoder->move(where.text_encoder);
    flush();
}

void Pipeline::free_text_encoders() {
    text_encoders.clear();
    // MemoryManager.free: the device's state goes with the manager of an encoder.
    if (job.pipeline.offloaded_text_encoder > 0) device_state.clear();
    flush();
}

void Pipeline::park_text_encoders() {
    for (const std::unique_ptr<Part>& text_encoder : text_encoders) text_encoder->to_cpu();
    flush();
}

Dims Pipeline::pixels(const job::Batch& batch) const {
    if (batch.frames > 1) return {batch.count, batch.frames, 3, batch.height, batch.width};
    return {batch.count, 3, batch.height, batch.width};
}

Tensor Pipeline::set_train_timesteps() {
    // 1000 values, sorted.
    Tensor t = run.empty({1000}, Dtype::f32, Op::noise);
    t = shadow::sigmoid(std::move(t));
    Tensor timesteps = shadow::rsub_scalar(t);
    timesteps = shadow::mul_scalar(std::move(timesteps));
    const Tensor sorted = run.empty({1000}, Dtype::f32, Op::index);
    const Tensor indices = run.empty({1000}, Dtype::i64, Op::index);
    return sorted;
}

Tensor Pipeline::add_noise(const Tensor& original_sample, const Tensor&, const Tensor& timestep) {
    // The fp32 timestep has a dimension, so its products are fp32.
    const Tensor t_01 = shadow::div_scalar(timestep);
    const Tensor rest = shadow::rsub_scalar(t_01);
    const Tensor kept = run.empty(original_sample.sizes(), Dtype::f32, Op::mul);
    const Tensor added = run.empty(original_sample.sizes(), Dtype::f32, Op::mul);
    return run.empty(original_sample.sizes(), Dtype::f32, Op::add);
}

bool Pipeline::next_batch(std::int64_t) { return true; }

Tensors Pipeline::adjust_multistage_timesteps(const Tensor&) { return {}; }

Tensor Pipeline::control_tensor(const job::Batch& batch) {
    const auto images = static_cast<std::int64_t>(batch.references.size());
    if (!encode_control_in_text_embeddings || images == 0 || (use_raw_control_images && images > 1)) return {};
    const auto [width, height] = batch.references.front();
    Dims sizes{batch.count};
    if (images > 1) sizes.push_back(images);
    for (const std::int64_t size : {std::int64_t{3}, height, width}) sizes.push_back(size);
    return run.empty(sizes, job.dtype, Op::to_device);
}

Tensors Pipeline::load_control_images(const std::vector<job::PictureSize>& references, Tensors& names) {
    if (!encode_control_in_text_embeddings) return {};
    Tensors ctrl_img_list;
    names.resize(std::max(names.size(), references.size()));
    for (std::size_t i = 0; i < references.size(); ++i) {
        const auto [width, height] = references[i];
        names[i] = run.empty({1, 3, height, width}, job.dtype, Op::to_device);
        ctrl_img_list.push_back(names[i]);
    }
    return ctrl_img_list;
}

Tensor Pipeline::condition_noisy_latents(const Tensor& latents, const job::Batch&) { return latents; }

Tensor Pipeline::get_loss_target(const Tensor& noise, const Tensor& batch_latents) {
    return shadow::sub(noise, batch_latents);
}

models::Request Pipeline::request_of(const job::Batch& batch, const PromptEmbeds& embeds) const {
    models::Request request = sized(batch);
    request.text_tokens = embeds.tokens();
    request.dtype = job.dtype;
    return request;
}

models::Request Pipeline::vae_request(const job::Batch& batch, std::int64_t count,
                                      models::Request::Operation operation) const {
    models::Request request = sized(batch);
    request.batch = count;
    request.dtype = job.pipeline.vae_dtype;
    request.operation = operation;
    return request;
}

Tensors Pipeline::transform_all(const Tensors& args, const models::Request& request) {
    if (handed != nullptr) {
        std::size_t i = 0;
        for (const models::Value& value : active().model->inputs(request)) {
            const Tensor& arg = args[i++];
            handed->push_back({value.name, {arg.sizes().begin(), arg.sizes().end()}, arg.dtype()});
        }
        handed = nullptr;
    }
    return active().forward(args, request);
}

Tensor Pipeline::transform(const Tensors& args, const models::Request& request) {
    return transform_all(args, request)[0];
}

std::vector<Tensor> Pipeline::clips_of(const Tensor& image_list) {
    const bool clips = image_list.rank() == 5;
    std::vector<Tensor> out;
    for (const Tensor& image : shadow::unbind(image_list, 0))
        out.push_back(clips ? shadow::permute(image, {1, 0, 2, 3}) : shadow::unsqueeze(image, 1));
    return out;
}

Tensor Pipeline::encode_kl(Tensor image_list_in, const job::Batch& batch) {
    const Tensor image_list = std::move(image_list_in);
    vae->to_gpu();
    const shadow::ComponentScope scope(run, "vae");
    const Tensor images = run.empty_like(image_list, Op::stack);  // torch.stack of the items
    const Tensor latents = sample_latents(images, batch);
    Tensor shifted = shadow::add_scalar(latents);
    return shadow::mul_scalar(std::move(shifted));
}

Tensor Pipeline::sample_latents(const Tensor& images, const job::Batch& batch) {
    const Tensors distribution =
        vae->forward({images}, vae_request(batch, batch.count, models::Request::Operation::encode));
    const Tensor &mean = distribution[1], &std = distribution[3];
    // DiagonalGaussianDistribution.sample: mean + std * randn.
    const Tensor noise = run.empty(mean.sizes(), mean.dtype(), Op::noise);
    Tensor spread = shadow::mul(std, noise);
    return shadow::add(mean, std::move(spread));
}

void Pipeline::decode(const Tensor& latents, const job::Batch& image, bool tiling) {
    models::Request request = vae_request(image, 1, models::Request::Operation::decode);
    request.tiling = tiling;
    const Tensor decoded = vae->forward({latents}, request)[0];
    postprocess(decoded);
}

void Pipeline::postprocess(const Tensor& decoded) {
    Tensor pixels = shadow::mul_scalar(decoded);
    pixels = shadow::add_scalar(pixels);
    pixels = shadow::clamp(pixels);
}

void Pipeline::postprocess_video(const Tensor& video) {
    postprocess(shadow::permute(shadow::select(video, 0, 0), {1, 0, 2, 3}));
}

Tensors Pipeline::set_timesteps() {
    Tensor sigmas = run.empty({job.sampling.steps}, Dtype::f32, Op::to_device);
    const Tensor timesteps = shadow::mul_scalar(sigmas);
    const Tensor end = run.empty({1}, Dtype::f32, Op::zeros);
    sigmas = shadow::cat({sigmas, end}, 0);
    return {timesteps, sigmas};
}

Tensor Pipeline::scheduler_step(const Tensor& model_output, const Tensor& sample_in) {
    const Tensor sample = shadow::to_float(sample_in);
    const Tensor dt = run.empty({}, Dtype::f32, Op::sub);
    Tensor prev_sample;
    {
        const Tensor moved = run.empty_like(model_output, Op::mul);  // a number with no dimension keeps the dtype
        prev_sample = run.empty(sample.sizes(), Dtype::f32, Op::add);
    }
    prev_sample = shadow::to(prev_sample, model_output.dtype());
    return prev_sample;
}

Tensor Pipeline::masked_loss(Tensor loss, const Tensor& mask) {
    const Tensor loss_mask = shadow::to(mask, loss.dtype());
    Tensor masked = shadow::mul(loss, loss_mask);
    Tensor share = shadow::mean_all(loss_mask);
    share = shadow::clamp(std::move(share));
    loss = shadow::div(std::move(masked), std::move(share));
    return loss;
}

void Pipeline::flush() { run.mark(shadow::MarkKind::empty_cache); }

}  // namespace vram::trainers::ai_toolkit
