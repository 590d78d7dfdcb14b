#include "trainers/ai_toolkit/pipeline.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "nn/adapter/targets.hpp"
#include "nn/adapter/toolkit.hpp"
#include "shadow/ops.hpp"

namespace vram::trainers::ai_toolkit {
namespace {

using shadow::Op;

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

/// What a tokenizer or a host hands over.
Tensors on_device(Run& run, const std::vector<models::Value>& values) {
    Tensors out;
    for (const models::Value& value : values) out.push_back(run.empty(value.shape, value.dtype, Op::to_device));
    return out;
}

}  // namespace

PromptEmbeds clone(const PromptEmbeds& embeds) {
    PromptEmbeds out;
    out.text_embeds = shadow::clone(embeds.text_embeds);
    out.pooled_embeds = shadow::clone(embeds.pooled_embeds);
    return out;
}

PromptEmbeds repeated(const PromptEmbeds& embeds, std::int64_t count) {
    const std::vector<Tensor> text(static_cast<std::size_t>(count), embeds.text_embeds);
    const std::vector<Tensor> pooled(static_cast<std::size_t>(count), embeds.pooled_embeds);
    PromptEmbeds out;
    out.text_embeds = shadow::cat(text, 0);
    out.pooled_embeds = shadow::cat(pooled, 0);
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

Pipeline::Pipeline(const job::Job& job_in, const profile::Catalogue& catalogue, Run& run_in)
    : run(run_in), job(job_in), transformer(run, "transformer", transformer_rules(job), catalogue.model_of(job.model)) {
    const job::Pipeline& parts = job.pipeline;
    if (!parts.vae.empty())
        vae = std::make_unique<Part>(run, "vae", plain_rules(parts.vae_dtype), catalogue.model_of(parts.vae));
    if (parts.text_encoders.size() != 2) return;
    text_encoder = std::make_unique<Part>(run, "text_encoder", plain_rules(parts.text_encoder_dtype),
                                          catalogue.model_of(parts.text_encoders[0]));
    text_encoder_2 = std::make_unique<Part>(run, "text_encoder_2",
                                            plain_rules(parts.text_encoder_dtype, parts.text_encoder_quantization),
                                            catalogue.model_of(parts.text_encoders[1]));
}

Pipeline::Placement Pipeline::placement() const {
    return {vae && vae->on_gpu(), transformer.on_gpu(), text_encoder_2 && text_encoder_2->on_gpu()};
}

void Pipeline::place(const Placement& where) {
    if (vae) vae->move(where.vae);
    transformer.move(where.transformer);
    if (text_encoder) text_encoder->move(where.text_encoder);
    if (text_encoder_2) text_encoder_2->move(where.text_encoder);
    flush();
}

void Pipeline::free_text_encoders() {
    text_encoder.reset();
    text_encoder_2.reset();
    flush();
}

PromptEmbeds Pipeline::encode_prompt(std::int64_t count) {
    PromptEmbeds out;
    models::Request request;
    request.batch = count;
    request.text_tokens = 77;
    request.dtype = job.pipeline.text_encoder_dtype;
    Tensors prompt_embeds = text_encoder->forward(on_device(run, text_encoder->model->inputs(request)), request);
    out.pooled_embeds = prompt_embeds[1];  // pooler_output
    request.text_tokens = job.text_tokens;
    prompt_embeds = text_encoder_2->forward(on_device(run, text_encoder_2->model->inputs(request)), request);
    out.text_embeds = prompt_embeds[0];
    return out;
}

Tensor Pipeline::encode_images(Tensor image_list_in, const job::Batch& batch) {
    const Tensor image_list = std::move(image_list_in);
    vae->to_gpu();
    models::Request request;
    request.batch = batch.count;
    request.width = batch.width;
    request.height = batch.height;
    request.dtype = job.pipeline.vae_dtype;
    request.operation = models::Request::Operation::encode;
    const shadow::ComponentScope scope(run, "vae");
    const Tensor images = run.empty_like(image_list, Op::stack);  // torch.stack of the items
    Tensor latents;
    {
        const Tensors distribution = vae->forward({images}, request);
        const Tensor &mean = distribution[1], &std = distribution[3];
        // DiagonalGaussianDistribution.sample: mean + std * randn.
        const Tensor noise = run.empty(mean.sizes(), mean.dtype(), Op::noise);
        Tensor spread = shadow::mul(std, noise);
        latents = shadow::add(mean, std::move(spread));
    }
    Tensor shifted = shadow::add_scalar(latents);
    latents = shadow::mul_scalar(std::move(shifted));
    return latents;
}

Tensor Pipeline::decode(Tensor latents, const job::Batch& batch) {
    models::Request request;
    request.batch = 1;
    request.width = batch.width;
    request.height = batch.height;
    request.dtype = job.pipeline.vae_dtype;
    request.operation = models::Request::Operation::decode;
    return vae->forward({std::move(latents)}, request)[0];
}

void Pipeline::flush() { run.mark(shadow::MarkKind::empty_cache); }

}  // namespace vram::trainers::ai_toolkit
