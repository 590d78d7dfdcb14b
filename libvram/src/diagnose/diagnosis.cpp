#include "vram/diagnose/diagnosis.hpp"

namespace vram::diagnosis {

std::string_view to_text(Phase phase) {
    switch (phase) {
        case Phase::model_load: return "model_load";
        case Phase::quantize: return "quantize";
        case Phase::cache_latents: return "cache_latents";
        case Phase::cache_text: return "cache_text";
        case Phase::first_steps: return "first_steps";
        case Phase::later_steps: return "later_steps";
        case Phase::sampling: return "sampling";
        case Phase::vae_decode: return "vae_decode";
        case Phase::save: return "save";
        case Phase::unknown: return "unknown";
    }
    return "?";
}

std::string_view to_text(Kind kind) {
    switch (kind) {
        case Kind::config_too_big: return "config_too_big";
        case Kind::other_process: return "other_process";
        case Kind::fragmentation: return "fragmentation";
        case Kind::bad_worker_state: return "bad_worker_state";
        case Kind::borderline_bucket: return "borderline_bucket";
        case Kind::host_ram: return "host_ram";
        case Kind::windows_shared_spill: return "windows_shared_spill";
        case Kind::init_failure_oom: return "init_failure_oom";
        case Kind::not_memory: return "not_memory";
        case Kind::unknown: return "unknown";
    }
    return "?";
}

std::string_view to_text(Confidence confidence) {
    switch (confidence) {
        case Confidence::high: return "high";
        case Confidence::medium: return "medium";
        case Confidence::low: return "low";
    }
    return "?";
}

std::string_view to_text(System system) {
    switch (system) {
        case System::linux_os: return "linux";
        case System::windows: return "windows";
        case System::wsl: return "wsl";
        case System::unknown: return "unknown";
    }
    return "?";
}

std::string_view to_text(Pattern pattern) {
    switch (pattern) {
        case Pattern::none: return "none";
        case Pattern::out_of_memory: return "out_of_memory";
        case Pattern::skipped_batch: return "skipped_batch";
        case Pattern::skipped_three: return "skipped_three";
        case Pattern::driver_warning: return "driver_warning";
        case Pattern::cuda_error: return "cuda_error";
        case Pattern::pinned_memory: return "pinned_memory";
        case Pattern::cublas_init: return "cublas_init";
        case Pattern::cudnn_init: return "cudnn_init";
        case Pattern::nccl_init: return "nccl_init";
        case Pattern::cudnn_host: return "cudnn_host";
        case Pattern::library_failure: return "library_failure";
        case Pattern::no_engine: return "no_engine";
        case Pattern::kernel_resources: return "kernel_resources";
        case Pattern::kernel_load: return "kernel_load";
        case Pattern::paged_optimizer: return "paged_optimizer";
        case Pattern::broken_context: return "broken_context";
        case Pattern::host_killed: return "host_killed";
        case Pattern::host_killer: return "host_killer";
        case Pattern::host_allocator: return "host_allocator";
        case Pattern::host_python: return "host_python";
        case Pattern::commit_limit: return "commit_limit";
        case Pattern::host_map: return "host_map";
        case Pattern::shared_memory: return "shared_memory";
    }
    return "?";
}

int exit_code(const Diagnosis& diagnosis) { return diagnosis.recognised ? 0 : 2; }

}  // namespace vram::diagnosis
