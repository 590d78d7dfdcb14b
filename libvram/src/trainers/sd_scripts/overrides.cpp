#include "trainers/sd_scripts/overrides.hpp"

#include <algorithm>
#include <utility>

#include "trainers/sd_scripts/reading.hpp"
#include "trainers/surroundings.hpp"
#include "trainers/trainer.hpp"
#include "vram/io/fields.hpp"
#include "vram/profile/catalogue.hpp"

namespace vram::trainers::sd_scripts {
namespace {

constexpr std::string_view id = "sd-scripts";
constexpr io::IntegerRange batch_sizes{1, most_items}, side{64, 32768};
constexpr std::int64_t most_buckets = 256, most_steps = 1000;
constexpr io::Choice<Dtype> dtypes[] = {{"bf16", Dtype::bf16}, {"fp16", Dtype::f16}, {"fp32", Dtype::f32}};

constexpr io::Choice<job::Autocast> autocasts[] = {
    {"none", {}}, {"bf16", {true, Dtype::bf16}}, {"fp16", {true, Dtype::f16}}};

const io::Node nothing{io::Map{}};

/// What is said by the job file's names.
const io::Node& said_in(const io::Document& document) {
    if (is_job_file(document)) return document.root;
    const io::Node* said = document.root.find("vramest");
    return said != nullptr ? *said : nothing;
}

class Reader {
  public:
    Reader(Config& config, Overrides& out, bool is_job) : arguments_(config.arguments), out_(out), is_job_(is_job) {}

    void trainer(io::Fields& job) const {
        const auto said = job.text("trainer");
        if (is_job_ || !said || *said == id) return;
        std::vector<std::string_view> ids;
        for (const Trainer& known : trainers()) ids.push_back(known.id);
        if (std::find(ids.begin(), ids.end(), *said) != ids.end())
            job.complain("trainer", Problem::conflict, "the file is sd-scripts' own, which no other trainer reads");
        else
            job.complain("trainer", Problem::unknown_trainer, "unknown trainer " + *said, nearest(*said, ids));
    }

    void precision(io::Fields& job) {
        if (const auto dtype = job.choice("dtype", dtypes)) {
            arguments_.weight_dtype = *dtype;
            arguments_.mixed_precision = *dtype != Dtype::f32;
            if (*dtype != Dtype::f16) arguments_.full_fp16 = false;
            if (*dtype != Dtype::bf16) arguments_.full_bf16 = false;
            if (arguments_.fp8_base && *dtype == Dtype::f32)
                job.complain("dtype", Problem::conflict,
                             "the trainer stops: the file's fp8_base wants mixed_precision fp16 or bf16", "bf16");
        }
        if (job.word("quantize", "none") != "none")
            job.complain("quantize", Problem::unsupported,
                         "trainer sd-scripts quantises nothing: fp8_base is its own name", "none");
    }

    void train(io::Fields& job) {
        io::Fields train = job.map("train");
        if (const auto method = train.word("method"); method && *method != "lora")
            train.complain("method", Problem::unsupported,
                           "train.method " + *method + " is not modelled with sd-scripts", "lora");
        else if (!method && is_job_)
            (void)train.require("method");
        if (is_job_ && !train.has("rank")) (void)train.require("rank");
        if (const auto rank = train.integer("rank", {1, most_rank})) arguments_.network_dim = *rank;
        if (const auto alpha = train.number("alpha", io::NumberRange{0, 1e9})) arguments_.network_alpha = *alpha;
        if (const auto conv = train.integer("conv_rank", {0, most_rank})) arguments_.conv_dim = *conv;
        if (const auto targets = train.word("targets"); targets && *targets != "blocks")
            train.complain("targets", Problem::unsupported, "the trainer's LoRA goes on the blocks", "blocks");
        if (const auto dtype = train.choice("adapter_dtype", dtypes)) {
            if (*dtype != Dtype::f32 && *dtype != arguments_.weight_dtype)
                train.complain("adapter_dtype", Problem::conflict,
                               "the adapter is fp32, or with full_fp16 and full_bf16 of the model's dtype");
            arguments_.full_bf16 = *dtype == Dtype::bf16;
            arguments_.full_fp16 = *dtype == Dtype::f16;
        }
        const std::string casts = arguments_.mixed_precision ? std::string(to_text(arguments_.weight_dtype)) : "none";
        if (const auto said = train.choice("autocast", autocasts);
            said &&
            (said->enabled != arguments_.mixed_precision || (said->enabled && said->dtype != arguments_.weight_dtype)))
            train.complain("autocast", Problem::conflict,
                           "trainer sd-scripts casts to dtype, which is mixed_precision: " + casts, casts);
        if (train.boolean("ema", false))
            train.complain("ema", Problem::unsupported, "trainer sd-scripts keeps no average");
        if (const auto on = train.boolean("gradient_checkpointing")) arguments_.gradient_checkpointing = *on;
        if (const auto steps = train.integer("gradient_accumulation", batch_sizes))
            arguments_.gradient_accumulation_steps = *steps;
        if (const auto name = train.text("optimizer")) {
            if (const auto kind = optimizer_named(*name))
                arguments_.optimizer = *kind;
            else
                train.complain("optimizer", Problem::bad_value, "the trainer knows no optimizer " + *name,
                               nearest(*name, optimizer_names()));
        }
        out_.batch_size = train.integer("batch_size", batch_sizes);
        if (out_.batch_size) arguments_.dataset.batch_size = *out_.batch_size;
        train.finish();
    }

    void data(io::Fields& job) {
        io::Fields data = job.map("data");
        if (data.has("buckets") && data.has("resolution"))
            data.complain("buckets", Problem::conflict, "data.buckets and data.resolution exclude each other");
        if (const auto buckets = data.integer_lists("buckets", {1, side.max}, {2, 3}, {1, most_buckets})) {
            for (const std::vector<std::int64_t>& bucket : *buckets) {
                if (bucket.size() == 3 && bucket[2] != 1)
                    data.complain("buckets", Problem::unsupported, "sd-scripts trains on images: frames are 1");
                add(data, "buckets", bucket[0], bucket[1]);
            }
        } else if (const auto sides = data.integers("resolution", side, {2, 2}, io::Single::is_a_list)) {
            if (is_job_ || sides->size() == 2)
                add(data, "resolution", sides->front(), sides->back());
            else
                out_.resolution = sides->front();
        }
        if (out_.resolution) arguments_.dataset.width = arguments_.dataset.height = *out_.resolution;
        (void)data.integer("frames", {1, 1});
        const std::int64_t most = arguments_.script == &flux ? most_tokens : 227;
        out_.text_tokens = data.integer("text_tokens", {1, most});
        if (out_.text_tokens && arguments_.script != &flux) {
            const std::int64_t nearest = nearest_length(*out_.text_tokens - 2) + 2;  // tokens of begin and end
            if (*out_.text_tokens != nearest) {
                data.complain(
                    "text_tokens", Problem::bad_value,
                    data.path("text_tokens") + " must be 77, 152 or 227, not " + std::to_string(*out_.text_tokens),
                    std::to_string(nearest));
                out_.text_tokens.reset();
            }
        }
        data.finish();
    }

    void sample(io::Fields& job) {
        const io::Node* node = job.node("sample");
        if (node == nullptr) return;
        if (node->is(io::Kind::null)) {
            arguments_.sample_at_first = arguments_.samples_while_training = false;
            return;
        }
        io::Fields sample = job.map("sample");
        const std::optional<bool> enabled = sample.boolean("enabled");
        const auto sides = sample.integers("resolution", {64, side.max}, {2, 2}, io::Single::is_a_list);
        const auto steps = sample.integer("steps", {1, most_steps});
        const auto guidance = sample.number("guidance");
        (void)sample.integer("batch_size", {1, 1});
        (void)sample.integer("frames", {1, 1});
        sample.finish();
        if (enabled && !*enabled) {
            arguments_.sample_at_first = arguments_.samples_while_training = false;
            return;
        }
        const bool said = sides || steps || guidance;
        if (!enabled && !said && !is_job_) return;
        arguments_.samples_while_training = true;
        if (!said && !arguments_.sample_prompts.empty()) return;  // the file's own prompts
        const std::int64_t step = arguments_.script->sample_step;
        job::Sampling out;
        const std::int64_t width = (sides ? sides->front() : 512) / step * step;
        const std::int64_t height = (sides ? sides->back() : 512) / step * step;
        for (const std::int64_t one : {width, height})
            if (side_below(*arguments_.script, one) != one) {
                sample.complain("resolution", Problem::out_of_range,
                                "sample.resolution must be divisible by " +
                                    std::to_string(arguments_.script->side_step) + " for " +
                                    std::string(arguments_.script->title) + ", not " + std::to_string(one),
                                std::to_string(side_below(*arguments_.script, one)));
                break;
            }
        out.images = {{width, height, 1, 1}};
        out.steps = steps.value_or(arguments_.script->sample_steps);
        out.guidance = guidance.value_or(arguments_.script->sample_scale);
        out_.sampling = std::move(out);
    }

  private:
    void add(io::Fields& data, std::string_view key, std::int64_t width, std::int64_t height) {
        const std::int64_t step = arguments_.script->side_step;
        for (const std::int64_t one : {width, height})
            if (one % step != 0 || one < side.min)
                data.complain(key, Problem::out_of_range,
                              data.path(key) + " must be divisible by " + std::to_string(step) + " for " +
                                  std::string(arguments_.script->title) + ", and 64 at least, not " +
                                  std::to_string(one),
                              std::to_string(std::max(side.min, (one + step / 2) / step * step)));
        out_.sizes_said = true;
        out_.sizes.push_back({width, height});
    }

    Arguments& arguments_;
    Overrides& out_;
    bool is_job_;
};

}  // namespace

const profile::ModelProfile* said_model(const io::Document& document, const profile::Catalogue& catalogue,
                                        Diagnostics& complaints) {
    io::Fields job(document, said_in(document), "", complaints);
    const auto model = job.text("model");
    if (!model) {
        if (is_job_file(document)) (void)job.require("model");
        return nullptr;
    }
    const profile::ModelProfile* profile = catalogue.model(*model);
    if (profile == nullptr)
        job.complain("model", Problem::unknown_model, "unknown model " + *model, catalogue.nearest_model(*model));
    else if (script_of(*profile) == nullptr)
        job.complain("model", Problem::unsupported,
                     profile->name +
                         " is not modelled with trainer sd-scripts: Stable Diffusion 1 and 2, SDXL and "
                         "FLUX.1 are");
    else
        return profile;
    return nullptr;
}

Config job_defaults(const profile::ModelProfile& model) {
    Config config;
    Arguments& out = config.arguments;
    out.script = script_of(model);
    out.weight_dtype = Dtype::bf16;
    out.mixed_precision = true;
    out.attention = Attention::sdpa;
    out.network_train_unet_only = true;
    out.dataset.width = model.defaults.width;
    out.dataset.height = model.defaults.height;
    return config;
}

Overrides apply_overrides(const io::Document& document, const profile::Catalogue& catalogue, Config& config,
                          Diagnostics& complaints, Diagnostics& notes) {
    Overrides out;
    const bool is_job = is_job_file(document);
    io::Fields job(document, said_in(document), "", complaints);
    if (is_job) (void)job.integer("vramest", {1, 1}, io::required);
    job.ignore("model");  // said_model
    Reader reader(config, out, is_job);
    reader.trainer(job);
    reader.precision(job);
    reader.train(job);
    reader.data(job);
    reader.sample(job);
    out.environment = read_environment(job, notes);
    out.card = read_card(job, catalogue.cards());
    job.finish();
    return out;
}

}  // namespace vram::trainers::sd_scripts
