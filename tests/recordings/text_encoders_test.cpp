// ai-toolkit's own steps with `train_text_encoder: true` (tests/reference/record_text_encoders.py there,
// truth/text_encoders.jsonl), played: what stages reach above the step's begin, and what stays.
#include <doctest/doctest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "recordings/stages.hpp"
#include "shadow/run.hpp"
#include "trainers/ai_toolkit/play.hpp"
#include "trainers/ai_toolkit/resolve.hpp"
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

std::string config_of(const json& said) {
    json process = said["process"];
    process["type"] = "sd_trainer";
    process["datasets"] =
        json::array({{{"folder_path", "none"}, {"resolution", 512}, {"cache_latents_to_disk", true}}});
    process["model"]["name_or_path"] = said["model"];
    process["model"]["arch"] = said["arch"];
    process["train"]["disable_sampling"] = true;
    json config{{"job", "extension"}};
    config["config"] = {{"name", "recorded"}, {"process", json::array({process})}};
    config["vramest"]["data"]["buckets"] = json::array({json::array({said["width"], said["height"]})});
    return config.dump();
}

struct Played {
    device::Usage usage;
    run::Facts facts;
};

Played play(const json& said) {
    expected<io::Document> document = io::read(config_of(said), "job.json", io::Format::json);
    REQUIRE(document);
    Diagnostics notes;
    const expected<job::Job> job = ai_toolkit::resolve(*document, catalogue(), notes);
    if (!job) FAIL(to_text(job.error().front()));
    shadow::Kernels kernels;
    kernels.scratch = false;
    shadow::Run run(kernels, true);
    Played out;
    out.facts = ai_toolkit::play(*job, catalogue(), run);
    out.usage = device::sum(run.trace);
    return out;
}

}  // namespace

TEST_CASE("ai-toolkit's steps with train_text_encoder are met to the byte") {
    const auto meet = [](const json& row) {
        const json &said = row["case"], &recorded = row["result"];
        const Played played = play(said);
        if (recorded.contains("adapted_modules")) {
            CHECK(played.facts.counts.adapted_modules == recorded["adapted_modules"]);
            CHECK(played.facts.adapter == recorded["adapter_bytes"]);
        }
        CHECK(played.facts.optimizer_state == recorded["optimizer_state"]);
        CHECK(played.facts.gradients == recorded["steps"][1]["gradients"]);
        CHECK(played.facts.kept_for_backward == recorded["steps"][1]["kept_for_backward"]);
        for (int number = 1; number <= 2; ++number) {
            CAPTURE(number);
            const device::PhaseUsage* step = played.usage.phase("step " + std::to_string(number));
            REQUIRE(step != nullptr);
            for (const auto& [name, bytes] : recorded["steps"][static_cast<std::size_t>(number - 1)].items()) {
                const std::size_t end = name.rfind("_peak");
                if (end == std::string::npos) continue;
                const std::string stage = name.substr(0, end);
                CAPTURE(stage);
                const device::Span* span = step->stage(stage);
                REQUIRE(span != nullptr);
                CHECK(span->tensors_peak - step->tensors_start == bytes);
            }
        }
    };
    CHECK(tests::play_rows("text_encoders.jsonl", meet) == 12);
}
