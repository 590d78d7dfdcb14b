#include <array>
#include <vector>

#include "trainers/ai_toolkit/reading.hpp"

namespace vram::trainers::ai_toolkit {
namespace {

using io::Kind;
using io::Node;

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

void read_accumulation(Section& train, TrainConfig& out) {
    out.gradient_accumulation = train.fields.integer("gradient_accumulation", {.min = 1, .max = most_items}, 1);
    const std::int64_t steps = train.fields.integer("gradient_accumulation_steps", {.min = -1}, 1);
    if (steps == 1 || !train.reading.modelled) return;
    if (out.gradient_accumulation > 1)
        train.fields.complain("gradient_accumulation_steps", Problem::conflict,
                              "the trainer refuses gradient_accumulation and gradient_accumulation_steps together");
    else  // it throws the gradients away at the start of every step: SDTrainer.hook_train_loop
        train.fields.complain(
            "gradient_accumulation_steps", Problem::unsupported,
            "gradient_accumulation_steps does not accumulate in this version; gradient_accumulation does",
            "gradient_accumulation", Severity::warning);
}

/// Choices of which one is played.
void read_words(Section& train) {
    const auto word = [&](std::string_view key, std::string_view fallback) {
        return train.value(key) != nullptr ? train.fields.word(key, fallback) : std::string(fallback);
    };
    if (const std::string loss = word("loss_type", "mse"); loss == "mean_flow")
        train.refuse("loss_type", "it predicts more than once");
    else if (loss != "mse" && train.reading.modelled)
        train.fields.complain("loss_type", Problem::unsupported,
                              "loss_type is played as mse; the difference is a few latents", {}, Severity::note);
    if (word("timestep_type", "sigmoid") == "next_sample") train.refuse("timestep_type", "it predicts once more");
    if (const std::string target = word("loss_target", "noise");
        target == "unaugmented" || target == "differential_noise")
        train.refuse("loss_target", "it encodes a second image");
    if (const std::string backend = word("attention_backend", "native"); backend != "native" && backend != "flash")
        train.refuse("attention_backend", "of the attention backends native is");
}

void read_objective(Section& train, TrainConfig& out) {
    using Preservation = job::Objective::Preservation;
    job::Objective& objective = out.objective;
    objective.classifier_free_guidance = train.flag("do_cfg", false);
    objective.guidance_loss = train.flag("do_guidance_loss", false);
    objective.prior_divergence = train.flag("do_prior_divergence", false);
    objective.inverted_mask_prior = train.flag("inverted_mask_prior", false);
    const bool by_class = train.flag("diff_output_preservation", false),
               by_blank = train.flag("blank_prompt_preservation", false);
    if (by_class && by_blank && train.reading.modelled)
        train.fields.complain("blank_prompt_preservation", Problem::conflict,
                              "the trainer refuses diff_output_preservation and blank_prompt_preservation together");
    if (by_class) objective.preservation = Preservation::class_prompt;
    if (by_blank) objective.preservation = Preservation::blank_prompt;
}

/// `validation_config`: items without a picture are passed over.
void read_validation(Section& train, TrainConfig& out) {
    const Node* said = train.value("validation_config");
    if (said == nullptr) return;
    Section validation = train.section("validation_config", SectionId::validation_config);
    ValidationItem item;
    item.resolution = validation.fields.integer("resolution", {.min = 1, .max = most_side}, item.resolution);
    if (validation.value("validation_sigmas") != nullptr)
        if (const auto sigmas = validation.fields.numbers("validation_sigmas", {}, {.min = 1, .max = most_items}))
            item.sigmas = static_cast<std::int64_t>(sigmas->size());
    const Node* items = validation.value("validation_items");
    if (items != nullptr && items->list() != nullptr)
        for (const Node& node : *items->list()) {
            const Node* path = node.is(Kind::map) ? node.find("image_path") : nullptr;
            if (path == nullptr || path->text() == nullptr || path->text()->empty()) continue;
            item.image_path = *path->text();
            out.validation.push_back(item);
        }
    validation.finish();
}

}  // namespace

void read_train(Section& process, Config& config) {
    Section train = process.section("train", SectionId::train);
    TrainConfig& out = config.train;
    out.dtype = read_dtype(train);
    out.batch_size = train.fields.integer("batch_size", {.min = 1, .max = most_items}, 1);
    read_accumulation(train, out);
    out.switch_boundary_every = train.fields.integer("switch_boundary_every", {.min = 1}, 1);
    out.gradient_checkpointing = train.flag("gradient_checkpointing", true);
    out.optimizer = read_optimizer(train);
    Section ema = train.section("ema_config", SectionId::ema_config);
    out.ema = ema.flag("use_ema", false);
    ema.finish();
    if (!train.flag("train_unet", true)) train.refuse("train_unet", "without it only text encoders train");
    out.train_text_encoder = train.flag("train_text_encoder", false);
    out.unload_text_encoder = train.flag("unload_text_encoder", false);
    out.cache_text_embeddings = train.flag("cache_text_embeddings", false);
    read_objective(train, out);
    read_validation(train, out);
    out.disable_sampling = train.flag("disable_sampling", false);
    out.skip_first_sample = train.flag("skip_first_sample", false);
    static_cast<void>(train.flag("force_first_sample", false));  // a run from its first step on samples anyway
    read_words(train);
    out.noise_scheduler = read_scheduler(train, "noise_scheduler");
    train.finish();
}

}  // namespace vram::trainers::ai_toolkit
