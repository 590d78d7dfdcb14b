#include "vram/advise/risk.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

using namespace vram;
using namespace vram::advise;
using report::RiskLevel;
using report::Verdict;

namespace {

const profile::Catalogue& catalogue() {
    static const profile::Catalogue all = profile::Catalogue::built_in();
    return all;
}

constexpr const char* buckets = R"(vramest: 1
trainer: torch
model: flux1_dev
train: {method: lora, rank: 16, gradient_checkpointing: true, batch_size: 2}
data: {buckets: [[256, 256], [512, 512], [1024, 1024]]}
)";

CheckpointingRisk risk_of(const std::string& text, const std::string& gpu, std::vector<report::Setting> settings = {}) {
    report::CheckOptions options;
    options.gpu = gpu;
    options.settings = std::move(settings);
    return risk(text, "job.yaml", options, catalogue());
}

std::string example(const std::string& name) {
    const std::ifstream file(std::string(VRAM_SOURCE_DIR) + "/examples/" + name, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

}  // namespace

TEST_CASE("the level is that of having it off, and the exit code tells whether that fits") {
    struct Case {
        const char* why;
        const char* gpu;
        RiskLevel level;
        Verdict on, off;
        int code;
    };
    for (const Case& c : {
             Case{"plenty of room", "h200", RiskLevel::low, Verdict::fits, Verdict::fits, 0},
             Case{"on fits, off does not", "rtx-5090", RiskLevel::high, Verdict::fits, Verdict::does_not_fit, 1},
             Case{"neither fits", "rtx-3060", RiskLevel::high, Verdict::does_not_fit, Verdict::does_not_fit, 1},
         }) {
        CAPTURE(c.why);
        const CheckpointingRisk risk = risk_of(buckets, c.gpu);
        CHECK(risk.level == c.level);
        CHECK(risk.on.verdict == c.on);
        CHECK(risk.off.verdict == c.off);
        CHECK(risk.is_on);
        CHECK(exit_code(risk) == c.code);
        CHECK(!risk.why.empty());
    }
}

TEST_CASE("both needs are those of check, whatever the file says of checkpointing") {
    for (const char* said : {"true", "false"}) {
        CAPTURE(said);
        const CheckpointingRisk risk = risk_of(buckets, "rtx-5090", {{"train.gradient_checkpointing", said}});
        CHECK(risk.is_on == (std::string(said) == "true"));
        report::CheckOptions options;
        options.gpu = "rtx-5090";
        options.compares_checkpointing = false;
        options.settings = {{"train.gradient_checkpointing", "true"}};
        CHECK(risk.on.peak == report::check(buckets, "job.yaml", options, catalogue()).peak);
        options.settings = {{"train.gradient_checkpointing", "false"}};
        const report::Report off = report::check(buckets, "job.yaml", options, catalogue());
        CHECK(risk.off.peak == off.peak);
        CHECK(risk.off.breaks_first == off.breaks_first);
        REQUIRE(risk.buckets.size() == 3);
        for (const BucketRisk& bucket : risk.buckets) {
            REQUIRE(off.phase(bucket.phase) != nullptr);
            CHECK(off.phase(bucket.phase)->needs_high == bucket.needs_high);
            CHECK(off.phase(bucket.phase)->verdict == bucket.verdict);
        }
    }
}

TEST_CASE("the plan changes one thing a run, and ends at the first that does not fit") {
    struct Case {
        const char* why;
        const char* gpu;
        std::vector<std::string> runs;
        Verdict last;
    };
    for (const Case& c : {
             Case{"all of it fits",
                  "h200",
                  {"the smallest bucket, 256x256, batch 1", "the top bucket, 1024x1024", "the job's batch, 2",
                   "every bucket"},
                  Verdict::fits},
             Case{"the top bucket is too large at batch 1",
                  "rtx-5090",
                  {"the smallest bucket, 256x256, batch 1", "the top bucket, 1024x1024"},
                  Verdict::does_not_fit},
             Case{"nothing fits", "rtx-3060", {"the smallest bucket, 256x256, batch 1"}, Verdict::does_not_fit},
         }) {
        CAPTURE(c.why);
        const CheckpointingRisk risk = risk_of(buckets, c.gpu);
        std::vector<std::string> runs;
        for (const PlannedRun& run : risk.plan) {
            runs.push_back(run.text);
            report::CheckOptions options;
            options.gpu = c.gpu;
            options.settings = run.settings;
            const report::Report checked = report::check(buckets, "job.yaml", options, catalogue());
            REQUIRE(checked.peak);
            CHECK(checked.peak->device_high == run.device_high);
            CHECK(checked.verdict == run.verdict);
        }
        CHECK(runs == c.runs);
        REQUIRE(!risk.plan.empty());
        CHECK(risk.plan.back().verdict == c.last);
        for (std::size_t i = 0; i + 1 < risk.plan.size(); ++i) CHECK(risk.plan[i].verdict == Verdict::fits);
    }
}

TEST_CASE("a trainer's own file is planned by the job file's names, samples last") {
    const std::string text = example("flux_lora.yaml");
    const CheckpointingRisk risk = advise::risk(
        text, "flux_lora.yaml",
        [] {
            report::CheckOptions options;
            options.gpu = "h200";
            return options;
        }(),
        catalogue());
    REQUIRE(risk.plan.size() == 4);
    CHECK(risk.plan[0].text == "the smallest bucket, 512x512, batch 1, no samples");
    CHECK(risk.plan[1].text == "the top bucket, 1024x1024");
    CHECK(risk.plan[2].text == "every bucket");
    CHECK(risk.plan[3].text == "samples, as in the job");
    for (const PlannedRun& run : risk.plan) CHECK(run.why_not.empty());
    CHECK(risk.plan[0].device_high < risk.plan[1].device_high);
    CHECK(risk.plan[3].device_high == risk.off.peak->device_high);
    CHECK(risk.off.phase("sample") != nullptr);
    report::CheckOptions quiet;
    quiet.gpu = "h200";
    quiet.settings = {{"sample", "null"}};
    const report::Report silent = report::check(text, "flux_lora.yaml", quiet, catalogue());
    CHECK(silent.phase("sample") == nullptr);
    CHECK(silent.phase("baseline_sample") == nullptr);
    CHECK(silent.phase("step 2") != nullptr);
}

TEST_CASE("what would make it fit without checkpointing does, as advise says") {
    const CheckpointingRisk risk = risk_of(buckets, "rtx-5090");
    REQUIRE(!risk.instead.empty());
    for (const Proposal& proposal : risk.instead) {
        report::CheckOptions options;
        options.gpu = "rtx-5090";
        options.settings = {{"train.gradient_checkpointing", "false"}};
        for (const Placed& placed : proposal.changes)
            options.settings.insert(options.settings.end(), placed.change.settings.begin(),
                                    placed.change.settings.end());
        const report::Report again = report::check(proposal.file, "job.yaml", options, catalogue());
        CHECK(again.verdict == proposal.verdict);
        CHECK_FALSE(again.checkpointing.on);
    }
    CHECK(risk_of(buckets, "h200").instead.empty());
}

TEST_CASE("where nothing trains the complaint points at the model") {
    const CheckpointingRisk risk = risk_of("vramest: 1\ntrainer: torch\nmodel: flux1_dev\n", "h200");
    CHECK(exit_code(risk) == 2);
    REQUIRE(risk.off.diagnostics.size() == 1);
    CHECK(risk.off.diagnostics[0].problem == Problem::conflict);
    CHECK(risk.off.diagnostics[0].key == "model");
    CHECK(risk.off.diagnostics[0].place == Place{"job.yaml", 3, 8});
    CHECK(exit_code(risk_of("vramest: 1\ntrainer: torch\nmodel: flux1_dve\n", "h200")) == 2);
    CHECK(exit_code(risk_of("[", "h200")) == 2);
    CHECK(exit_code(risk_of(buckets, "no-such-card")) == 2);
}

TEST_CASE("without a card both are about the smallest that holds the job with checkpointing") {
    const CheckpointingRisk risk = risk_of(buckets, "");
    CHECK(risk.on.gpu.chosen_by == report::ChosenBy::smallest_that_holds);
    CHECK(risk.off.gpu.id == risk.on.gpu.id);
    CHECK(risk.level == RiskLevel::high);
}
