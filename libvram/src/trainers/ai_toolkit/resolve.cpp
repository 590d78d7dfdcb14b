#include "trainers/ai_toolkit/resolve.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/text.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/config.hpp"
#include "trainers/ai_toolkit/dataset.hpp"
#include "trainers/ai_toolkit/overrides.hpp"
#include "trainers/ai_toolkit/reading.hpp"
#include "trainers/heaviest.hpp"
#include "trainers/job_text.hpp"
#include "trainers/named_model.hpp"
#include "trainers/trainer.hpp"
#include "vram/io/document.hpp"
#include "vram/io/image_header.hpp"
#include "vram/io/path.hpp"
#include "vram/io/tensor_file.hpp"
#include "vram/profile/catalogue.hpp"

namespace vram::trainers::ai_toolkit {
namespace {

using job::Quantization;

// What is played of the sizes that a config yields: a step's play costs milliseconds and megabytes, a folder may yield
// hundreds of buckets, and all but the heaviest leave the peak where it is.
constexpr std::size_t most_batches = 32, most_images = 8;

void note_unplayed(std::size_t count, std::string what, SaidAt at, Diagnostics& notes) {
    if (count == 0) return;
    notes.push_back({Severity::note,
                     Problem::unsupported,
                     std::move(at.place),
                     std::move(at.key),
                     std::to_string(count),
                     {},
                     std::to_string(count) + std::move(what)});
}

/// The value at a path of the one process, and its place; the file where there is none.
SaidAt said_at(const io::Document& document, const std::string& path) {
    std::string key = "config.process[0]." + path;
    const io::Node* node = io::find(document.root, key);
    return {node != nullptr ? document.place_of(*node) : Place{document.file_name, 0, 0}, std::move(key)};
}

/// The model of a folder or file, which the trainer looks for before it asks the hub. Its path counts from where the
/// trainer is started, as that of datasets does.
void read_local(const io::Document& document, const Config& config, const Architecture& architecture,
                const profile::Catalogue& catalogue, job::Job& job, Diagnostics& complaints, Diagnostics& notes) {
    const std::string& name = config.model.name_or_path;
    auto [place, key] = said_at(document, "model.name_or_path");
    const Diagnostic said{Severity::error, Problem::unsupported, std::move(place), std::move(key), name, {}, {}};
    NamedModel found = describe_model(name, false, said, catalogue, complaints, notes);
    if (found.weights_only) complaints.push_back(found.weights_only->why);
    if (!found.profile) return;
    if (!architecture.plays(*found.profile)) {
        complaints.push_back(said);
        complaints.back().text = name + " is not played as " + std::string(architecture.title) + ": " +
                                 std::string(architecture.models) + " are";
        return;
    }
    job.model = found.profile->id;
    job.stored = std::move(found.stored);
    job.described.push_back(*std::move(found.profile));
}

/// Which model of the architecture it is. The trainer reads the config beside the weights; where nothing lies on the
/// disk the name has to say it: a repository that is known, or what a path holds. Empty, after a complaint: it says
/// nothing.
std::string model_of(const io::Document& document, const Config& config, const Architecture& architecture,
                     const profile::Catalogue& catalogue, Diagnostics& complaints, Diagnostics& notes) {
    const std::string& name = config.model.name_or_path;
    const auto [place, key] = said_at(document, "model.name_or_path");
    if (const profile::ModelProfile* profile = catalogue.model(name)) {
        if (architecture.plays(*profile)) return profile->id;
        complaints.push_back({Severity::error,
                              Problem::conflict,
                              place,
                              key,
                              name,
                              {},
                              name + " is " + profile->name + ", and arch says " + config.model.arch});
        return {};
    }
    std::string id(architecture.taken_for(config.model.arch, lower(name)));
    if (id.empty() || catalogue.model(id) == nullptr) {
        complaints.push_back(
            {Severity::error, Problem::unknown_model, place, key, name, catalogue.nearest_model(name),
             "which " + std::string(architecture.title) + " model " + name + " is, its name does not say"});
        return {};
    }
    notes.push_back(
        {Severity::note, Problem::unknown_model, place, key, name, {}, name + " is taken for " + id + " by its name"});
    return id;
}

std::string text_of(Quantization quantization) { return std::string(job::to_text(quantization)); }

/// What has no name in a job file stands under the trainer's own.
void tell_network(const job::Lora& lora, std::map<std::string, std::string>& keys) {
    constexpr std::array<const char*, 4> types{"lora", "dora", "lokr", "fullrank"};
    keys["train.method"] = "lora";
    if (lora.kind != job::AdapterKind::lora) keys["network.type"] = types[static_cast<std::size_t>(lora.kind)];
    const bool has_rank = lora.kind != job::AdapterKind::full_rank && lora.rank != no_rank;
    keys["train.rank"] = has_rank ? text(lora.rank) : "full";
    if (has_rank) keys["train.alpha"] = text(lora.alpha);
    if (lora.kind == job::AdapterKind::lokr) keys["network.lokr_factor"] = text(lora.factor);
    if (has_rank && lora.layers.conv_rank != 0) keys["network.conv"] = text(lora.layers.conv_rank);
    if (lora.dropout) keys["network.dropout"] = text(true);
    if (lora.rank_dropout) keys["network.network_kwargs.rank_dropout"] = text(true);
    if (lora.layers.all) keys["network.all_layers"] = text(true);
}

std::map<std::string, std::string> resolved_keys(const job::Job& job) {
    const auto& training = std::get<job::Training>(job.work);
    std::map<std::string, std::string> keys;
    keys["trainer"] = job.trainer;
    keys["model"] = job.model;
    keys["dtype"] = to_text(job.dtype);
    const Quantization te = job.pipeline.text_encoder_quantization;
    keys["quantize"] = job.quantization == te
                           ? text_of(te)
                           : "{transformer: " + text_of(job.quantization) + ", text_encoder: " + text_of(te) + "}";
    if (const auto* lora = std::get_if<job::Lora>(&training.method)) {
        tell_network(*lora, keys);
        keys["train.targets"] = lora->targets.front();
        keys["train.adapter_dtype"] = to_text(lora->dtype);
    } else {
        keys["train.method"] = "full";
    }
    keys["train.optimizer"] = job::name_of(training.optimizer);
    keys["train.gradient_checkpointing"] = text(training.gradient_checkpointing);
    keys["train.gradient_accumulation"] = text(training.gradient_accumulation);
    keys["train.autocast"] = "none";
    keys["train.ema"] = text(training.ema);
    keys["train.batch_size"] = text(training.batches.front().count);
    keys["data.buckets"] = text(training.batches);
    keys["data.text_tokens"] = text(job.text_tokens);
    keys["sample.resolution"] = text(job.sampling.images);
    keys["sample.steps"] = text(job.sampling.steps);
    keys["sample.guidance"] = text(job.sampling.guidance);
    // What has no name in a job file stands under the trainer's own.
    keys["datasets.cache_latents"] = text(job.pipeline.cache_latents);
    keys["train.cache_text_embeddings"] = text(job.pipeline.cache_text);
    keys["train.unload_text_encoder"] = text(job.pipeline.unload_text);
    if (training.text_encoders.trains) keys["train.train_text_encoder"] = text(true);
    if (const job::Recovery& recovery = job.pipeline.recovery; !recovery.file.empty())
        keys["model.accuracy_recovery_adapter"] = recovery.file + ", rank " + text(recovery.rank);
    if (const job::Assistant& assistant = job.pipeline.assistant; !assistant.file.empty())
        keys["model.assistant_lora_path"] = assistant.file + ", rank " + text(assistant.rank);
    keys["model.low_vram"] = text(job.pipeline.low_vram);
    if (job.pipeline.offloaded > 0 || job.pipeline.offloaded_text_encoder > 0) {
        keys["model.layer_offloading_transformer_percent"] = text(job.pipeline.offloaded);
        keys["model.layer_offloading_text_encoder_percent"] = text(job.pipeline.offloaded_text_encoder);
    }
    if (const std::optional<Slider> slider = slider_of(job.pipeline.options)) {
        keys["type"] = "concept_slider";
        keys["slider.anchor_class"] = job.pipeline.options.at("slider.anchor_class");
    }
    tell_surroundings(job, keys);
    return keys;
}

/// Where the key stands that leaves modules out.
std::string names_said_at(const std::string& section, const job::NameParts& names) {
    return section + (names.only.empty() && !names.ignore.empty() ? "ignore_if_contains" : "only_if_contains");
}

job::Training training_of(const Config& config) {
    job::Training out;
    if (config.fine_tune) {
        out.method =
            job::FullFinetune{config.model.names, names_said_at("config.process[0].model.", config.model.names)};
    } else {
        job::Lora lora;
        lora.rank = config.network.rank;
        lora.alpha = static_cast<double>(config.network.rank);  // PEFT's format has no alpha
        lora.dtype = Dtype::f32;                                // network.force_to(device, torch.float32)
        lora.targets = {config.network.transformer_only ? "blocks" : "all"};
        lora.names = config.network.names;
        lora.kind = config.network.kind;
        lora.factor = config.network.factor;
        lora.dropout = config.network.dropout;
        lora.rank_dropout = config.network.rank_dropout;
        lora.layers = config.network.layers;
        // Of the targets there is always something left but for what these say.
        lora.said_at = names_said_at("config.process[0].network.network_kwargs.", config.network.names);
        out.method = std::move(lora);
    }
    out.optimizer = config.train.optimizer;
    out.gradient_checkpointing = config.train.gradient_checkpointing;
    out.gradient_accumulation = config.train.gradient_accumulation;
    out.ema = config.train.ema;
    out.switch_boundary_every = config.train.switch_boundary_every;
    out.noise_scheduler = config.train.noise_scheduler;
    out.objective = config.train.objective;
    out.text_encoders = {config.train.train_text_encoder,
                         {config.model.use_text_encoder_1, config.model.use_text_encoder_2}};
    for (const DatasetConfig& dataset : config.datasets) {
        out.objective.masks = out.objective.masks || dataset.masks;
        out.objective.prior_target = out.objective.prior_target || dataset.prior_reg;
    }
    // Without a mask nothing is inverted.
    out.objective.inverted_mask_prior = out.objective.inverted_mask_prior && out.objective.masks;
    return out;
}

job::Pipeline pipeline_of(const Config& config, const Architecture& architecture) {
    job::Pipeline out;
    out.architecture = architecture.names.front();
    out.vae = architecture.vae;
    out.text_encoders.assign(architecture.text_encoders.begin(), architecture.text_encoders.end());
    out.vae_dtype = out.text_encoder_dtype = config.train.dtype;
    const ModelConfig& model = config.model;
    if (architecture.quantizes)
        out.text_encoder_quantization = architecture.text_encoder_by_quantize ? model.quantize : model.quantize_te;
    // The VAE leaves only if every dataset is cached.
    out.cache_latents = std::all_of(config.datasets.begin(), config.datasets.end(),
                                    [](const DatasetConfig& dataset) { return dataset.cache_latents; });
    out.loads_pixels = std::any_of(config.datasets.begin(), config.datasets.end(),
                                   [](const DatasetConfig& dataset) { return dataset.loads_pixels; });
    out.cache_text = config.train.cache_text_embeddings;
    out.unload_text = config.train.unload_text_encoder && !config.train.cache_text_embeddings;
    out.low_vram = config.model.low_vram;
    out.quantized = config.model.quantized;
    out.offloaded = config.model.offloaded;
    out.offloaded_text_encoder = config.model.offloaded_text_encoder;
    out.options = config.model.options;
    const std::vector<SampleItem>& samples = config.sample.samples;
    if (std::any_of(samples.begin(), samples.end(), [](const SampleItem& item) { return item.do_cfg_norm; }))
        out.options["do_cfg_norm"] = "true";
    if (std::any_of(config.datasets.begin(), config.datasets.end(),
                    [](const DatasetConfig& dataset) { return dataset.inpaints; }))
        out.options["inpaint"] = "true";
    if (config.slider) put(*config.slider, out.options);
    return out;
}

/// The control images of a sample, measured where they are there. Else each is as large as the sample, and stands in
/// `unmeasured`; empty there: a control image that the trainer would miss.
std::vector<job::PictureSize> controls_of(const SampleItem& item, const job::Batch& image,
                                          const Architecture& architecture, std::set<std::string>& unmeasured) {
    std::vector<job::PictureSize> out;
    for (const std::string& path : item.controls) {
        if (static_cast<std::int64_t>(out.size()) == architecture.most_references) break;
        const expected<io::ImageSize> size = io::image_size(path);
        if (!size) unmeasured.insert(path);
        out.push_back(size ? job::PictureSize{size->width, size->height} : job::PictureSize{image.width, image.height});
    }
    if (static_cast<std::int64_t>(out.size()) >= architecture.fewest_references) return out;
    unmeasured.emplace();
    out.resize(static_cast<std::size_t>(architecture.fewest_references), {image.width, image.height});
    return out;
}

job::Sampling sampling_of(const Config& config, const Architecture& architecture, const io::Document& document,
                          std::int64_t text_tokens, Diagnostics& notes) {
    job::Sampling out;
    if (config.train.disable_sampling) return out;
    // `first_sample` is rendered even where the baseline is skipped.
    out.baseline = !config.train.skip_first_sample || !config.first_sample.empty();
    out.periodic = true;  // at the end at the latest
    out.sampler = config.sample.sampler;
    if (config.train.cache_text_embeddings && !architecture.cached_samples_fail.empty()) {
        auto [place, key] = said_at(document, "train.cache_text_embeddings");
        notes.push_back({Severity::warning,
                         Problem::conflict,
                         std::move(place),
                         std::move(key),
                         "true",
                         {},
                         "the trainer's samples of " + std::string(architecture.title) +
                             " fail with cached text embeddings: " + std::string(architecture.cached_samples_fail)});
    }
    std::vector<SampleItem> items = config.first_sample;
    items.insert(items.end(), config.sample.samples.begin(), config.sample.samples.end());
    bool one_multiplier = true;
    std::set<std::string> unmeasured;
    std::vector<job::Batch> images, all;
    for (const SampleItem& item : items) {
        const std::int64_t step = architecture.sample_step != 0 ? architecture.sample_step : architecture.divisible_by;
        job::Batch image{item.width / step * step, item.height / step * step, 1, 1};
        // A pipeline rounds down to what its VAE can decode.
        if (architecture.sample_frames != nullptr)
            image.frames = architecture.sample_frames(item.frames, config.model.low_vram);
        else if (architecture.frame_step != 0)
            image.frames = (item.frames - 1) / architecture.frame_step * architecture.frame_step + 1;
        image.references = controls_of(item, image, architecture, unmeasured);
        if (std::find(images.begin(), images.end(), image) == images.end()) images.push_back(image);
        all.push_back(image);
        out.steps = std::max(out.steps, item.steps);
        out.guidance = std::max(out.guidance, item.guidance_scale);
        one_multiplier = one_multiplier && item.network_multiplier == items.front().network_multiplier;
    }
    for (const std::string& path : unmeasured) {
        SaidAt at = said_at(document, "sample");
        notes.push_back({Severity::note,
                         Problem::no_data,
                         std::move(at.place),
                         std::move(at.key),
                         path,
                         {},
                         path.empty() ? "the trainer stops at a sample without its control image: one as large is taken"
                                      : path + " is no image here: it is taken to be as large as the sample"});
    }
    out.images = heaviest(images, most_images, text_tokens);
    for (const job::Batch& image : out.images)
        out.rendered.push_back(all.rend() - std::find(all.rbegin(), all.rend(), image));
    note_unplayed(images.size() - out.images.size(), " smaller sizes of samples are not played",
                  said_at(document, "sample"), notes);
    // network.can_merge_in: not over quantised weights, nor where layers are offloaded.
    out.merges_adapter = !config.fine_tune && !config.model.quantize_said && !config.model.layer_offloading &&
                         config.model.quantize == Quantization::none && one_multiplier && !items.empty() &&
                         config.network.kind != job::AdapterKind::dora;
    return out;
}

/// The first batch, which is played at more length, and the heaviest of the others.
std::vector<job::Batch> dataset_batches(const Config& config, const Architecture& architecture,
                                        const io::Document& document, const Overrides& overrides,
                                        Diagnostics& complaints, Diagnostics& notes) {
    std::vector<job::Batch> all = batches_of(config.datasets, architecture, complaints, notes);
    if (overrides.references_said)
        for (job::Batch& batch : all) batch.references = overrides.references;
    if (all.size() <= most_batches) return all;
    std::vector<job::Batch> out{all.front()};
    for (const job::Batch& batch : heaviest({all.begin() + 1, all.end()}, most_batches - 1, overrides.text_tokens))
        out.push_back(batch);
    note_unplayed(all.size() - out.size(), " smaller buckets are not played", said_at(document, "datasets"), notes);
    return out;
}

/// DoRAModule.get_orig_weight: of torchao's it gets what nothing can be added to; of convrot's how the weight is made
/// is not modelled.
void check_dora(const Config& config, Quantization quantization, const io::Document& document,
                Diagnostics& complaints) {
    if (config.fine_tune || config.network.kind != job::AdapterKind::dora || quantization == Quantization::none) return;
    const std::string format = text_of(quantization);
    for (const std::string_view taken : {"quanto_", "toolkit_uint", "toolkit_nvfp4"})
        if (format.starts_with(taken)) return;
    auto [place, key] = said_at(document, "network.type");
    complaints.push_back({Severity::error, Problem::unsupported, std::move(place), std::move(key), "dora", "lora",
                          "dora over layers of " + format + " is not modelled"});
}

/// The layers that a file of a LoRA names, as the trainer's networks name them, and the rank of the first whose name
/// ends so; 0: there is none.
struct LoraFile {
    std::int64_t rank = 0;
    std::vector<std::string> layers;
};

expected<LoraFile> read_lora(const std::string& path, std::string_view rank_at) {
    expected<io::TensorFile> file = io::read_tensor_file(path);
    if (!file) return Unexpected{file.error()};
    LoraFile out;
    for (const io::StoredTensor& tensor : file->tensors) {
        if (out.rank == 0 && tensor.name.ends_with(rank_at) && !tensor.shape.empty()) out.rank = tensor.shape.front();
        std::string name = tensor.name.substr(0, tensor.name.find(".lora_"));
        constexpr std::string_view other = "diffusion_model.";
        if (name.starts_with(other)) name = "transformer." + name.substr(other.size());
        if (out.layers.empty() || out.layers.back() != name) out.layers.push_back(std::move(name));
    }
    return out;
}

/// load_training_adapter. Where the file is not at hand and nobody knows it, the trainer's web interface has its own
/// default for the rank of a LoRA.
job::Assistant assistant_of(const Config& config, const Architecture& architecture, const io::Document& document,
                            Diagnostics& complaints, Diagnostics& notes) {
    job::Assistant out;
    out.file = config.model.assistant_lora_path;
    if (out.file.empty()) return {};
    SaidAt at = said_at(document, "model.assistant_lora_path");
    Diagnostic said{Severity::note, Problem::file_not_found, std::move(at.place), std::move(at.key), out.file, {}, {}};
    if (is_there(out.file)) {
        expected<LoraFile> file = read_lora(out.file, architecture.assistant.rank_at);
        if (!file) {
            complaints.insert(complaints.end(), file.error().begin(), file.error().end());
            return {};
        }
        out.rank = file->rank;
        out.filled = std::move(file->layers);
        if (out.rank != 0) return out;
        said.severity = Severity::error;
        said.problem = Problem::conflict;
        said.text = "the trainer stops: " + out.file + " holds no " + std::string(architecture.assistant.rank_at);
        complaints.push_back(std::move(said));
        return {};
    }
    for (const Assistant::Published& published : architecture.assistant.published)
        if (out.file.find(published.file) != std::string::npos) out.rank = published.rank;
    const bool is_known = out.rank != 0;
    if (!is_known) out.rank = 32;
    said.text = "the assistant LoRA " + out.file + " is not at hand: it is taken for one of rank " +
                std::to_string(out.rank) +
                (is_known ? ", as the published file's size says"
                          : "; of another rank its part of the samples, assistant_lora, weighs in proportion");
    notes.push_back(std::move(said));
    return out;
}

/// quantize_model: rank and layers stand in the file. Where it is not at hand, of ostris/accuracy_recovery_adapters it
/// is known that "the sweet spot is a rank 16 adapter" (its README).
job::Recovery recovery_of(const Config& config, const io::Document& document, Diagnostics& complaints,
                          Diagnostics& notes) {
    job::Recovery out;
    out.file = config.model.accuracy_recovery_adapter;
    if (out.file.empty() || config.model.quantize == Quantization::none) return {};
    auto [place, key] = said_at(document, "model.qtype");
    if (!is_there(out.file)) {
        out.rank = 16;
        notes.push_back({Severity::note,
                         Problem::file_not_found,
                         std::move(place),
                         std::move(key),
                         out.file,
                         {},
                         "the accuracy recovery adapter " + out.file +
                             " is not at hand: it is taken for a LoRA of rank 16 on the linears of every block"});
        return out;
    }
    expected<LoraFile> file = read_lora(out.file, "lora_A.weight");
    if (!file) {
        complaints.insert(complaints.end(), file.error().begin(), file.error().end());
        return {};
    }
    out.rank = file->rank;
    out.only = std::move(file->layers);
    if (out.rank == 0)
        complaints.push_back(
            {Severity::error,
             Problem::unsupported,
             std::move(place),
             std::move(key),
             out.file,
             {},
             "an accuracy recovery adapter that is no LoRA is not modelled: " + out.file + " holds no lora_A"});
    return out;
}

/// quanto puts modules of its own in the place of those that the assistant LoRA has hooked.
void note_lost_assistant(const job::Job& job, const io::Document& document, Diagnostics& notes) {
    const std::string format = text_of(job.quantization);
    if (job.pipeline.assistant.file.empty() || !format.starts_with("quanto_")) return;
    auto [place, key] = said_at(document, "model.qtype");
    notes.push_back({Severity::warning, Problem::conflict, std::move(place), std::move(key), format, "torchao_float8",
                     "samples are drawn with the assistant LoRA still merged: quanto's layers replace "
                     "those that would take it off"});
}

/// The key that asks for a prediction without the adapter; empty: none does.
std::string prior_key(const job::Objective& objective, const std::vector<DatasetConfig>& datasets) {
    using Preservation = job::Objective::Preservation;
    if (objective.preservation == Preservation::class_prompt) return "train.diff_output_preservation";
    if (objective.preservation == Preservation::blank_prompt) return "train.blank_prompt_preservation";
    if (objective.prior_divergence) return "train.do_prior_divergence";
    if (objective.inverted_mask_prior) return "train.inverted_mask_prior";
    const bool by_dataset =
        std::any_of(datasets.begin(), datasets.end(), [](const DatasetConfig& dataset) { return dataset.prior_reg; });
    return by_dataset ? "datasets" : "";
}

/// A slider's prompts are predicted at once: of `batch` as many items as prompts and control images as items.
void check_slider(const io::Document& document, const Architecture& architecture, const Slider& slider,
                  const std::vector<job::Batch>& batches, Diagnostics& complaints) {
    const auto complain = [&](Problem problem, const std::string& text) {
        auto [place, key] = said_at(document, "type");
        complaints.push_back({Severity::error, problem, std::move(place), std::move(key), "concept_slider", {}, text});
    };
    const auto any = [&](auto&& has) { return std::any_of(batches.begin(), batches.end(), has); };
    const auto refuse = [&](const std::string& what) {
        complain(Problem::unsupported,
                 "concept_slider with " + what + " is not modelled for " + std::string(architecture.title) +
                     ": it predicts each item several times in one call, for which there is one of these an item");
    };
    if (!architecture.controls_in_latents && any([](const job::Batch& batch) { return !batch.references.empty(); }))
        refuse("control images");
    if (any([](const job::Batch& batch) { return batch.first_frame && batch.frames > 1; })) refuse("do_i2v");
    if (any([](const job::Batch& batch) { return batch.audio && batch.frames > 1; })) refuse("do_audio");
    const std::int64_t prompts = slider.anchor_class == Slider::Prompt::none ? 3 : 4;
    const std::int64_t most =
        architecture.most_items != 0 ? architecture.most_items : architecture.most_items_of_kept_text;
    if (most != 0 && any([&](const job::Batch& batch) { return prompts * batch.count > most; }))
        complain(Problem::conflict,
                 "concept_slider predicts " + std::to_string(prompts) +
                     " prompts of each item at once, and the trainer stops: it takes embeddings of " +
                     std::string(architecture.title) + " in batches of at most " + std::to_string(most));
}

/// What the architecture does not take of it.
void check_objective(const io::Document& document, const Architecture& architecture, const job::Objective& objective,
                     const std::vector<DatasetConfig>& datasets, Diagnostics& complaints) {
    const auto complain = [&](const std::string& path, Problem problem, std::string text) {
        auto [place, key] = said_at(document, path);
        complaints.push_back({Severity::error, problem, std::move(place), std::move(key), {}, {}, std::move(text)});
    };
    const std::string title(architecture.title);
    // SDTrainer calls get_prior_prediction before condition_noisy_latents.
    if (const std::string prior = prior_key(objective, datasets);
        architecture.wants_conditioned_latents && !prior.empty())
        complain(prior, Problem::conflict,
                 "the trainer stops: its prediction without the adapter comes before what " + title +
                     " puts beside the latents");
    if (!architecture.unplayed_guidance.empty() && objective.classifier_free_guidance)
        complain("train.do_cfg", Problem::unsupported,
                 "do_cfg is not modelled for " + title + ": " + std::string(architecture.unplayed_guidance));
}

}  // namespace

expected<job::Job> resolve(const io::Document& document, const profile::Catalogue& catalogue, Diagnostics& notes) {
    const bool is_job = is_job_file(document);
    expected<Config> read = is_job ? job_defaults() : read_config(document, notes);
    if (!read) return Unexpected{read.error()};
    Config config = *std::move(read);
    Diagnostics complaints;
    if (is_job) complaints = document.complaints;  // keys that stand twice
    for (Diagnostic& doubled : complaints) doubled.severity = Severity::error;
    const Overrides overrides = apply_overrides(document, catalogue, config, complaints, notes);
    if (overrides.architecture == nullptr) return Unexpected{std::move(complaints)};
    const Architecture& architecture = *overrides.architecture;

    job::Job job;
    job.trainer = "ai-toolkit";
    job.model = overrides.model;
    if (job.model.empty() && !is_job) {
        if (is_there(config.model.name_or_path))
            read_local(document, config, architecture, catalogue, job, complaints, notes);
        else
            job.model = model_of(document, config, architecture, catalogue, complaints, notes);
    }
    job.dtype = config.train.dtype;
    if (architecture.quantizes) job.quantization = config.model.quantize;
    job::Training training = training_of(config);
    training.batches = overrides.sizes_said
                           ? overrides.batches
                           : dataset_batches(config, architecture, document, overrides, complaints, notes);
    training.validation.batches = validation_batches(config.train.validation, architecture);
    const bool empty = training.batches.empty();
    const bool keeps_text = config.train.cache_text_embeddings || config.train.unload_text_encoder;
    const std::int64_t of_kept_text = keeps_text ? architecture.most_items_of_kept_text : 0;
    const std::int64_t most = architecture.most_items != 0 ? architecture.most_items : of_kept_text;
    for (const job::Batch& batch : training.batches) {
        if (most == 0 || batch.count <= most) continue;
        auto [place, key] = said_at(document, "train.batch_size");
        complaints.push_back({Severity::error, Problem::conflict, std::move(place), std::move(key),
                              std::to_string(batch.count), std::to_string(most),
                              "the trainer takes " + std::string(architecture.title) + " in batches of at most " +
                                  std::to_string(most) + (of_kept_text != 0 ? " where it keeps text embeddings" : "")});
        break;
    }
    if (!training.gradient_checkpointing && !architecture.fails_without_checkpointing.empty()) {
        auto [place, key] = said_at(document, "train.gradient_checkpointing");
        complaints.push_back({Severity::error, Problem::conflict, std::move(place), std::move(key), "false", "true",
                              "the trainer fails: " + std::string(architecture.fails_without_checkpointing)});
    }
    if (config.slider) check_slider(document, architecture, *config.slider, training.batches, complaints);
    job.work = std::move(training);
    job.text_tokens = overrides.text_tokens;
    job.pipeline = pipeline_of(config, architecture);
    job.pipeline.recovery = recovery_of(config, document, complaints, notes);
    job.pipeline.assistant = assistant_of(config, architecture, document, complaints, notes);
    note_lost_assistant(job, document, notes);
    check_dora(config, job.quantization, document, complaints);
    if (config.fine_tune && config.model.offloaded > 0) {
        auto [place, key] = said_at(document, "model.layer_offloading");
        complaints.push_back({Severity::error,
                              Problem::unsupported,
                              std::move(place),
                              std::move(key),
                              {},
                              {},
                              "layer_offloading is not modelled where the layers themselves are trained: their "
                              "gradients and the optimizer's state are then on the host, too"});
    }
    job.sampling = sampling_of(config, architecture, document, overrides.text_tokens, notes);
    if (architecture.samples_need_reference &&
        std::any_of(job.sampling.images.begin(), job.sampling.images.end(),
                    [](const job::Batch& image) { return image.references.empty(); })) {
        SaidAt at = said_at(document, "sample");
        complaints.push_back(
            {Severity::error,
             Problem::conflict,
             std::move(at.place),
             std::move(at.key),
             {},
             {},
             "the trainer fails: samples of " + std::string(architecture.title) + " need a control image, ctrl_img"});
    }
    std::vector<std::string> parts = job.pipeline.text_encoders;
    parts.insert(parts.begin(), job.pipeline.vae);
    for (const std::string& part : parts)
        if (catalogue.model(part) == nullptr)
            complaints.push_back(
                {Severity::error,
                 Problem::unknown_model,
                 {document.file_name, 0, 0},
                 {},
                 part,
                 {},
                 "the catalogue has no " + part + ", which " + std::string(architecture.title) + " needs"});
    job.environment = overrides.environment;
    job.card = overrides.card;
    check_objective(document, architecture, config.train.objective, config.datasets, complaints);
    if (has_errors(complaints) || empty) return Unexpected{std::move(complaints)};
    job.resolved = resolved_keys(job);
    return job;
}

}  // namespace vram::trainers::ai_toolkit
