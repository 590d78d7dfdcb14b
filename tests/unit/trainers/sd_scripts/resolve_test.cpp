#include "trainers/sd_scripts/resolve.hpp"

#include <algorithm>
#include <initializer_list>

#include "unit/trainers/sd_scripts/files.hpp"

using namespace vram;
using namespace vram::trainers::sd_scripts;
using namespace vram::trainers::sd_scripts::files;
using Batches = std::vector<job::Batch>;

namespace {

const job::Training& training(const job::Job& job) { return std::get<job::Training>(job.work); }
const job::Lora& lora(const job::Job& job) { return std::get<job::Lora>(training(job).method); }

}  // namespace

TEST_CASE("sd-scripts: a file of the GUI becomes a job with nothing left open") {
    const Resolved out =
        resolved(R"({"LoRA_type": "Kohya LoCon", "sdxl": true, "max_resolution": "1024,1024", "train_batch_size": 3,
        "mixed_precision": "bf16", "optimizer": "AdamW", "network_dim": 32, "network_alpha": 16, "conv_dim": 8,
        "gradient_checkpointing": true, "gradient_accumulation_steps": "2", "sdxl_no_half_vae": true,
        "max_token_length": "225", "network_dropout": 0.1, "vae_batch_size": 2, "xformers": true})");
    REQUIRE(out.job);
    const job::Job& job = *out.job;
    CHECK(job.trainer == "sd-scripts");
    CHECK(job.model == "sdxl");
    REQUIRE(job.described.size() == 3);  // and both text encoders
    CHECK(job.described.front().family == "sdxl_sd_scripts");
    CHECK(job.dtype == Dtype::bf16);
    CHECK(job.text_tokens == 227);
    CHECK(lora(job).rank == 32);
    CHECK(lora(job).alpha == 16);
    CHECK(lora(job).dtype == Dtype::f32);
    CHECK(lora(job).layers.conv_rank == 8);
    CHECK(lora(job).dropout);
    CHECK(training(job).autocast == job::Autocast{true, Dtype::bf16});
    CHECK(training(job).gradient_checkpointing);
    CHECK(training(job).gradient_accumulation == 2);
    CHECK(training(job).text_encoders.trains);
    CHECK(training(job).batches == Batches{{1024, 1024, 1, 3}});
    CHECK(job.pipeline.architecture == "sdxl");
    CHECK(job.pipeline.vae == "vae_sd_4ch");
    CHECK(job.pipeline.text_encoders == std::vector<std::string>{"clip_l", "openclip_bigg"});
    CHECK(job.pipeline.vae_dtype == Dtype::f32);
    CHECK(job.pipeline.text_encoder_dtype == Dtype::bf16);
    CHECK(job.pipeline.cache_latents);
    CHECK_FALSE(job.pipeline.cache_text);
    CHECK(job.pipeline.options ==
          std::map<std::string, std::string>{{"attention", "xformers"}, {"vae_batch_size", "2"}});
    CHECK(job.resolved.at("train.rank") == "32");
    CHECK(job.resolved.at("data.buckets") == "[[1024, 1024, 1]]");
    // No model is named: the box says which.
    CHECK(std::any_of(out.notes.begin(), out.notes.end(), [](const Diagnostic& note) {
        return note.problem == Problem::unknown_model && note.key == "pretrained_model_name_or_path";
    }));
}

TEST_CASE("sd-scripts: the model is the script's, by a name that is known or by what it is started for") {
    struct Case {
        const char* why;
        std::string text;
        const char* model;  // empty: there is a complaint
        const char* architecture;
        std::int64_t tokens;
    };
    const auto named = [](const std::string& name) { return "\"pretrained_model_name_or_path\": \"" + name + "\""; };
    for (const Case& c : {
             Case{"a repository", gui(named("runwayml/stable-diffusion-v1-5")), "sd15", "sd1", 77},
             Case{"a file that is not there", gui(named("/data/dreamshaper.safetensors")), "sd15", "sd1", 77},
             Case{"v2", gui(named("/data/a.safetensors") + ", \"v2\": true"), "sd21", "sd2", 77},
             Case{"SDXL", gui(named("/data/pony.safetensors") + ", \"sdxl\": true"), "sdxl", "sdxl", 77},
             Case{"longer captions", gui("\"max_token_length\": 150"), "sd15", "sd1", 152},
             Case{"FLUX.1", gui_flux("\"text_encoder_lr\": 0"), "flux1_dev", "flux", 512},
             Case{"fewer tokens", gui_flux("\"t5xxl_max_token_length\": 256"), "flux1_dev", "flux", 256},
             Case{"another shape", gui(named("stabilityai/stable-diffusion-xl-base-1.0")), "", "", 0},
             Case{"a model of another trainer", gui(named("Qwen/Qwen-Image") + ", \"sdxl\": true"), "", "", 0},
         }) {
        CAPTURE(c.why);
        const Resolved out = resolved(c.text);
        CHECK(out.job.has_value() == !std::string(c.model).empty());
        if (!out.job) {
            CHECK(out.job.error().front().problem == Problem::conflict);
            CHECK(out.job.error().front().key == "pretrained_model_name_or_path");
            continue;
        }
        CHECK(out.job->model == c.model);
        CHECK(out.job->pipeline.architecture == c.architecture);
        CHECK(out.job->text_tokens == c.tokens);
    }
}

TEST_CASE("sd-scripts: options that its own names have, only where they differ from its defaults") {
    using Options = std::map<std::string, std::string>;
    struct Case {
        const char* why;
        std::string text;
        Options options;
    };
    const std::string gui_sd = "\"xformers\": \"none\"";
    for (const Case& c : {
             Case{"the defaults", toml(""), {{"attention", "plain"}}},
             Case{"the order in which attention is asked for",
                  toml("sdpa = true\nxformers = true\n"),
                  {{"attention", "xformers"}}},
             Case{"no clipping", toml("max_grad_norm = 0.0\n"), {{"attention", "plain"}, {"max_grad_norm", "0"}}},
             Case{"where latents and models are",
                  toml("highvram = true\ncache_latents_to_disk = true\n"),
                  {{"attention", "plain"}, {"highvram", "true"}, {"cache_latents_to_disk", "true"}}},
             Case{"in halves",
                  toml("full_fp16 = true\nmixed_precision = \"fp16\"\n"),
                  {{"attention", "plain"}, {"full_fp16", "true"}}},
             Case{"noise and loss as large as the latents",
                  toml("noise_offset = 0.05\nmin_snr_gamma = 5\n"),
                  {{"attention", "plain"}, {"noise_offset", "0.05"}}},
             Case{"the GUI always says clip_skip", gui(gui_sd), {{"attention", "plain"}, {"clip_skip", "1"}}},
             Case{"of FLUX.1",
                  gui_flux("\"flux1_cache_text_encoder_outputs\": true, \"fp8_base\": true, \"apply_t5_attn_mask\": "
                           "true, \"model_prediction_type\": \"raw\""),
                  {{"attention", "sdpa"},
                   {"fp8_base", "true"},
                   {"apply_t5_attn_mask", "true"},
                   {"model_prediction_type", "raw"}}},
         }) {
        CAPTURE(c.why);
        CHECK(job_of(c.text).pipeline.options == c.options);
    }
    CHECK(lora(job_of(toml("full_bf16 = true\nmixed_precision = \"bf16\"\n"))).dtype == Dtype::bf16);
    const job::Job flux1 = job_of(gui_flux("\"text_encoder_lr\": 1e-5"));
    CHECK(training(flux1).text_encoders == job::TextEncoderTraining{true, {true, false}});  // T5 is not
}

TEST_CASE("sd-scripts: settings beside a file, and job files") {
    const std::string text = gui("\"sdxl\": true, \"gradient_checkpointing\": true");
    const job::Job set = job_of(text, {{"train.batch_size", "4"},
                                       {"train.rank", "16"},
                                       {"train.optimizer", "adafactor"},
                                       {"train.gradient_checkpointing", "false"},
                                       {"data.buckets", "[[1024, 1024], [832, 1216]]"},
                                       {"environment.os", "windows"},
                                       {"sample.resolution", "640"}});
    CHECK(training(set).batches == Batches{{1024, 1024, 1, 4}, {832, 1216, 1, 4}});
    CHECK(lora(set).rank == 16);
    CHECK(job::name_of(training(set).optimizer) == "adafactor");
    CHECK_FALSE(training(set).gradient_checkpointing);
    CHECK(set.environment.os == job::Environment::Os::windows);
    CHECK(set.sampling.images == Batches{{640, 640, 1, 1}});
    CHECK(training(job_of(text, {{"data.resolution", "768"}})).batches == Batches{{768, 768, 1, 1}});
    CHECK(job_of(text, {{"sample.enabled", "true"}}).sampling.images == Batches{{512, 512, 1, 1}});
    const std::string prompts = gui(R"("sample_prompts": "a --w 640", "sample_every_n_steps": 5)");
    CHECK(job_of(prompts, {{"sample.enabled", "true"}}).sampling.images == Batches{{640, 512, 1, 1}});
    CHECK(job_of(prompts, {{"sample", ""}}).sampling == job::Sampling{});
    const job::Job other = job_of(text, {{"model", "sd15"}});
    CHECK(other.model == "sd15");
    CHECK(other.pipeline.architecture == "sd1");

    struct Case {
        const char* why;
        Settings settings;
        Problem problem;
        const char* key;
    };
    for (const Case& c : {
             Case{"another trainer", {{"trainer", "ai-toolkit"}}, Problem::conflict, "trainer"},
             Case{"no trainer", {{"trainer", "sd-script"}}, Problem::unknown_trainer, "trainer"},
             Case{"no model", {{"model", "sdx"}}, Problem::unknown_model, "model"},
             Case{"another trainer's model", {{"model", "wan21_t2v_14b"}}, Problem::unsupported, "model"},
             Case{"sides", {{"data.buckets", "[[1000, 1001]]"}}, Problem::out_of_range, "data.buckets"},
             Case{"quantised", {{"quantize", "quanto_qfloat8"}}, Problem::unsupported, "quantize"},
             Case{"a whole model", {{"train.method", "full"}}, Problem::unsupported, "train.method"},
             Case{"a typo", {{"train.batchsize", "2"}}, Problem::unknown_key, "train.batchsize"},
         }) {
        CAPTURE(c.why);
        const Resolved out = resolved(text, c.settings);
        REQUIRE_FALSE(out.job);
        CHECK(out.job.error().front().problem == c.problem);
        CHECK(out.job.error().front().key == c.key);
    }

    static const profile::Catalogue catalogue = profile::Catalogue::built_in();
    const expected<io::Document> file = io::read(
        "vramest: 1\ntrainer: sd-scripts\nmodel: sdxl\ntrain: {method: lora, rank: 8, optimizer: adamw8bit, "
        "batch_size: 2}\n"
        "data: {resolution: 1024}\n",
        "job.yaml", io::Format::yaml);
    REQUIRE(file);
    Diagnostics notes;
    const expected<job::Job> job = resolve(*file, catalogue, notes);
    REQUIRE(job);
    CHECK(training(*job).batches == Batches{{1024, 1024, 1, 2}});
    CHECK(training(*job).autocast == job::Autocast{true, Dtype::bf16});
    CHECK_FALSE(training(*job).text_encoders.trains);
}
