#include "trainers/ai_toolkit/config.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/reading.hpp"
#include "trainers/truthy.hpp"
#include "vram/io/document.hpp"

namespace vram::trainers::ai_toolkit {
namespace {

using io::Node;

/// The process types that are the one training loop, but for what `read` says. Source:
/// extensions_built_in/sd_trainer/__init__.py, concept_slider/__init__.py.
struct TrainingProcess {
    std::string_view type;
    void (*read)(Section& process, Config& config) = nullptr;  // its own section
};
constexpr std::array<TrainingProcess, 5> training_processes{{{"sd_trainer"},
                                                             {"diffusion_trainer"},
                                                             {"ui_trainer"},
                                                             {"textual_inversion_trainer"},
                                                             {"concept_slider", read_concept_slider}}};

constexpr std::array<std::pair<std::string_view, std::string_view>, 4> other_jobs{{
    {"extract", "it takes an adapter out of what two models differ in, by decompositions on config.device"},
    {"train", "its processes have training loops of their own"},
    {"mod", "it edits a model"},
    {"generate", "it only samples"},
}};

/// A value in the first process, or null.
const Node* in_first_process(const Node& config, std::string_view key) {
    const Node* process = config.find("process");
    if (process == nullptr || process->list() == nullptr || process->list()->empty()) return nullptr;
    return process->list()->front().find(key);
}

bool is_text(const Node* node, std::string_view text) {
    return node != nullptr && node->text() != nullptr && *node->text() == text;
}

/// jobs/process/TrainSliderProcess.py, hook_train_loop: where no dataset hands it a batch, it joins its one timestep
/// three times, and a tensor without a dimension cannot be joined. Whether there is such a process.
bool complain_of_slider(const Node& config, Reading& reading) {
    const Node* type = in_first_process(config, "type");
    if (!is_text(type, "slider")) return false;
    const Node* datasets = in_first_process(config, "datasets");
    const std::string key = "config.process[0].type", instead = "concept_slider";
    if (datasets == nullptr || !truthy(*datasets))
        reading.complain_at(*type, key, Problem::conflict,
                            "the trainer stops at the first step of a slider without datasets: torch.cat refuses its "
                            "timesteps, which have no dimension",
                            instead);
    else
        reading.complain_at(*type, key, Problem::unsupported,
                            "a process of type slider is not modelled: its training loop is its own", instead);
    return true;
}

/// jobs/ExtractJob.py: two models and their decompositions, on the CPU where nothing else is said. Whether that is all
/// there is to say.
bool complain_of_extract(const Node& config, Reading& reading) {
    const Node* device = config.find("device");
    if (device != nullptr && !is_text(device, "cpu")) return false;
    reading.complain_at(
        device != nullptr ? *device : config, "config.device", Problem::unsupported,
        "an extract job runs on the CPU here: nothing of it is on a card, and there is nothing to play");
    return true;
}

/// Whether the job is one that we know.
bool read_job_type(io::Fields& root, Reading& reading) {
    const std::string type = root.text("job", "extension");
    if (type == "extension") return true;
    const Node* config = reading.document.root.find("config");
    if (config != nullptr && type == "train" && complain_of_slider(*config, reading)) return false;
    if (config != nullptr && type == "extract" && complain_of_extract(*config, reading)) return false;
    for (const auto& [name, why] : other_jobs)
        if (type == name) {
            root.complain("job", Problem::unsupported,
                          "a job of type " + type + " is no training job of ours: " + std::string(why));
            return false;
        }
    root.complain("job", Problem::bad_value, "job must be extension, not the text \"" + type + "\"",
                  nearest(type, std::array<std::string_view, 5>{"extension", "extract", "train", "mod", "generate"}));
    return false;
}

/// What stands for `[name]` in the paths.
std::string read_job_name(io::Fields& job) {
    std::string name = job.text("name", "");
    if (name.size() <= static_cast<std::size_t>(most_path) && name.find('\0') == std::string::npos) return name;
    const bool too_long = name.size() > static_cast<std::size_t>(most_path);
    job.complain("name", too_long ? Problem::out_of_range : Problem::bad_value,
                 too_long ? "config.name names a folder: it must be at most " + std::to_string(most_path) +
                                " bytes long, not " + std::to_string(name.size())
                          : "config.name names a folder, which holds no NUL");
    return {};
}

/// The one process, or null after a complaint.
const Node* read_process_node(io::Fields& job, Reading& reading) {
    if (!job.require("process")) return nullptr;
    const std::vector<io::Fields> maps = job.maps("process");  // complains about all else
    const io::List* list = job.node("process")->list();
    if (list == nullptr) return nullptr;
    if (list->empty()) {
        job.complain("process", Problem::missing_key, "config.process holds no process");
        return nullptr;
    }
    if (list->size() > 1 && reading.modelled)
        reading.complain_at((*list)[1], job.path("process") + "[1]", Problem::unsupported,
                            "only jobs of one process are modelled");
    return list->front().is(io::Kind::map) ? &list->front() : nullptr;
}

/// Process types of extensions whose training step is another one, and takes one batch; BaseSDTrainProcess.run hands
/// over a list of them. Source: extensions_built_in/*/, hook_train_loop.
constexpr std::array<std::string_view, 3> other_processes{"concept_replacer", "image_reference_slider_trainer",
                                                          "ultimate_slider_trainer"};

/// The training loop that the process is, or null: the keys of others are not in our tables.
const TrainingProcess* read_process_type(const Node& process, const std::string& path, Reading& reading) {
    const Node* type = process.find("type");
    const std::string name = type != nullptr && type->text() != nullptr ? *type->text() : "";
    for (const TrainingProcess& known : training_processes)
        if (known.type == name) return &known;
    if (!reading.modelled) return nullptr;
    if (type == nullptr)
        reading.complaints.push_back({Severity::error,
                                      Problem::missing_key,
                                      reading.document.place_of(process),
                                      path + ".type",
                                      {},
                                      {},
                                      path + ".type is missing"});
    else if (type->text() == nullptr)
        reading.complain_at(*type, path + ".type", Problem::wrong_type,
                            path + ".type must be a text, not " + type->spelled());
    else {
        const auto& others = other_processes;
        const bool is_other = std::find(others.begin(), others.end(), name) != others.end();
        const std::string text = is_other
                                     ? "the trainer stops at the first step of " + name +
                                           ": its loop hands over a list of batches, and this process takes a batch"
                                     : "a process of type " + name + " is not modelled";
        std::vector<std::string_view> types;
        for (const TrainingProcess& known : training_processes) types.push_back(known.type);
        reading.complain_at(*type, path + ".type", is_other ? Problem::conflict : Problem::unsupported, text,
                            nearest(name, types));
    }
    return nullptr;
}

/// What SDTrainer.__init__ refuses, and where it would stop at the first step.
void check_preservation(Section& process, const Config& config) {
    using Preservation = job::Objective::Preservation;
    const Preservation preservation = config.train.objective.preservation;
    if (preservation == Preservation::none || !process.reading.modelled) return;
    const bool by_class = preservation == Preservation::class_prompt;
    const std::string key = by_class ? "diff_output_preservation" : "blank_prompt_preservation";
    const auto say = [&](Severity severity, const std::string& why) {
        const Node* train = process.value("train");
        const Node* said = train != nullptr ? train->find(key) : nullptr;
        if (said == nullptr) return;
        process.reading.complain_at(*said, process.fields.path("train." + key), Problem::conflict, key + " " + why);
        process.reading.complaints.back().severity = severity;
    };
    if (config.fine_tune) say(Severity::error, "needs a network, and the trainer refuses it without one");
    bool triggered = false;
    const Node* datasets = process.value("datasets");
    const auto has_trigger = [](const Node& section) {
        const Node* word = section.find("trigger_word");
        return word != nullptr && truthy(*word);
    };
    if (const Node* word = process.value("trigger_word"); word != nullptr) triggered = truthy(*word);
    if (datasets != nullptr && datasets->list() != nullptr)
        for (const Node& dataset : *datasets->list()) triggered = triggered || has_trigger(dataset);
    // Its prompts are played all the same: a word costs nothing.
    if (by_class && !triggered) say(Severity::warning, "needs a trigger_word, and the trainer refuses it without one");
    if (!by_class && !config.train.unload_text_encoder && !config.train.cache_text_embeddings)
        say(Severity::error,
            "needs unload_text_encoder or cache_text_embeddings: else there is no blank prompt at hand, and the "
            "trainer stops at its first step");
}

/// train_text_encoder, and what the trainer refuses beside it: SDTrainer.__init__ and hook_before_train_loop.
void check_text_encoder(Section& process, const Config& config) {
    const Node* train = process.value("train");
    const Node* said = train != nullptr ? train->find("train_text_encoder") : nullptr;
    if (said == nullptr || !config.train.train_text_encoder || !process.reading.modelled) return;
    const std::string key = process.fields.path("train.train_text_encoder");
    const auto say = [&](Problem problem, const std::string& text) {
        process.reading.complain_at(*said, key, problem, text);
    };
    const bool by_class = config.train.objective.preservation == job::Objective::Preservation::class_prompt;
    if (by_class) say(Problem::conflict, "the trainer refuses diff_output_preservation beside train_text_encoder");
    const bool unloads = config.train.unload_text_encoder || config.train.cache_text_embeddings;
    if (unloads)
        say(Problem::conflict,
            "the trainer refuses train_text_encoder where the text encoder is unloaded, by unload_text_encoder or "
            "cached text embeddings");
    const Architecture* architecture = process.reading.architecture;
    if (by_class || unloads || architecture == nullptr) return;
    const std::string title(architecture->title);
    if (!architecture->unplayed_text_training.empty()) {
        say(Problem::unsupported,
            key + " is not modelled for " + title + ": " + std::string(architecture->unplayed_text_training));
        return;
    }
    if (config.train.gradient_checkpointing && !architecture->text_encoders_have_backward) {
        say(Problem::unsupported,
            key + " is not modelled for " + title +
                " under gradient checkpointing: transformers then makes the embeddings of its text encoder ask for "
                "gradients, so that it has a backward of its own, though nothing of it trains");
        return;
    }
    const auto& taken = architecture->trained_text;
    const bool any = std::any_of(taken.begin(), taken.end(), [&](const TrainedText& one) {
        return config.fine_tune ? one.is_tuned : one.is_adapted;
    });
    const bool leaves = std::any_of(taken.begin(), taken.end(),
                                    [](const TrainedText& one) { return one.is_tuned && !one.untuned.empty(); });
    if (config.fine_tune && leaves && !config.train.disable_sampling) {
        say(Problem::unsupported,
            "after a sample the trainer lets all of the text encoders ask for gradients: those of " + title +
                " that it does not train keep theirs for good, as many bytes as their weights, which is not played");
        process.reading.complaints.back().severity = Severity::warning;
    }
    if (any) return;
    say(Problem::conflict,
        "the trainer finds nothing of the text encoders of " + title +
            (config.fine_tune ? " in its keymap" : " that its network takes, CLIPAttention and CLIPMLP") +
            ": they are in training mode, and nothing of them trains");
    process.reading.complaints.back().severity = Severity::warning;
}

void read_process(const Node& node, const std::string& path, Reading& reading, Config& config) {
    const TrainingProcess* type = read_process_type(node, path, reading);
    if (type == nullptr) return;
    Section process(reading, io::Fields(reading.document, node, path, reading.complaints), SectionId::process);
    read_arch(process, config);
    read_model(process, config);
    read_train(process, config);
    read_network(process, config);
    read_datasets(process, config);
    config.sample = read_sample(process, "sample");
    if (process.value("first_sample") != nullptr) config.first_sample = read_sample(process, "first_sample").samples;
    if (type->read != nullptr) type->read(process, config);
    check_preservation(process, config);
    check_text_encoder(process, config);
    process.section("save", SectionId::save).finish();
    process.section("logging", SectionId::logging).finish();
    process.finish();
}

}  // namespace

bool recognises(const io::Document& document) {
    const Node* job = document.root.find("job");
    const Node* config = document.root.find("config");
    return job != nullptr && config != nullptr && config->find("process") != nullptr;
}

expected<Config> read_config(const io::Document& document, Diagnostics& notes) {
    Diagnostics complaints = document.complaints;  // keys written twice: the trainer takes the last one
    Config config;
    Reading reading{.document = document, .complaints = complaints};
    io::Fields root(document, complaints, io::Nulls::are_absent);
    reading.modelled = read_job_type(root, reading);
    io::Fields job = root.map("config");
    reading.job_name = read_job_name(job);
    if (const Node* process = read_process_node(job, reading))
        read_process(*process, job.path("process") + "[0]", reading, config);
    Diagnostics errors;
    for (Diagnostic& complaint : complaints)
        (complaint.severity == Severity::error ? errors : notes).push_back(std::move(complaint));
    if (!errors.empty()) return Unexpected{std::move(errors)};
    return config;
}

}  // namespace vram::trainers::ai_toolkit
