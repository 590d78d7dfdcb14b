#pragma once

#include <string>
#include <vector>

#include "shadow/run.hpp"
#include "trainers/torch/play.hpp"
#include "vram/device/usage.hpp"
#include "vram/job/job.hpp"
#include "vram/profile/catalogue.hpp"

/// Jobs of the plain loop over every profile, for laws that hold for all of them.
namespace vram::laws {

enum class Kind { lora, lora_autocast, full, call };
inline const char* to_text(Kind kind) {
    switch (kind) {
        case Kind::lora: return "lora";
        case Kind::lora_autocast: return "lora under autocast";
        case Kind::full: return "full";
        case Kind::call: return "call";
    }
    return "?";
}

inline const profile::Catalogue& catalogue() {
    static const profile::Catalogue all = profile::Catalogue::built_in();
    return all;
}

/// Every profile, and behind it the same with each forward that a trainer has of its own.
inline std::vector<profile::ModelProfile> with_forwards() {
    std::vector<profile::ModelProfile> out;
    for (const profile::ModelProfile& profile : catalogue().models()) {
        out.push_back(profile);
        for (const auto& [forward, family] : profile.forwards) out.push_back(profile::with_forward(profile, forward));
    }
    return out;
}

/// The batch of a job of this trainer.
inline job::Batch& batch_of(job::Job& job) {
    if (auto* call = std::get_if<job::Call>(&job.work)) return call->batch;
    return std::get<job::Training>(job.work).batches.front();
}

/// The smallest job of a kind that the profile allows, scaled by `scale` along each side.
inline job::Job job_of(const profile::ModelProfile& profile, Kind kind, bool checkpointing, std::int64_t count = 1,
                       std::int64_t scale = 1) {
    job::Job job;
    job.trainer = "torch";
    job.model = profile.id;
    job.component = profile.kind != profile::ModelKind::denoiser;
    if (profile.config.has("forward")) {
        job.described.push_back(profile);
        if (kind != Kind::lora_autocast) job.dtype = Dtype::f32;  // some run in fp32 or under autocast only
    }
    job.text_tokens = profile.defaults.text_tokens;
    if (profile.reference_images) job.reference_images = {{256, 384}};
    job::Batch batch;
    if (profile.defaults.width > 0) batch.width = batch.height = 256 * scale;
    batch.frames = profile.frame_step > 0 ? profile.frame_step + 1 : 1;
    batch.count = count;
    if (kind == Kind::call) {
        job::Call call;
        call.batch = batch;
        if (profile.kind == profile::ModelKind::vae) call.operation = job::Call::Operation::decode;
        job.work = call;
        return job;
    }
    job::Training training;
    training.batches = {batch};
    training.gradient_checkpointing = checkpointing;
    if (kind == Kind::full) {
        training.method = job::FullFinetune{};
    } else {
        job::Lora lora;
        lora.rank = 8;
        lora.targets = {"blocks"};
        lora.dtype = kind == Kind::lora_autocast ? Dtype::f32 : job.dtype;
        training.method = lora;
        training.autocast = {kind == Kind::lora_autocast, Dtype::bf16};
    }
    training.optimizer = job::AdamW{};
    job.work = training;
    return job;
}

struct Played {
    shadow::Trace trace;
    run::Facts facts;
    device::Usage usage;
};

inline Played play(const job::Job& job, bool memo = true, const profile::Catalogue& of = catalogue()) {
    Played out;
    shadow::Run run({}, memo);
    out.facts = trainers::torch::play(job, of, run);
    out.trace = run.trace;
    out.usage = device::sum(out.trace);
    return out;
}

}  // namespace vram::laws
