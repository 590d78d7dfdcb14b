#include "trainers/job_text.hpp"

#include <charconv>

#include "trainers/surroundings.hpp"

namespace vram::trainers {

std::string text(bool value) { return value ? "true" : "false"; }
std::string text(std::int64_t value) { return std::to_string(value); }
std::string text(double value) {
    char out[32];
    return {out, std::to_chars(out, out + sizeof out, value).ptr};
}
std::string text(const job::Batch& batch) {
    return "[" + text(batch.width) + ", " + text(batch.height) + ", " + text(batch.frames) + "]";
}
std::string text(const std::vector<job::Batch>& batches) {
    std::string out;
    for (const job::Batch& batch : batches) out += (out.empty() ? "" : ", ") + text(batch);
    return "[" + out + "]";
}

void tell_surroundings(const job::Job& job, std::map<std::string, std::string>& keys) {
    keys["environment.torch"] =
        std::to_string(job.environment.torch_major) + "." + std::to_string(job.environment.torch_minor);
    if (job.environment.cudnn > 0) {
        const std::int32_t version = job.environment.cudnn, major = version < 10000 ? 1000 : 10000;
        keys["environment.cudnn"] = std::to_string(version / major) + "." + std::to_string(version % major / 100) +
                                    "." + std::to_string(version % 100);
    }
    keys["environment.alloc_conf"] = job.environment.alloc_conf;
    keys["environment.os"] = to_text(job.environment.os);
    keys["environment.other_processes"] = text(job.environment.other_processes);
    keys["environment.attention"] = to_text(job.environment.attention);
    if (!job.card.gpu.empty()) keys["gpu"] = job.card.gpu;
    if (job.card.capacity > 0) keys["capacity"] = text(job.card.capacity);
}

}  // namespace vram::trainers
