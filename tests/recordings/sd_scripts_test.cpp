// sd-scripts' own runs (tests/reference/record_sd_scripts.py, truth/sd_scripts.jsonl: train() whole), played from the
// same arguments in a --config_file: what stages reach above the step's begin, what caches and samples reach.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "recordings/stages.hpp"
#include "shadow/run.hpp"
#include "trainers/sd_scripts/play.hpp"
#include "trainers/sd_scripts/resolve.hpp"
#include "vram/device/usage.hpp"
#include "vram/io/document.hpp"
#include "vram/profile/catalogue.hpp"

using namespace vram;
using namespace vram::trainers;
using nlohmann::json;

namespace {

const profile::Catalogue& catalogue() {
    static const profile::Catalogue all = profile::Catalogue::built_in();
    return all;
}

/// The command line as the file that --output_config would write.
std::string config_of(const json& said) {
    const std::map<std::string, std::string> models{
        {"train_network", "sd15"}, {"sdxl_train_network", "sdxl"}, {"flux_train_network", "flux1_dev"}};
    std::map<std::string, std::string> values;
    std::map<std::string, std::vector<std::string>> lists;
    std::istringstream words(said["arguments"].get<std::string>());
    std::string list;
    for (std::string word; words >> word;) {
        if (!word.starts_with("--")) {
            lists[list].push_back(word);
            continue;
        }
        const std::size_t equals = word.find('=');
        const std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
        list = name;
        const std::string value = equals == std::string::npos ? std::string() : word.substr(equals + 1);
        const bool is_number = value.find_first_not_of("0123456789.") == std::string::npos;
        if (equals != std::string::npos)
            values[name] = is_number ? value : "\"" + value + "\"";
        else if (name != "network_args" && name != "optimizer_args")
            values[name] = "true";
    }
    std::string out;
    const bool v2 = values.contains("v2");
    out += "pretrained_model_name_or_path = \"" + (v2 ? std::string("sd21.safetensors") : models.at(said["script"])) +
           "\"\n";
    for (const auto& [name, value] : values) out += name + " = " + value + "\n";
    for (const auto& [name, items] : lists) {
        out += name + " = [";
        for (const std::string& item : items) out += "\"" + item + "\", ";
        out += "]\n";
    }
    out += "resolution = \"" + said["width"].dump() + "," + said["height"].dump() + "\"\n";
    if (said.contains("prompt")) out += "sample_every_n_steps = 1\nsample_prompts = \"prompts.txt\"\n";
    out += "[vramest.data]\nbuckets = [[" + said["width"].dump() + ", " + said["height"].dump() + "]]\n";
    return out;
}

expected<job::Job> job_of(const json& said) {
    expected<io::Document> document = io::read(config_of(said), "config.toml", io::Format::toml);
    REQUIRE(document);
    Diagnostics notes;
    expected<job::Job> job = sd_scripts::resolve(*document, catalogue(), notes);
    if (!job || !said.contains("prompt")) return job;
    // The prompts' file is another one.
    job::Batch image;
    std::istringstream prompt(said["prompt"].get<std::string>());
    for (std::string word; prompt >> word;) {
        if (word == "--w") prompt >> image.width;
        if (word == "--h") prompt >> image.height;
        if (word == "--s") prompt >> job->sampling.steps;
    }
    image.count = 1;
    job->sampling.images = {image};
    job->sampling.rendered = {1};
    job->sampling.periodic = true;
    return job;
}

struct Played {
    device::Usage usage;
    run::Facts facts;
};

Played play(const job::Job& job) {
    shadow::Kernels kernels;
    kernels.scratch = false;
    shadow::Run run(kernels, true);
    Played out;
    out.facts = sd_scripts::play(job, catalogue(), run);
    out.usage = device::sum(run.trace);
    return out;
}

Bytes peak_of(const device::PhaseUsage& phase, std::initializer_list<const char*> stages) {
    Bytes peak = 0;
    for (const char* name : stages)
        if (const device::Span* span = phase.stage(name)) peak = std::max(peak, span->tensors_peak);
    return peak;
}

/// `kept_rates`: what AdafactorSchedule keeps of learning rates on the GPU from the first step on, which is not played.
void meet_step(const device::PhaseUsage& step, const json& recorded, Bytes kept_rates) {
    const device::Span* prepare = step.stage("prepare");
    REQUIRE(prepare != nullptr);
    const Bytes start = prepare->tensors_start;
    CHECK(start + kept_rates == recorded["start"]);
    const auto recorded_peak = [&](std::initializer_list<const char*> names) {
        Bytes peak = 0;
        for (const char* name : names)
            if (recorded.contains(name)) peak = std::max(peak, recorded[name].get<Bytes>());
        return peak;
    };
    // The recorder's stage of noise begins with autocast, which a step without text has not.
    CHECK(peak_of(step, {"prepare", "noise"}) - start == recorded_peak({"prepare_peak", "noise_peak"}));
    CHECK(peak_of(step, {"optimizer", "scale_weight_norms"}) - start == recorded["optimizer_peak"]);
    for (const auto& [name, bytes] : recorded.items()) {
        const std::size_t end = name.rfind("_peak");
        if (end == std::string::npos) continue;
        const std::string stage = name.substr(0, end);
        if (stage == "prepare" || stage == "noise" || stage == "optimizer" || stage == "next") continue;
        CAPTURE(stage);
        const device::Span* span = step.stage(stage);
        REQUIRE(span != nullptr);
        CHECK(span->tensors_peak - start == bytes);
    }
}

/// The recorder's phases that have one of ours beside them.
void meet_phases(const Played& played, const json& recorded, const std::string& id) {
    for (const json& phase : recorded["phases"]) {
        const std::string name = phase[0];
        // With samples FLUX' prompts are encoded behind the captions, which is another phase of the recorder's.
        const bool has_prompts = recorded.contains("samples") && id.starts_with("flux");
        if (name != "cache_latents" && (name != "cache_text" || has_prompts)) continue;
        CAPTURE(name);
        const device::PhaseUsage* ours = played.usage.phase(name);
        REQUIRE(ours != nullptr);
        CHECK(ours->tensors_peak == phase[2]);
    }
    if (!recorded.contains("samples")) return;
    const device::PhaseUsage* ours = played.usage.phase("sample");
    REQUIRE(ours != nullptr);
    for (const json& sample : recorded["samples"]) {
        const std::string name = sample[0];
        if (name != "sample text" && name != "sample denoise" && name != "sample decode") continue;
        CAPTURE(id);
        CAPTURE(name);
        const device::Span* span = ours->stage(name.substr(7));
        REQUIRE(span != nullptr);
        CHECK(span->tensors_peak == sample[2]);
    }
}

/// What is refused, by the word that its arguments hold.
bool is_refused(const json& said) {
    const std::string arguments = said["arguments"];
    for (const char* word : {"--loss_type=huber", "--weighted_captions", "--ip_noise_gamma", "--lowram"})
        if (arguments.find(word) != std::string::npos) return true;
    const auto holds = [&](const char* word) { return arguments.find(word) != std::string::npos; };
    return holds("--fp8_base") && !holds("--cache_text_encoder_outputs");
}

}  // namespace

TEST_CASE("sd-scripts' runs are met to the byte") {
    std::size_t refused = 0;
    const auto meet = [&](const json& row) {
        const json &said = row["case"], &recorded = row["result"];
        const expected<job::Job> job = job_of(said);
        if (is_refused(said)) {
            CHECK_FALSE(job);
            ++refused;
            return;
        }
        if (!job) FAIL(to_text(job.error().front()));
        const Played played = play(*job);
        CHECK(played.facts.counts.adapted_modules == recorded["adapted_modules"]);
        CHECK(played.facts.counts.adapter_parameters == recorded["trained_parameters"]);
        CHECK(played.facts.adapter == recorded["adapter_bytes"]);
        CHECK(played.facts.optimizer_state == recorded["optimizer_state"]);
        const bool accumulates = std::get<job::Training>(job->work).gradient_accumulation > 1;
        if (!accumulates) CHECK(played.facts.kept_for_backward == recorded["steps"][1]["kept_for_backward"]);
        for (int number = 1; number <= 2; ++number) {
            CAPTURE(number);
            const device::PhaseUsage* step = played.usage.phase("step " + std::to_string(number));
            REQUIRE(step != nullptr);
            const bool scheduled = said["id"] == "sdxl-te-adafactor-relative" && number == 2;
            meet_step(*step, recorded["steps"][static_cast<std::size_t>(number - 1)], scheduled ? 4 * 512 : 0);
        }
        meet_phases(played, recorded, said["id"]);
    };
    CHECK(tests::play_rows("sd_scripts.jsonl", meet) > 30);
    CHECK(refused > 2);
}
