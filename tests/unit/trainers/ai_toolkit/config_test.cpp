#include "trainers/ai_toolkit/config.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <initializer_list>
#include <string>

#include "vram/io/document.hpp"

using namespace vram;
using namespace vram::trainers;

namespace {

// A job that says nothing but what it must.
const std::string head =
    "job: extension\n"
    "config:\n"
    "  name: cat\n"
    "  process:\n"
    "    - type: sd_trainer\n";
const std::string datasets = "      datasets: [{folder_path: images}]\n";
const std::string network = "      network: {type: lora, linear: 16}\n";
const std::string flowmatch = "      train: {noise_scheduler: flowmatch}\n";
const std::string model = "      model: {name_or_path: black-forest-labs/FLUX.1-dev, is_flux: true}\n";
std::string with(const std::string& train) {
    return head + network + datasets + "      train: {noise_scheduler: flowmatch, " + train + "}\n" + model;
}

struct Read {
    expected<ai_toolkit::Config> config;
    Diagnostics notes;
};
Read read(const std::string& text, io::Format format = io::Format::yaml) {
    const expected<io::Document> document = io::read(text, "job.yaml", format);
    REQUIRE(document);
    Diagnostics notes;
    expected<ai_toolkit::Config> config = ai_toolkit::read_config(*document, notes);
    return {std::move(config), std::move(notes)};
}
ai_toolkit::Config good(const std::string& text) {
    Read out = read(text);
    if (!out.config) FAIL(to_text(out.config.error().front()));
    return *out.config;
}

}  // namespace

TEST_CASE("ai-toolkit: what a file does not say is what the trainer takes") {
    const ai_toolkit::Config config = good(head + datasets + "      model: {name_or_path: a, arch: flux}\n");
    CHECK(config.fine_tune);
    CHECK(config.train.dtype == Dtype::f32);
    CHECK(config.train.gradient_checkpointing);
    CHECK(config.train.batch_size == 1);
    CHECK(std::holds_alternative<job::AdamW>(config.train.optimizer));
    CHECK(config.model.quantize == job::Quantization::none);
    CHECK_FALSE(config.train.skip_first_sample);
    CHECK(config.datasets.size() == 1);
    CHECK(config.datasets[0].resolution == 512);
    CHECK_FALSE(config.datasets[0].cache_latents);
    CHECK(config.sample.sample_every == 100);
    CHECK(good(head + "      network: {}\n" + datasets + model).network.rank == 4);
}

TEST_CASE("ai-toolkit: a value is read as Python reads it") {
    struct Case {
        const char* why;
        std::string text;
        bool (*holds)(const ai_toolkit::Config&);
    };
    using C = const ai_toolkit::Config&;
    for (const Case& c : {
             Case{"null inside a section is None, which is false", with("gradient_checkpointing: null"),
                  [](C x) { return !x.train.gradient_checkpointing; }},
             Case{"null of the process is no key", head + "      network: null\n" + datasets + model,
                  [](C x) { return x.fine_tune; }},
             Case{"a quoted word for yes is one", with("skip_first_sample: 'True'"),
                  [](C x) { return x.train.skip_first_sample; }},
             Case{"an empty text is none", with("gradient_checkpointing: ''"),
                  [](C x) { return !x.train.gradient_checkpointing; }},
             Case{"YAML's own words are booleans", with("gradient_checkpointing: off"),
                  [](C x) { return !x.train.gradient_checkpointing; }},
             Case{"null stands for no map", with("ema_config: null, optimizer_params: null"),
                  [](C x) { return !x.train.ema; }},
             Case{"a number is a flag", with("skip_first_sample: 1"), [](C x) { return x.train.skip_first_sample; }},
             Case{"quantize_te follows quantize",
                  head + datasets + "      model: {name_or_path: a, arch: flux, quantize: true}\n",
                  [](C x) { return x.model.quantize_te == job::Quantization::quanto_qfloat8; }},
             Case{"but for what it says itself",
                  head + datasets + "      model: {name_or_path: a, arch: flux, quantize: true, quantize_te: false}\n",
                  [](C x) {
                      return x.model.quantize == job::Quantization::quanto_qfloat8 &&
                             x.model.quantize_te == job::Quantization::none;
                  }},
             Case{"FLUX's text encoder is quantised as qtype says",
                  head + datasets +
                      "      model: {name_or_path: a, arch: flux, quantize: true, qtype: uint3, qtype_te: float8}\n",
                  [](C x) {
                      return x.model.quantize == job::Quantization::toolkit_uint3 &&
                             x.model.quantize_te == job::Quantization::toolkit_uint3;
                  }},
             Case{"Z-Image's as qtype_te says",
                  head + datasets +
                      "      model: {name_or_path: a, arch: zimage, quantize: true, qtype: uint3, qtype_te: float8}\n",
                  [](C x) {
                      return x.model.quantize == job::Quantization::toolkit_uint3 &&
                             x.model.quantize_te == job::Quantization::torchao_float8;
                  }},
             Case{"rank wins over linear", head + "      network: {rank: 8, linear: 16}\n" + datasets + model,
                  [](C x) { return x.network.rank == 8; }},
             Case{"a null rank is none", head + "      network: {rank: null, linear: 16}\n" + datasets + model,
                  [](C x) { return x.network.rank == 16; }},
             Case{"a tag behind the architecture is dropped",
                  head + datasets + "      model: {name_or_path: a, arch: 'flux:dev'}\n",
                  [](C x) { return x.model.arch == "flux"; }},
             Case{"a resolution of its own dataset for each in the list",
                  head + "      datasets: [{folder_path: i, resolution: [512, 768]}]\n" + model,
                  [](C x) { return x.datasets.size() == 2 && x.datasets[1].resolution == 768; }},
             Case{"a dataset's own batch size", head + "      datasets: [{folder_path: i, batch_size: 3}]\n" + model,
                  [](C x) { return x.datasets[0].batch_size == 3; }},
             Case{"[name] is the job's", head + "      datasets: [{folder_path: 'in/[name]'}]\n" + model,
                  [](C x) { return x.datasets[0].folder == "in/cat"; }},
             Case{"dataset_path wins", head + "      datasets: [{folder_path: a, dataset_path: b}]\n" + model,
                  [](C x) { return x.datasets[0].folder == "b"; }},
             Case{"augmented pixels are not cached",
                  head + "      datasets: [{folder_path: a, cache_latents: true, augments: [x]}]\n" + model,
                  [](C x) { return !x.datasets[0].cache_latents; }},
             Case{"ema needs use_ema", with("ema_config: {ema_decay: 0.9}"), [](C x) { return !x.train.ema; }},
             Case{"1e-4 is a number", with("lr: 1e-4, optimizer: AdamW8bit"),
                  [](C x) { return std::holds_alternative<job::Bitsandbytes>(x.train.optimizer); }},
             Case{"caching in every dataset is caching",
                  head + "      datasets: [{folder_path: a, cache_text_embeddings: true}]\n" + model,
                  [](C x) { return x.train.cache_text_embeddings; }},
         }) {
        CAPTURE(c.why);
        CHECK(c.holds(good(c.text)));
    }
}

TEST_CASE("ai-toolkit: samples come from prompts, from samples, and from flags in a prompt") {
    const std::string text = head + datasets + model +
                             "      sample:\n"
                             "        width: 1030\n"
                             "        prompts: ['a cat', 'a dog --w 768 --h 1344 --s 4 --cfg 2.5', null]\n";
    const ai_toolkit::Config config = good(text);
    REQUIRE(config.sample.samples.size() == 2);
    CHECK(config.sample.samples[0] == ai_toolkit::SampleItem{1024, 512, 20, 7, 1});
    CHECK(config.sample.samples[1] == ai_toolkit::SampleItem{768, 1344, 4, 2.5, 1});
    const ai_toolkit::Config second =
        good(head + datasets + model +
             "      sample: {width: 640, prompts: [a, b], samples: [{prompt: x, height: 768, guidance_scale: 3}]}\n");
    REQUIRE(second.sample.samples.size() == 1);
    CHECK(second.sample.samples[0] == ai_toolkit::SampleItem{640, 768, 20, 3, 1});
}

TEST_CASE("ai-toolkit: an optimizer's name is any of its spellings, and its options come along") {
    struct Case {
        const char* train;
        job::Optimizer means;
    };
    using Algorithm = job::Bitsandbytes::Algorithm;
    using Loop = job::AdamW::Loop;
    const job::Adafactor adafactor{.clones = true, .stochastic_accumulation = true, .stochastic_rounding = true};
    job::Adafactor with_beta1 = adafactor, plain = adafactor;
    with_beta1.momentum = true;
    plain.stochastic_rounding = false;
    for (const Case& c : {
             Case{"optimizer: AdamW", job::AdamW{}},
             Case{"optimizer: adam, optimizer_params: {weight_decay: 0.01}", job::AdamW{.decays_gradient = true}},
             Case{"optimizer: adamw, optimizer_params: {weight_decay: 0.01}", job::AdamW{}},
             Case{"optimizer_params: {amsgrad: true, foreach: false}",
                  job::AdamW{.loop = Loop::one_by_one, .amsgrad = true}},
             Case{"optimizer: adamw, optimizer_params: {fused: true}", job::AdamW{.loop = Loop::fused}},
             Case{"optimizer: ADAM8bit", job::Bitsandbytes{}},
             Case{"optimizer: ademamix8bit", job::Bitsandbytes{.algorithm = Algorithm::ademamix}},
             Case{"optimizer: lion8bit, optimizer_params: {is_paged: true}",
                  job::Bitsandbytes{.algorithm = Algorithm::lion, .paged = true}},
             Case{"optimizer: adamw8", job::Adam8{}},
             Case{"optimizer: Prodigy", job::Prodigy{}},
             Case{"optimizer: prodigyopt, optimizer_params: {slice_p: 11, d_coef: 2}", job::Prodigy{.slice_p = 11}},
             Case{"optimizer: prodigy-what-you-like", job::Prodigy{}},
             Case{"optimizer: prodigy8bits", job::Prodigy8bit{}},
             Case{"optimizer: prodigy, optimizer_params: {betas: [0, 0.99]}", job::Prodigy{.momentum = false}},
             Case{"optimizer: adafactor", adafactor},
             Case{"optimizer: adafactor, optimizer_params: {beta1: 0.9}", with_beta1},
             Case{"optimizer: adafactor, optimizer_params: {stochastic_rounding: false}", plain},
             Case{"optimizer: automagic3, optimizer_params: {polarity_history: 100, fused: false}",
                  job::Automagic3{.polarity_history = 64, .fused = false}},
             Case{"optimizer: automagicExperiment", job::AutomagicExperiment{}},
             Case{"optimizer: adagrad, optimizer_params: {weight_decay: 0}", job::Adagrad{}},
             Case{"optimizer: dadaptation", job::DAdapt{}},
         }) {
        CAPTURE(c.train);
        const Read out = read(with(c.train));
        REQUIRE(out.config);
        CHECK(out.config->train.optimizer == c.means);
    }
}

TEST_CASE("ai-toolkit: every complaint has its place, and they come at once") {
    struct Case {
        const char* why;
        std::string text;
        Problem problem;
        const char* key;
        std::int32_t line;
    };
    for (const Case& c : {
             Case{"a near miss of a key that moves memory", with("gradient_checkpoint: true"), Problem::unknown_key,
                  "config.process[0].train.gradient_checkpoint", 8},
             Case{"another architecture", head + datasets + "      model: {name_or_path: a, arch: cogview4}\n",
                  Problem::unsupported, "config.process[0].model.arch", 7},
             Case{"one that the trainer itself fails on, by its older flag",
                  head + datasets + "      model: {name_or_path: a, is_ssd: true}\n", Problem::conflict,
                  "config.process[0].model.is_ssd", 7},
             Case{"PixArt-Sigma by its own name, too",
                  head + datasets + "      model: {name_or_path: a, arch: pixart_sigma}\n", Problem::conflict,
                  "config.process[0].model.arch", 7},
             Case{"a velocity of pixels", head + datasets + "      model: {name_or_path: a, is_v_pred: true}\n",
                  Problem::unsupported, "config.process[0].model.is_v_pred", 7},
             Case{"an optimizer that the trainer cannot make", with("optimizer: dadaptationlion"), Problem::unsupported,
                  "config.process[0].train.optimizer", 8},
             Case{"none of its optimizers", with("optimizer: adamw8bits"), Problem::bad_value,
                  "config.process[0].train.optimizer", 8},
             Case{"an option of the optimizer", with("optimizer_params: {min_8bit_size: 0}"), Problem::unsupported,
                  "config.process[0].train.optimizer_params.min_8bit_size", 8},
             Case{"a way to quantise that is not played",
                  head + datasets + "      model: {name_or_path: a, arch: flux, quantize: true, qtype: orbit3}\n",
                  Problem::unsupported, "config.process[0].model.qtype", 7},
             Case{"one that raises while it loads",
                  head + datasets + "      model: {name_or_path: a, arch: flux, quantize: true, qtype: qint4}\n",
                  Problem::unsupported, "config.process[0].model.qtype", 7},
             Case{"one of nobody",
                  head + datasets + "      model: {name_or_path: a, arch: flux, quantize: true, qtype: uint9}\n",
                  Problem::bad_value, "config.process[0].model.qtype", 7},
             Case{"a recovery adapter beside quanto's",
                  head + datasets + "      model: {name_or_path: a, arch: wan21, quantize: true, qtype: 'qfloat8|x'}\n",
                  Problem::unsupported, "config.process[0].model.qtype", 7},
             Case{"an assistant LoRA that is merged by another library",
                  head + datasets + "      model: {name_or_path: a, arch: flux, assistant_lora_path: a/b}\n",
                  Problem::unsupported, "config.process[0].model.assistant_lora_path", 7},
             Case{"an assistant LoRA of no file",
                  head + datasets + "      model: {name_or_path: a, arch: zimage, assistant_lora_path: a/b}\n",
                  Problem::conflict, "config.process[0].model.assistant_lora_path", 7},
             Case{"an assistant LoRA on the host",
                  head + datasets +
                      "      model: {name_or_path: a, arch: zimage, assistant_lora_path: a/b/c, layer_offloading: "
                      "true}\n",
                  Problem::unsupported, "config.process[0].model.assistant_lora_path", 7},
             Case{"two adapters below the trained one",
                  head + datasets +
                      "      model: {name_or_path: a, arch: zimage, assistant_lora_path: a/b/c, quantize: true, "
                      "qtype: 'uint3|x'}\n",
                  Problem::conflict, "config.process[0].model.assistant_lora_path", 7},
             Case{"a network that stops", head + "      network: {type: lorm}\n" + datasets + model, Problem::conflict,
                  "config.process[0].network.type", 6},
             Case{"a network that the trainer has not", head + "      network: {type: loha}\n" + datasets + model,
                  Problem::bad_value, "config.process[0].network.type", 6},
             Case{"a module that is dropped",
                  head + "      network: {network_kwargs: {module_dropout: 0.1}}\n" + datasets + model,
                  Problem::conflict, "config.process[0].network.network_kwargs.module_dropout", 6},
             Case{"ranks without alphas",
                  head + "      network: {network_kwargs: {modules_dim: {a: 4}}}\n" + datasets + model,
                  Problem::conflict, "config.process[0].network.network_kwargs.modules_dim", 6},
             Case{"no factor", head + "      network: {type: lokr, lokr_factor: 0}\n" + datasets + model,
                  Problem::out_of_range, "config.process[0].network.lokr_factor", 6},
             Case{"two accumulations", with("gradient_accumulation: 2, gradient_accumulation_steps: 2"),
                  Problem::conflict, "config.process[0].train.gradient_accumulation_steps", 8},
             Case{"caching here and not there",
                  head + "      datasets: [{folder_path: a, cache_text_embeddings: true}, {folder_path: b}]\n" + model,
                  Problem::conflict, "config.process[0].datasets", 6},
             Case{"a loss on pixels", with("train_turbo: true"), Problem::unsupported,
                  "config.process[0].train.train_turbo", 8},
             Case{"a batch that is a text", with("batch_size: '2'"), Problem::wrong_type,
                  "config.process[0].train.batch_size", 8},
             Case{"a dtype of nobody", with("dtype: bf8"), Problem::bad_value, "config.process[0].train.dtype", 8},
             Case{"no datasets", head + model, Problem::missing_key, "config.process[0].datasets", 5},
             Case{"no model", head + datasets, Problem::missing_key, "config.process[0].model.name_or_path", 5},
             Case{"a model that is null", head + datasets + "      model: null\n", Problem::missing_key,
                  "config.process[0].model.name_or_path", 5},
             Case{"a model that is no map", head + datasets + "      model: flux\n", Problem::wrong_type,
                  "config.process[0].model", 7},
             Case{"an architecture that is a flag", head + datasets + "      model: {name_or_path: a, arch: true}\n",
                  Problem::wrong_type, "config.process[0].model.arch", 7},
             Case{"or a list", head + datasets + "      model: {name_or_path: a,\n              arch: []}\n",
                  Problem::wrong_type, "config.process[0].model.arch", 8},
             Case{"datasets that are no list", head + model + "      datasets: true\n", Problem::wrong_type,
                  "config.process[0].datasets", 7},
             Case{"or an empty one", head + model + "      datasets: []\n", Problem::missing_key,
                  "config.process[0].datasets", 7},
             Case{"a dataset that is no map", head + model + "      datasets: [images]\n", Problem::wrong_type,
                  "config.process[0].datasets[0]", 7},
             Case{"a process that is no map", "job: extension\nconfig: {name: a, process: [5]}\n", Problem::wrong_type,
                  "config.process[0]", 2},
             Case{"processes that are no list", "job: extension\nconfig: {name: a, process: x}\n", Problem::wrong_type,
                  "config.process", 2},
             Case{"a type that is a number", "job: extension\nconfig: {name: a, process: [{type: 5}]}\n",
                  Problem::wrong_type, "config.process[0].type", 2},
             Case{"a network that is no map", head + "      network: lora\n" + datasets + model, Problem::wrong_type,
                  "config.process[0].network", 6},
             Case{"a train that is no map", head + datasets + model + "      train: true\n", Problem::wrong_type,
                  "config.process[0].train", 8},
             Case{"network_kwargs that are a flag", head + "      network: {network_kwargs: true}\n" + datasets + model,
                  Problem::wrong_type, "config.process[0].network.network_kwargs", 6},
             Case{"or a list", head + "      network: {network_kwargs: [1]}\n" + datasets + model, Problem::wrong_type,
                  "config.process[0].network.network_kwargs", 6},
             Case{"an ema_config that is a flag", with("ema_config: true"), Problem::wrong_type,
                  "config.process[0].train.ema_config", 8},
             Case{"false too: the trainer asks it for use_ema", with("ema_config: false"), Problem::wrong_type,
                  "config.process[0].train.ema_config", 8},
             Case{"optimizer_params that are a text", with("optimizer_params: x"), Problem::wrong_type,
                  "config.process[0].train.optimizer_params", 8},
             Case{"options of the schedule that are a number", with("lr_scheduler_params: 5"), Problem::wrong_type,
                  "config.process[0].train.lr_scheduler_params", 8},
             Case{"save that is no map", head + datasets + model + "      save: yes\n", Problem::wrong_type,
                  "config.process[0].save", 8},
             Case{"a sample that is no map", head + datasets + model + "      sample: a cat\n", Problem::wrong_type,
                  "config.process[0].sample", 8},
             Case{"a prompt in the place of a list", head + datasets + model + "      sample: {prompts: a cat}\n",
                  Problem::wrong_type, "config.process[0].sample.prompts", 8},
             Case{"a number there", head + datasets + model + "      sample: {prompts: 4}\n", Problem::wrong_type,
                  "config.process[0].sample.prompts", 8},
             Case{"a map there", head + datasets + model + "      sample: {prompts: {a: b}}\n", Problem::wrong_type,
                  "config.process[0].sample.prompts", 8},
             Case{"samples that are no list", head + datasets + model + "      sample: {samples: a, prompts: [b]}\n",
                  Problem::wrong_type, "config.process[0].sample.samples", 8},
             Case{"a prompt that is a number", head + datasets + model + "      sample: {prompts: [a, 5]}\n",
                  Problem::wrong_type, "config.process[0].sample.prompts[1]", 8},
             Case{"in a sample too", head + datasets + model + "      sample: {samples: [{prompt: [a]}]}\n",
                  Problem::wrong_type, "config.process[0].sample.samples[0].prompt", 8},
             Case{"a flag beyond 63 bits",
                  head + datasets + model + "      sample: {prompts: [p --w 99999999999999999999]}\n",
                  Problem::out_of_range, "config.process[0].sample.prompts[0]", 8},
             Case{"steps too", head + datasets + model + "      sample: {prompts: [p --s 99999999999999999999]}\n",
                  Problem::out_of_range, "config.process[0].sample.prompts[0]", 8},
             Case{"more steps than a sampler takes",
                  head + datasets + model + "      sample: {prompts: [p --s 10001]}\n", Problem::out_of_range,
                  "config.process[0].sample.prompts[0]", 8},
             Case{"a flag beyond a double", head + datasets + model + "      sample: {prompts: [p --l 1e999]}\n",
                  Problem::out_of_range, "config.process[0].sample.prompts[0]", 8},
             Case{"one that is not finite", head + datasets + model + "      sample: {prompts: [p --cfg inf]}\n",
                  Problem::out_of_range, "config.process[0].sample.prompts[0]", 8},
             Case{"one that is no number", head + datasets + model + "      sample: {prompts: [p --w wide --h 1x]}\n",
                  Problem::bad_value, "config.process[0].sample.prompts[0]", 8},
             Case{"a flag that is no word for yes or no", with("gradient_checkpointing: fales"), Problem::bad_value,
                  "config.process[0].train.gradient_checkpointing", 8},
             Case{"a flag that is a list", with("gradient_checkpointing: [false]"), Problem::wrong_type,
                  "config.process[0].train.gradient_checkpointing", 8},
             Case{"a folder with a NUL", head + model + "      datasets: [{folder_path: \"a\\0b\"}]\n",
                  Problem::bad_value, "config.process[0].datasets[0].folder_path", 7},
             Case{"a model with a NUL", head + datasets + "      model: {arch: flux, name_or_path: \"a\\0b\"}\n",
                  Problem::bad_value, "config.process[0].model.name_or_path", 7},
             Case{"another job", "job: mod\nconfig: {name: a, process: [{type: rescale_lora}]}\n", Problem::unsupported,
                  "job", 1},
             Case{"decompositions on a card",
                  "job: extract\nconfig: {name: a, device: cuda, process: [{type: locon}]}\n", Problem::unsupported,
                  "job", 1},
             Case{"decompositions on no card",
                  "job: extract\nconfig: {name: a, device: cpu, process: [{type: locon}]}\n", Problem::unsupported,
                  "config.device", 2},
             Case{"decompositions where nothing is said", "job: extract\nconfig: {name: a, process: [{type: locon}]}\n",
                  Problem::unsupported, "config.device", 2},
             Case{"a slider that the trainer stops at", "job: train\nconfig: {name: a, process: [{type: slider}]}\n",
                  Problem::conflict, "config.process[0].type", 2},
             Case{"a slider with pictures",
                  "job: train\nconfig: {name: a, process: [{type: slider, datasets: [{folder_path: a}]}]}\n",
                  Problem::unsupported, "config.process[0].type", 2},
             Case{"another loop of that kind", "job: train\nconfig: {name: a, process: [{type: vae}]}\n",
                  Problem::unsupported, "job", 1},
             Case{"a process that the trainer stops at",
                  "job: extension\nconfig: {name: a, process: [{type: concept_replacer}]}\n", Problem::conflict,
                  "config.process[0].type", 2},
             Case{"another process", "job: extension\nconfig: {name: a, process: [{type: custom}]}\n",
                  Problem::unsupported, "config.process[0].type", 2},
         }) {
        CAPTURE(c.why);
        const Read out = read(c.text);
        REQUIRE_FALSE(out.config);
        CAPTURE(to_text(out.config.error().front()));
        CHECK(out.config.error().size() == 1);
        CHECK(out.config.error().front().problem == c.problem);
        CHECK(out.config.error().front().key == c.key);
        CHECK(out.config.error().front().place.line == c.line);
    }
    const Read junk = read(with("cache_text_embeddings: fales"));
    REQUIRE_FALSE(junk.config);
    CHECK(junk.config.error().front().nearest == "false");
    const Read many =
        read(with("batch_size: 0, optimizer: dadaptationlion, train_turbo: true, gradient_checkpointin: false"));
    REQUIRE_FALSE(many.config);
    CHECK(many.config.error().size() == 4);
    CHECK(many.config.error().back().nearest == "gradient_checkpointing");
}

TEST_CASE("ai-toolkit: what the trainer ignores is a warning, what is too small to play a note") {
    struct Case {
        const char* why;
        std::string text;
        Severity severity;
        Problem problem;
        const char* key;
        const char* nearest;
    };
    for (const Case& c : {
             Case{"a key of nobody", with("favourite_colour: red"), Severity::warning, Problem::unknown_key,
                  "config.process[0].train.favourite_colour", ""},
             Case{"a near miss of a key that moves nothing", with("weight_jiter: 1"), Severity::warning,
                  Problem::unknown_key, "config.process[0].train.weight_jiter", "weight_jitter"},
             Case{"a key of another section",
                  head + datasets + flowmatch +
                      "      model: {name_or_path: a, arch: flux, gradient_checkpointing: true}\n",
                  Severity::warning, Problem::unknown_key, "config.process[0].model.gradient_checkpointing",
                  "train.gradient_checkpointing"},
             Case{"a text is true", with("disable_sampling: 'false'"), Severity::warning, Problem::wrong_type,
                  "config.process[0].train.disable_sampling", "false"},
             Case{"in any case", with("disable_sampling: 'Off'"), Severity::warning, Problem::wrong_type,
                  "config.process[0].train.disable_sampling", "false"},
             Case{"a multiplier that is no number is 1",
                  head + datasets + flowmatch + model + "      sample: {network_multiplier: x}\n", Severity::warning,
                  Problem::bad_value, "config.process[0].sample.network_multiplier", ""},
             Case{"the older accumulation", with("gradient_accumulation_steps: 4"), Severity::warning,
                  Problem::unsupported, "config.process[0].train.gradient_accumulation_steps", "gradient_accumulation"},
             Case{"a latent or two", with("noise_offset: 0.1"), Severity::note, Problem::unsupported,
                  "config.process[0].train.noise_offset", ""},
         }) {
        CAPTURE(c.why);
        const Read out = read(c.text);
        CHECK(out.config);
        REQUIRE(out.notes.size() == 1);
        CHECK(out.notes[0].severity == c.severity);
        CHECK(out.notes[0].problem == c.problem);
        CHECK(out.notes[0].key == c.key);
        CHECK(out.notes[0].nearest == c.nearest);
    }
    CHECK(read(with("noise_offset: 0.0, do_cfg: false, validation_config: null")).notes.empty());
}

TEST_CASE("ai-toolkit: what grows with a file has a bound") {
    const auto first = [](const std::string& text) {
        const Read out = read(text);
        REQUIRE_FALSE(out.config);
        CHECK(out.config.error().size() == 1);
        return out.config.error().front();
    };
    const auto folder = [](const std::string& name, const std::string& path) {
        return "job: extension\nconfig:\n  name: " + name + "\n  process:\n    - type: sd_trainer\n" + model +
               "      datasets: [{folder_path: '" + path + "'}]\n";
    };
    std::string tags;
    for (int i = 0; i < 41; ++i) tags += "[name]";
    CHECK(good(folder(std::string(99, 'x'), tags)).datasets[0].folder == std::string(99 * 41, 'x'));
    Diagnostic complaint = first(folder(std::string(100, 'x'), tags));  // 4100 bytes
    CHECK(complaint.problem == Problem::out_of_range);
    CHECK(complaint.key == "config.process[0].datasets[0].folder_path");
    CHECK(complaint.place.line == 7);
    complaint = first(folder(std::string(30'000, 'x'), "images"));
    CHECK(complaint.problem == Problem::out_of_range);
    CHECK(complaint.key == "config.name");
    CHECK(complaint.place.line == 3);
    CHECK(good(folder("'[name]'", "a[name]b[name")).datasets[0].folder == "a[name]b[name");

    std::string resolutions = "512";
    for (int i = 1; i < 6000; ++i) resolutions += ",512";
    const std::string dataset = "{folder_path: a, resolution: [" + resolutions + "]}";
    CHECK(good(head + model + "      datasets: [" + dataset + "]\n").datasets.size() == 1);  // each yields the same
    complaint = first(head + model + "      datasets: [" + dataset + ", " + dataset + ", " + dataset + "]\n");
    CHECK(complaint.problem == Problem::out_of_range);
    CHECK(complaint.key == "config.process[0].datasets[1].resolution");
    std::string many = "{folder_path: a}";
    for (int i = 1; i <= 10'000; ++i) many += ",{folder_path: a}";
    complaint = first(head + model + "      datasets: [" + many + "]\n");
    CHECK(complaint.problem == Problem::out_of_range);
    CHECK(complaint.key == "config.process[0].datasets");

    std::string prompts;
    for (int i = 0; i < 5000; ++i) prompts += "a --w x,";
    const Read out = read(head + datasets + flowmatch + model + "      sample: {prompts: [" + prompts + "]}\n");
    REQUIRE_FALSE(out.config);
    CHECK(out.config.error().size() == 1001);
    CHECK(out.config.error().back().key == "config.process[0].sample.prompts[1000]");
}

TEST_CASE("ai-toolkit: JSON is read like YAML, and knows itself") {
    const std::string text =
        R"({"job": "extension", "config": {"name": "x", "process": [{"type": "ui_trainer", "network": {"type": "lora", "linear": 32},
            "datasets": [{"folder_path": "i", "resolution": [1024]}], "train": {"dtype": "bf16", "noise_scheduler": "flowmatch"},
            "model": {"name_or_path": "ostris/Flex.1-alpha", "arch": "flex1"}}]}})";
    Read out = read(text, io::Format::json);
    REQUIRE(out.config);
    CHECK(out.notes.empty());
    CHECK(out.config->model.arch == "flex1");
    CHECK(out.config->network.rank == 32);
    CHECK(ai_toolkit::recognises(*io::read(text, "x.json", io::Format::json)));
    CHECK_FALSE(ai_toolkit::recognises(*io::read("vramest: 1\ntrainer: torch\n", "job.yaml", io::Format::yaml)));
}
