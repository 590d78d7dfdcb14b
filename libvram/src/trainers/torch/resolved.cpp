#include "trainers/torch/resolved.hpp"

#include <variant>

#include "trainers/job_text.hpp"

namespace vram::trainers::torch {
namespace {

using Keys = std::map<std::string, std::string>;

std::string text_of(const std::vector<std::string>& words) {
    std::string out;
    for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
    return words.size() == 1 ? out : "[" + out + "]";
}

void tell(Keys& keys, const job::Lora& lora) {
    keys["train.method"] = "lora";
    keys["train.rank"] = text(lora.rank);
    keys["train.alpha"] = text(lora.alpha);
    keys["train.targets"] = text_of(lora.targets);
    keys["train.adapter_dtype"] = to_text(lora.dtype);
}
void tell(Keys& keys, const job::FullFinetune&) { keys["train.method"] = "full"; }

void tell(Keys& keys, const job::Training& training) {
    std::visit([&](const auto& method) { tell(keys, method); }, training.method);
    keys["train.optimizer"] = job::name_of(training.optimizer);
    keys["train.gradient_checkpointing"] = text(training.gradient_checkpointing);
    keys["train.gradient_accumulation"] = text(training.gradient_accumulation);
    keys["train.autocast"] = training.autocast.enabled ? to_text(training.autocast.dtype) : "none";
    keys["train.ema"] = text(training.ema);
    keys["train.batch_size"] = text(training.batches.front().count);
    keys["data.buckets"] = text(training.batches);
}

void tell(Keys& keys, const job::Call& call, bool component) {
    keys["batch_size"] = text(call.batch.count);
    if (call.batch.width > 0) {
        keys["data.resolution"] = "[" + text(call.batch.width) + ", " + text(call.batch.height) + "]";
        keys["data.frames"] = text(call.batch.frames);
    }
    if (!component) return;
    using Operation = job::Call::Operation;
    keys["op"] = call.operation == Operation::encode   ? "encode"
                 : call.operation == Operation::decode ? "decode"
                                                       : "forward";
    keys["tiling"] = text(call.tiling);
    keys["slicing"] = text(call.slicing);
    keys["attention_mask"] = text(call.attention_mask);
    keys["all_hidden_states"] = text(call.all_hidden_states);
    keys["use_cache"] = text(call.use_cache);
}

}  // namespace

Keys resolved_keys(const job::Job& job) {
    Keys keys;
    keys["trainer"] = job.trainer;
    keys[job.component ? "component" : "model"] = job.model;
    for (const profile::ModelProfile& described : job.described)
        if (described.id == job.model && described.config.has("forward"))
            keys["forward"] = described.config.text("forward");
    keys["dtype"] = to_text(job.dtype);
    keys["quantize"] = job::to_text(job.quantization);
    if (const auto* training = std::get_if<job::Training>(&job.work)) tell(keys, *training);
    if (const auto* call = std::get_if<job::Call>(&job.work)) tell(keys, *call, job.component);
    if (job.text_tokens > 0) keys["data.text_tokens"] = text(job.text_tokens);
    if (!job.reference_images.empty()) {
        std::string sizes;
        for (const auto& [width, height] : job.reference_images)
            sizes += (sizes.empty() ? "[" : ", [") + text(width) + ", " + text(height) + "]";
        keys["data.reference_images"] = "[" + sizes + "]";
    }
    tell_surroundings(job, keys);
    return keys;
}

}  // namespace vram::trainers::torch
