// Recordings of ai-toolkit's ConceptSliderTrainer (tests/reference/truth/sliders.jsonl; format: record_sliders.py
// there): a second step from get_guided_loss to the end of train_single_accumulation, met event by event within a whole
// run.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "recordings/stages.hpp"
#include "shadow/run.hpp"
#include "trainers/ai_toolkit/play.hpp"
#include "trainers/ai_toolkit/resolve.hpp"
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

std::string config_of(const json& said) {
    const std::string arch = said["arch"];
    const std::vector<std::int64_t> prompts = said["prompts"];
    json slider{{"positive_prompt", "happy"}, {"negative_prompt", "sad"}, {"target_class", "person"}};
    if (prompts.size() > 3) slider["anchor_class"] = "";
    json process{{"type", "concept_slider"}, {"slider", slider}};
    process["network"] = {{"type", "lora"}, {"linear", said["rank"]}};
    process["datasets"] = json::array({{{"folder_path", "none"}, {"cache_latents", true}}});
    process["train"] = {{"dtype", "bf16"},
                        {"batch_size", said["batch"]},
                        {"cache_text_embeddings", true},
                        {"noise_scheduler", arch == "sd1" ? "ddpm" : "flowmatch"},
                        {"gradient_checkpointing", said["checkpointing"]},
                        {"disable_sampling", true}};
    process["model"] = {{"name_or_path", arch == "flux"  ? "flux1_dev"
                                         : arch == "sd1" ? "sd15"
                                                         : "z_image"},
                        {"arch", arch}};
    json config{{"job", "extension"}};
    config["config"] = {{"name", "recorded"}, {"process", json::array({process})}};
    config["vramest"]["data"]["resolution"] = {said["width"], said["height"]};
    if (arch == "zimage") config["vramest"]["data"]["text_tokens"] = prompts.front();
    return config.dump();
}

profile::Config::Value value_of(const json& value) {
    if (value.is_number_integer()) return value.get<std::int64_t>();
    if (value.front().is_number()) return value.get<std::vector<std::int64_t>>();
    return value.get<std::vector<std::string>>();
}

/// The case as the trainer would read it, but for the model, which is shrunken as in the recording.
job::Job job_of(const json& said) {
    expected<io::Document> document = io::read(config_of(said), "job.json", io::Format::json);
    REQUIRE(document);
    Diagnostics notes;
    expected<job::Job> job = ai_toolkit::resolve(*document, catalogue(), notes);
    if (!job) FAIL(to_text(job.error().front()));
    profile::ModelProfile shrunken = catalogue().model_of(job->model);
    shrunken.id = job->model = "shrunken";
    for (const auto& [key, value] : said["config"].items()) shrunken.config.values[key] = value_of(value);
    job->described.push_back(std::move(shrunken));
    return *std::move(job);
}

/// The first event from `from` on that is a mark of this kind and name.
std::size_t mark_from(const shadow::Trace& trace, std::size_t from, shadow::MarkKind kind, const std::string& name) {
    const shadow::Mark wanted{kind, name};
    for (std::size_t i = from; i < trace.events.size(); ++i)
        if (const shadow::Event& event = trace.events[i];
            event.kind == shadow::EventKind::mark && trace.marks[static_cast<std::size_t>(event.slot)] == wanted)
            return i;
    FAIL("no " << name);
    return from;
}

}  // namespace

TEST_CASE("steps of ai-toolkit's concept slider are met event by event") {
    const auto play = [](const json& row) {
        shadow::Kernels kernels;
        kernels.scratch = false;
        shadow::Run run(kernels, true);
        const run::Facts facts = ai_toolkit::play(job_of(row["case"]), catalogue(), run);
        CHECK(facts.counts.adapted_modules == row["result"]["adapted"].get<std::int64_t>());

        using enum shadow::MarkKind;
        // get_guided_loss begins with the second part that prepares; behind the function the gradients are clipped.
        std::size_t from = mark_from(run.trace, 0, phase_begin, "step 2");
        from = mark_from(run.trace, from, stage_begin, "prepare");
        from = mark_from(run.trace, from + 1, stage_begin, "prepare");
        shadow::Trace part = run.trace;
        part.events.resize(mark_from(run.trace, from, stage_begin, "clip"));
        tests::Stages stages(part, row["result"]["stages"], from);
        stages.check("guided");
    };
    CHECK(tests::play_rows("sliders.jsonl", play) == 12);
}
