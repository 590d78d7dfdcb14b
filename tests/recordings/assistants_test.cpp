// Recordings of ai-toolkit's assistant LoRA (tests/reference/truth/assistants.jsonl; format: record_assistants.py
// there): merged while the model loads, inactive in steps, on the GPU and active in samples; met event by event.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "recordings/stages.hpp"
#include "shadow/ops.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/pipeline.hpp"
#include "trainers/ai_toolkit/resolve.hpp"
#include "vram/io/document.hpp"
#include "vram/profile/catalogue.hpp"

using namespace vram;
using namespace vram::trainers;
using nlohmann::json;
using shadow::Run;
using shadow::Tensor;
using shadow::Tensors;

namespace {

const profile::Catalogue& catalogue() {
    static const profile::Catalogue all = profile::Catalogue::built_in();
    return all;
}

/// The case as the trainer would read it, but for the model, which is shrunken as in the recording, and its file.
job::Job job_of(const json& said) {
    json process{{"type", "sd_trainer"}};
    process["network"] = {{"type", "lora"}, {"linear", said["rank"]}};
    process["datasets"] = json::array({{{"folder_path", "none"}}});
    process["train"] = {{"dtype", "bf16"}, {"noise_scheduler", "flowmatch"}};
    process["model"] = {{"name_or_path", "z_image"}, {"arch", said["arch"]}, {"assistant_lora_path", "a/b/c"}};
    process["sample"] = {{"prompts", {"a"}},
                         {"width", said["width"]},
                         {"height", said["height"]},
                         {"guidance_scale", said["guidance"]},
                         {"sample_steps", 2}};
    json config{{"job", "extension"}};
    config["config"] = {{"name", "recorded"}, {"process", json::array({process})}};
    config["vramest"]["data"]["resolution"] = {said["width"], said["height"]};
    expected<io::Document> document = io::read(config.dump(), "job.json", io::Format::json);
    REQUIRE(document);
    Diagnostics notes;
    expected<job::Job> job = ai_toolkit::resolve(*document, catalogue(), notes);
    if (!job) FAIL(to_text(job.error().front()));
    job->pipeline.assistant = {"recorded", said["assistant"], said["filled"]};
    profile::ModelProfile shrunken = catalogue().model_of(job->model);
    shrunken.id = job->model = "shrunken";
    for (const auto& [key, value] : said["config"].items()) shrunken.config.values[key] = value.get<std::int64_t>();
    job->described.push_back(std::move(shrunken));
    return *std::move(job);
}

/// The trace up to where the stage of this name begins.
shadow::Trace before(const shadow::Trace& trace, const std::string& stage) {
    shadow::Trace out = trace;
    const shadow::Mark wanted{shadow::MarkKind::stage_begin, stage};
    const auto at = std::find_if(out.events.begin(), out.events.end(), [&](const shadow::Event& event) {
        return event.kind == shadow::EventKind::mark && out.marks[static_cast<std::size_t>(event.slot)] == wanted;
    });
    REQUIRE(at != out.events.end());
    out.events.erase(at, out.events.end());
    return out;
}

std::int64_t frees(const shadow::Trace& trace, std::size_t from) {
    return std::count_if(trace.events.begin() + static_cast<std::ptrdiff_t>(from), trace.events.end(),
                         [](const shadow::Event& event) { return event.kind == shadow::EventKind::free; });
}

void step(ai_toolkit::Pipeline& pipeline, tests::Stages& stages, const Tensor& latents, const Tensor& timestep,
          const ai_toolkit::PromptEmbeds& caption, const job::Batch& batch) {
    Tensor prediction = pipeline.get_noise_prediction(latents, timestep, caption, batch);
    stages.check("step");
    {
        const Tensor gradient = pipeline.run.empty_like(prediction, shadow::Op::empty);
        Tensors grads{gradient};
        pipeline.run.backward(std::span<const Tensor>(&prediction, 1), std::move(grads));
    }
    prediction = Tensor();
    for (shadow::Parameter* parameter : pipeline.transformer.weights.trainable()) parameter->grad = Tensor();
    stages.check("backward");
}

void play(const json& row) {
    const json& said = row["case"];
    const job::Job job = job_of(said);
    shadow::Kernels kernels;
    kernels.scratch = false;
    Run run(kernels, true);
    const std::unique_ptr<ai_toolkit::Pipeline> pipeline =
        ai_toolkit::architecture_named(said["arch"].get<std::string>())->make(job, catalogue(), run);
    ai_toolkit::Part& transformer = pipeline->transformer;
    transformer.model->gradient_checkpointing = true;
    tests::Stages stages(run.trace, row["result"]["stages"]);
    CHECK(static_cast<std::int64_t>(transformer.assistant->adapters.size()) ==
          row["result"]["adapted"].get<std::int64_t>());

    transformer.load_training_adapter();
    stages.check("load");
    transformer.to_gpu();
    transformer.weights.adapter_to_gpu();
    Tensor torch_multiplier = run.empty({1}, Dtype::f32, shadow::Op::to_device);
    torch_multiplier = run.empty({1}, Dtype::f32, shadow::Op::clone);
    transformer.weights.multipliers = 1;
    const auto embeds = [&](std::size_t i) {
        ai_toolkit::PromptEmbeds out;
        out.is_list = true;
        out.text_embeds.push_back(
            run.empty({said["prompts"][i].get<std::int64_t>(), 2560}, job.dtype, shadow::Op::input));
        return out;
    };
    const ai_toolkit::PromptEmbeds caption = embeds(0), blank = embeds(1);
    const job::Batch batch = std::get<job::Training>(job.work).batches.front();
    const Tensor latents = run.empty(pipeline->latents(batch), job.dtype, shadow::Op::input);
    const Tensor timestep = run.empty({1}, Dtype::f32, shadow::Op::input);
    stages.check_sizes("place");  // a module's own parameters come behind those of its children there
    for (int i = 0; i < 2; ++i) step(*pipeline, stages, latents, timestep, caption, batch);

    const shadow::NoGrad no_grad(run);
    transformer.activate_assistant();
    const bool merges = said["merges"];
    transformer.weights.set_adapters(!merges, false);
    if (merges)
        for (const nn::Adapter& adapter : transformer.weights.adapters)
            adapter.how.style->merge(transformer.weights, adapter, false);
    stages.check("activate");
    const std::size_t denoise_from = run.trace.events.size();
    pipeline->generate_single_image(caption, blank, batch);
    {
        const shadow::Trace part = before(run.trace, "decode");
        tests::Stages denoise = stages.on(part, denoise_from);
        denoise.check("denoise");
    }
    const std::size_t from = run.trace.events.size();
    transformer.deactivate_assistant();
    if (merges) return;
    const json& deactivate = row["result"]["stages"].back();
    CHECK(deactivate[0] == "deactivate");
    CHECK(frees(run.trace, from) == static_cast<std::int64_t>(deactivate[1].size()));
}

}  // namespace

TEST_CASE("ai-toolkit's assistant LoRAs are met event by event") {
    CHECK(tests::play_rows("assistants.jsonl", play) == 3);
}
