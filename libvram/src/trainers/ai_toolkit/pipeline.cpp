#include "trainers/ai_toolkit/pipeline.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "nn/adapter/targets.hpp"
#include "nn/adapter/toolkit.hpp"
#include "shadow/ops.hpp"
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

/// LoRASpecialNetwork.create_modules: names are tested with "transformer." in front, `only` also with "$$" for dots.
std::function<bool(std::string_view)> selected(std::function<bool(std::string_view)> wanted,
                                               const job::NameParts& parts) {
    if (parts == job::NameParts{}) return wanted;
    return [wanted = std::move(wanted), parts](std::string_view name) {
        if (!wanted(name)) return false;
        const std::string clean_name = "transformer." + std::string(name);
        std::string lora_name;
        for (const char c : clean_name) {
            if (c == '.')
                lora_name += "$$";
            else
                lora_name += c;
        }
        const auto in_clean = [&](const std::string& word) { return clean_name.find(word) != std::string::npos; };
        const auto in_either = [&](const std::string& word) {
            return in_clean(word) || lora_name.find(word) != std::string::npos;
        };
        if (std::any_of(parts.ignore.begin(), parts.ignore.end(), in_clean)) return false;
        return parts.only.empty() || std::any_of(parts.only.begin(), parts.only.end(), in_either);
    };
}

nn::Rules transformer_rules(const job::Job& job) {
    nn::Rules rules;
    rules.dtype = job.dtype;  // unet.to(device, dtype): what the class keeps in fp32 is cast like all else
    if (job.quantization == job::Quantization::quanto_qfloat8) rules.quantizer = &nn::quantize::quanto_qfloat8;
    const auto& training = std::get<job::Training>(job.work);
    if (const auto* lora = std::get_if<job::Lora>(&training.method)) {
        rules.adapter = &nn::adapter::toolkit;
        rules.adapts = selected(nn::adapter::targets(lora->targets), lora->names);
        rules.rank = lora->rank;
        rules.adapter_dtype = lora->dtype;
    } else {
        rules.train_base = true;
        const job::NameParts& names = std::get<job::FullFinetune>(training.method).names;
        if (names != job::NameParts{}) rules.trains = selected([](std::string_view) { return true; }, names);
    }
    return rules;
}

nn::Rules plain_rules(Dtype dtype, job::Quantization quantization = job::Quantization::none) {
    nn::Rules rules;
    rules.dtype = dtype;
    if (quantization == job::Quantization::quanto_qfloat8) rules.quantizer = &nn::quantize::quanto_qfloat8;
    return rules;
}

}  // namespace

PromptEmbeds clone(const PromptEmbeds& embeds) {
    PromptEmbeds out;
    out.text_embeds = shadow::clone(embeds.text_embeds);
    if (embeds.pooled_embeds.defined()) out.pooled_embeds = shadow::clone(embeds.pooled_embeds);
    return out;
}

PromptEmbeds repeated(const PromptEmbeds& embeds, std::int64_t count) {
    const auto repeat = [&](const Tensor& one) {
        const std::vector<Tensor> all(static_cast<std::size_t>(count), one);
        return shadow::cat(all, 0);
    };
    PromptEmbeds out;
    out.text_embeds = repeat(embeds.text_embeds);
    if (embeds.pooled_embeds.defined()) out.pooled_embeds = repeat(embeds.pooled_embeds);
    return out;
}

Tensors on_device(Run& run, const std::vector<models::Value>& values) {
    Tensors out;
    for (const models::Value& value : values) out.push_back(run.empty(value.shape, value.dtype, Op::to_device));
    return out;
}

Part::Part(Run& run, std::string component, nn::Rules rules, const profile::ModelProfile& profile)
    : weights(run, component, std::move(rules)),
      model(models::build(weights, profile)),
      component_(std::move(component)),
      loader_(weights) {}

Tensors Part::forward(const Tensors& args, const models::Request& request) {
    const shadow::ComponentScope scope(weights.run(), component_);
    return model->forward(args, request);
}

bool Part::takes(std::string_view argument, const models::Request& request) const {
    const std::vector<models::Value> inputs = model->inputs(request);
    return std::any_of(inputs.begin(), inputs.end(),
                       [&](const models::Value& value) { return value.name == argument; });
}

void Part::to_gpu() {
    if (on_gpu_) return;
    weights.base_to_gpu();
    on_gpu_ = true;
}

void Part::to_cpu() {
    if (!on_gpu_) return;
    weights.base_to_cpu();
    on_gpu_ = false;
}

void Part::quantize() {
    loader_.quantize();
    loader_.freeze();
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

Pipeline::Pipeline(const job::Job& job_in, const profile::Catalogue& catalogue, Run& run_in)
    : run(run_in),
      job(job_in),
      transformer(run, "transformer", transformer_rules(job), profile_of(job, catalogue, job.model)) {
    const job::Pipeline& parts = job.pipeline;
    if (!parts.vae.empty())
        vae = std::make_unique<Part>(run, "vae", plain_rules(parts.vae_dtype), catalogue.model_of(parts.vae));
    for (std::size_t i = 0; i < parts.text_encoders.size(); ++i) {
        const bool last = i + 1 == parts.text_encoders.size();
        std::string component = "text_encoder" + (i == 0 ? std::string() : "_" + std::to_string(i + 1));
        text_encoders.push_back(std::make_unique<Part>(
            run, std::move(component),
            plain_rules(parts.text_encoder_dtype, last ? parts.text_encoder_quantization : job::Quantization::none),
            catalogue.model_of(parts.text_encoders[i])));
    }
}

Pipeline::Placement Pipeline::placement() const {
    return {vae && vae->on_gpu(), transformer.on_gpu(), !text_encoders.empty() && text_encoders.back()->on_gpu()};
}

void Pipeline::place(const Placement& where) {
    if (vae) vae->move(where.vae);
    transformer.move(where.transformer);
    for (const std::unique_ptr<Part>& text_encoder : text_encoders) text_encoder->move(where.text_encoder);
    flush();
}

void Pipeline::free_text_encoders() {
    text_encoders.clear();
    flush();
}

void Pipeline::park_text_encoders() {
    for (const std::unique_ptr<Part>& text_encoder : text_encoders) text_encoder->to_cpu();
    flush();
}

models::Request Pipeline::request_of(const job::Batch& batch, const PromptEmbeds& embeds) const {
    models::Request request = sized(batch);
    request.text_tokens = embeds.text_embeds.size(1);
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

Tensor Pipeline::transform(const Tensors& args, const models::Request& request) {
    if (handed != nullptr) {
        std::size_t i = 0;
        for (const models::Value& value : transformer.model->inputs(request)) {
            const Tensor& arg = args[i++];
            handed->push_back({value.name, {arg.sizes().begin(), arg.sizes().end()}, arg.dtype()});
        }
        handed = nullptr;
    }
    return transformer.forward(args, request)[0];
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

void Pipeline::decode(const Tensor& latents, const job::Batch& image) {
    const Tensor decoded = vae->forward({latents}, vae_request(image, 1, models::Request::Operation::decode))[0];
    // VaeImageProcessor.denormalize and its stack.
    Tensor pixels = shadow::mul_scalar(decoded);
    pixels = shadow::add_scalar(pixels);
    pixels = shadow::clamp(pixels);
    pixels = run.empty_like(pixels, Op::stack);
}

void Pipeline::flush() { run.mark(shadow::MarkKind::empty_cache); }

}  // namespace vram::trainers::ai_toolkit
