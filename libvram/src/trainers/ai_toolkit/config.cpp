#include "trainers/ai_toolkit/config.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "trainers/ai_toolkit/section.hpp"
#include "vram/io/document.hpp"

namespace vram::trainers::ai_toolkit {
namespace {

using io::Kind;
using io::Node;

std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
    return text;
}

std::string replaced(std::string text, std::string_view what, std::string_view by) {
    for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size()))
        text.replace(at, what.size(), by);
    return text;
}

/// The process types that are the one training loop. Source: extensions_built_in/sd_trainer/__init__.py.
constexpr std::array<std::string_view, 4> training_processes{"sd_trainer", "diffusion_trainer", "ui_trainer",
                                                             "textual_inversion_trainer"};

constexpr std::array<std::pair<std::string_view, std::string_view>, 4> other_jobs{{
    {"extract", "it takes an adapter out of a model"},
    {"train", "its loops are older ones"},
    {"mod", "it edits a model"},
    {"generate", "it only samples"},
}};

struct DtypeName {
    std::string_view name;
    Dtype dtype;
};
/// Source: toolkit/train_tools.py, get_torch_dtype.
constexpr std::array<DtypeName, 9> dtype_names{{
    {"bf16", Dtype::bf16},
    {"bfloat16", Dtype::bf16},
    {"fp16", Dtype::f16},
    {"float16", Dtype::f16},
    {"half", Dtype::f16},
    {"fp32", Dtype::f32},
    {"float32", Dtype::f32},
    {"float", Dtype::f32},
    {"single", Dtype::f32},
}};

/// Names that toolkit/optimizer.py knows and we do not play.
constexpr std::array<std::string_view, 18> other_optimizers{
    "adafactor",       "adagrad",
    "prodigy",         "prodigyopt",
    "prodigy8bit",     "adam8",
    "adamw8",          "lion",
    "lion8bit",        "ademamix8bit",
    "automagic",       "automagic2",
    "automagic3",      "automagicexperiment",
    "dadaptation",     "dadaptationadam",
    "dadaptationlion", "prodigy_opt",
};

class Reader {
  public:
    Reader(const io::Document& document, Diagnostics& complaints) : document_(document), complaints_(complaints) {}

    Config read() {
        io::Fields root(document_, complaints_, io::Nulls::are_absent);
        read_job_type(root);
        io::Fields job = root.map("config");
        job_name_ = job.text("name", "");
        std::vector<io::Fields> processes = job.maps("process");
        if (processes.empty()) {
            if (!job.has("process"))
                static_cast<void>(job.require("process"));
            else
                job.complain("process", Problem::missing_key, "config.process holds no process");
            return config_;
        }
        const Node& node = (*job.node("process")->list())[0];
        path_ = processes.front().path();
        if (processes.size() > 1 && modelled_)
            complaints_.push_back({Severity::error,
                                   Problem::unsupported,
                                   processes[1].place(),
                                   processes[1].path(),
                                   {},
                                   {},
                                   "only jobs of one process are modelled"});
        read_process(node);
        return config_;
    }

  private:
    void read_job_type(io::Fields& root) {
        const std::string type = root.text("job", "extension");
        if (type == "extension") return;
        modelled_ = false;
        for (const auto& [name, why] : other_jobs)
            if (type == name) {
                root.complain("job", Problem::unsupported,
                              "a job of type " + type + " is no training job of ours: " + std::string(why));
                return;
            }
        root.complain(
            "job", Problem::bad_value, "job must be extension, not the text \"" + type + "\"",
            nearest(type, std::array<std::string_view, 5>{"extension", "extract", "train", "mod", "generate"}));
    }

    /// A section of the process; a null stands for none there.
    Section section(Section& process, std::string_view key, std::string_view table) {
        const Node* node = process.value(key);
        if (node != nullptr && !node->is(Kind::map)) {
            process.fields.complain(key, Problem::wrong_type, process.fields.path(key) + " must be a map");
            node = nullptr;
        }
        return {document_, node != nullptr ? *node : nothing_, process.fields.path(key), table, modelled_, complaints_};
    }

    void read_process(const Node& node) {
        // What type says decides whether the rest is ours to judge.
        const Node* type = node.find("type");
        const std::string name = type != nullptr && type->text() != nullptr ? *type->text() : "";
        const bool ours =
            std::find(training_processes.begin(), training_processes.end(), name) != training_processes.end();
        if (modelled_ && !ours) {
            modelled_ = false;
            complaints_.push_back(
                {Severity::error, type == nullptr ? Problem::missing_key : Problem::unsupported,
                 document_.place_of(type != nullptr ? *type : node), path_ + ".type", name,
                 nearest(name, training_processes),
                 type == nullptr ? path_ + ".type is missing" : "a process of type " + name + " is not modelled"});
        }
        if (!ours) return;  // its keys are not in our tables
        Section probe(document_, node, path_, "process", false, quiet_);
        read_arch(probe);

        Section process(document_, node, path_, "process", modelled_, complaints_);
        read_model(process);
        read_train(process);
        read_network(process);
        read_datasets(process);
        config_.sample = read_sample(process, "sample");
        if (process.value("first_sample") != nullptr)
            config_.first_sample = read_sample(process, "first_sample").samples;
        for (const std::string_view key : {"save", "logging"}) section(process, key, key).finish();
        process.finish();
    }

    /// What is trained, from `arch` or the flags before it. An architecture that is not modelled makes all else moot.
    void read_arch(Section& process) {
        const Node* model = process.value("model");
        if (model == nullptr || !model->is(Kind::map)) return;
        std::string arch;
        std::string key = "name_or_path";
        const Node* node = model->find("arch");
        if (node != nullptr && node->text() != nullptr) {
            arch = *node->text();
            arch = arch.substr(0, arch.find(':'));
            key = "arch";
        } else {
            constexpr std::array<std::pair<std::string_view, std::string_view>, 10> flags{{
                {"is_v2", "sd2"},
                {"is_v3", "sd3"},
                {"is_xl", "sdxl"},
                {"is_pixart", "pixart"},
                {"is_pixart_sigma", "pixart_sigma"},
                {"is_auraflow", "auraflow"},
                {"is_flux", "flux"},
                {"is_lumina2", "lumina2"},
                {"is_vega", "vega"},
                {"is_ssd", "ssd"},
            }};
            arch = "sd1";
            for (const auto& [flag, name] : flags) {
                const Node* value = model->find(flag);
                if (value == nullptr || !truthy(*value)) continue;
                arch = name;
                key = flag;
                break;
            }
        }
        config_.model.arch = arch;
        if (arch == "flux" || arch == "flex1" || !modelled_) return;
        modelled_ = false;
        const Node* said = model->find(key);
        complaints_.push_back({Severity::error,
                               Problem::unsupported,
                               document_.place_of(said != nullptr ? *said : *model),
                               path_ + ".model." + key,
                               said != nullptr ? said->spelled() : "",
                               {},
                               "the architecture " + arch + " is not modelled yet; flux and flex1 are"});
    }

    void read_model(Section& process) {
        Section model = section(process, "model", "model");
        ModelConfig& out = config_.model;
        out.name_or_path = replaced(model.fields.text("name_or_path", io::required), "[name]", job_name_);
        out.quantize = model.flag("quantize", false);
        out.quantize_te = model.flag("quantize_te", out.quantize);
        out.low_vram = model.flag("low_vram", false);
        out.names = {model.parts("only_if_contains"), model.parts("ignore_if_contains")};
        // FLUX quantises both parts by `qtype`; `qtype_te` is not asked. Source: stable_diffusion_model.py, load_model.
        static_cast<void>(model.value("qtype_te"));
        if (const Node* node = model.value("qtype"); out.quantize || out.quantize_te) {
            const std::string type = node != nullptr ? model.fields.word("qtype", "qfloat8") : "qfloat8";
            if (model.is_null("qtype"))
                model.refuse("qtype", "quantize needs one");
            else if (type != "qfloat8" && type != "qfloat8_e4m3fn")
                model.refuse("qtype", "of the ways to quantise only qfloat8 is");
        }
        if (model.flag("attn_masking", false)) {
            if (model.flag("is_flux", false))
                model.fields.complain("attn_masking", Problem::unsupported,
                                      "attn_masking is not played; it costs at most the size of a few prompts", {},
                                      Severity::note);
            else if (modelled_)
                model.fields.complain("attn_masking", Problem::conflict,
                                      "the trainer refuses attn_masking without is_flux: true");
        }
        for (const std::string_view key : {"vae_dtype", "te_dtype"})
            if (model.value(key) != nullptr)
                model.refuse(key, "the VAE and the text encoders are taken in train.dtype");
        model.finish();
    }

    Dtype read_dtype(Section& train) {
        const Node* node = train.fields.node("dtype");
        if (node == nullptr) return Dtype::f32;
        const std::string word = node->is(Kind::null) ? "null" : node->spelled();
        for (const DtypeName& known : dtype_names)
            if (known.name == word) return known.dtype;
        if (word == "8bit" || word == "float8" || word == "e4m3fn") {
            train.refuse("dtype", "of the types of a whole model bf16, fp16 and fp32 are");
        } else {
            std::vector<std::string_view> names;
            for (const DtypeName& known : dtype_names) names.push_back(known.name);
            train.fields.complain("dtype", Problem::bad_value,
                                  train.fields.path("dtype") + " must be bf16, fp16 or fp32, not " + word,
                                  nearest(word, names));
        }
        return Dtype::bf16;
    }

    job::Optimizer read_optimizer(Section& train) {
        const std::string written = train.fields.text("optimizer", "adamw");
        const std::string name = lower(written);
        if (const Node* params = train.value("optimizer_params"); params != nullptr && params->map() != nullptr) {
            for (const io::Member& member : *params->map()) {
                constexpr std::array<std::string_view, 5> harmless{"weight_decay", "betas", "eps", "lr", "decouple"};
                const bool decays = name == "adam" && member.key == "weight_decay" && truthy(member.value);
                if (std::find(harmless.begin(), harmless.end(), member.key) != harmless.end() && !decays) continue;
                if (!modelled_) continue;
                complaints_.push_back({Severity::error,
                                       Problem::unsupported,
                                       document_.place_of(member.value),
                                       train.fields.path("optimizer_params") + "." + member.key,
                                       member.value.spelled(),
                                       {},
                                       "the optimizer's option " + member.key + " is not modelled"});
            }
        }
        if (name == "adam" || name == "adamw") return job::AdamW{};
        if (name == "adam8bit" || name == "adamw8bit") return job::AdamW8bit{};
        const bool known =
            std::find(other_optimizers.begin(), other_optimizers.end(), name) != other_optimizers.end() ||
            name.starts_with("prodigy") || name.starts_with("dadaptation");
        if (known) {
            train.refuse("optimizer", "of the optimizers adam, adamw, adam8bit and adamw8bit are");
        } else {
            std::vector<std::string_view> names{"adamw", "adamw8bit", "adam", "adam8bit"};
            names.insert(names.end(), other_optimizers.begin(), other_optimizers.end());
            train.fields.complain("optimizer", Problem::bad_value, "the trainer knows no optimizer " + written,
                                  nearest(name, names));
        }
        return job::AdamW{};
    }

    void read_train(Section& process) {
        Section train = section(process, "train", "train");
        TrainConfig& out = config_.train;
        out.dtype = read_dtype(train);
        out.batch_size = train.fields.integer("batch_size", {.min = 1, .max = 4096}, 1);
        out.gradient_accumulation = train.fields.integer("gradient_accumulation", {.min = 1, .max = 4096}, 1);
        const std::int64_t steps = train.fields.integer("gradient_accumulation_steps", {.min = -1}, 1);
        if (out.gradient_accumulation > 1 && steps != 1 && modelled_)
            train.fields.complain("gradient_accumulation_steps", Problem::conflict,
                                  "the trainer refuses gradient_accumulation and gradient_accumulation_steps together");
        // The older form throws the gradients away at the start of every step: SDTrainer.hook_train_loop.
        else if (steps != 1 && modelled_)
            train.fields.complain(
                "gradient_accumulation_steps", Problem::unsupported,
                "gradient_accumulation_steps does not accumulate in this version; gradient_accumulation does",
                "gradient_accumulation", Severity::warning);
        out.gradient_checkpointing = train.flag("gradient_checkpointing", true);
        out.optimizer = read_optimizer(train);
        if (const Node* node = train.value("ema_config"); node != nullptr && node->is(Kind::map)) {
            Section ema(document_, *node, train.fields.path("ema_config"), "ema_config", modelled_, complaints_);
            out.ema = ema.flag("use_ema", false);
            ema.finish();
        }
        if (!train.flag("train_unet", true)) train.refuse("train_unet", "without it only text encoders train");
        if (train.flag("train_text_encoder", false))
            train.refuse("train_text_encoder", "adapters of the text encoders are not");
        out.unload_text_encoder = train.flag("unload_text_encoder", false);
        out.cache_text_embeddings = train.flag("cache_text_embeddings", false);
        out.disable_sampling = train.flag("disable_sampling", false);
        out.skip_first_sample = train.flag("skip_first_sample", false);
        out.force_first_sample = train.flag("force_first_sample", false);
        read_words(train);
        train.finish();
    }

    /// Choices of which one is played.
    void read_words(Section& train) {
        const auto word = [&](std::string_view key, std::string_view fallback) {
            return train.value(key) != nullptr ? train.fields.word(key, fallback) : std::string(fallback);
        };
        if (const std::string loss = word("loss_type", "mse"); loss == "mean_flow")
            train.refuse("loss_type", "it predicts more than once");
        else if (loss != "mse" && modelled_)
            train.fields.complain("loss_type", Problem::unsupported,
                                  "loss_type is played as mse; the difference is a few latents", {}, Severity::note);
        if (word("timestep_type", "sigmoid") == "next_sample") train.refuse("timestep_type", "it predicts once more");
        if (const std::string target = word("loss_target", "noise");
            target == "unaugmented" || target == "differential_noise")
            train.refuse("loss_target", "it encodes a second image");
        if (const std::string backend = word("attention_backend", "native"); backend != "native" && backend != "flash")
            train.refuse("attention_backend", "of the attention backends native is");
        if (const std::string scheduler = word("noise_scheduler", "ddpm"); scheduler != "flowmatch" && modelled_)
            train.fields.complain("noise_scheduler", Problem::unsupported,
                                  "noise_scheduler is played as flowmatch, which FLUX needs", "flowmatch",
                                  Severity::warning);
    }

    void read_network(Section& process) {
        if (process.value("network") == nullptr) return;
        config_.fine_tune = false;
        Section network = section(process, "network", "network");
        NetworkConfig& out = config_.network;
        const std::string type = lower(network.value("type") != nullptr ? network.fields.text("type", "lora") : "lora");
        constexpr std::array<std::string_view, 8> others{"locon", "lycoris",  "lorm", "lokr",
                                                         "dora",  "fullrank", "loha", "lierla"};
        if (std::find(others.begin(), others.end(), type) != others.end())
            network.refuse("type", "of the networks lora is");
        else if (type != "lora" && modelled_)
            network.fields.complain("type", Problem::bad_value, "network.type must be lora, not " + type,
                                    nearest(type, std::array<std::string_view, 4>{"lora", "locon", "lokr", "lorm"}));
        // `rank` wins over `linear`; null is none.
        const bool by_rank = network.value("rank") != nullptr;
        static_cast<void>(network.value("linear"));
        if (by_rank)
            out.rank = network.fields.integer("rank", {.min = 1, .max = 65536}, 4);
        else if (network.value("linear") != nullptr && type != "lokr")
            out.rank = network.fields.integer("linear", {.min = 1, .max = 65536}, 4);
        out.transformer_only = network.flag("transformer_only", true);
        if (const Node* node = network.value("network_kwargs"); node != nullptr && node->is(Kind::map)) {
            Section kwargs(document_, *node, network.fields.path("network_kwargs"), "network_kwargs", modelled_,
                           complaints_);
            out.names = {kwargs.parts("only_if_contains"), kwargs.parts("ignore_if_contains")};
            kwargs.finish();
        }
        network.finish();
    }

    void read_datasets(Section& process) {
        const Node* node = process.value("datasets");
        const io::List* list = node != nullptr ? node->list() : nullptr;
        if (list == nullptr || list->empty()) {
            if (modelled_)
                complaints_.push_back({Severity::error,
                                       Problem::missing_key,
                                       process.fields.place(),
                                       process.fields.path("datasets"),
                                       {},
                                       {},
                                       process.fields.path("datasets") + " must be a list of datasets"});
            return;
        }
        std::int64_t caching = 0;
        for (std::size_t i = 0; i < list->size(); ++i) {
            const std::string path = process.fields.path("datasets") + "[" + std::to_string(i) + "]";
            if (!(*list)[i].is(Kind::map)) {
                complaints_.push_back({Severity::error,
                                       Problem::wrong_type,
                                       document_.place_of((*list)[i]),
                                       path,
                                       (*list)[i].spelled(),
                                       {},
                                       path + " must be a map"});
                continue;
            }
            caching += read_dataset((*list)[i], path);
        }
        if (config_.train.cache_text_embeddings) return;
        if (caching == static_cast<std::int64_t>(list->size()))
            config_.train.cache_text_embeddings = true;
        else if (caching > 0)
            process.fields.complain("datasets", Problem::conflict,
                                    "the trainer refuses cache_text_embeddings in some datasets and not in all");
    }

    /// Whether it caches text embeddings.
    bool read_dataset(const Node& node, const std::string& path) {
        Section section(document_, node, path, "dataset", modelled_, complaints_);
        DatasetConfig out;
        out.place = document_.place_of(node);
        out.key = path;
        // `dataset_path` wins over the older `folder_path`.
        static_cast<void>(section.value("folder_path"));
        for (const std::string_view key : {"dataset_path", "folder_path"})
            if (out.folder.empty() && section.value(key) != nullptr)
                out.folder = replaced(section.fields.text(key, ""), "[name]", job_name_);
        if (out.folder.empty() && modelled_)
            section.fields.complain("folder_path", Problem::missing_key, path + ".folder_path is missing");
        out.batch_size = config_.train.batch_size;
        if (section.value("batch_size") != nullptr)
            out.batch_size = section.fields.integer("batch_size", {.min = 1, .max = 4096}, 1);
        out.scale = section.fields.number("scale", {.min = 1e-6, .max = 1e6}, 1.0);
        out.square_crop = section.flag("square_crop", false);
        if (!section.flag("buckets", true)) section.refuse("buckets", "without buckets each image has its own size");
        if (section.fields.integer("num_frames", {.min = 1}, 1) > 1)
            section.refuse("num_frames", "FLUX trains on images");
        if (const std::string type = section.fields.text("type", "image"); type != "image")
            section.refuse("type", "only images are");
        // Augmented pixels cannot come from a cache: config_modules.py, DatasetConfig.
        const Node* augments = section.value("augments");
        const Node* augmentations = section.value("augmentations");
        const bool augmented =
            (augments != nullptr && truthy(*augments)) || (augmentations != nullptr && truthy(*augmentations));
        const bool in_memory = section.flag("cache_latents", false),
                   on_disk = section.flag("cache_latents_to_disk", false);
        out.cache_latents = !augmented && (in_memory || on_disk);
        const bool along = section.flag("load_image_when_caching_latents", false),
                   tensors = section.flag("cache_tensors_to_disk", false);
        out.loads_pixels = along || tensors;
        const bool caches_text = section.flag("cache_text_embeddings", false);

        std::vector<std::int64_t> resolutions{512};
        if (section.fields.has("resolution"))
            resolutions =
                section.fields
                    .integers("resolution", {.min = 1, .max = 65536}, {.min = 1, .max = 1000}, io::Single::is_a_list)
                    .value_or(std::vector<std::int64_t>{});
        for (const std::int64_t resolution : resolutions) {
            out.resolution = resolution;
            config_.datasets.push_back(out);
        }
        section.finish();
        return caches_text;
    }

    SampleItem read_item(Section& section, const SampleItem& defaults) {
        SampleItem out = defaults;
        out.width = section.fields.integer("width", {.min = 1, .max = 65536}, defaults.width);
        out.height = section.fields.integer("height", {.min = 1, .max = 65536}, defaults.height);
        out.steps = section.fields.integer("sample_steps", {.min = 1, .max = 10000}, defaults.steps);
        out.guidance_scale = section.fields.number("guidance_scale", {}, defaults.guidance_scale);
        // A text is tried as a number: config_modules.py, SampleItem.
        if (const Node* node = section.value("network_multiplier"); node != nullptr && node->text() == nullptr)
            out.network_multiplier = section.fields.number("network_multiplier", {}, defaults.network_multiplier);
        return out;
    }

    SampleConfig read_sample(Section& process, std::string_view key) {
        Section sample = section(process, key, "sample");
        SampleConfig out;
        const SampleItem defaults = read_item(sample, {});
        out.sample_every = sample.value("sample_every") != nullptr
                               ? sample.fields.integer("sample_every", {.min = 0}, 100)
                           : sample.is_null("sample_every") ? 0
                                                            : 100;
        // `samples` wins over the older `prompts`.
        const Node* prompts = sample.value("prompts");
        if (const Node* samples = sample.value("samples"); samples != nullptr && samples->list() != nullptr) {
            for (std::size_t i = 0; i < samples->list()->size(); ++i) {
                const Node& item = (*samples->list())[i];
                const std::string path = sample.fields.path("samples") + "[" + std::to_string(i) + "]";
                if (!item.is(Kind::map)) {
                    complaints_.push_back({Severity::error,
                                           Problem::wrong_type,
                                           document_.place_of(item),
                                           path,
                                           item.spelled(),
                                           {},
                                           path + " must be a map"});
                    continue;
                }
                Section section(document_, item, path, "sample_item", modelled_, complaints_);
                SampleItem read = read_item(section, defaults);
                const Node* prompt = section.value("prompt");
                if (prompt != nullptr && prompt->text() != nullptr) apply_flags(*prompt, path + ".prompt", read);
                section.finish();
                if (prompt != nullptr) out.samples.push_back(read);
            }
        } else if (prompts != nullptr && prompts->list() != nullptr) {
            for (std::size_t i = 0; i < prompts->list()->size(); ++i) {
                const Node& prompt = (*prompts->list())[i];
                if (prompt.is(Kind::null)) continue;
                SampleItem read = defaults;
                if (prompt.text() != nullptr)
                    apply_flags(prompt, sample.fields.path("prompts") + "[" + std::to_string(i) + "]", read);
                out.samples.push_back(read);
            }
        }
        for (SampleItem& item : out.samples) {
            item.width = std::max<std::int64_t>(64, item.width / 8 * 8);
            item.height = std::max<std::int64_t>(64, item.height / 8 * 8);
        }
        sample.finish();
        return out;
    }

    /// "a horse --w 768 --h 1344 --s 20": what a prompt says itself. Source:
    /// GenerateImageConfig._process_prompt_string.
    void apply_flags(const Node& node, const std::string& path, SampleItem& item) {
        const std::string& prompt = *node.text();
        std::size_t at = prompt.find("--");
        while (at != std::string::npos) {
            const std::size_t next = prompt.find("--", at + 2);
            const std::string part =
                prompt.substr(at + 2, next == std::string::npos ? std::string::npos : next - at - 2);
            at = next;
            const std::string flag = part.substr(0, part.find(' '));
            std::string content = part.substr(std::min(part.size(), flag.size()));
            content.erase(0, content.find_first_not_of(' '));
            content.erase(content.find_last_not_of(" \t\r\n") + 1);
            std::int64_t* whole = flag == "w"                      ? &item.width
                                  : flag == "h"                    ? &item.height
                                  : flag == "s" || flag == "steps" ? &item.steps
                                                                   : nullptr;
            double* number = flag == "l" || flag == "cfg"                  ? &item.guidance_scale
                             : flag == "m" || flag == "network_multiplier" ? &item.network_multiplier
                                                                           : nullptr;
            const char* end = content.data() + content.size();
            bool good = true;
            if (whole != nullptr)
                good = std::from_chars(content.data(), end, *whole).ptr == end && !content.empty() && *whole > 0 &&
                       *whole <= 65536;
            if (number != nullptr) good = std::from_chars(content.data(), end, *number).ptr == end && !content.empty();
            if (good) continue;
            if (whole != nullptr) *whole = 512;
            complaints_.push_back({Severity::error,
                                   Problem::bad_value,
                                   document_.place_of(node),
                                   path,
                                   content,
                                   {},
                                   "the prompt's flag --" + flag + " needs a number"});
        }
    }

    const io::Document& document_;
    Diagnostics& complaints_;
    Diagnostics quiet_;
    Config config_;
    std::string job_name_, path_;
    bool modelled_ = true;
    const Node nothing_{io::Map{}};
};

}  // namespace

bool recognises(const io::Document& document) {
    const Node* job = document.root.find("job");
    const Node* config = document.root.find("config");
    return job != nullptr && config != nullptr && config->find("process") != nullptr;
}

expected<Config> read_config(const io::Document& document, Diagnostics& notes) {
    Diagnostics complaints = document.complaints;  // keys written twice: the trainer takes the last one
    Config config = Reader(document, complaints).read();
    Diagnostics errors;
    for (Diagnostic& complaint : complaints)
        (complaint.severity == Severity::error ? errors : notes).push_back(std::move(complaint));
    if (!errors.empty()) return Unexpected{std::move(errors)};
    return config;
}

}  // namespace vram::trainers::ai_toolkit
