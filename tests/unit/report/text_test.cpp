#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "vram/report/check.hpp"

using namespace vram;
using namespace vram::report;

namespace {

Report example(Verdict verdict) {
    Report report;
    report.job = {"torch", "flux1_dev", "job.yaml", {{"dtype", "bf16"}, {"train.rank", "16"}}};
    report.gpu = {"rtx-4090", "NVIDIA GeForce RTX 4090", ChosenBy::flag, 24 * GiB, 24 * GiB, GiB};
    report.verdict = verdict;
    report.reason = "flux1_dev needs 22.10 to 22.60 GiB, rtx-4090 has 23.00 GiB left; tightest in step 2, backward";
    report.peak = Peak{"step 2",
                       "backward",
                       Counter::reserved,
                       21 * GiB,
                       21 * GiB + 300 * MiB,
                       21 * GiB + 600 * MiB,
                       22 * GiB + 100 * MiB,
                       22 * GiB,
                       22 * GiB + 600 * MiB};
    report.facts.counts = {11901408320, 190, 18677760, 228, 0, 0, 0};
    report.facts.weights = 20 * GiB;
    report.facts.input_tensors = {{"hidden_states", {1, 4096, 64}, Dtype::bf16}};
    report.checkpointing = {true, GiB, 16 * GiB, 0.0625};
    report.phases = {{"load",
                      "load",
                      {},
                      0,
                      0,
                      0,
                      20 * GiB,
                      20 * GiB,
                      20 * GiB,
                      20 * GiB,
                      20 * GiB + 500 * MiB,
                      20 * GiB + 400 * MiB,
                      20 * GiB + 700 * MiB,
                      Verdict::fits,
                      {}},
                     {"step 2",
                      "train",
                      {1024, 1024, 1},
                      1,
                      GiB,
                      20 * GiB,
                      21 * GiB,
                      20 * GiB,
                      21 * GiB + 300 * MiB,
                      21 * GiB + 600 * MiB,
                      22 * GiB + 100 * MiB,
                      22 * GiB,
                      22 * GiB + 600 * MiB,
                      verdict,
                      {{"backward", 21 * GiB, 20 * GiB, 21 * GiB + 300 * MiB, 21 * GiB + 600 * MiB}}}};
    using shadow::Category;
    report.breakdown = {{"transformer", Category::weights, 20 * GiB, 20 * GiB, "counted"},
                        {"transformer", Category::optimizer_state, 700 * MiB, 700 * MiB, "counted"},
                        {"inputs", Category::inputs, MiB, MiB, "counted"},
                        {"allocator", Category::unallocated, 900 * MiB, 1500 * MiB - 24 * MiB, "replayed"},
                        {"cuda", Category::context, 447 * MiB, 471 * MiB, "measured"}};
    report.risk = {RiskLevel::medium, {"less than 5 % of the card is left"}};
    report.diagnostics = {{Severity::warning,
                           Problem::unknown_key,
                           {"job.yaml", 3, 5},
                           "lora_alhpa",
                           "8",
                           "lora_alpha",
                           "unknown option lora_alhpa"},
                          {Severity::note, Problem::conflict, {"job.yaml", 9, 1}, "a", "", "", "b"}};
    return report;
}

/// Compares with tests/golden/<name>; VRAM_REWRITE=1 writes it anew, and a person reads the difference.
void check_golden(const std::string& name, const std::string& text) {
    const std::string path = std::string(VRAM_SOURCE_DIR) + "/tests/golden/" + name;
    if (std::getenv("VRAM_REWRITE") != nullptr) std::ofstream(path, std::ios::binary) << text;
    std::ifstream stream(path, std::ios::binary);
    CHECK(text == std::string(std::istreambuf_iterator<char>(stream), {}));
}

}  // namespace

TEST_CASE("a report reads in a terminal") {
    check_golden("report_fits.txt", to_text(example(Verdict::fits)));
    check_golden("report_tight.txt", to_text(example(Verdict::tight)));
}

TEST_CASE("a report as JSON") { check_golden("report_fits.json", to_json(example(Verdict::fits)) + "\n"); }

TEST_CASE("of a hundred buckets the heaviest are shown") {
    Report report = example(Verdict::fits);
    for (int i = 0; i < 100; ++i) {
        report.phases.push_back(report.phases[0]);
        report.phases.back().name = "bucket " + std::to_string(i);
    }
    const std::string text = to_text(report);
    CHECK(std::count(text.begin(), text.end(), '\n') <= 30);
    CHECK(text.find("step 2") != std::string::npos);
    CHECK(text.find("90 more phases, smaller") != std::string::npos);
}

TEST_CASE("what cannot be said has no peak, and is valid JSON whatever stood in the file") {
    const Report report = refused(
        "job.yaml", {{Severity::error, Problem::bad_value, {"job.yaml", 2, 1}, "a\xff", "\xfe", "", "bad \x80"}});
    const nlohmann::json json = nlohmann::json::parse(to_json(report));
    CHECK(json.at("verdict") == "cannot_say");
    CHECK(json.at("peak").is_null());
    CHECK(json.at("phases").empty());
    CHECK(json.at("diagnostics").at(0).at("line") == 2);
    CHECK(exit_code(report) == 2);
}

TEST_CASE("complaints stand in the order of the file, and the first is the reason") {
    const auto at = [](int line) {
        return Diagnostic{
            Severity::error, Problem::bad_value, {"f", line, 1}, {}, {}, {}, "line " + std::to_string(line)};
    };
    const Report report = refused("f", {at(9), at(3), at(5)});
    CHECK(report.reason == "f:3:1: line 3 (and 2 more)");
    CHECK(report.diagnostics[2].place.line == 9);
}
