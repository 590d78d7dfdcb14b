#include "trainers/ai_toolkit/changes.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "base/text.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/config.hpp"
#include "trainers/ai_toolkit/overrides.hpp"
#include "trainers/job_changes.hpp"
#include "trainers/job_text.hpp"
#include "trainers/trainer.hpp"
#include "vram/io/path.hpp"

namespace vram::trainers::ai_toolkit {
namespace {

using io::Edit;
using job::Change;
using job::Lever;
using job::Price;

const std::string process = "config.process[0].";
constexpr std::int64_t sample_side_step = 64;
constexpr std::int64_t default_steps = 1000;  // TrainConfig.steps, toolkit/config_modules.py

std::string item(const std::string& list, std::size_t i) { return list + "[" + std::to_string(i) + "]"; }

class Changes {
  public:
    Changes(const io::Document& document, const Config& config, const Architecture& architecture)
        : root_(document.root), config_(config), architecture_(architecture) {}

    std::vector<Change> all() {
        checkpointing();
        frames();
        batch_size();
        anchor_class();
        resolution();
        samples();
        text_encoder();
        latent_cache();
        model();
        optimizer();
        if (config_.train.dtype == Dtype::f32)
            add({Lever::precision,
                 "bf16 instead of fp32",
                 {set("train.dtype", "bf16")},
                 {},
                 Price::precision,
                 "weights and activations are rounded to 8 bits of mantissa, as the web interface always has it"});
        if (config_.train.ema)
            add({Lever::ema,
                 "no moving average of the weights",
                 {set("train.ema_config.use_ema", "false")},
                 {},
                 Price::quality,
                 "there is no smoothed copy to save",
                 "Training > Use EMA"});
        rank();
        pace();
        return std::move(out_);
    }

  private:
    void add(Change change) { out_.push_back(std::move(change)); }
    [[nodiscard]] static Edit set(const std::string& key, std::string value) {
        return {process + key, std::move(value)};
    }
    [[nodiscard]] const io::Node* said(const std::string& key) const { return io::find(root_, process + key); }
    [[nodiscard]] std::size_t count(const std::string& key) const {
        const io::Node* node = said(key);
        return node == nullptr || node->list() == nullptr ? 0 : node->list()->size();
    }
    /// A whole number that stands there, or `otherwise`.
    [[nodiscard]] std::int64_t number(const std::string& key, std::int64_t otherwise) const {
        const io::Node* node = said(key);
        return node == nullptr || node->integer() == nullptr ? otherwise : *node->integer();
    }

    void checkpointing() {
        if (!config_.train.gradient_checkpointing)
            add({Lever::gradient_checkpointing,
                 "gradient checkpointing",
                 {set("train.gradient_checkpointing", "true")},
                 {},
                 Price::speed,
                 checkpointing_cost});  // the web interface always has it on, and no field for it
    }

    /// Datasets may have a size of their own, which wins.
    void batch_size() {
        std::int64_t most = config_.train.batch_size;
        for (std::size_t i = 0; i < count("datasets"); ++i)
            most = std::max(most, number(item("datasets", i) + ".batch_size", 1));
        for (const SmallerBatch& batch : smaller_batches(most, config_.train.gradient_accumulation)) {
            std::vector<Edit> edits{set("train.batch_size", text(batch.size)),
                                    set("train.gradient_accumulation", text(batch.accumulated))};
            for (std::size_t i = 0; i < count("datasets"); ++i)
                if (number(item("datasets", i) + ".batch_size", 1) > batch.size)
                    edits.push_back(set(item("datasets", i) + ".batch_size", text(batch.size)));
            add({Lever::batch_size,
                 "batch size " + text(batch.size) + " instead of " + text(most) + ", accumulated " +
                     text(batch.accumulated) + " times",
                 std::move(edits),
                 {},
                 Price::speed,
                 "smaller batches use the card less well",
                 "Training > Batch Size, Gradient Accumulation"});
        }
    }

    /// It stands beside the target class in the predictions that keep something for backward.
    void anchor_class() {
        if (!config_.slider || config_.slider->anchor_class == Slider::Prompt::none) return;
        add({Lever::batch_size,
             "no anchor class beside the target class",
             {set("slider.anchor_class", "null")},
             {},
             Price::quality,
             "nothing holds the model to what it was beside the concept"});  // the web interface always has a text
                                                                             // there
    }

    void frames() {
        if (architecture_.frame_step == 0) return;
        std::int64_t most = 1;
        for (std::size_t i = 0; i < count("datasets"); ++i)
            most = std::max(most, number(item("datasets", i) + ".num_frames", 1));
        for (const std::int64_t frames : fewer_frames(most, architecture_.frame_step)) {
            std::vector<Edit> edits;
            for (std::size_t i = 0; i < count("datasets"); ++i)
                if (number(item("datasets", i) + ".num_frames", 1) > frames)
                    edits.push_back(set(item("datasets", i) + ".num_frames", text(frames)));
            add({Lever::frames,
                 text(frames) + " frames instead of " + text(most),
                 std::move(edits),
                 {},
                 Price::quality,
                 "shorter clips hold less motion",
                 "Datasets > Num Frames"});
        }
    }

    /// A dataset's resolutions as the file has them, one or a list; 512 where it has none.
    [[nodiscard]] std::vector<std::int64_t> resolutions(std::size_t dataset) const {
        const io::Node* node = said(item("datasets", dataset) + ".resolution");
        std::vector<std::int64_t> out;
        if (node != nullptr && node->integer() != nullptr) out.push_back(*node->integer());
        if (node != nullptr && node->list() != nullptr)
            for (const io::Node& side : *node->list())
                if (side.integer() != nullptr) out.push_back(*side.integer());
        return out.empty() ? std::vector{DatasetConfig{}.resolution} : out;
    }
    /// What makes `most` the highest resolution of a dataset: higher ones go, or become it where none is left.
    void lower(std::size_t dataset, std::int64_t most, std::vector<Edit>& edits) const {
        const std::string key = item("datasets", dataset) + ".resolution";
        const std::vector<std::int64_t> sides = resolutions(dataset);
        if (*std::max_element(sides.begin(), sides.end()) <= most) return;
        const io::Node* node = said(key);
        const bool any_left = std::any_of(sides.begin(), sides.end(), [&](std::int64_t side) { return side <= most; });
        if (node == nullptr || node->list() == nullptr || !any_left || node->list()->size() != sides.size()) {
            edits.push_back(set(key, node != nullptr && node->list() != nullptr ? "[" + text(most) + "]" : text(most)));
            return;
        }
        for (std::size_t i = sides.size(); i-- > 0;)  // the last first: the others keep their numbers
            if (sides[i] > most) edits.push_back({process + item(key, i), {}});
    }
    void resolution() {
        std::set<std::int64_t, std::greater<>> all;
        for (std::size_t i = 0; i < count("datasets"); ++i)
            for (const std::int64_t side : resolutions(i)) all.insert(side);
        if (all.empty()) return;
        const std::int64_t top = *all.begin();
        std::vector<std::int64_t> targets(std::next(all.begin()), all.end());
        for (const std::int64_t side : smaller_sides(*all.rbegin())) targets.push_back(side);
        for (const std::int64_t most : targets) {
            std::vector<Edit> edits;
            for (std::size_t i = 0; i < count("datasets"); ++i) lower(i, most, edits);
            const bool drops = all.contains(most);
            add({Lever::resolution,
                 drops ? "no buckets above " + text(most)
                       : "a resolution of " + text(most) + " instead of " + text(top),
                 std::move(edits),
                 {},
                 Price::quality,
                 "fine detail is not learnt",
                 "Datasets > Resolutions"});
        }
    }

    /// Where a size of samples stands, or may stand: beside the list, and in those items that have their own.
    [[nodiscard]] std::vector<std::string> sample_places(const std::string& key) const {
        std::vector<std::string> out{"sample."};
        for (std::size_t i = 0; i < count("sample.samples"); ++i)
            if (said(item("sample.samples", i) + "." + key) != nullptr) out.push_back(item("sample.samples", i) + ".");
        return out;
    }
    void samples() {
        if (config_.train.disable_sampling || config_.sample.samples.empty()) return;
        std::int64_t longest = 0, frames = 1, steps = 1;
        for (const SampleItem& sample : config_.sample.samples) {
            longest = std::max({longest, sample.width, sample.height});
            frames = std::max(frames, sample.frames);
            steps = std::max(steps, sample.steps);
        }
        const SampleItem otherwise;
        for (const std::int64_t side : smaller_sides(longest)) {
            std::vector<Edit> edits;
            for (const auto& [key, absent] : {std::pair{"width", otherwise.width}, {"height", otherwise.height}})
                for (const std::string& place : sample_places(key)) {
                    const std::int64_t now = number(place + key, absent);
                    const std::int64_t then = std::max<std::int64_t>(
                        sample_side_step, now * side / longest / sample_side_step * sample_side_step);
                    if (then != now) edits.push_back(set(place + key, text(then)));
                }
            add({Lever::samples,
                 "samples of " + text(side) + " pixels a side instead of " + text(longest),
                 std::move(edits),
                 {},
                 Price::previews,
                 "smaller pictures to look at",
                 "Sample > Width, Height"});
        }
        if (architecture_.frame_step > 0)
            for (const std::int64_t fewer : fewer_frames(frames, architecture_.frame_step)) {
                std::vector<Edit> edits;
                for (const std::string& place : sample_places("num_frames"))
                    if (number(place + "num_frames", 1) > fewer)
                        edits.push_back(set(place + "num_frames", text(fewer)));
                add({Lever::samples,
                     "samples of " + text(fewer) + " frames instead of " + text(frames),
                     std::move(edits),
                     {},
                     Price::previews,
                     "shorter clips to look at",
                     "Sample > Num Frames"});
            }
        add({Lever::samples,
             "no samples while training",
             {set("train.disable_sampling", "true")},
             {},
             Price::previews,
             "nothing to look at before the end",
             "Sample > Disable Sampling"});
        add({Lever::pace,
             "fewer steps a sample",
             {set("sample.sample_steps", text(std::max<std::int64_t>(1, steps / 2)))},
             {},
             Price::previews,
             {},
             "Sample > Sample Steps"});
        add({Lever::pace,
             "samples more rarely",
             {set("sample.sample_every", text(4 * std::max<std::int64_t>(1, config_.sample.sample_every)))},
             {},
             Price::previews,
             {},
             "Sample > Sample Every"});
    }

    void text_encoder() {
        if (config_.train.cache_text_embeddings || config_.train.unload_text_encoder) return;
        // The trainer unloads none that trains.
        const bool trains = config_.train.train_text_encoder;
        const std::string instead = trains ? "the text encoder not trained; " : "";
        const std::string untrained = trains ? "captions are learnt by the denoiser alone; " : "";
        const auto edits = [&](Edit edit) {
            std::vector<Edit> out;
            if (trains) out.push_back(set("train.train_text_encoder", "false"));
            out.push_back(std::move(edit));
            return out;
        };
        if (trains)
            add({Lever::text_encoder,
                 "the text encoder not trained",
                 {set("train.train_text_encoder", "false")},
                 {},
                 Price::quality,
                 "captions are learnt by the denoiser alone"});  // the web interface has no field for it
        add({Lever::text_encoder,
             instead + "text embeddings cached, the text encoder unloaded",
             edits(set("train.cache_text_embeddings", "true")),
             {},
             trains ? Price::quality : Price::disk,
             untrained + "captions are encoded once; what changes them at random does so no longer",
             "Training > Cache Text Embeddings"});
        add({Lever::text_encoder,
             instead + "the text encoder unloaded, without captions",
             edits(set("train.unload_text_encoder", "true")),
             {},
             Price::quality,
             untrained + "only the trigger word or an empty prompt is trained with",
             "Training > Unload TE"});
    }

    void latent_cache() {
        std::vector<Edit> edits;
        for (std::size_t i = 0; i < count("datasets"); ++i) {
            const io::Node* in_memory = said(item("datasets", i) + ".cache_latents");
            const io::Node* on_disk = said(item("datasets", i) + ".cache_latents_to_disk");
            const auto is_on = [](const io::Node* node) {
                return node != nullptr && node->boolean() != nullptr && *node->boolean();
            };
            if (!is_on(in_memory) && !is_on(on_disk))
                edits.push_back(set(item("datasets", i) + ".cache_latents_to_disk", "true"));
        }
        if (!edits.empty())
            add({Lever::latent_cache,
                 "latents cached on disk, the VAE off the card",
                 std::move(edits),
                 {},
                 Price::disk,
                 "pictures are encoded once",
                 "Datasets > Cache Latents"});
    }

    void model() {
        const ModelConfig& model = config_.model;
        if (!model.low_vram)
            add({Lever::low_vram,
                 "low VRAM",
                 {set("model.low_vram", "true")},
                 {},
                 Price::speed,
                 "parts wait in host memory; loading takes longer",
                 "Model > Low VRAM"});
        if (model.quantize == job::Quantization::none && !config_.fine_tune)
            add({Lever::quantization,
                 "the transformer in 8 bits",
                 {set("model.quantize", "true")},
                 {},
                 Price::precision,
                 "weights of the base are rounded to 8 bits",
                 "Quantize / Compile > Transformer"});
        if (model.quantize_te == job::Quantization::none)
            add({Lever::quantization,
                 "the text encoder in 8 bits",
                 {set("model.quantize_te", "true")},
                 {},
                 Price::precision,
                 "its weights are rounded to 8 bits",
                 "Quantize / Compile > Text Encoder"});
        if (model.quantize != job::Quantization::toolkit_uint4 && !config_.fine_tune)
            add({Lever::quantization,
                 "the transformer in 4 bits",
                 {set("model.quantize", "true"), set("model.qtype", "uint4")},
                 {},
                 Price::quality,
                 "weights of the base are rounded to 4 bits",
                 "Quantize / Compile > Transformer"});
        const bool is_off = !model.layer_offloading;
        const bool attaches = architecture_.offloading.attaches;
        if (!is_off && attaches && (model.offloaded < 1 || model.offloaded_text_encoder < 1))
            add({Lever::offloading,
                 "all layers wait in host memory",
                 {set("model.layer_offloading_transformer_percent", "1.0"),
                  set("model.layer_offloading_text_encoder_percent", "1.0")},
                 {},
                 Price::speed,
                 "each layer crosses the bus on every pass",
                 "Model > Transformer Offload %, Text Encoder Offload %"});
        if (is_off && attaches)
            for (const auto& [share, text] : {std::pair{"0.5", "half of the layers wait in host memory"},
                                              {"1.0", "all layers wait in host memory"}})
                add({Lever::offloading,
                     text,
                     {set("model.layer_offloading", "true"), set("model.layer_offloading_transformer_percent", share),
                      set("model.layer_offloading_text_encoder_percent", share)},
                     {},
                     Price::speed,
                     "each layer crosses the bus on every pass",
                     "Model > Layer Offloading, Transformer Offload %, Text Encoder Offload %"});
    }

    void optimizer() {
        const std::string_view name = job::name_of(config_.train.optimizer);
        const std::string_view in_8_bits = name == job::AdamW::name()     ? "adamw8bit"
                                           : name == job::Lion::name()    ? "lion8bit"
                                           : name == job::Prodigy::name() ? "prodigy8bit"
                                                                          : "";
        if (!in_8_bits.empty())
            add({Lever::optimizer,
                 "8-bit optimizer states (" + std::string(in_8_bits) + ")",
                 {set("train.optimizer", std::string(in_8_bits))},
                 {},
                 Price::precision,
                 "the optimizer's moments are rounded to 8 bits",
                 "Training > Optimizer"});
        if (name != job::Adafactor::name())
            add({Lever::optimizer,
                 "Adafactor, whose second moment is a row and a column",
                 {set("train.optimizer", "adafactor")},
                 {},
                 Price::quality,
                 "it trains in another way",
                 "Training > Optimizer"});
    }

    void rank() {
        if (config_.fine_tune || config_.network.kind == job::AdapterKind::lokr) return;
        const std::string key = said("network.rank") != nullptr ? "network.rank" : "network.linear";
        const std::string alpha_key = key == "network.rank" ? "network.alpha" : "network.linear_alpha";
        const std::int64_t now = config_.network.rank, alpha = number(alpha_key, 0), conv = number("network.conv", 0);
        for (const std::int64_t rank : smaller_ranks(now)) {
            std::vector<Edit> edits{set(key, text(rank))};
            if (alpha == now) edits.push_back(set(alpha_key, text(rank)));  // alpha / rank scales what is learnt
            if (conv > rank) edits.push_back(set("network.conv", text(rank)));
            add({Lever::rank,
                 "rank " + text(rank) + " instead of " + text(now),
                 std::move(edits),
                 {},
                 Price::quality,
                 "the adapter can learn less",
                 "Target > Linear Rank"});
        }
    }

    void pace() {
        add({Lever::pace,
             "fewer steps",
             {set("train.steps", text(std::max<std::int64_t>(1, number("train.steps", default_steps) / 2)))},
             {},
             Price::quality,
             {},
             "Training > Steps"});
    }

    const io::Node& root_;
    const Config& config_;
    const Architecture& architecture_;
    std::vector<Change> out_;
};

/// Of which keys `--set` has the last word (overrides.cpp).
constexpr std::pair<std::string_view, std::string_view> decided_by[] = {
    {"train.gradient_checkpointing", "train.gradient_checkpointing"},
    {"train.batch_size", "train.batch_size"},
    {"datasets.batch_size", "train.batch_size"},
    {"train.gradient_accumulation", "train.gradient_accumulation"},
    {"datasets.num_frames", "data.frames"},
    {"datasets.num_frames", "data.buckets"},
    {"datasets.resolution", "data.resolution"},
    {"datasets.resolution", "data.buckets"},
    {"sample.width", "sample.resolution"},
    {"sample.height", "sample.resolution"},
    {"sample.samples.width", "sample.resolution"},
    {"sample.samples.height", "sample.resolution"},
    {"sample.num_frames", "sample.frames"},
    {"sample.samples.num_frames", "sample.frames"},
    {"sample.sample_steps", "sample.steps"},
    {"train.disable_sampling", "sample.enabled"},
    {"model.quantize", "quantize.transformer"},
    {"model.qtype", "quantize.transformer"},
    {"model.quantize_te", "quantize.text_encoder"},
    {"train.optimizer", "train.optimizer"},
    {"train.dtype", "dtype"},
    {"train.ema_config", "train.ema"},
    {"network", "train.rank"},
};

}  // namespace

std::vector<Change> changes(const io::Document& document, const profile::Catalogue& catalogue, const job::Job& job) {
    if (is_job_file(document)) return job_changes(document, job);
    Diagnostics complaints, notes;
    expected<Config> config = read_config(document, notes);
    if (!config) return {};
    const Overrides overrides = apply_overrides(document, catalogue, *config, complaints, notes);
    if (overrides.architecture == nullptr) return {};
    std::vector<Change> out = Changes(document, *config, *overrides.architecture).all();
    std::vector<DecidedBy> keys;
    for (const auto& [own, key] : decided_by) keys.push_back({process + std::string(own), key});
    drop_decided(document, keys, out);
    return out;
}

}  // namespace vram::trainers::ai_toolkit
