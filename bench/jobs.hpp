#pragma once

#include <string>

#include "vram/job/job.hpp"
#include "vram/profile/catalogue.hpp"

namespace vram::bench {

[[nodiscard]] inline const profile::Catalogue& catalogue() {
    static const profile::Catalogue all = profile::Catalogue::built_in();
    return all;
}

/// The plain loop's LoRA of rank 16 on FLUX.1 dev in bf16: one picture of 1024 x 1024, checkpointed.
[[nodiscard]] inline job::Job flux_lora() {
    job::Training training;
    job::Lora lora;
    lora.rank = 16;
    lora.alpha = 16;
    lora.targets = {"attention"};
    training.method = lora;
    training.optimizer = job::AdamW{};
    training.gradient_checkpointing = true;
    training.batches = {{1024, 1024, 1, 1}};
    job::Job job;
    job.trainer = "torch";
    job.model = "flux1_dev";
    job.text_tokens = 512;
    job.work = std::move(training);
    return job;
}

/// A file of examples/ as text; empty where it cannot be read.
[[nodiscard]] std::string example(const char* name);

}  // namespace vram::bench
