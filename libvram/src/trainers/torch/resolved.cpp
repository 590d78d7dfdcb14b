#include "trainers/torch/resolved.hpp"

#include <charconv>

#include "trainers/surroundings.hpp"

namespace vram::trainers::torch {
namespace {

using Keys = std::map<std::string, std::string>;

std::string text(bool value) { return value ? "true" : "false"; }
std::string text(std::int64_t value) { return std::to_string(value); }
std::string text(Dtype dtype) { return std::string(to_text(dtype)); }
std::string text(double value) {
    char out[32];
    return {out, std::to_chars(out, out + sizeof out, value).ptr};
}
std::string text(const std::vector<std::string>& words) {
    std::string out;
    for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
    return words.size() == 1 ? out : "[" + out + "]";
}
std::string text(const job::Batch& batch) {
    return "[" + text(batch.width) + ", " + text(batch.height) + ", " + text(batch.frames) + "]";
}

void tell(Keys& keys, const job::Lora& lora) {
    keys["train.method"] = "lora";
    keys["train.rank"] = text(lora.rank);
    keys["train.alpha"] = text(lora.alpha);
    keys["train.targets"] = text(lora.targets);
    keys["train.adapter_dtype"] = text(lora.dtype);
}
void tell(Keys& keys, const job::FullFinetune&) { keys["train.method"] = "full"; }

void tell(Keys& keys, const job::Training& training) {
    std::visit([&](const auto& method) { tell(keys, method); }, training.method);
    keys["train.optimizer"] = job::name_of(training.optimizer);
    keys["train.gradient_checkpointing"] = text(training.gradient_checkpointing);
    keys["train.gradient_accumulation"] = text(training.gradient_accumulation);
    keys["train.autocast"] = training.autocast.enabled ? text(training.autocast.dtype) : "none";
    keys["train.ema"] = text(training.ema);
    keys["train.batch_size"] = text(training.batches.front().count);
    std::string buckets;
    for (const job::Batch& batch : training.batches) buckets += (buckets.empty() ? "" : ", ") + text(batch);
    keys["data.buckets"] = "[" + buckets + "]";
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
    keys["dtype"] = text(job.dtype);
    keys["quantize"] = "none";
    if (const auto* training = std::get_if<job::Training>(&job.work))
        tell(keys, *training);
    else
        tell(keys, std::get<job::Call>(job.work), job.component);
    if (job.text_tokens > 0) keys["data.text_tokens"] = text(job.text_tokens);
    if (!job.reference_images.empty()) {
        std::string sizes;
        for (const auto& [width, height] : job.reference_images)
            sizes += (sizes.empty() ? "[" : ", [") + text(width) + ", " + text(height) + "]";
        keys["data.reference_images"] = "[" + sizes + "]";
    }
    keys["environment.torch"] =
        std::to_string(job.environment.torch_major) + "." + std::to_string(job.environment.torch_minor);
    keys["environment.alloc_conf"] = job.environment.alloc_conf;
    keys["environment.os"] = to_text(job.environment.os);
    keys["environment.other_processes"] = text(job.environment.other_processes);
    keys["environment.attention"] = to_text(job.environment.attention);
    if (!job.card.gpu.empty()) keys["gpu"] = job.card.gpu;
    if (job.card.capacity > 0) keys["capacity"] = text(job.card.capacity);
    return keys;
}

}  // namespace vram::trainers::torch
