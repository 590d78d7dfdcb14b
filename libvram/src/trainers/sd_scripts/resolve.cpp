#include "trainers/sd_scripts/resolve.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "trainers/heaviest.hpp"
#include "trainers/job_text.hpp"
#include "trainers/named_model.hpp"
#include "trainers/sd_scripts/arguments.hpp"
#include "trainers/sd_scripts/dataset.hpp"
#include "trainers/sd_scripts/overrides.hpp"
#include "trainers/sd_scripts/prompts.hpp"
#include "trainers/sd_scripts/which_model.hpp"
#include "trainers/trainer.hpp"
#include "vram/profile/catalogue.hpp"

namespace vram::trainers::sd_scripts {
namespace {

constexpr std::size_t most_batches = 32;  // all but the heaviest leave the peak where it is

/// strategy_sd.py and strategy_sdxl.py: max_token_length and its two ends, once however many chunks; strategy_flux.py.
std::int64_t text_tokens_of(const Arguments& arguments, const std::string& model) {
    if (arguments.script != &flux) return arguments.max_token_length + 2;
    return arguments.t5xxl_max_token_length.value_or(model == "flux1_schnell" ? 256 : 512);
}

std::string word_of(Attention attention) {
    constexpr const char* words[] = {"plain", "mem_eff_attn", "xformers", "sdpa"};
    return words[static_cast<std::size_t>(attention)];
}

job::Training training_of(const Arguments& arguments) {
    job::Lora lora;
    lora.rank = arguments.network_dim;
    lora.alpha = arguments.network_alpha;
    lora.dtype = arguments.full_fp16 || arguments.full_bf16 ? arguments.weight_dtype : Dtype::f32;
    lora.targets = {"blocks"};
    lora.dropout = arguments.network_dropout;
    lora.rank_dropout = arguments.rank_dropout;
    lora.layers.conv_rank = arguments.conv_dim;
    job::Training out;
    out.method = std::move(lora);
    out.optimizer = arguments.optimizer;
    out.gradient_checkpointing = arguments.gradient_checkpointing;
    out.gradient_accumulation = arguments.gradient_accumulation_steps;
    out.autocast = {arguments.mixed_precision, arguments.weight_dtype};
    // Of FLUX.1 it is CLIP alone: T5-XXL asks for train_t5xxl.
    out.text_encoders = {!arguments.network_train_unet_only, {true, arguments.script != &flux}};
    return out;
}

job::Pipeline pipeline_of(const Arguments& arguments) {
    const Script& script = *arguments.script;
    job::Pipeline out;
    out.architecture = script.architecture;
    out.vae = script.vae;
    out.text_encoders.assign(script.text_encoders.begin(), script.text_encoders.end());
    out.vae_dtype = arguments.no_half_vae ? Dtype::f32 : arguments.weight_dtype;
    out.text_encoder_dtype = arguments.weight_dtype;
    out.cache_latents = arguments.cache_latents;
    out.cache_text = arguments.cache_text_encoder_outputs;
    out.options = arguments.noise_and_loss;
    out.options["attention"] = word_of(arguments.attention);
    if (arguments.vae_batch_size != 1) out.options["vae_batch_size"] = text(arguments.vae_batch_size);
    if (arguments.text_encoder_batch_size)
        out.options["text_encoder_batch_size"] = text(*arguments.text_encoder_batch_size);
    if (arguments.clip_skip) out.options["clip_skip"] = text(*arguments.clip_skip);
    if (arguments.max_grad_norm == 0) out.options["max_grad_norm"] = "0";
    for (const auto& [name, on] : {std::pair{"full_fp16", arguments.full_fp16},
                                   {"fp8_base", arguments.fp8_base},
                                   {"fp8_base_unet", arguments.fp8_base_unet},
                                   {"highvram", arguments.highvram},
                                   {"cache_latents_to_disk", arguments.cache_latents_to_disk},
                                   {"apply_t5_attn_mask", arguments.apply_t5_attn_mask}})
        if (on) out.options[name] = "true";
    return out;
}

/// replace_unet_modules' attention. And of Stable Diffusion 2 a checkpoint's UNet is made with convolutions around its
/// transformers, one of a folder or of the hub with linears (library/model_util.py,
/// load_models_from_stable_diffusion_checkpoint; train_util.py, _load_target_model).
void describe_unet(const Arguments& arguments, job::Job& job) {
    const std::string& name = arguments.pretrained_model_name_or_path;
    const bool is_checkpoint = name.ends_with(".safetensors") || name.ends_with(".ckpt");
    if (arguments.script == &sd2 && is_checkpoint && !job.described.empty())
        job.described.front().config.values.insert_or_assign("use_linear_projection", false);
    if (!job.described.empty())
        job.described.front().config.values.insert_or_assign("attention", word_of(arguments.attention));
}

/// What stands beside the denoiser as sd-scripts has it: FLUX.1's AutoEncoder of its own; CLIP in the transformers that
/// its requirements pin, with the end token that its loaders write (library/model_util.py, sdxl_model_util.py,
/// flux_utils.py).
void describe_parts(const profile::Catalogue& catalogue, job::Job& job) {
    std::vector<std::string> parts = job.pipeline.text_encoders;
    parts.push_back(job.pipeline.vae);
    for (const std::string& id : parts) {
        const profile::ModelProfile& profile = profile_of(job, catalogue, id);
        if (!profile.forwards.contains("sd_scripts")) continue;
        profile::ModelProfile& own = job.described.emplace_back(profile::with_forward(profile, "sd_scripts"));
        if (own.family != "clip_text") continue;
        own.config.values.insert_or_assign("eos_token_id", std::int64_t{2});
        // CLIPL_CONFIG of flux_utils.py says hidden_act twice, and the second is "gelu".
        if (job.pipeline.architecture == "flux") own.config.values.insert_or_assign("hidden_act", std::string("gelu"));
    }
}

/// What the datasets yield, or what was said instead; the heaviest first.
std::vector<job::Batch> batches(const io::Document& document, const Config& config, const Overrides& overrides,
                                std::int64_t text_tokens, Diagnostics& complaints, Diagnostics& notes) {
    const Arguments& arguments = config.arguments;
    std::vector<job::Batch> all;
    if (overrides.sizes_said || config.source == Source::job) {
        for (const job::PictureSize& size : overrides.sizes)
            all.push_back({size[0], size[1], 1, arguments.dataset.batch_size});
        if (all.empty())
            all.push_back({arguments.dataset.width, arguments.dataset.height, 1, arguments.dataset.batch_size});
        return all;
    }
    std::vector<Dataset> datasets = read_datasets(document, config, complaints, notes);
    for (Dataset& dataset : datasets) {
        if (overrides.batch_size) dataset.settings.batch_size = *overrides.batch_size;
        if (overrides.resolution) dataset.settings.width = dataset.settings.height = *overrides.resolution;
    }
    const std::size_t before = complaints.size();
    check_datasets(document, config, datasets, complaints, notes);
    if (complaints.size() > before) return {};
    all = batches_of(datasets, notes);
    const std::int64_t step = arguments.script->side_step;
    for (const job::Batch& batch : all)
        if (batch.width % step != 0 || batch.height % step != 0) {
            const SaidAt at = config.at(document, "resolution");
            complaints.push_back({Severity::error,
                                  Problem::unsupported,
                                  at.place,
                                  at.key,
                                  text(batch.width) + "x" + text(batch.height),
                                  {},
                                  "pictures of " + text(batch.width) + "x" + text(batch.height) +
                                      " are not modelled: sides that " + text(step) + " does not divide"});
            return {};
        }
    if (all.size() <= most_batches) return all;
    std::vector<job::Batch> out = heaviest(all, most_batches, text_tokens);
    const SaidAt at = config.at(document, "resolution");
    notes.push_back({Severity::note,
                     Problem::unsupported,
                     at.place,
                     at.key,
                     std::to_string(all.size() - out.size()),
                     {},
                     std::to_string(all.size() - out.size()) + " smaller buckets are not played"});
    return out;
}

/// What is understood and not played.
void refuse_unplayed(const io::Document& document, const Config& config, Diagnostics& complaints) {
    if (!config.arguments.lowram) return;
    const SaidAt at = config.at(document, "lowram");
    complaints.push_back({Severity::error,
                          Problem::unsupported,
                          at.place,
                          at.key,
                          {},
                          {},
                          "lowram is not modelled: models come to the GPU in their files' types, all at once"});
}

std::map<std::string, std::string> resolved_keys(const job::Job& job) {
    const auto& training = std::get<job::Training>(job.work);
    const auto& lora = std::get<job::Lora>(training.method);
    std::map<std::string, std::string> keys;
    keys["trainer"] = job.trainer;
    keys["model"] = job.model;
    keys["dtype"] = to_text(job.dtype);
    keys["train.method"] = "lora";
    keys["train.rank"] = text(lora.rank);
    keys["train.alpha"] = text(lora.alpha);
    keys["train.targets"] = lora.targets.front();
    keys["train.adapter_dtype"] = to_text(lora.dtype);
    if (lora.layers.conv_rank != 0) keys["train.conv_rank"] = text(lora.layers.conv_rank);
    keys["train.optimizer"] = job::name_of(training.optimizer);
    keys["train.gradient_checkpointing"] = text(training.gradient_checkpointing);
    keys["train.gradient_accumulation"] = text(training.gradient_accumulation);
    keys["train.autocast"] = training.autocast.enabled ? to_text(training.autocast.dtype) : "none";
    keys["train.batch_size"] = text(training.batches.front().count);
    keys["data.buckets"] = text(training.batches);
    keys["data.text_tokens"] = text(job.text_tokens);
    keys["sample.resolution"] = text(job.sampling.images);
    keys["sample.steps"] = text(job.sampling.steps);
    keys["sample.guidance"] = text(job.sampling.guidance);
    // What has no name in a job file stands under the trainer's own.
    if (lora.dropout) keys["network_dropout"] = text(true);
    if (lora.rank_dropout) keys["rank_dropout"] = text(true);
    keys["network_train_unet_only"] = text(!training.text_encoders.trains);
    keys["cache_latents"] = text(job.pipeline.cache_latents);
    if (job.pipeline.text_encoders.size() > 1) keys["cache_text_encoder_outputs"] = text(job.pipeline.cache_text);
    keys["no_half_vae"] = text(job.pipeline.vae_dtype == Dtype::f32 && job.dtype != Dtype::f32);
    for (const auto& [name, value] : job.pipeline.options) keys[name] = value;
    tell_surroundings(job, keys);
    return keys;
}

}  // namespace

expected<job::Job> resolve(const io::Document& document, const profile::Catalogue& catalogue, Diagnostics& notes) {
    const bool is_job = is_job_file(document);
    Diagnostics complaints;
    const profile::ModelProfile* said = said_model(document, catalogue, complaints);
    if (is_job)
        for (Diagnostic doubled : document.complaints) {
            doubled.severity = Severity::error;  // keys that stand twice
            complaints.push_back(std::move(doubled));
        }
    if (is_job && said == nullptr) return Unexpected{std::move(complaints)};
    std::optional<Config> read =
        is_job ? job_defaults(*said)
               : read_config(document, said != nullptr ? script_of(*said) : nullptr, complaints, notes);
    if (!read) return Unexpected{std::move(complaints)};
    Config config = *std::move(read);
    const Overrides overrides = apply_overrides(document, catalogue, config, complaints, notes);
    const Arguments& arguments = config.arguments;

    if (!is_job) refuse_unplayed(document, config, complaints);

    job::Job job;
    job.trainer = "sd-scripts";
    find_model(document, config, said, catalogue, job, complaints, notes);
    describe_unet(arguments, job);
    job.dtype = arguments.weight_dtype;
    job.text_tokens = overrides.text_tokens.value_or(text_tokens_of(arguments, job.model));
    job::Training training = training_of(arguments);
    training.batches = batches(document, config, overrides, job.text_tokens, complaints, notes);
    const bool empty = training.batches.empty() || job.model.empty();
    job.work = std::move(training);
    job.pipeline = pipeline_of(arguments);
    describe_parts(catalogue, job);
    if (!overrides.sampling) {
        job.sampling = sampling_of(document, config, job.text_tokens, complaints, notes);
    } else {
        job.sampling = *overrides.sampling;
        job.sampling.baseline = arguments.sample_at_first;
        job.sampling.periodic = true;
        job.sampling.rendered = {1};
        job.sampling.sampler = arguments.sample_sampler;
    }
    job.environment = overrides.environment;
    job.card = overrides.card;
    if (has_errors(complaints) || empty) return Unexpected{std::move(complaints)};
    job.resolved = resolved_keys(job);
    return job;
}

}  // namespace vram::trainers::sd_scripts
