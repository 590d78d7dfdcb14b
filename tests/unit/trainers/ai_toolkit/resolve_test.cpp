#include "trainers/ai_toolkit/resolve.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "unit/io/temporary_folder.hpp"
#include "unit/io/tensor_bytes.hpp"
#include "unit/models/saved.hpp"
#include "vram/io/document.hpp"
#include "vram/io/path.hpp"
#include "vram/profile/catalogue.hpp"

using namespace vram;
using namespace vram::trainers;

namespace {

using Settings = std::vector<std::pair<std::string, std::string>>;

const std::string text =
    "job: extension\n"
    "config:\n"
    "  name: cat\n"
    "  process:\n"
    "    - type: sd_trainer\n"
    "      network: {type: lora, linear: 16}\n"
    "      datasets: [{folder_path: /no/such/folder, resolution: [512, 1024], cache_latents_to_disk: true}]\n"
    "      train: {noise_scheduler: flowmatch, dtype: bf16, optimizer: adamw8bit}\n"
    "      model: {name_or_path: black-forest-labs/FLUX.1-dev, arch: flux, quantize: true}\n"
    "      sample: {width: 1024, height: 768, prompts: [a, b, c --w 520]}\n";

std::string replaced(std::string in, const std::string& what, const std::string& by) {
    const std::size_t at = in.find(what);
    REQUIRE(at != std::string::npos);
    return in.replace(at, what.size(), by);
}

struct Resolved {
    expected<job::Job> job;
    Diagnostics notes;
};
Resolved resolve(const std::string& file, const Settings& settings = {}) {
    static const profile::Catalogue catalogue = profile::Catalogue::built_in();
    expected<io::Document> document = io::read(file, "job.yaml", io::Format::yaml);
    REQUIRE(document);
    for (const auto& [key, value] : settings) REQUIRE_FALSE(io::assign(*document, "vramest." + key, value));
    Diagnostics notes;
    expected<job::Job> job = ai_toolkit::resolve(*document, catalogue, notes);
    return {std::move(job), std::move(notes)};
}
job::Job good(const std::string& file, const Settings& settings = {}) {
    Resolved out = resolve(file, settings);
    if (!out.job) FAIL(to_text(out.job.error().front()));
    return *out.job;
}
const job::Training& training(const job::Job& job) { return std::get<job::Training>(job.work); }

}  // namespace

TEST_CASE("ai-toolkit: a config becomes a job with nothing left open") {
    const job::Job job = good(text);
    CHECK(job.trainer == "ai-toolkit");
    CHECK(job.model == "flux1_dev");
    CHECK(job.dtype == Dtype::bf16);
    CHECK(job.quantization == job::Quantization::quanto_qfloat8);
    CHECK(job.text_tokens == 512);
    CHECK(job.pipeline.text_encoder_quantization == job::Quantization::quanto_qfloat8);
    CHECK(job.pipeline.cache_latents);
    CHECK_FALSE(job.pipeline.cache_text);
    CHECK(training(job).batches == std::vector<job::Batch>{{512, 512, 1, 1}, {1024, 1024, 1, 1}});
    CHECK(std::get<job::Lora>(training(job).method).dtype == Dtype::f32);
    CHECK(job.sampling.baseline);
    CHECK(job.sampling.images == std::vector<job::Batch>{{1024, 768, 1, 1}, {512, 768, 1, 1}});
    CHECK_FALSE(job.sampling.merges_adapter);
    CHECK(job.resolved.at("train.optimizer") == "adamw8bit");
    CHECK(job.resolved.at("data.buckets") == "[[512, 512, 1], [1024, 1024, 1]]");
}

TEST_CASE("ai-toolkit: settings go before the file, by the job's names") {
    struct Case {
        const char* why;
        Settings settings;
        bool (*holds)(const job::Job&);
    };
    using J = const job::Job&;
    for (const Case& c : {
             Case{"buckets replace the datasets' sizes",
                  {{"data.buckets", "[[1024, 768, 1], [512, 512]]"}},
                  [](J j) {
                      return training(j).batches == std::vector<job::Batch>{{1024, 768, 1, 1}, {512, 512, 1, 1}};
                  }},
             Case{"a resolution is of every dataset",
                  {{"data.resolution", "768"}},
                  [](J j) {
                      return training(j).batches == std::vector<job::Batch>{{768, 768, 1, 1}};
                  }},
             Case{"a width and a height are one bucket",
                  {{"data.resolution", "[768, 1344]"}},
                  [](J j) {
                      return training(j).batches == std::vector<job::Batch>{{768, 1344, 1, 1}};
                  }},
             Case{"a batch size is of every dataset",
                  {{"train.batch_size", "4"}},
                  [](J j) { return training(j).batches[1].count == 4; }},
             Case{"rank",
                  {{"train.rank", "64"}},
                  [](J j) { return std::get<job::Lora>(training(j).method).rank == 64; }},
             Case{"optimizer",
                  {{"train.optimizer", "adamw"}},
                  [](J j) { return std::holds_alternative<job::AdamW>(training(j).optimizer); }},
             Case{"checkpointing",
                  {{"train.gradient_checkpointing", "false"}},
                  [](J j) { return !training(j).gradient_checkpointing; }},
             Case{"no quantisation lets the adapter be merged",
                  {{"quantize", "none"}},
                  [](J j) { return j.quantization == job::Quantization::none && j.sampling.merges_adapter; }},
             Case{"one part",
                  {{"quantize", "{text_encoder: none}"}},
                  [](J j) {
                      return j.quantization != job::Quantization::none &&
                             j.pipeline.text_encoder_quantization == job::Quantization::none;
                  }},
             Case{"in full",
                  {{"train.method", "full"}, {"quantize", "none"}},
                  [](J j) { return std::holds_alternative<job::FullFinetune>(training(j).method); }},
             Case{"the model", {{"model", "flex1"}}, [](J j) { return j.model == "flex1"; }},
             Case{"the card and torch",
                  {{"gpu", "rtx-4090"}, {"environment.torch", "2.10"}},
                  [](J j) { return j.card.gpu == "rtx-4090" && j.environment.torch_minor == 10; }},
             Case{"samples",
                  {{"sample.resolution", "[512, 640]"}},
                  [](J j) {
                      return j.sampling.images == std::vector<job::Batch>{{512, 640, 1, 1}};
                  }},
         }) {
        CAPTURE(c.why);
        CHECK(c.holds(good(text, c.settings)));
    }
}

TEST_CASE("ai-toolkit: settings that cannot be are complaints") {
    struct Case {
        Settings settings;
        Problem problem;
        const char* key;
        const char* nearest;
    };
    for (const Case& c : {
             Case{{{"train.batch_sise", "2"}}, Problem::unknown_key, "train.batch_sise", "batch_size"},
             Case{{{"data.buckets", "[[1000, 1024]]"}}, Problem::out_of_range, "data.buckets", "1008"},
             Case{{{"data.buckets", "[[1024, 1024, 5]]"}}, Problem::unsupported, "data.buckets", ""},
             Case{{{"quantize", "quanto_qint88"}}, Problem::bad_value, "quantize", "quanto_qint8"},
             Case{{{"model", "flux1_def"}}, Problem::unknown_model, "model", "flux1_dev"},
             Case{{{"model", "kolors"}}, Problem::unsupported, "model", ""},
             Case{{{"model", "mochi1"}}, Problem::unsupported, "model", ""},
             Case{{{"train.method", "full"}}, Problem::unsupported, "config.process[0].model.quantize", ""},
             Case{{{"train.method", "full"}, {"quantize", "quanto_qfloat8"}}, Problem::unsupported, "quantize", ""},
             Case{{{"train.method", "full"}, {"quantize", "none"}, {"train.rank", "64"}},
                  Problem::conflict,
                  "train.rank",
                  ""},
             Case{{{"train.method", "ful"}}, Problem::bad_value, "train.method", "full"},
             Case{{{"train.alpha", "x"}}, Problem::wrong_type, "train.alpha", ""},
             Case{{{"train.alpha", "-1"}}, Problem::out_of_range, "train.alpha", ""},
             Case{{{"trainer", "garbage"}}, Problem::unknown_trainer, "trainer", ""},
             Case{{{"trainer", "ai-tolkit"}}, Problem::unknown_trainer, "trainer", "ai-toolkit"},
             Case{{{"trainer", "torch"}}, Problem::conflict, "trainer", ""},
             Case{{{"trainer", "5"}}, Problem::wrong_type, "trainer", ""},
             Case{{{"data.reference_images", "5"}}, Problem::wrong_type, "data.reference_images", ""},
             Case{{{"data.reference_images", "[[1024, 1024]]"}}, Problem::unsupported, "data.reference_images", ""},
             Case{{{"sample.batch_size", "2"}}, Problem::out_of_range, "sample.batch_size", ""},
             Case{{{"sample.resolutoin", "512"}}, Problem::unknown_key, "sample.resolutoin", "resolution"},
             Case{{{"train.autocast", "bf16"}}, Problem::unsupported, "train.autocast", ""},
         }) {
        CAPTURE(c.key);
        const Resolved out = resolve(text, c.settings);
        REQUIRE_FALSE(out.job);
        CHECK(out.job.error().size() == 1);
        CHECK(out.job.error().front().problem == c.problem);
        CHECK(out.job.error().front().key == c.key);
        CHECK(out.job.error().front().nearest == c.nearest);
    }
}

TEST_CASE("ai-toolkit: settings of an adapter are for one") {
    const std::string full =
        replaced(replaced(text, "      network: {type: lora, linear: 16}\n", ""), ", quantize: true", "");
    struct Case {
        Settings settings;
        Problem problem;
        const char* key;
    };
    for (const Case& c : {
             Case{{{"train.rank", "64"}}, Problem::conflict, "train.rank"},
             Case{{{"train.targets", "all"}}, Problem::conflict, "train.targets"},
             Case{{{"train.method", "lora"}}, Problem::missing_key, "train.rank"},
         }) {
        CAPTURE(c.key);
        const Resolved out = resolve(full, c.settings);
        REQUIRE_FALSE(out.job);
        CHECK(out.job.error().size() == 1);
        CHECK(out.job.error().front().problem == c.problem);
        CHECK(out.job.error().front().key == c.key);
    }
    const job::Job job = good(full, {{"train.method", "lora"}, {"train.rank", "8"}, {"trainer", "ai-toolkit"}});
    CHECK(std::get<job::Lora>(training(job).method).rank == 8);
    CHECK_FALSE(
        resolve(replaced(full, "dtype: bf16", "dtype: bf16, disable_sampling: true"), {{"sample.resolution", "512"}})
            .job);
}

TEST_CASE("ai-toolkit: complaints about the file point into it") {
    struct Case {
        const char* why;
        std::string text;
        Problem problem;
        const char* key;
        std::int32_t line;
    };
    for (const Case& c : {
             Case{"quantised in full", replaced(text, "      network: {type: lora, linear: 16}\n", ""),
                  Problem::unsupported, "config.process[0].model.quantize", 8},
             Case{"a crop that FLUX cannot pack",
                  replaced(text, "[512, 1024]", "[512,\n        1000], square_crop: true"), Problem::out_of_range,
                  "config.process[0].datasets[0].resolution[1]", 8},
         }) {
        CAPTURE(c.why);
        const Resolved out = resolve(c.text);
        REQUIRE_FALSE(out.job);
        CHECK(out.job.error().size() == 1);
        CHECK(out.job.error().front().problem == c.problem);
        CHECK(out.job.error().front().key == c.key);
        CHECK(out.job.error().front().place.line == c.line);
    }
    const auto said_at = [](const std::string& kwargs) {
        const std::string network = "linear: 16, network_kwargs: {" + kwargs + "}";
        return std::get<job::Lora>(training(good(replaced(text, "linear: 16", network))).method).said_at;
    };
    const std::string kwargs = "config.process[0].network.network_kwargs.";
    CHECK(said_at("only_if_contains: [x]") == kwargs + "only_if_contains");
    CHECK(said_at("ignore_if_contains: [x]") == kwargs + "ignore_if_contains");
    CHECK(said_at("ignore_if_contains: [x], only_if_contains: [y]") == kwargs + "only_if_contains");
}

TEST_CASE("ai-toolkit: of many sizes the heaviest are played, and a note counts the rest") {
    std::string resolutions = "512";
    for (int i = 1; i < 100; ++i) resolutions += ", " + std::to_string(512 + 32 * (100 - i));
    std::string prompts = "a";
    for (int i = 1; i < 20; ++i) prompts += ", a --w " + std::to_string(1024 - 16 * i);
    const Resolved out = resolve(replaced(replaced(text, "512, 1024", resolutions), "a, b, c --w 520", prompts));
    REQUIRE(out.job);
    const std::vector<job::Batch>& batches = training(*out.job).batches;
    REQUIRE(batches.size() == 32);
    CHECK(batches[0] == job::Batch{512, 512, 1, 1});  // the first, which is not among the heaviest
    CHECK(batches[1] == job::Batch{3680, 3680, 1, 1});
    CHECK(batches[31] == job::Batch{2720, 2720, 1, 1});
    REQUIRE(out.job->sampling.images.size() == 8);
    CHECK(out.job->sampling.images[0] == job::Batch{1024, 768, 1, 1});
    CHECK(out.job->sampling.images[7] == job::Batch{912, 768, 1, 1});
    std::vector<std::string> told;
    for (const Diagnostic& note : out.notes)
        if (note.problem == Problem::unsupported) told.push_back(note.text);
    CHECK(told ==
          std::vector<std::string>{"68 smaller buckets are not played", "12 smaller sizes of samples are not played"});
}

TEST_CASE("ai-toolkit: a job file may ask for its loop") {
    const std::string head = "vramest: 1\ntrainer: ai-toolkit\nmodel: flux-dev\n";
    const job::Job job =
        good(head +
             "quantize: quanto_qfloat8\ntrain: {method: lora, rank: 8, optimizer: adamw8bit, batch_size: 2}\n"
             "data: {resolution: 768}\nsample: {resolution: [512, 640]}\ngpu: rtx-4090\n");
    CHECK(job.trainer == "ai-toolkit");
    CHECK(job.model == "flux1_dev");
    CHECK(job.dtype == Dtype::bf16);
    CHECK(training(job).batches == std::vector<job::Batch>{{768, 768, 1, 2}});
    CHECK(std::get<job::Lora>(training(job).method).rank == 8);
    CHECK(job.sampling.images == std::vector<job::Batch>{{512, 640, 1, 1}});
    CHECK(job.card.gpu == "rtx-4090");
    CHECK(good(head + "train: {method: full}\n").sampling.images.empty());
    CHECK(training(good(head + "train: {method: full}\n")).batches == std::vector<job::Batch>{{1024, 1024, 1, 1}});
    struct Case {
        const char *rest, *key;
        Problem problem;
    };
    for (const Case& c : {Case{"", "train.method", Problem::missing_key},
                          Case{"train: {method: lora}\n", "train.rank", Problem::missing_key},
                          Case{"train: {method: lora, rank: 8, rnak: 4}\n", "train.rnak", Problem::unknown_key},
                          Case{"train: {method: full}\ntrain: {method: full}\n", "train", Problem::duplicate_key},
                          Case{"train: {method: full, rank: 8}\n", "train.rank", Problem::conflict},
                          Case{"train: {method: full}\nquantize: quanto_qfloat8\n", "quantize", Problem::unsupported},
                          Case{"train: {method: full}\ndatasets: []\n", "datasets", Problem::unknown_key}}) {
        CAPTURE(c.key);
        const Resolved out = resolve(head + c.rest);
        REQUIRE_FALSE(out.job);
        CHECK(out.job.error().front().problem == c.problem);
        CHECK(out.job.error().front().key == c.key);
        CHECK(out.job.error().front().place.line > 0);
    }
}

TEST_CASE("ai-toolkit: a model that lies on the disk is read, whatever its name") {
    const io::TemporaryFolder folder;
    const profile::Catalogue catalogue = profile::Catalogue::built_in();
    nlohmann::ordered_json config = models::config_of(catalogue.model_of("flux1_dev"));
    std::filesystem::create_directory(folder.path("dev"));
    const auto resolved = [&] {
        folder.write("dev/config.json", config.dump());
        return resolve(
            replaced(text, "name_or_path: black-forest-labs/FLUX.1-dev", "name_or_path: '" + folder.path("dev") + "'"));
    };
    config["num_layers"] = 4;
    const Resolved pruned = resolved();
    REQUIRE(pruned.job);
    CHECK(pruned.job->model == folder.path("dev"));
    REQUIRE(pruned.job->described.size() == 1);
    CHECK(pruned.job->described[0].config.integer("num_layers") == 4);
    config["in_channels"] = 384;
    CHECK(resolved().job.error().front().problem == Problem::unsupported);  // FLUX.1 Fill has another loop
    config["_class_name"] = "Magic";
    CHECK(resolved().job.error().front().problem == Problem::unsupported);
    config["_class_name"] = "FluxTransformer2DModel";
    config["num_layers"] = "four";
    const Resolved broken = resolved();
    CHECK(broken.job.error().front().problem == Problem::wrong_type);
    CHECK(broken.job.error().front().place.file == "job.yaml");
    CHECK(broken.job.error().front().text.find("config.json:1:") != std::string::npos);
}

TEST_CASE("ai-toolkit: which FLUX or Krea 2 it is, its name says") {
    struct Case {
        const char* name;
        const char* arch;
        const char* model;  // empty: an error
        bool note;
    };
    const std::string model = "name_or_path: black-forest-labs/FLUX.1-dev, arch: flux";
    for (const Case& c : {
             Case{"black-forest-labs/FLUX.1-schnell", "flux", "flux1_schnell", false},
             Case{"black-forest-labs/FLUX.1-Krea-dev", "flux", "flux1_dev", false},
             Case{"ostris/Flex.1-alpha", "flux", "flex1", false},
             Case{"ostris/Flex.1-alpha", "flex1", "flex1", false},
             Case{"/models/flux1-dev-finetune", "flux", "flux1_dev", true},
             Case{"/models/my-model", "flex1", "flex1", true},
             Case{"/models/my-model", "flux", "", false},
             Case{"black-forest-labs/FLUX.1-Kontext-dev", "flux", "", false},
             Case{"black-forest-labs/FLUX.1-Fill-dev", "flux", "", false},
             Case{"ostris/Flex.2-preview", "flux", "", false},
             Case{"krea/Krea-2-Turbo", "'krea2:turbo'", "krea2", false},
             Case{"/models/krea2-raw.safetensors", "krea2", "krea2", true},
             Case{"black-forest-labs/FLUX.1-Krea-dev", "krea2", "", false},
         }) {
        CAPTURE(c.name);
        const Resolved out =
            resolve(replaced(text, model, "name_or_path: " + std::string(c.name) + ", arch: " + c.arch));
        CHECK(static_cast<bool>(out.job) == (c.model[0] != 0));
        if (out.job) CHECK(out.job->model == c.model);
        bool noted = false;
        for (const Diagnostic& note : out.notes) noted = noted || note.problem == Problem::unknown_model;
        CHECK(noted == c.note);
    }
}

TEST_CASE(
    "ai-toolkit: an assistant LoRA is read where it lies, else its rank is a published one's or a guess that is told") {
    const auto with = [](const std::string& more) {
        return replaced(text, "black-forest-labs/FLUX.1-dev, arch: flux",
                        "Tongyi-MAI/Z-Image-Turbo, arch: 'zimage:turbo', assistant_lora_path: " + more);
    };
    const std::string folder_of = "ostris/zimage_turbo_training_adapter/zimage_turbo_training_adapter_";
    for (const auto& [file, rank] : {std::pair<std::string, std::int64_t>{folder_of + "v1.safetensors", 32},
                                     {folder_of + "v2.safetensors", 64},
                                     {"own/adapters/x.safetensors", 32}}) {
        CAPTURE(file);
        const Resolved out = resolve(with(file));
        REQUIRE(out.job);
        CHECK(out.job->pipeline.assistant == job::Assistant{file, rank, {}});
        CHECK(std::any_of(out.notes.begin(), out.notes.end(), [&, rank = rank](const Diagnostic& note) {
            return note.found == file && note.text.find("rank " + std::to_string(rank)) != std::string::npos;
        }));
    }
    // qfloat8 stands for float8 beside it, of the transformer alone; of quanto's others samples keep it.
    const std::string known = folder_of + "v2.safetensors";
    const job::Job eight = good(with(known + ", quantize: true"));
    CHECK(eight.quantization == job::Quantization::torchao_float8);
    CHECK(eight.pipeline.text_encoder_quantization == job::Quantization::quanto_qfloat8);
    const Resolved lost = resolve(with(known + ", quantize: true, qtype: qint8"));
    REQUIRE(lost.job);
    CHECK(std::any_of(lost.notes.begin(), lost.notes.end(), [](const Diagnostic& note) {
        return note.severity == Severity::warning && note.found == "quanto_qint8";
    }));

    const io::TemporaryFolder folder;
    const std::string layer = "diffusion_model.layers.0.attention.to_k.lora_";
    folder.write("own.safetensors",
                 io::safetensors(std::vector<io::MadeTensor>{{layer + "A.weight", {4, 3840}, "BF16"},
                                                             {layer + "B.weight", {3840, 4}, "BF16"}}));
    const std::string own = folder.path("own.safetensors");
    CHECK(good(with("'" + own + "'")).pipeline.assistant ==
          job::Assistant{own, 4, {"transformer.layers.0.attention.to_k"}});
    folder.write("none.safetensors", io::safetensors(std::vector<io::MadeTensor>{{"lora_A.weight", {4, 4}, "BF16"}}));
    const Resolved none = resolve(with("'" + folder.path("none.safetensors") + "'"));
    REQUIRE_FALSE(none.job);
    CHECK(none.job.error().front().problem == Problem::conflict);
}

TEST_CASE(
    "ai-toolkit: an accuracy recovery adapter is read where it lies, and else taken for what the published ones are") {
    const auto with = [](const std::string& arch, const std::string& more) {
        return replaced(text, "black-forest-labs/FLUX.1-dev, arch: flux, quantize: true",
                        arch + ", quantize: true" + more);
    };
    const std::string wan = "Wan-AI/Wan2.1-T2V-1.3B-Diffusers, arch: wan21";
    const std::string file = "some/adapters/wan_uint3.safetensors";
    const Resolved out = resolve(with(wan, ", qtype: 'uint3|" + file + "'"));
    REQUIRE(out.job);
    CHECK(out.job->pipeline.recovery == job::Recovery{file, 16, {}});
    CHECK(out.job->quantization == job::Quantization::toolkit_uint3);
    CHECK(out.job->pipeline.text_encoder_quantization == job::Quantization::toolkit_uint3);
    CHECK(std::any_of(out.notes.begin(), out.notes.end(), [&](const Diagnostic& note) {
        return note.problem == Problem::file_not_found && note.found == file;
    }));

    const io::TemporaryFolder folder;
    folder.write("own.safetensors", io::safetensors(std::vector<io::MadeTensor>{
                                        {"diffusion_model.blocks.0.attn1.to_q.lora_A.weight", {4, 1536}, "BF16"},
                                        {"diffusion_model.blocks.0.attn1.to_q.lora_B.weight", {1536, 4}, "BF16"}}));
    const std::string own = folder.path("own.safetensors");
    const job::Job read = good(with(wan, ", qtype: uint4, accuracy_recovery_adapter: '" + own + "'"));
    CHECK(read.pipeline.recovery == job::Recovery{own, 4, {"transformer.blocks.0.attn1.to_q"}});

    folder.write("none.safetensors",
                 io::safetensors(std::vector<io::MadeTensor>{{"lycoris_blocks_0.lokr_w1", {4, 4}, "BF16"}}));
    const Resolved none = resolve(with(wan, ", qtype: 'uint4|" + folder.path("none.safetensors") + "'"));
    REQUIRE_FALSE(none.job);
    CHECK(none.job.error().front().problem == Problem::unsupported);

    const Resolved dora = resolve(replaced(with(wan, ", qtype: convrot8"), "type: lora", "type: dora"));
    REQUIRE_FALSE(dora.job);
    CHECK(dora.job.error().front().key == "config.process[0].network.type");
    CHECK(resolve(replaced(with(wan, ", qtype: nvfp4"), "type: lora", "type: dora")).job);

    // FLUX's class does not look at it, and what settings say of quantising is said without it.
    CHECK(good(with("black-forest-labs/FLUX.1-dev, arch: flux", ", qtype: 'uint3|x'")).pipeline.recovery ==
          job::Recovery{});
    CHECK(good(with(wan, ", qtype: 'uint3|x'"), {{"quantize", "toolkit_uint4"}}).pipeline.recovery == job::Recovery{});
}
