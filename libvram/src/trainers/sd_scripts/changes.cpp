#include "trainers/sd_scripts/changes.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "trainers/job_changes.hpp"
#include "trainers/job_text.hpp"
#include "trainers/sd_scripts/gui.hpp"
#include "trainers/sd_scripts/overrides.hpp"
#include "trainers/sd_scripts/reading.hpp"
#include "trainers/trainer.hpp"
#include "trainers/truthy.hpp"
#include "vram/io/path.hpp"

namespace vram::trainers::sd_scripts {
namespace {

using io::Edit;
using job::Change;
using job::Lever;
using job::Price;

/// A text, as an edit takes it whatever stands in it.
std::string quoted(const std::string& text) { return "\"" + text + "\""; }

class Changes {
  public:
    Changes(const io::Document& document, const Config& config)
        : document_(document), config_(config), arguments_(config.arguments) {}

    std::vector<Change> all() {
        if (!arguments_.gradient_checkpointing)
            add({Lever::gradient_checkpointing,
                 "gradient checkpointing",
                 {set("gradient_checkpointing", "true")},
                 {},
                 Price::speed,
                 checkpointing_cost,
                 "Parameters > Advanced > Gradient checkpointing"});
        if (arguments_.dataset_config.empty()) {  // else sizes and batches stand in another file
            batch_size();
            resolution();
        }
        samples();
        text_encoders();
        latents();
        optimizer();
        precision();
        rank();
        pace();
        return std::move(out_);
    }

  private:
    /// An edit of an argument where the file says it, or would. A number that stands there as a text stays one.
    [[nodiscard]] Edit set(std::string_view argument, std::string value) const {
        const SaidAt at = config_.at(document_, argument);
        const io::Node* node = io::find(document_.root, at.key);
        const bool is_text = node != nullptr && node->text() != nullptr;
        return {at.key, is_text && !value.starts_with('"') ? quoted(value) : std::move(value)};
    }
    [[nodiscard]] bool said(std::string_view argument) const { return config_.said.find(argument) != nullptr; }

    /// One that the GUI's panels name. What its free text of arguments says wins over its fields, and is no field.
    void add(Change change) {
        if (config_.source != Source::gui) change.panel.clear();
        const auto is_free_text = [](const Edit& edit) { return edit.path == free_text; };
        if (std::none_of(change.edits.begin(), change.edits.end(), is_free_text)) out_.push_back(std::move(change));
    }

    void batch_size() {
        const std::int64_t now = arguments_.dataset.batch_size;
        for (const SmallerBatch& batch : smaller_batches(now, arguments_.gradient_accumulation_steps))
            add({Lever::batch_size,
                 "batch size " + text(batch.size) + " instead of " + text(now) + ", accumulated " +
                     text(batch.accumulated) + " times",
                 {set("train_batch_size", text(batch.size)),
                  set("gradient_accumulation_steps", text(batch.accumulated))},
                 {},
                 Price::speed,
                 "smaller batches use the card less well",
                 "Parameters > Basic > Train batch size; Advanced > Gradient accumulate steps"});
    }

    void resolution() {
        const std::int64_t width = arguments_.dataset.width, height = arguments_.dataset.height;
        const std::int64_t longest = std::max(width, height), step = arguments_.script->bucket_reso_steps;
        for (const std::int64_t side : smaller_sides(longest)) {
            const auto scaled = [&](std::int64_t one) { return std::max(step, one * side / longest / step * step); };
            add({Lever::resolution,
                 "a resolution of " + text(side) + " instead of " + text(longest),
                 {set("resolution", quoted(text(scaled(width)) + "," + text(scaled(height))))},
                 {},
                 Price::quality,
                 "fine detail is not learnt",
                 "Parameters > Basic > Max resolution"});
        }
    }

    void samples() {
        if (!arguments_.sample_at_first && !arguments_.samples_while_training) return;
        std::vector<Edit> edits;
        for (const std::string_view name : {"sample_every_n_steps", "sample_every_n_epochs"})
            if (said(name)) edits.push_back(set(name, "0"));
        if (arguments_.sample_at_first) edits.push_back(set("sample_at_first", "false"));
        add({Lever::samples,
             "no samples while training",
             std::move(edits),
             {},
             Price::previews,
             "nothing to look at before the end",
             "Parameters > Samples > Sample every n steps, Sample every n epochs"});
    }

    /// What leaves the text encoders' LoRA out: of the GUI the rates of learning say it.
    [[nodiscard]] std::vector<Edit> without_text_encoders() const {
        if (arguments_.network_train_unet_only) return {};
        if (config_.source != Source::gui) return {set("network_train_unet_only", "true")};
        std::vector<Edit> edits{{"text_encoder_lr", "0"}};
        const io::Node* rate = document_.root.find("unet_lr");
        const bool is_off = rate != nullptr && (!truthy(*rate) || number_of(rate->spelled()) == 0.0);
        if (const io::Node* all = document_.root.find("learning_rate"); is_off && all != nullptr)
            edits.push_back({"unet_lr", all->spelled()});
        return edits;
    }

    void text_encoders() {
        const bool trains = !arguments_.network_train_unet_only;
        if (trains)
            add({Lever::text_encoder,
                 "the text encoders not trained",
                 without_text_encoders(),
                 {},
                 Price::quality,
                 "captions are learnt by the denoiser alone",
                 "Parameters > Basic > Text Encoder learning rate"});
        if (arguments_.cache_text_encoder_outputs || (arguments_.script != &sdxl && arguments_.script != &flux)) return;
        std::vector<Edit> edits = without_text_encoders();
        edits.push_back(set("cache_text_encoder_outputs", "true"));
        bool changes = false;
        for (std::size_t i = 0; i < caption_changes.size(); ++i)
            if (arguments_.dataset.pictures.changes[i] > 0) {
                edits.push_back(set(caption_changes[i], i == 0 ? "false" : "0"));
                changes = true;
            }
        add({Lever::text_encoder,
             std::string(trains ? "the text encoders not trained; " : "") +
                 "captions cached, as the text encoders make them",
             std::move(edits),
             {},
             trains || changes ? Price::quality : Price::disk,
             std::string(trains ? "captions are learnt by the denoiser alone; " : "") +
                 "captions are encoded once, and stay as they are",
             arguments_.script == &sdxl ? "Parameters > SDXL Specific Parameters > Cache text encoder outputs"
                                        : "Parameters > Flux.1 > Cache Text Encoder Outputs"});
    }

    void latents() {
        const PictureSettings& pictures = arguments_.dataset.pictures;
        if (!arguments_.cache_latents) {
            std::vector<Edit> edits{set("cache_latents", "true")};
            for (const auto& [name, on] :
                 {std::pair{"color_aug", pictures.color_aug}, {"random_crop", pictures.random_crop}})
                if (on) edits.push_back(set(name, "false"));
            const bool changes = edits.size() > 1;
            add({Lever::latent_cache,
                 "latents cached, the VAE off the card",
                 std::move(edits),
                 {},
                 changes ? Price::quality : Price::nothing,
                 "pictures are encoded once, and wait in host memory",
                 "Parameters > Basic > Cache latents"});
        } else if (arguments_.vae_batch_size > 1) {
            add({Lever::latent_cache,
                 "latents cached one picture at a time",
                 {set("vae_batch_size", "1")},
                 {},
                 Price::speed,
                 "caching takes longer",
                 "Parameters > Advanced > VAE batch size"});
        }
    }

    void optimizer() {
        const std::string_view name = job::name_of(arguments_.optimizer);
        const std::string in_8_bits = name == job::AdamW::name()  ? "AdamW8bit"
                                      : name == job::Lion::name() ? "Lion8bit"
                                                                  : "";
        if (!in_8_bits.empty())
            add({Lever::optimizer,
                 "8-bit optimizer states (" + in_8_bits + ")",
                 {set("optimizer_type", quoted(in_8_bits))},
                 {},
                 Price::precision,
                 "the optimizer's moments are rounded to 8 bits",
                 "Parameters > Basic > Optimizer"});
        if (name == job::Adafactor::name()) return;
        // Arguments of another class would stop the trainer.
        const bool is_gui = config_.source == Source::gui;
        add({Lever::optimizer,
             "Adafactor, whose second moment is a row and a column",
             {set("optimizer_type", quoted("Adafactor")),
              {config_.at(document_, "optimizer_args").key,
               is_gui ? quoted("scale_parameter=False relative_step=False warmup_init=False")
                      : R"(["scale_parameter=False", "relative_step=False", "warmup_init=False"])"}},
             {},
             Price::quality,
             "it trains in another way",
             "Parameters > Basic > Optimizer, Optimizer extra arguments"});
    }

    void precision() {
        const std::string panel = "Accelerate launch > Mixed precision";
        if (!arguments_.mixed_precision)
            add({Lever::precision,
                 "bf16 instead of fp32",
                 {set("mixed_precision", quoted("bf16"))},
                 {},
                 Price::precision,
                 "weights of the base and activations are rounded to 8 bits of mantissa",
                 panel});
        if (!arguments_.full_bf16 && !arguments_.full_fp16) {
            std::vector<Edit> edits{set("full_bf16", "true")};
            if (arguments_.weight_dtype != Dtype::bf16) edits.push_back(set("mixed_precision", quoted("bf16")));
            add({Lever::precision,
                 "the adapter in bf16, too",
                 std::move(edits),
                 {},
                 Price::precision,
                 "what is learnt is rounded to 8 bits of mantissa in every step",
                 panel + "; Parameters > Advanced > Full bf16 training"});
        }
        if (arguments_.script == &flux && !arguments_.fp8_base && arguments_.mixed_precision &&
            arguments_.cache_text_encoder_outputs)
            add({Lever::quantization,
                 "the base in 8 bits (fp8_base)",
                 {set("fp8_base", "true")},
                 {},
                 Price::precision,
                 "weights of the base are rounded to 3 bits of mantissa",
                 "Parameters > Advanced > fp8 base"});
    }

    [[nodiscard]] Edit network_arg(const Argument& said, const std::string& name, std::int64_t value) const {
        return config_.source == Source::gui ? set("network_args." + name, text(value))
                                             : Edit{said.at.key, quoted(name + "=" + text(value))};
    }
    void rank() {
        const std::int64_t now = arguments_.network_dim;
        for (const std::int64_t rank : smaller_ranks(now)) {
            std::vector<Edit> edits{set("network_dim", text(rank))};
            // alpha / rank scales what is learnt
            if (arguments_.network_alpha == static_cast<double>(now)) edits.push_back(set("network_alpha", text(rank)));
            const Argument* conv = config_.said.find("network_args.conv_dim");
            if (conv != nullptr && arguments_.conv_dim > rank) {
                edits.push_back(network_arg(*conv, "conv_dim", rank));
                const Argument* conv_alpha = config_.said.find("network_args.conv_alpha");
                if (conv_alpha != nullptr && number_of(conv_alpha->value.spelled()) == number_of(conv->value.spelled()))
                    edits.push_back(network_arg(*conv_alpha, "conv_alpha", rank));
            }
            add({Lever::rank,
                 "rank " + text(rank) + " instead of " + text(now),
                 std::move(edits),
                 {},
                 Price::quality,
                 "the adapter can learn less",
                 "Parameters > Basic > Network Rank (Dimension)"});
        }
    }

    void pace() {
        const SaidAt at = config_.at(document_, "max_train_steps");
        const io::Node* node = io::find(document_.root, at.key);
        const std::optional<std::int64_t> steps = node == nullptr ? std::nullopt : integer_of(node->spelled());
        if (steps && *steps > 1)
            add({Lever::pace,
                 "fewer steps",
                 {set("max_train_steps", text(*steps / 2))},
                 {},
                 Price::quality,
                 {},
                 "Parameters > Basic > Max train steps"});
    }

    const io::Document& document_;
    const Config& config_;
    const Arguments& arguments_;
    std::vector<Change> out_;
};

/// Of which arguments `--set` has the last word (overrides.cpp).
constexpr std::pair<std::string_view, std::string_view> decided_by[] = {
    {"gradient_checkpointing", "train.gradient_checkpointing"},
    {"train_batch_size", "train.batch_size"},
    {"gradient_accumulation_steps", "train.gradient_accumulation"},
    {"resolution", "data.resolution"},
    {"resolution", "data.buckets"},
    {"sample_every_n_steps", "sample"},
    {"sample_every_n_epochs", "sample"},
    {"sample_at_first", "sample"},
    {"optimizer_type", "train.optimizer"},
    {"mixed_precision", "dtype"},
    {"full_bf16", "dtype"},
    {"full_bf16", "train.adapter_dtype"},
    {"network_dim", "train.rank"},
    {"network_alpha", "train.alpha"},
    {"network_args.conv_dim", "train.conv_rank"},
};

}  // namespace

std::vector<Change> changes(const io::Document& document, const profile::Catalogue& catalogue, const job::Job& job) {
    if (is_job_file(document)) return job_changes(document, job);
    Diagnostics complaints, notes;
    const profile::ModelProfile* said = said_model(document, catalogue, complaints);
    std::optional<Config> config =
        read_config(document, said != nullptr ? script_of(*said) : nullptr, complaints, notes);
    if (!config) return {};
    (void)apply_overrides(document, catalogue, *config, complaints, notes);
    std::vector<Change> out = Changes(document, *config).all();
    std::vector<DecidedBy> keys;
    for (const auto& [argument, key] : decided_by) keys.push_back({config->at(document, argument).key, key});
    drop_decided(document, keys, out);
    return out;
}

}  // namespace vram::trainers::sd_scripts
