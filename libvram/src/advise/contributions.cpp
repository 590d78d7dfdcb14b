#include "advise/contributions.hpp"

#include <algorithm>
#include <utility>

#include "base/parallel.hpp"

namespace vram::advise {
namespace {

using report::Report;
using report::Verdict;

constexpr const char* no_key = "the job file has no key for it: take it out of the trainer's own file to compare";

/// Options in the order in which people ask about them, by the job file's names.
class Options {
  public:
    explicit Options(const job::Job& job) : job_(job) {}

    std::vector<Contribution> all() {
        const auto* training = std::get_if<job::Training>(&job_.work);
        const auto* call = std::get_if<job::Call>(&job_.work);
        if (training != nullptr) of_training(*training);
        quantization();
        if (training != nullptr) of_batches(training->batches, "train.batch_size");
        if (call != nullptr) of_call(*call);
        if (!job_.sampling.images.empty()) set("sample", samples(), "null");
        of_pipeline();
        if (training != nullptr) of_objective(*training);
        if (job_.dtype == Dtype::f32) set("dtype", "fp32", "bf16");
        if (!job_.environment.alloc_conf.empty()) set("environment.alloc_conf", job_.environment.alloc_conf, "''");
        if (job_.environment.attention != job::Environment::Attention::automatic)
            set("environment.attention", resolved("environment.attention"), "auto");
        return std::move(out_);
    }

  private:
    void set(std::string option, std::string value, std::string instead) {
        Contribution one{option, std::move(value), {}, {}, {}};
        one.instead = {std::move(option), std::move(instead)};
        out_.push_back(std::move(one));
    }
    void cannot(std::string option, std::string value, std::string why) {
        out_.push_back({std::move(option), std::move(value), {}, std::move(why), {}});
    }
    [[nodiscard]] std::string resolved(const std::string& key) const {
        const auto found = job_.resolved.find(key);
        return found == job_.resolved.end() ? std::string() : found->second;
    }

    void of_training(const job::Training& training) {
        if (training.gradient_checkpointing) set("train.gradient_checkpointing", "true", "false");
        const std::string optimizer(job::name_of(training.optimizer));
        const std::string plain(job::AdamW::name());
        set("train.optimizer", optimizer, optimizer == plain ? "adamw8bit" : plain);
        if (training.ema) set("train.ema", "true", "false");
        if (training.gradient_accumulation > 1)
            set("train.gradient_accumulation", std::to_string(training.gradient_accumulation), "1");
        if (training.autocast.enabled) set("train.autocast", std::string(to_text(training.autocast.dtype)), "none");
    }

    /// One part at a time: what is said of the others stays.
    void quantization() {
        const std::string own(to_text(job_.quantization));
        const std::string encoder(to_text(job_.pipeline.text_encoder_quantization));
        const bool has_encoder =
            !job_.pipeline.text_encoders.empty() && job_.pipeline.text_encoder_quantization != job::Quantization::none;
        const auto both = [](const std::string& transformer, const std::string& text_encoder) {
            return "{transformer: " + transformer + ", text_encoder: " + text_encoder + "}";
        };
        if (job_.quantization != job::Quantization::none)
            set("quantize", own, has_encoder ? both("none", encoder) : std::string("none"));
        if (has_encoder) {
            set("quantize", encoder, both(own, "none"));
            out_.back().option = "quantize.text_encoder";
        }
        if (!job_.pipeline.recovery.file.empty())
            cannot("accuracy_recovery_adapter", job_.pipeline.recovery.file,
                   "it belongs to the quantised weights, and goes with them: see quantize");
    }

    void of_batches(const std::vector<job::Batch>& batches, const std::string& key) {
        std::int64_t count = 1, frames = 1;
        std::size_t references = job_.reference_images.size();
        for (const job::Batch& batch : batches) {
            count = std::max(count, batch.count);
            frames = std::max(frames, batch.frames);
            references = std::max(references, batch.references.size());
        }
        if (count > 1) set(key, std::to_string(count), "1");
        if (frames > 1) set("data.frames", std::to_string(frames), "1");
        if (references > 0) set("data.reference_images", std::to_string(references) + " a sample", "[]");
    }

    void of_call(const job::Call& call) {
        of_batches({call.batch}, "batch_size");
        for (const auto& [key, on] : {std::pair{"tiling", call.tiling},
                                      {"slicing", call.slicing},
                                      {"attention_mask", call.attention_mask},
                                      {"all_hidden_states", call.all_hidden_states},
                                      {"use_cache", call.use_cache}})
            if (on) set(key, "true", "false");
    }

    [[nodiscard]] std::string samples() const {
        const job::Batch& image = job_.sampling.images.front();
        std::string out = std::to_string(image.width) + "x" + std::to_string(image.height);
        if (image.frames > 1) out += "x" + std::to_string(image.frames);
        if (job_.sampling.images.size() > 1) out += " and " + std::to_string(job_.sampling.images.size() - 1) + " more";
        return out;
    }

    void of_pipeline() {
        const job::Pipeline& pipeline = job_.pipeline;
        for (const auto& [option, on] : {std::pair{"cache_latents", pipeline.cache_latents},
                                         {"cache_text_embeddings", pipeline.cache_text},
                                         {"unload_text_encoder", pipeline.unload_text},
                                         {"low_vram", pipeline.low_vram}})
            if (on) cannot(option, "true", no_key);
    }

    void of_objective(const job::Training& training) {
        const job::Objective& objective = training.objective;
        const bool preserves = objective.preservation != job::Objective::Preservation::none;
        for (const auto& [option, on] : {std::pair{"preservation", preserves},
                                         {"prior_target", objective.prior_target},
                                         {"prior_divergence", objective.prior_divergence},
                                         {"classifier_free_guidance", objective.classifier_free_guidance},
                                         {"guidance_loss", objective.guidance_loss},
                                         {"masks", objective.masks},
                                         {"inverted_mask_prior", objective.inverted_mask_prior},
                                         {"validation", !training.validation.batches.empty()}})
            if (on) cannot(option, "true", no_key);
    }

    const job::Job& job_;
    std::vector<Contribution> out_;
};

Difference difference_of(const Report& with, const Report& without) {
    Difference out;
    out.device_low = with.peak->device_low - without.peak->device_low;
    out.device_high = with.peak->device_high - without.peak->device_high;
    out.tensors = with.peak->tensors - without.peak->tensors;
    out.without = without.verdict;
    const report::Phase* mine = with.phase(with.peak->phase);
    if (const report::Phase* other = without.phase(with.peak->phase); other != nullptr && mine != nullptr) {
        out.needs_low = mine->needs_low - other->needs_low;
        out.needs_high = mine->needs_high - other->needs_high;
    }
    return out;
}

}  // namespace

std::vector<Contribution> contributions_of(const io::Document& document, const report::CheckOptions& options,
                                           const profile::Catalogue& catalogue, const Report& report,
                                           const job::Job& job) {
    std::vector<Contribution> out = Options(job).all();
    in_parallel(out.size(), [&](std::size_t i) {
        Contribution& one = out[i];
        if (one.instead.key.empty()) return;
        report::CheckOptions changed = options;
        changed.settings.push_back(one.instead);
        const Report without = report::check(document, changed, catalogue);
        if (without.verdict == Verdict::cannot_say)
            one.why_not = without.reason;
        else
            one.difference = difference_of(report, without);
    });
    return out;
}

}  // namespace vram::advise
