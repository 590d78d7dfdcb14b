#include "trainers/ai_toolkit/overrides.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string_view>

#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/dataset.hpp"
#include "trainers/ai_toolkit/reading.hpp"
#include "trainers/surroundings.hpp"
#include "trainers/trainer.hpp"
#include "vram/io/fields.hpp"
#include "vram/io/path.hpp"
#include "vram/profile/catalogue.hpp"

namespace vram::trainers::ai_toolkit {
namespace {

// As in the job file of any trainer (trainers/torch).
constexpr io::IntegerRange batch_sizes{1, most_items}, side{16, 32768}, frames{1, 4097};
constexpr io::NumberRange alphas{0, 1e9};
constexpr std::int64_t most_buckets = 256, most_reference_images = 16;
constexpr std::string_view adapter_keys[] = {"rank", "alpha", "factor", "conv_rank", "targets", "adapter_dtype"};

constexpr std::int64_t job_resolution = 1024;  // the profiles' default

constexpr io::Choice<Dtype> dtypes[] = {{"bf16", Dtype::bf16}, {"fp16", Dtype::f16}, {"fp32", Dtype::f32}};
/// What the trainer has a name for.
constexpr auto scheme_table = [] {
    std::array<io::Choice<job::Quantization>, job::quantization_names.size() - 5> out{};
    std::size_t at = 0;
    for (std::size_t i = 0; i < job::quantization_names.size(); ++i)
        if (!job::quantization_names[i].starts_with("bnb_"))
            out[at++] = {job::quantization_names[i], static_cast<job::Quantization>(i)};
    return out;
}();
constexpr std::span<const io::Choice<job::Quantization>> schemes(scheme_table);
enum class Method : std::uint8_t { lora, full };
constexpr io::Choice<Method> methods[] = {{"lora", Method::lora}, {"full", Method::full}};
constexpr io::Choice<bool> targets[] = {{"blocks", true}, {"all", false}};
class Reader {
  public:
    Reader(Config& config, Overrides& out, bool is_job, const Architecture& architecture)
        : config_(config), out_(out), is_job_(is_job), architecture_(architecture), title_(architecture.title) {}

    /// Of a trainer's own file the trainer is known, and a setting may only agree.
    void trainer(io::Fields& job) {
        const auto said = job.text("trainer");
        if (is_job_ || !said || *said == "ai-toolkit") return;
        std::vector<std::string_view> ids;
        for (const Trainer& known : trainers()) ids.push_back(known.id);
        if (std::find(ids.begin(), ids.end(), *said) != ids.end())
            job.complain("trainer", Problem::conflict, "the file is ai-toolkit's own, which no other trainer reads");
        else
            job.complain("trainer", Problem::unknown_trainer, "unknown trainer " + *said, nearest(*said, ids));
    }

    void train(io::Fields& job) {
        io::Fields train = job.map("train");
        method(train);
        if (train.word("autocast", "none") != "none")
            train.complain("autocast", Problem::unsupported, "trainer ai-toolkit runs " + title_ + " without autocast");
        config_.train.gradient_checkpointing =
            train.boolean("gradient_checkpointing", config_.train.gradient_checkpointing);
        config_.train.gradient_accumulation =
            train.integer("gradient_accumulation", batch_sizes, config_.train.gradient_accumulation);
        config_.train.ema = train.boolean("ema", config_.train.ema);
        config_.train.optimizer = train.choice("optimizer", optimizer_names()).value_or(config_.train.optimizer);
        if (const auto batch_size = train.integer("batch_size", batch_sizes)) {
            config_.train.batch_size = *batch_size;
            for (DatasetConfig& dataset : config_.datasets) dataset.batch_size = *batch_size;
        }
        train.finish();
    }

    void data(io::Fields& job) {
        io::Fields data = job.map("data");
        if (data.has("buckets") && data.has("resolution"))
            data.complain("buckets", Problem::conflict, "data.buckets and data.resolution exclude each other");
        out_.sizes_said = data.has("buckets");
        if (const auto buckets = data.integer_lists("buckets", {1, side.max}, {2, 3}, {1, most_buckets})) {
            for (const std::vector<std::int64_t>& bucket : *buckets) add(data, "buckets", bucket);
        } else if (const auto resolution = data.integers("resolution", side, {2, 2}, io::Single::is_a_list)) {
            out_.sizes_said = is_job_ || resolution->size() == 2;
            if (out_.sizes_said)
                add(data, "resolution", {resolution->front(), resolution->back()});
            else
                at(data, resolution->front());
        } else if (is_job_) {
            out_.sizes_said = true;
            add(data, "resolution", {job_resolution, job_resolution});
        }
        if (const auto said = data.integer("frames", frames)) of_frames(data, *said);
        const std::int64_t most_tokens =
            architecture_.most_text_tokens != 0 ? architecture_.most_text_tokens : architecture_.text_tokens;
        out_.text_tokens = data.integer("text_tokens", {1, most_tokens}, architecture_.text_tokens);
        if (const auto images = data.integer_lists("reference_images", side, {2, 2}, {0, most_reference_images}))
            beside(data, *images);
        else
            beside_as_large(data);
        data.finish();
    }

    /// Said as null, nothing is rendered.
    void sample(io::Fields& job) {
        if (const io::Node* node = job.node("sample"); node != nullptr && node->is(io::Kind::null)) {
            config_.train.disable_sampling = true;
            return;
        }
        if (is_job_ && job.has("sample")) config_.train.disable_sampling = false;
        io::Fields sample = job.map("sample");
        if (const auto enabled = sample.boolean("enabled")) config_.train.disable_sampling = !*enabled;
        const auto resolution =
            sample.integers("resolution", {smallest_sample, side.max}, {2, 2}, io::Single::is_a_list);
        const auto steps = sample.integer("steps", {1, most_steps});
        const auto guidance = sample.number("guidance");
        (void)sample.integer("batch_size", {1, 1});
        const auto sampled = sample.integer("frames", {1, architecture_.frame_step == 0 ? 1 : frames.max});
        if (config_.train.disable_sampling)
            for (const std::string_view key : {"resolution", "steps", "guidance", "frames"})
                if (sample.has(key))
                    sample.complain(key, Problem::conflict,
                                    sample.path(key) + " has no meaning where the file says disable_sampling: true");
        if ((resolution || steps || guidance || sampled) && config_.sample.samples.empty())
            config_.sample.samples.emplace_back();
        const std::int64_t step = architecture_.divisible_by;
        for (SampleItem& item : config_.sample.samples) {
            if (resolution) item.width = resolution->front() / step * step;
            if (resolution) item.height = resolution->back() / step * step;
            if (steps) item.steps = *steps;
            if (sampled) item.frames = *sampled;
            if (guidance) item.guidance_scale = *guidance;
        }
        sample.finish();
    }

    /// What the file says of quantising the denoiser has no say any more.
    void takes_over() {
        config_.model.quantize_said = false;
        config_.model.accuracy_recovery_adapter.clear();
    }

    void quantize(io::Fields& job) {
        const io::Node* node = job.node("quantize");
        if (node == nullptr) return;
        if (node->map() == nullptr) {
            config_.model.quantize = config_.model.quantize_te =
                job.choice("quantize", schemes).value_or(config_.model.quantize);
            takes_over();
            return;
        }
        io::Fields parts = job.map("quantize");
        if (parts.has("transformer")) takes_over();
        config_.model.quantize = parts.choice("transformer", schemes).value_or(config_.model.quantize);
        config_.model.quantize_te = parts.choice("text_encoder", schemes).value_or(config_.model.quantize_te);
        parts.finish();
    }

    /// After `quantize` and `train`.
    void quantized_in_full(io::Fields& job, const io::Document& document, Diagnostics& complaints) const {
        if (!config_.fine_tune || config_.model.quantize == job::Quantization::none) return;
        const std::string why = "training quantised weights in full is not modelled";
        constexpr std::string_view key = "config.process[0].model.quantize";
        const io::Node* node = io::find(document.root, key);
        if (job.has("quantize") || node == nullptr)
            job.complain("quantize", Problem::unsupported, why);
        else
            complaints.push_back({Severity::error,
                                  Problem::unsupported,
                                  document.place_of(*node),
                                  std::string(key),
                                  node->spelled(),
                                  {},
                                  why});
    }

  private:
    /// What is trained. A job file has to say it, a trainer's own file has said it, and a setting may change it.
    void method(io::Fields& train) {
        const bool had_network = !config_.fine_tune;
        const auto said = train.choice("method", methods);
        if (said) config_.fine_tune = *said == Method::full;
        if (!said && (is_job_ || train.has("method"))) {  // then nothing is known about the keys that hang on it
            if (!train.has("method")) (void)train.require("method");
            train.ignore(adapter_keys);
        } else if (config_.fine_tune) {
            for (const std::string_view key : adapter_keys)
                if (train.has(key))
                    train.complain(key, Problem::conflict,
                                   train.path(key) + " is for adapters, and " +
                                       (said ? "train.method is full" : "without a network the model is trained"));
        } else {
            adapter(train, is_job_ || !had_network);
        }
    }

    void adapter(io::Fields& train, bool rank_is_due) {
        if (rank_is_due && !train.has("rank")) (void)train.require("rank");
        if (const auto rank = train.integer("rank", {1, most_rank})) config_.network.rank = *rank;
        (void)train.number("alpha", alphas);  // of no weight in memory; PEFT's format has the rank for it
        if (const auto only_blocks = train.choice("targets", targets)) config_.network.transformer_only = *only_blocks;
        for (const std::string_view key : {"factor", "conv_rank", "adapter_dtype"})
            if (train.has(key))
                train.complain(key, Problem::unsupported,
                               train.path(key) + " has no meaning with trainer ai-toolkit's LoRA");
    }

    void add(io::Fields& data, std::string_view key, const std::vector<std::int64_t>& size) {
        const std::int64_t divisible_by = architecture_.divisible_by;
        for (std::size_t i = 0; i < 2; ++i)
            if (size[i] % divisible_by != 0 || size[i] < side.min)
                data.complain(
                    key, Problem::out_of_range,
                    data.path(key) + " must be divisible by " + std::to_string(divisible_by) + " for " + title_ +
                        ", not " + std::to_string(size[i]),
                    std::to_string(std::max(side.min, (size[i] + divisible_by / 2) / divisible_by * divisible_by)));
        const std::int64_t frames_of_it = size.size() == 3 ? size[2] : 1;
        if (!takes(data, key, frames_of_it)) return;
        // Sizes stand for what the datasets yield; what these want of a video stays.
        const std::vector<DatasetConfig>& datasets = config_.datasets;
        const auto any = [&](bool DatasetConfig::*wants) {
            return std::any_of(datasets.begin(), datasets.end(), [wants](const DatasetConfig& d) { return d.*wants; });
        };
        const job::Batch batch{size[0],
                               size[1],
                               frames_of_it,
                               config_.train.batch_size,
                               {},
                               any(&DatasetConfig::do_i2v),
                               any(&DatasetConfig::do_audio),
                               datasets.empty() ? 24 : datasets.front().fps};
        if (std::find(out_.batches.begin(), out_.batches.end(), batch) == out_.batches.end())
            out_.batches.push_back(batch);
    }

    /// Whether the architecture takes so many frames; else there is a complaint.
    bool takes(io::Fields& data, std::string_view key, std::int64_t count) const {
        const std::int64_t step = architecture_.frame_step;
        if (count == 1) return true;
        if (step == 0) {
            data.complain(key, Problem::unsupported, title_ + " trains on images: frames are 1");
            return false;
        }
        if ((count - 1) % step == 0) return true;
        data.complain(key, Problem::out_of_range,
                      data.path(key) + ": frames of " + title_ + " must be a multiple of " + std::to_string(step) +
                          " and one more, not " + std::to_string(count),
                      std::to_string((count - 1 + step / 2) / step * step + 1));
        return false;
    }

    /// Every batch of so many frames: those that were said, or the datasets'.
    void of_frames(io::Fields& data, std::int64_t count) {
        if (data.has("buckets")) {
            data.complain("frames", Problem::conflict, "data.buckets say their frames themselves");
            return;
        }
        if (!takes(data, "frames", count)) return;
        for (job::Batch& batch : out_.batches) batch.frames = count;
        for (DatasetConfig& dataset : config_.datasets) {
            dataset.num_frames = count;
            dataset.auto_frame_count = false;
        }
        drop_repeated(config_.datasets);
    }

    /// So many pictures beside every item.
    void beside(io::Fields& data, const std::vector<std::vector<std::int64_t>>& images) {
        if (static_cast<std::int64_t>(images.size()) > architecture_.most_references) {
            data.complain("reference_images", Problem::unsupported,
                          title_ + (architecture_.most_references == 0
                                        ? " takes no reference images here"
                                        : " takes at most " + std::to_string(architecture_.most_references)));
            return;
        }
        if (static_cast<std::int64_t>(images.size()) < architecture_.fewest_references) {
            needs_references(data);
            return;
        }
        out_.references_said = true;
        for (const std::vector<std::int64_t>& image : images) out_.references.push_back({image[0], image[1]});
        for (job::Batch& batch : out_.batches) batch.references = out_.references;
    }

    /// Sizes that were said instead of the datasets' leave them their control images, as large as the items.
    void beside_as_large(io::Fields& data) {
        std::size_t most = 0;
        for (const DatasetConfig& dataset : config_.datasets) most = std::max(most, dataset.controls.size());
        if (is_job_ && architecture_.fewest_references > 0) needs_references(data);
        for (job::Batch& batch : out_.batches) batch.references.assign(most, {batch.width, batch.height});
    }

    void needs_references(io::Fields& data) const {
        data.complain("reference_images", Problem::missing_key,
                      title_ + " needs a control image beside every item: data.reference_images, as [[1024, 1024]]");
    }

    /// Every dataset at this resolution, and none of them twice.
    void at(io::Fields& data, std::int64_t resolution) {
        for (DatasetConfig& dataset : config_.datasets) {
            dataset.resolution = resolution;
            dataset.resolution_at = {data.place("resolution"), data.path("resolution")};
        }
        drop_repeated(config_.datasets);
    }

    Config& config_;
    Overrides& out_;
    bool is_job_;
    const Architecture& architecture_;
    const std::string title_;
};

/// Of the architectures that are played: "FLUX.1 and Flex.1".
std::string played() {
    std::string out;
    for (const Architecture* one : architectures())
        if (one->fails_with.empty()) out += (out.empty() ? "" : ", ") + std::string(one->models);
    return out;
}

/// The model that is said instead of the file's; empty where none is, or after a complaint.
const profile::ModelProfile* model_of(io::Fields& job, const profile::Catalogue& catalogue, bool is_job) {
    const auto model = job.text("model");
    if (!model) {
        if (is_job) (void)job.require("model");
        return nullptr;
    }
    const profile::ModelProfile* profile = catalogue.model(*model);
    if (profile == nullptr)
        job.complain("model", Problem::unknown_model, "unknown model " + *model, catalogue.nearest_model(*model));
    else if (architecture_of(*profile) == nullptr)
        job.complain("model", Problem::unsupported,
                     profile->name + " is not modelled with trainer ai-toolkit: " + played() + " are");
    else
        return profile;
    return nullptr;
}

}  // namespace

Config job_defaults() {
    Config config;
    config.train.dtype = Dtype::bf16;
    config.train.disable_sampling = true;
    return config;
}

Overrides apply_overrides(const io::Document& document, const profile::Catalogue& catalogue, Config& config,
                          Diagnostics& complaints, Diagnostics& notes) {
    Overrides out;
    const bool is_job = is_job_file(document);
    const io::Node* said = is_job ? &document.root : document.root.find("vramest");
    const io::Node nothing{io::Map{}};
    io::Fields job(document, said != nullptr ? *said : nothing, "", complaints);
    if (is_job) (void)job.integer("vramest", {1, 1}, io::required);
    out.architecture = architecture_named(config.model.arch);
    if (const profile::ModelProfile* model = model_of(job, catalogue, is_job)) {
        out.model = model->id;
        out.architecture = architecture_of(*model);
    }
    // Without one there is a complaint already, and the others come along by the first one's sizes.
    Reader reader(config, out, is_job, out.architecture != nullptr ? *out.architecture : *architectures().front());
    reader.trainer(job);
    if (const auto dtype = job.choice("dtype", dtypes)) config.train.dtype = *dtype;
    reader.quantize(job);
    reader.train(job);
    reader.data(job);
    reader.sample(job);
    out.environment = read_environment(job, notes);
    out.card = read_card(job, catalogue.cards());
    reader.quantized_in_full(job, document, complaints);
    job.finish();
    return out;
}

}  // namespace vram::trainers::ai_toolkit
