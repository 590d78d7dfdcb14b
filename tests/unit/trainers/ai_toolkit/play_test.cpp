#include "trainers/ai_toolkit/play.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "shadow/run.hpp"
#include "trainers/ai_toolkit/resolve.hpp"
#include "trainers/heaviest.hpp"
#include "vram/device/usage.hpp"
#include "vram/io/document.hpp"
#include "vram/io/path.hpp"
#include "vram/profile/catalogue.hpp"

using namespace vram;
using namespace vram::trainers;

namespace {

using Settings = std::vector<std::pair<std::string, std::string>>;

const profile::Catalogue& catalogue() {
    static const profile::Catalogue all = profile::Catalogue::built_in();
    return all;
}

job::Job resolve(const std::string& text, const Settings& settings = {}) {
    expected<io::Document> document = io::read(text, "job.yaml", io::Format::yaml);
    REQUIRE(document);
    for (const auto& [key, value] : settings) REQUIRE_FALSE(io::assign(*document, key, value));
    Diagnostics notes;
    expected<job::Job> job = ai_toolkit::resolve(*document, catalogue(), notes);
    if (!job) FAIL(to_text(job.error().front()));
    return *job;
}

struct Played {
    run::Facts facts;
    device::Usage usage;
    shadow::Trace trace;

    [[nodiscard]] Bytes peak(std::string_view phase, std::string_view stage = {}) const {
        const device::PhaseUsage* found = usage.phase(phase);
        if (found == nullptr) return -1;
        if (stage.empty()) return found->tensors_peak;
        for (const device::Span& span : found->stages)
            if (span.name == stage) return span.tensors_peak;
        return -1;
    }
    [[nodiscard]] Bytes start(std::string_view phase) const {
        const device::PhaseUsage* found = usage.phase(phase);
        return found == nullptr ? -1 : found->tensors_start;
    }
};
Played play(const job::Job& job, bool memo = true) {
    shadow::Kernels kernels;
    kernels.scratch = false;
    shadow::Run run(kernels, memo);
    Played out;
    out.facts = ai_toolkit::play(job, catalogue(), run);
    out.usage = device::sum(run.trace);
    out.trace = run.trace;
    return out;
}

/// A retag and a free tell who ran last, which a copied call does not know.
shadow::Trace without_askers(shadow::Trace trace) {
    for (shadow::Event& event : trace.events)
        if (event.kind != shadow::EventKind::alloc) event.op = 0;
    return trace;
}

// Everything that moves memory is said, so that a mutation is one word.
const std::string base =
    "job: extension\n"
    "config:\n"
    "  name: cat\n"
    "  process:\n"
    "    - type: sd_trainer\n"
    "      network: {type: lora, linear: 16}\n"
    "      datasets: [{folder_path: /no/such/folder, resolution: [512], cache_latents_to_disk: true}]\n"
    "      train: {noise_scheduler: flowmatch, dtype: bf16, optimizer: adamw8bit, batch_size: 1, "
    "gradient_checkpointing: true}\n"
    "      model: {name_or_path: black-forest-labs/FLUX.1-dev, arch: flux, quantize: true, low_vram: false}\n"
    "      sample: {width: 512, height: 512, prompts: [a]}\n";
Settings process(const std::string& key, const std::string& value) { return {{"config.process[0]." + key, value}}; }

}  // namespace

TEST_CASE("ai-toolkit: the phases are the trainer's, in its order") {
    const std::string text =
        "job: extension\n"
        "config:\n"
        "  name: cat\n"
        "  process:\n"
        "    - type: sd_trainer\n"
        "      network: {type: lora, linear: 16, linear_alpha: 16}\n"
        "      datasets: [{folder_path: /no/such/folder, resolution: [512, 768, 1024], cache_latents_to_disk: true}]\n"
        "      train: {noise_scheduler: flowmatch, dtype: bf16, optimizer: adamw8bit, ema_config: {use_ema: true}}\n"
        "      model: {name_or_path: black-forest-labs/FLUX.1-dev, is_flux: true, quantize: true}\n"
        "      sample: {width: 1024, height: 1024, prompts: [a, b], guidance_scale: 4, sample_steps: 20}\n";
    const Played played = play(resolve(text));
    std::vector<std::string> names, told;
    for (const device::PhaseUsage& phase : played.usage.phases) names.push_back(phase.name);
    for (const run::PhaseFacts& phase : played.facts.phases) told.push_back(phase.name);
    CHECK(names == std::vector<std::string>{"load", "quantize", "cache_latents", "cache_text", "baseline_sample",
                                            "step 1", "step 2", "bucket 768x768", "bucket 1024x1024", "sample",
                                            "save"});
    CHECK(told == names);
    std::vector<std::string> stages;
    for (const device::Span& stage : played.usage.phase("step 2")->stages) stages.push_back(stage.name);
    CHECK(stages == std::vector<std::string>{"prepare", "forward", "loss", "backward", "clip", "optimizer", "ema"});
    stages.clear();
    for (const device::Span& stage : played.usage.phase("sample")->stages) stages.push_back(stage.name);
    CHECK(stages == std::vector<std::string>{"text", "denoise", "decode"});
}

TEST_CASE("ai-toolkit: a call that is copied leaves the trace that playing it leaves") {
    const job::Job job = resolve(base);
    CHECK(without_askers(play(job, true).trace) == without_askers(play(job, false).trace));
}

// The steps of the real SDTrainer over the real classes (tests/reference/README.md), latents and text cached. The
// recording has no multiplier before its first step (512 bytes); every level after it is the same.
TEST_CASE("ai-toolkit: recorded steps are met to the byte") {
    std::ifstream rows(VRAM_SOURCE_DIR "/tests/reference/truth/ai-toolkit.jsonl");
    std::string line;
    int count = 0;
    std::printf("%-28s %-26s %16s %16s %8s\n", "case", "figure", "here", "recorded", "differs");
    while (std::getline(rows, line)) {
        const nlohmann::json row = nlohmann::json::parse(line);
        const nlohmann::json &recorded = row["case"], &result = row["result"];
        const auto id = recorded["id"].get<std::string>();
        Settings settings;
        for (const auto& [key, value] : recorded["set"].items()) settings.emplace_back("vramest." + key, value.dump());
        const Played played = play(resolve(recorded["config"].get<std::string>(), settings));
        ++count;
        CAPTURE(id);
        const auto compare = [&](const std::string& figure, Bytes here, Bytes theirs, Bytes known) {
            CAPTURE(figure);
            CHECK(here - theirs == known);
            std::printf("%-28s %-26s %16lld %16lld %8lld\n", id.c_str(), figure.c_str(), static_cast<long long>(here),
                        static_cast<long long>(theirs), static_cast<long long>(here - theirs));
        };
        const run::Facts& facts = played.facts;
        compare("parameters", facts.counts.parameters, result["parameters"], 0);
        compare("adapted_modules", facts.counts.adapted_modules, result["adapted_modules"], 0);
        compare("adapter_parameters", facts.counts.adapter_parameters, result["adapter_parameters"], 0);
        compare("attention_calls.flash", facts.counts.attention_flash, result["attention_calls"]["flash"], 0);
        compare("weights", facts.weights, result["weights_bytes"], 0);
        compare("adapter", facts.adapter, result["adapter_bytes"], 0);
        compare("optimizer_state", facts.optimizer_state, result["optimizer_state_bytes"], 0);
        compare("gradients", facts.gradients, result["grads_bytes"], 0);
        compare("inputs", facts.inputs, result["inputs_bytes"], 0);
        for (int i = 0; i < 2; ++i) {
            const std::string name = "step " + std::to_string(i + 1);
            const nlohmann::json& step = result["steps"][static_cast<std::size_t>(i)];
            const Bytes start = step["start_bytes"], known = i == 0 ? -512 : 0;
            for (const run::PhaseFacts& phase : facts.phases)
                if (phase.name == name)
                    compare(name + " kept", phase.kept_for_backward, step["kept_for_backward_bytes"], 0);
            for (const device::Span& stage : played.usage.phase(name)->stages)
                compare(name + " " + stage.name, stage.tensors_peak - played.start(name),
                        step[stage.name + "_peak_bytes"].get<Bytes>() - start, known);
        }
        compare("between the steps", played.start("step 2") - played.start("step 1"),
                result["steps"][1]["start_bytes"].get<Bytes>() - result["steps"][0]["start_bytes"].get<Bytes>(), -512);
    }
    CHECK(count == 5);
}

TEST_CASE("ai-toolkit: each option moves what it should") {
    const Played before = play(resolve(base));
    struct Case {
        const char* why;
        Settings settings;
        std::function<bool(const Played&)> holds;
    };
    using P = const Played&;
    for (const Case& c : {
             Case{"fp32 doubles what is not quantised", process("train.dtype", "fp32"),
                  [&](P p) { return p.peak("step 2") > before.peak("step 2"); }},
             Case{"a batch of 2 keeps more", process("train.batch_size", "2"),
                  [&](P p) { return p.facts.kept_for_backward > before.facts.kept_for_backward; }},
             Case{"accumulation keeps one batch's latents", process("train.gradient_accumulation", "2"),
                  [&](P p) {
                      return p.facts.kept_for_backward == before.facts.kept_for_backward &&
                             p.peak("step 2") > before.peak("step 2") &&
                             p.peak("step 2") < before.peak("step 2") + 512 * MiB;
                  }},
             Case{"without checkpointing all is kept", process("train.gradient_checkpointing", "false"),
                  [&](P p) { return p.facts.kept_for_backward == before.facts.kept_without_checkpointing; }},
             Case{"plain AdamW has four times the state", process("train.optimizer", "adamw"),
                  [&](P p) { return p.facts.optimizer_state > 3 * before.facts.optimizer_state; }},
             Case{"the average is one more adapter", process("train.ema_config", "{use_ema: true}"),
                  [&](P p) { return p.start("step 1") - before.start("step 1") == p.facts.gradients; }},
             Case{"unloaded encoders leave the steps, and come back to sample",
                  process("train.unload_text_encoder", "true"),
                  [&](P p) {
                      return p.start("step 1") < before.start("step 1") - 4 * GiB &&
                             p.peak("sample") > p.peak("step 2");
                  }},
             Case{"cached prompts free the encoders", process("train.cache_text_embeddings", "true"),
                  [&](P p) {
                      return p.start("step 1") < before.start("step 1") - 4 * GiB &&
                             p.peak("sample") < before.peak("sample") - 4 * GiB;
                  }},
             Case{"no quantisation doubles the weights", process("model.quantize", "false"),
                  [&](P p) { return p.facts.weights > 23 * GiB - GiB && p.start("quantize") < 0; }},
             Case{"of the text encoder alone", process("model.quantize_te", "false"),
                  [&](P p) {
                      return p.facts.weights == before.facts.weights &&
                             p.start("step 1") > before.start("step 1") + 4 * GiB;
                  }},
             Case{"low_vram quantises on the host", process("model.low_vram", "true"),
                  [&](P p) {
                      return p.peak("load") == 0 && p.peak("quantize") < before.peak("quantize") - GiB &&
                             p.peak("step 2") == before.peak("step 2");
                  }},
             Case{"a larger bucket", process("datasets[0].resolution", "[768]"),
                  [&](P p) { return p.peak("step 2") > before.peak("step 2"); }},
             Case{"one more bucket is one more phase", process("datasets[0].resolution", "[512, 768]"),
                  [&](P p) { return p.start("bucket 768x768") > 0; }},
             Case{"uncached latents keep the VAE, and skip the phase",
                  process("datasets[0].cache_latents_to_disk", "false"),
                  [&](P p) {
                      return p.start("cache_latents") < 0 && p.start("step 1") > before.start("step 1") + 100 * MiB;
                  }},
             Case{"a dataset's own batch size", process("datasets[0].batch_size", "2"),
                  [&](P p) { return p.peak("step 2") > before.peak("step 2"); }},
             Case{"no baseline", process("train.skip_first_sample", "true"),
                  [&](P p) { return p.start("baseline_sample") < 0 && p.start("sample") > 0; }},
             Case{"no samples at all", process("train.disable_sampling", "true"),
                  [&](P p) { return p.start("baseline_sample") < 0 && p.start("sample") < 0; }},
             Case{"a larger sample", process("sample.width", "1024"),
                  [&](P p) { return p.peak("sample", "decode") > before.peak("sample", "decode"); }},
             Case{"a higher rank", process("network.linear", "64"),
                  [&](P p) { return p.facts.adapter > 3 * before.facts.adapter; }},
             Case{"every linear", process("network.transformer_only", "false"),
                  [&](P p) { return p.facts.counts.adapted_modules == 504; }},
             Case{"some linears",
                  process("network.network_kwargs",
                          "{only_if_contains: [transformer.single_transformer_blocks.7.proj_out]}"),
                  [&](P p) { return p.facts.counts.adapted_modules == 1; }},
             Case{"but for some",
                  process("network.network_kwargs", "{ignore_if_contains: [single_transformer_blocks]}"),
                  [&](P p) { return p.facts.counts.adapted_modules == 19 * 14; }},
             Case{"Flex.1 has fewer blocks", process("model.name_or_path", "ostris/Flex.1-alpha"),
                  [&](P p) { return p.facts.counts.parameters == 8163264064; }},
         }) {
        CAPTURE(c.why);
        CHECK(c.holds(play(resolve(base, c.settings))));
    }
}

TEST_CASE("ai-toolkit: over plain weights the adapter is merged while sampling, in full nothing is adapted") {
    const Played plain = play(resolve(base, process("model.quantize", "false")));
    CHECK(plain.peak("sample") > plain.peak("baseline_sample"));
    Settings full = process("model.quantize", "false");
    full.emplace_back("config.process[0].network", "");
    const Played tuned = play(resolve(base, full));
    CHECK(tuned.facts.adapter == 0);
    CHECK(tuned.facts.counts.adapted_modules == 0);
    CHECK(tuned.facts.gradients > 22 * GiB);
    CHECK(tuned.facts.optimizer_state > 22 * GiB);
}

TEST_CASE("ai-toolkit: the batches that are left out of many move no peak") {
    for (const char* caching : {"true", "false"}) {
        CAPTURE(caching);
        job::Job job = resolve(base, process("datasets[0].cache_latents_to_disk", caching));
        std::vector<job::Batch>& batches = std::get<job::Training>(job.work).batches;
        batches = {{512, 512, 1, 1}};
        for (std::int64_t i = 0; i < 8; ++i)
            for (std::int64_t count = 1; count <= 4; ++count)
                batches.push_back({256 + 32 * (i * 5 % 8), 256 + 32 * (i * 3 % 8), 1, count});
        const Played all = play(job);
        batches = heaviest(batches, 6, 512);
        CHECK(batches.size() == 6);
        const Played some = play(job);
        CHECK(all.usage.phases.size() > some.usage.phases.size());
        CHECK(all.usage.tensors_peak == some.usage.tensors_peak);
        const auto largest = [](const Played& played) {
            Bytes peak = 0;
            for (const device::PhaseUsage& phase : played.usage.phases)
                if (phase.name.starts_with("bucket")) peak = std::max(peak, phase.tensors_peak);
            return peak;
        };
        CHECK(largest(all) == largest(some));
        CHECK(all.peak("cache_latents") == some.peak("cache_latents"));
    }
}
