#include "vram/report/check.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "unit/models/saved.hpp"

using namespace vram;
using namespace vram::report;

namespace {

const profile::Catalogue& catalogue() {
    static const profile::Catalogue built_in = profile::Catalogue::built_in();
    return built_in;
}

constexpr std::string_view small_job = R"(vramest: 1
trainer: torch
model: flux1_dev
train: {method: lora, rank: 4, gradient_checkpointing: true}
data: {resolution: 256, text_tokens: 64}
)";

Report check_with(const CheckOptions& options, std::string_view text = small_job) {
    return check(text, "job.yaml", options, catalogue());
}

CheckOptions on(std::string gpu) {
    CheckOptions options;
    options.gpu = std::move(gpu);
    return options;
}

CheckOptions with(std::vector<Setting> settings) {
    CheckOptions options = on("h200");
    options.settings = std::move(settings);
    return options;
}

}  // namespace

TEST_CASE("a job is answered from its text") {
    const Report report = check_with(on("RTX 4090"));
    CHECK(report.verdict != Verdict::cannot_say);
    CHECK(report.gpu.id == "rtx-4090");
    CHECK(report.gpu.chosen_by == ChosenBy::flag);
    CHECK(report.job.model == "flux1_dev");
    CHECK(report.job.source == "job.yaml");
    CHECK(report.facts.counts.parameters == 11901408320);
    CHECK(report.phases.size() == 3);
    CHECK(report.diagnostics.empty());
    REQUIRE(report.peak);
    Bytes low = 0, high = 0;
    for (const Part& part : report.breakdown) {
        low += part.low;
        high += part.high;
        CHECK(!part.source.empty());
    }
    CHECK(low == report.peak->device_low);
    CHECK(high == report.peak->device_high);
}

TEST_CASE("who names the card is said") {
    const std::string with_card = std::string(small_job) + "gpu: rtx-3090\n";
    CHECK(check_with({}, with_card).gpu.chosen_by == ChosenBy::job);
    CHECK(check_with(on("a100-80gb"), with_card).gpu.id == "a100-80gb");
    CheckOptions options;
    options.capacity = 40 * GiB;
    CHECK(check_with(options, with_card).gpu.capacity == 40 * GiB);
    options = {};
    options.driver = DriverCard{"NVIDIA GeForce RTX 3090", 24576 * MiB};
    CHECK(check_with(options, with_card).gpu.chosen_by == ChosenBy::job);
    CHECK(check_with(options).gpu.id == "rtx-3090");
    CHECK(check_with(options).gpu.chosen_by == ChosenBy::driver);
    options.driver = DriverCard{"Some Card 9000", 100 * GiB};
    const Report unknown = check_with(options);
    CHECK(unknown.gpu.id.empty());
    CHECK(unknown.gpu.name == "Some Card 9000");
    CHECK(unknown.gpu.capacity < unknown.gpu.capacity_high);
    CHECK(unknown.verdict == Verdict::fits);
}

TEST_CASE("without a card, the smallest that holds it") {
    const Report report = check_with({});
    CHECK(report.gpu.chosen_by == ChosenBy::smallest_that_holds);
    CHECK(report.verdict == Verdict::fits);
    for (const profile::DeviceProfile& card : catalogue().cards().devices()) {
        if (card.id == report.gpu.id) break;
        CAPTURE(card.id);
        CHECK(check_with(on(card.id)).verdict != Verdict::fits);
    }
    const Report none = check_with({}, std::string(small_job) + "environment: {other_processes: 500 GiB}\n");
    CHECK(none.verdict == Verdict::does_not_fit);
    CHECK(none.gpu.chosen_by == ChosenBy::smallest_that_holds);
}

TEST_CASE("settings override the file") {
    const Report report = check_with(with({{"train.rank", "8"},
                                           {"data.resolution", ""},
                                           {"model", "flex1"},
                                           {"train.batch_size", "2"},
                                           {"environment.alloc_conf", "expandable_segments:True"}}),
                                     "vramest: 1\ntrainer: torch\ntrain: {method: lora, rank: 4}\n");
    CHECK(report.verdict == Verdict::cannot_say);  // a resolution that is null is no resolution
    const Report fits =
        check_with(with({{"train.rank", "8"}, {"data.buckets", "[[256, 256], [512, 256]]"}, {"model", "flex1"}}),
                   "vramest: 1\ntrainer: torch\ntrain: {method: lora, rank: 4}\n");
    CHECK(fits.verdict == Verdict::fits);
    CHECK(fits.job.resolved.at("train.rank") == "8");
    CHECK(fits.phase("bucket 512x256") != nullptr);
}

TEST_CASE("expandable segments are ignored on Windows, and that is said") {
    const Report report =
        check_with(with({{"environment.os", "windows"}, {"environment.alloc_conf", "'expandable_segments:True'"}}));
    REQUIRE(report.diagnostics.size() == 1);
    CHECK(report.diagnostics[0].severity == Severity::warning);
    CHECK(report.verdict == Verdict::fits);
}

TEST_CASE("whatever is accepted is played or refused for its size, and nothing is thrown") {
    const Report report = check_with(with({{"data.resolution", "32768"}, {"train.batch_size", "4096"}}));
    CHECK(report.verdict != Verdict::fits);
    const Report rank = check_with(with({{"train.rank", "65536"}, {"train.gradient_accumulation", "8"}}));
    CHECK(rank.verdict != Verdict::fits);
}

TEST_CASE("the same question has the same answer") { CHECK(check_with(on("rtx-4090")) == check_with(on("rtx-4090"))); }

TEST_CASE("the event list has a row for each event") {
    const expected<std::string> text = trace_json(small_job, "job.yaml", {}, catalogue());
    REQUIRE(text);
    const nlohmann::json list = nlohmann::json::parse(*text);
    CHECK(list.at("format") == 1);
    CHECK(list.at("texts").at(0) == "");
    std::int64_t live = 0, marks = 0;
    for (const nlohmann::json& row : list.at("events")) {
        REQUIRE(row.size() == 5);
        if (row[0] == "a") ++live;
        if (row[0] == "f") --live;
        if (row[0] == "m") ++marks;
    }
    CHECK(live == 0);  // everything dies with the run
    CHECK(marks > 0);
    CHECK(marks % 2 == 0);
}

TEST_CASE("a folder of a known model is answered as the model itself") {
    const io::TemporaryFolder folder;
    const profile::ModelProfile& flux = catalogue().model_of("flux1_dev");
    std::filesystem::create_directory(folder.path("my"));
    folder.write("my/config.json", models::config_of(flux).dump());
    models::write_weights(folder, "my/model.safetensors", *models::parameters_of(flux));
    const auto with_model = [&](const std::string& model) {
        std::string text(small_job);
        text.replace(text.find("flux1_dev"), 9, model);
        return check(text, folder.path("job.yaml"), on("h200"), catalogue());
    };
    const Report known = with_model("flux1_dev");
    for (const std::string model : {"my", "./my", "my/", "my/model.safetensors"}) {
        CAPTURE(model);
        const Report read = with_model(model);
        REQUIRE(read.peak);
        CHECK(read.peak == known.peak);
        CHECK(read.facts == known.facts);
        CHECK(read.breakdown == known.breakdown);
        CHECK(read.job.model == model);
        CHECK(read.stored == std::vector<job::StoredWeights>{{"BF16", 11901408320, 2 * 11901408320}});
    }
    CHECK(known.stored.empty());
}

TEST_CASE("a name of a profile goes before a folder of the same name, and a note says so") {
    const io::TemporaryFolder folder;
    std::filesystem::create_directory(folder.path("flux1_dev"));
    const Report report = check(small_job, folder.path("job.yaml"), on("h200"), catalogue());
    CHECK(report.peak);
    REQUIRE(report.diagnostics.size() == 1);
    CHECK(report.diagnostics[0].severity == Severity::note);
    CHECK(report.diagnostics[0].place.line == 3);
    CHECK(report.diagnostics[0].text.find("./flux1_dev") != std::string::npos);
}

TEST_CASE("weights in another type are taken in the job's") {
    const io::TemporaryFolder folder;
    const profile::ModelProfile& flux = catalogue().model_of("flux1_dev");
    models::write_weights(folder, "flux.safetensors", *models::parameters_of(flux), "", "F8_E4M3", 1);
    std::string text(small_job);
    text.replace(text.find("flux1_dev"), 9, "flux.safetensors");
    const Report report = check(text, folder.path("job.yaml"), on("h200"), catalogue());
    REQUIRE(report.peak);
    CHECK(report.facts.weights > 2 * 11901408320);
    CHECK(report.stored[0].bytes == 11901408320);
    bool is_told = false;
    for (const Diagnostic& note : report.diagnostics)
        is_told = is_told || note.text.find("stored as F8_E4M3 and taken in bf16") != std::string::npos;
    CHECK(is_told);
}

TEST_CASE("of a model that is not known the weights are told") {
    const io::TemporaryFolder folder;
    models::write_weights(folder, "x.safetensors", {{"a", {1024, 1024, 512}, false}});
    const Report report =
        check("vramest: 1\ntrainer: torch\nmodel: x.safetensors\n", folder.path("job.yaml"), {}, catalogue());
    CHECK(report.verdict == Verdict::cannot_say);
    CHECK(exit_code(report) == 2);
    CHECK_FALSE(report.peak);
    CHECK(report.facts.weights == GiB);
    CHECK(report.facts.counts.parameters == 1024 * 1024 * 512);
    CHECK(report.diagnostics.front().problem == Problem::unsupported);
    CHECK(report.diagnostics.front().place.line == 3);
    CHECK(to_text(report).find("  BF16                                     1.00\n") != std::string::npos);
    const nlohmann::json told = nlohmann::json::parse(to_json(report));
    CHECK(told.at("stored_weights").at(0).at("bytes") == GiB);
}
