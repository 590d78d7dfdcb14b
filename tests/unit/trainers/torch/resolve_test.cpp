#include "trainers/torch/resolve.hpp"

#include <doctest/doctest.h>

#include "nn/adapter/targets.hpp"
#include "vram/io/document.hpp"
#include "vram/profile/catalogue.hpp"

using namespace vram;

namespace {

profile::ModelProfile model(std::string id, profile::ModelKind kind, std::int64_t divisible_by, std::int64_t frame_step,
                            profile::Defaults defaults) {
    profile::ModelProfile out;
    out.id = std::move(id);
    out.kind = kind;
    out.divisible_by = divisible_by;
    out.frame_step = frame_step;
    out.defaults = defaults;
    return out;
}

const profile::Catalogue& catalogue() {
    using profile::ModelKind;
    static const profile::Catalogue made = *profile::Catalogue::of(
        {model("image", ModelKind::denoiser, 16, 0, {1024, 1024, 1, 512}),
         model("video", ModelKind::denoiser, 16, 4, {832, 480, 81, 512}),
         model("edit", ModelKind::denoiser, 16, 0, {1024, 1024, 1, 512}),
         model("no_default", ModelKind::denoiser, 8, 0, {}), model("vae", ModelKind::vae, 8, 4, {1024, 1024, 1, 0}),
         model("text", ModelKind::text_encoder, 1, 0, {0, 0, 1, 77})},
        profile::DeviceCatalogue::built_in());
    return made;
}

struct Resolved {
    expected<job::Job> job;
    Diagnostics notes;
};

Resolved resolve(const std::string& rest, const std::string& what = "model: image") {
    const std::string text = "vramest: 1\ntrainer: torch\n" + what + "\n" + rest;
    const expected<io::Document> document = io::read(text, "job.yaml", io::Format::yaml);
    REQUIRE(document);
    Resolved out{Unexpected{}, {}};
    out.job = trainers::torch::resolve(*document, catalogue(), out.notes);
    return out;
}

job::Job job_of(const std::string& rest, const std::string& what = "model: image") {
    const Resolved resolved = resolve(rest, what);
    if (!resolved.job) FAIL(to_text(resolved.job.error().front()));
    return *resolved.job;
}

const job::Training& training_of(const job::Job& job) { return std::get<job::Training>(job.work); }

}  // namespace

TEST_CASE("what a job does not say has the defaults of the job file") {
    const job::Job job = job_of("train: {method: lora, rank: 16}\n");
    CHECK(job.trainer == "torch");
    CHECK(job.model == "image");
    CHECK(!job.component);
    CHECK(job.dtype == Dtype::bf16);
    CHECK(job.text_tokens == 512);
    CHECK(job.environment == job::Environment{});
    CHECK(job.card == job::Card{});
    const job::Training& training = training_of(job);
    CHECK(training.batches == std::vector{job::Batch{1024, 1024, 1, 1}});
    CHECK(std::get<job::Lora>(training.method) == job::Lora{16, 16.0, Dtype::bf16, {"attention"}, {}, "train.targets"});
    CHECK(training.optimizer == job::Optimizer{job::AdamW{}});
    CHECK(!training.gradient_checkpointing);
    CHECK(training.gradient_accumulation == 1);
    CHECK(!training.autocast.enabled);
    CHECK(!training.ema);
}

TEST_CASE("every key of a training is read") {
    const job::Job job = job_of(R"(dtype: fp16
train:
  method: lora
  rank: 32
  alpha: 8.5
  targets: [to_q, "to_k$"]
  adapter_dtype: fp32
  gradient_checkpointing: true
  batch_size: 3
  gradient_accumulation: 4
  autocast: bf16
  optimizer: adamw8bit
  ema: true
data: {buckets: [[512, 768], [1024, 1024, 5]], frames: 9, text_tokens: 77}
environment: {torch: 2.10, alloc_conf: "max_split_size_mb:128", os: wsl, other_processes: 1 GiB, attention: math}
capacity: 24 GiB
)",
                                "model: video");
    CHECK(job.dtype == Dtype::f16);
    const job::Training& training = training_of(job);
    CHECK(std::get<job::Lora>(training.method) ==
          job::Lora{32, 8.5, Dtype::f32, {"to_q", "to_k$"}, {}, "train.targets"});
    CHECK(training.gradient_checkpointing);
    CHECK(training.gradient_accumulation == 4);
    CHECK(training.autocast == job::Autocast{true, Dtype::bf16});
    CHECK(training.optimizer == job::Optimizer{job::Bitsandbytes{}});
    CHECK(training.ema);
    CHECK(training.batches == std::vector{job::Batch{512, 768, 9, 3}, job::Batch{1024, 1024, 5, 3}});
    CHECK(job.text_tokens == 77);
    CHECK(job.environment.torch_minor == 10);  // the number 2.1 as it is written
    CHECK(job.environment.alloc_conf == "max_split_size_mb:128");
    CHECK(job.environment.os == job::Environment::Os::wsl);
    CHECK(job.environment.other_processes == GiB);
    CHECK(job.environment.attention == job::Environment::Attention::math);
    CHECK(job.card.capacity == 24 * GiB);
    CHECK(job.resolved.at("environment.torch") == "2.10");
    CHECK(job.resolved.at("train.targets") == "[to_q, to_k$]");
    CHECK(job.resolved.at("data.buckets") == "[[512, 768, 9], [1024, 1024, 5]]");
}

TEST_CASE("an adapter has the weights' dtype unless it says") {
    const job::Job job = job_of("dtype: fp32\ntrain: {method: lora, rank: 4}\n");
    CHECK(std::get<job::Lora>(training_of(job).method).dtype == Dtype::f32);
}

TEST_CASE("without train it is one call") {
    const job::Job job = job_of("batch_size: 2\ndata: {resolution: [512, 768]}\n");
    CHECK(std::get<job::Call>(job.work) ==
          job::Call{job::Call::Operation::forward, {512, 768, 1, 2}, false, false, false, false, false});
    CHECK(job.resolved.at("batch_size") == "2");
}

TEST_CASE("a component is called") {
    const job::Job vae = job_of("op: decode\ntiling: true\ndata: {resolution: 512, frames: 5}\n", "component: vae");
    CHECK(vae.component);
    CHECK(std::get<job::Call>(vae.work) ==
          job::Call{job::Call::Operation::decode, {512, 512, 5, 1}, true, false, false, false, false});
    const job::Job text = job_of("attention_mask: true\ndata: {text_tokens: 256}\n", "component: text");
    CHECK(std::get<job::Call>(text.work) ==
          job::Call{job::Call::Operation::forward, {0, 0, 1, 1}, false, false, true, false, false});
    CHECK(text.text_tokens == 256);
}

TEST_CASE("versions of cuDNN are counted as it counts itself") {
    for (const auto& [written, version] :
         {std::pair{"9.10.2", 91002}, {"9.10.2.21", 91002}, {"'9.10'", 91000}, {"8.9.2", 8902}}) {
        CAPTURE(written);
        CHECK(job_of("environment: {cudnn: " + std::string(written) + "}\n").environment.cudnn == version);
    }
    CHECK(job_of("").environment.cudnn == 0);
    CHECK(job_of("environment: {cudnn: 9.10.2}\n").resolved.at("environment.cudnn") == "9.10.2");
}

TEST_CASE("versions of torch are taken as they are written") {
    for (const auto& [written, minor] :
         {std::pair{"2.1", 1}, {"2.10", 10}, {"'2.10'", 10}, {"2.13.1", 13}, {"2.9.0+cu130", 9}}) {
        CAPTURE(written);
        CHECK(job_of("environment: {torch: " + std::string(written) + "}\n").environment.torch_minor == minor);
    }
}

TEST_CASE("a card is known by any of its names") {
    CHECK(job_of("gpu: NVIDIA GeForce RTX 4090\n").card.gpu == "rtx-4090");
}

TEST_CASE("a bucket that is written twice is played once, and said so") {
    const Resolved resolved =
        resolve("train: {method: full}\ndata: {buckets: [[512, 512], [768, 512], [512, 512, 1]]}\n");
    REQUIRE(resolved.job);
    CHECK(training_of(*resolved.job).batches.size() == 2);
    REQUIRE(resolved.notes.size() == 1);
    CHECK(resolved.notes[0].key == "data.buckets[2]");
    CHECK(resolved.notes[0].severity == Severity::note);
}

TEST_CASE("sizes are those that the model takes; the nearest is named") {
    struct Case {
        const char *why, *what, *data, *key, *nearest;
    };
    for (const Case& c : {
             Case{"up is nearer", "model: image", "resolution: 1000", "data.resolution", "1008"},
             Case{"down is nearer", "model: image", "resolution: [1030, 512]", "data.resolution[0]", "1024"},
             Case{"never nothing", "model: image", "resolution: [8, 512]", "data.resolution[0]", "16"},
             Case{"an image model takes single frames", "model: image", "frames: 2", "data.frames", "1"},
             Case{"4 n + 1 frames", "model: video", "frames: 80", "data.frames", "81"},
             Case{"4 n + 1 frames, the nearer one", "model: video", "frames: 18", "data.frames", "17"},
             Case{"a VAE has its own step", "component: vae\nop: encode", "resolution: 1004", "data.resolution",
                  "1008"},
         }) {
        CAPTURE(c.why);
        const Resolved resolved = resolve("data: {" + std::string(c.data) + "}\n", c.what);
        REQUIRE(!resolved.job);
        REQUIRE(resolved.job.error().size() == 1);
        const Diagnostic& complaint = resolved.job.error()[0];
        CHECK(complaint.problem == Problem::out_of_range);
        CHECK(complaint.key == c.key);
        CHECK(complaint.nearest == c.nearest);
        CHECK(complaint.place.line > 0);
    }
}

TEST_CASE("what has no meaning for a model is not passed over") {
    struct Case {
        const char *why, *what, *rest, *key;
        Problem problem;
    };
    for (const Case& c : {
             Case{"a text encoder sees no pictures", "component: text", "data: {resolution: 512}", "data.resolution",
                  Problem::conflict},
             Case{"a VAE sees no text", "component: vae\nop: encode", "data: {text_tokens: 77}", "data.text_tokens",
                  Problem::conflict},
             Case{"tiling is for a VAE", "component: text", "tiling: true", "tiling", Problem::conflict},
             Case{"a cache is for a text encoder", "component: vae\nop: encode", "use_cache: true", "use_cache",
                  Problem::conflict},
             Case{"a VAE has two ops", "component: vae", "", "op", Problem::missing_key},
             Case{"a VAE has no forward here", "component: vae\nop: forward", "", "op", Problem::bad_value},
             Case{"a text encoder has one op", "component: text\nop: encode", "", "op", Problem::bad_value},
             Case{"a component is not trained", "component: vae\nop: encode", "train: {method: full}", "train",
                  Problem::conflict},
             Case{"a VAE is no model", "model: vae", "", "model", Problem::conflict},
             Case{"a model without a size of its own must be told", "model: no_default", "data: {text_tokens: 1}",
                  "data.resolution", Problem::missing_key},
             Case{"nor does the text have one", "model: no_default", "data: {resolution: 512}", "data.text_tokens",
                  Problem::missing_key},
         }) {
        CAPTURE(c.why);
        const Resolved resolved = resolve(std::string(c.rest) + "\n", c.what);
        REQUIRE(!resolved.job);
        REQUIRE(resolved.job.error().size() == 1);
        CHECK(resolved.job.error()[0].key == c.key);
        CHECK(resolved.job.error()[0].problem == c.problem);
    }
}

TEST_CASE("every scheme and adapter that is known and not modelled says so") {
    for (const char* rest :
         {"quantize: kohya_fp8", "quantize: gguf_q4_k_m", "quantize: {transformer: svdq_int4}",
          "train: {method: dora, rank: 4}", "train: {method: lora, rank: 4, conv_rank: 4}",
          "train: {method: full, optimizer: muon}", "sample: {steps: 4}", "environment: {torch: 3.0}"}) {
        CAPTURE(rest);
        const Resolved resolved = resolve(std::string(rest) + "\n");
        REQUIRE(!resolved.job);
        REQUIRE(resolved.job.error().size() == 1);
        CHECK(resolved.job.error()[0].problem == Problem::unsupported);
        CHECK(resolved.job.error()[0].place.line == 4);
    }
}

TEST_CASE("no pattern of a target makes the search run away") {
    const job::Job job = job_of("train: {method: lora, rank: 4, targets: ['(.+)+!']}\n");
    const auto adapts = nn::adapter::targets(std::get<job::Lora>(training_of(job).method).targets);
    CHECK(!adapts("transformer_blocks.0.attn.to_q.base_layer.and.more"));
    CHECK(!resolve("train: {method: lora, rank: 4, targets: ['(a)\\1']}\n").job);
    CHECK(!resolve("train: {method: lora, rank: 4, targets: ['" + std::string(2000, '(') + "']}\n").job);
}
