#include "vram/advise/max.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "vram/advise/grow.hpp"

using namespace vram;
using advise::Vary;
using report::Verdict;

namespace {

const profile::Catalogue& catalogue() {
    static const profile::Catalogue all = profile::Catalogue::built_in();
    return all;
}

std::string job_of(const std::string& model, const std::string& train, const std::string& data) {
    return "vramest: 1\ntrainer: torch\n" + model + "\n" + (train.empty() ? "" : "train: " + train + "\n") + data;
}

const std::string lora = "{method: lora, rank: 4, gradient_checkpointing: true}";

advise::Max max_of(const std::string& text, const std::vector<Vary>& vary, const std::string& gpu = "rtx-3070") {
    report::CheckOptions options;
    options.gpu = gpu;
    return advise::max(text, "job.yaml", vary, options, catalogue());
}

}  // namespace

TEST_CASE("an axis that the job does not have is a complaint at the key that rules it out") {
    struct Case {
        const char* why;
        std::string text;
        Vary vary;
        int line;
    };
    for (const Case& c : {
             Case{"frames of an image model", job_of("model: sd15", lora, ""), Vary::frames, 3},
             Case{"a rank without an adapter", job_of("model: sd15", "{method: full}", ""), Vary::rank, 4},
             Case{"a rank of a call", job_of("model: sd15", "", ""), Vary::rank, 3},
             Case{"the size of a text", job_of("component: clip_l", "", ""), Vary::resolution, 3},
         }) {
        CAPTURE(c.why);
        const advise::Max max = max_of(c.text, {c.vary});
        CHECK(max.most.empty());
        REQUIRE(max.diagnostics.size() == 1);
        CHECK(max.diagnostics.front().problem == Problem::conflict);
        CHECK(max.diagnostics.front().place.line == c.line);
        CHECK(advise::exit_code(max) == 2);
        CHECK(nlohmann::json::parse(to_json(max)).at("max").empty());
    }
}

TEST_CASE("silly questions are answered with what is wrong") {
    const std::string job = job_of("model: sd15", lora, "");
    CHECK(max_of(job, {}).diagnostics.front().problem == Problem::out_of_range);
    CHECK(max_of(job, {Vary::rank, Vary::rank}).diagnostics.front().problem == Problem::conflict);
    CHECK(max_of(job, {Vary::rank, Vary::batch_size, Vary::resolution}).diagnostics.front().problem ==
          Problem::out_of_range);
    CHECK(max_of(job, {Vary::rank}, "").diagnostics.front().problem == Problem::missing_key);
    CHECK(max_of(job, {Vary::rank}, "rtx-9").diagnostics.front().problem == Problem::unknown_gpu);
    CHECK(max_of("model: [", {Vary::rank}).diagnostics.front().problem == Problem::syntax);
    CHECK(max_of(job_of("model: sd15", "{method: lora, rank: -1}", ""), {Vary::rank}).diagnostics.front().problem ==
          Problem::out_of_range);
    CHECK(advise::read_vary("batchsize").error().front().nearest == "batch_size");
}

TEST_CASE("where nothing fits the answer is 1, and says what the least needs") {
    const advise::Max max = max_of(job_of("model: flux1_dev", lora, ""), {Vary::batch_size});
    REQUIRE(max.most.size() == 1);
    CHECK_FALSE(max.most.front().best);
    CHECK(advise::exit_code(max) == 1);
    CHECK(to_text(max).find("no value fits") != std::string::npos);
    CHECK(to_text(max).find("1: does not fit, more than ") != std::string::npos);
}

TEST_CASE("an axis ends where the model does") {
    const advise::Max rank = max_of(job_of("model: sd15", lora, "data: {resolution: 256}"), {Vary::rank}, "h200");
    REQUIRE(rank.most.size() == 1);
    REQUIRE(rank.most.front().best);
    CHECK(rank.most.front().best->value == 1024);
    CHECK_FALSE(rank.most.front().next);
    CHECK(to_text(rank).find("no larger value is tried") != std::string::npos);
}

TEST_CASE("the job's own value is a step, whatever it is") {
    const advise::Max max =
        max_of(job_of("model: sd15", "{method: lora, rank: 5}", "data: {resolution: 256}"), {Vary::rank}, "rtx-3070");
    CHECK(max.now == 5);
    REQUIRE(max.most.size() == 1);
    bool there = false;
    for (const advise::Tried& tried : max.most.front().tried) there = there || tried.value == 5;
    CHECK(there);
}

TEST_CASE("sizes are scaled alike, and what is no square reads as one size") {
    const advise::Max max = max_of(job_of("model: sd15", lora, "data: {buckets: [[512, 512], [384, 640]]}"),
                                   {Vary::resolution}, "rtx-3070");
    REQUIRE(max.most.size() == 1);
    REQUIRE(max.most.front().best);
    CHECK(max.now == 512);
    for (const advise::Tried& tried : max.most.front().tried) {
        CHECK(tried.trial.verdict != Verdict::cannot_say);
        if (tried.value == 512)
            CHECK(tried.settings == std::vector<report::Setting>{{"data.buckets", "[[512, 512, 1], [384, 640, 1]]"}});
    }
}

TEST_CASE("JSON of max and of grow carries bytes") {
    const std::string job = job_of("model: sd15", lora, "data: {resolution: 256}");
    const nlohmann::json max = nlohmann::json::parse(to_json(max_of(job, {Vary::batch_size})));
    CHECK(max.at("vary").at(0) == "batch_size");
    CHECK(max.at("keys").at(0) == "train.batch_size");
    CHECK(max.at("max").at(0).at("value").is_number_integer());
    CHECK(max.at("max").at(0).at("tried").size() > 3);
    CHECK(max.at("max").at(0).at("next").at("verdict") != "fits");
    report::CheckOptions options;
    options.gpu = "rtx-3070";
    const advise::Grow grown = advise::grow(job, "job.yaml", options, catalogue());
    const nlohmann::json grow = nlohmann::json::parse(to_json(grown));
    CHECK(grow.at("verdict") == "fits");
    CHECK(grow.at("lines").at(0).at("what") == "steps");
    CHECK(grow.at("lines").at(1).at("what") == "resolution");
    CHECK(grow.at("lines").at(1).at("device_high").is_number_integer());
    CHECK(to_text(grown).find("batch_size") != std::string::npos);
}

TEST_CASE("grow says what stays, and that nothing grows before the job fits") {
    report::CheckOptions options;
    options.gpu = "rtx-3070";
    const advise::Grow small = advise::grow(job_of("model: flux1_dev", lora, ""), "job.yaml", options, catalogue());
    CHECK(small.verdict == Verdict::does_not_fit);
    CHECK(small.lines.empty());
    CHECK(advise::exit_code(small) == 1);
    const advise::Grow full = advise::grow(job_of("model: sd15", "{method: full}", "data: {resolution: 256}"),
                                           "job.yaml", {{}, "h200", 0, {}, true}, catalogue());
    REQUIRE(full.lines.size() == 6);
    CHECK_FALSE(full.lines[4].grows);
    CHECK(full.lines[4].why.find("in full") != std::string::npos);
    CHECK(full.lines[5].why == "it is off already");
    CHECK(full.lines[2].why.find("renders no samples") != std::string::npos);
    CHECK(advise::grow("model: [", "job.yaml", options, catalogue()).diagnostics.size() == 1);
    CHECK(advise::exit_code(advise::grow("model: [", "job.yaml", options, catalogue())) == 2);
}

TEST_CASE("samples come back where a trainer was told not to render") {
    const std::string job =
        "vramest: 1\ntrainer: ai-toolkit\nmodel: flux1_dev\nquantize: quanto_qfloat8\n"
        "train: {method: lora, rank: 4, gradient_checkpointing: true}\ndata: {resolution: 512}\n";
    report::CheckOptions options;
    options.gpu = "a100-80gb";
    const advise::Grow grow = advise::grow(job, "job.yaml", options, catalogue());
    CAPTURE(grow.reason);
    REQUIRE(grow.lines.size() == 6);
    CHECK(grow.lines[2].what == "samples");
    CHECK(grow.lines[2].to == "on");
    CHECK(grow.lines[2].device_high > 0);
}
