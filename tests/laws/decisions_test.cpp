// What sweep, max and grow answer is what check answers, and does not hang on how many threads there are.
#include <doctest/doctest.h>

#include "laws/plays.hpp"
#include "vram/advise/grow.hpp"
#include "vram/advise/max.hpp"
#include "vram/advise/sweep.hpp"

using namespace vram;
using report::CheckOptions;
using report::Report;
using report::Setting;
using report::Verdict;

namespace {

Report checked(const std::string& text, CheckOptions options, const std::vector<Setting>& settings) {
    options.compares_checkpointing = false;
    options.settings.insert(options.settings.end(), settings.begin(), settings.end());
    return report::check(text, "job.yaml", options, laws::catalogue());
}

void agree(const report::Trial& trial, const Report& report) {
    CAPTURE(report.reason);
    CHECK(trial.verdict == report.verdict);
    CHECK(trial.diagnostics == report.diagnostics);
    if (!report.peak) return;
    CHECK(trial.tensors_peak == report.peak->tensors);
    CHECK(trial.gpu == report.gpu);
    if (trial.replayed) CHECK(trial.device_low == report.peak->device_low);
    if (trial.replayed) CHECK(trial.device_high == report.peak->device_high);
    if (!trial.replayed) CHECK(trial.device_low <= report.peak->device_low);
}

const std::string flux =
    "vramest: 1\ntrainer: torch\nmodel: flux1_dev\n"
    "train: {method: lora, rank: 16, gradient_checkpointing: true}\ndata: {resolution: 512}\n";

}  // namespace

TEST_CASE("each cell of a sweep is a check of its own") {
    CheckOptions options;
    for (const char* gpu : {"rtx-5090", "l40s", ""}) {
        options.gpu = gpu;
        CAPTURE(gpu);
        const advise::Sweep sweep = advise::sweep(flux, "job.yaml",
                                                  {{"train.gradient_checkpointing", {"true", "false"}},
                                                   {"train.batch_size", {"1", "4", "0"}},
                                                   {"data.resolution", {"512", "[768, 512]", "500"}}},
                                                  options, laws::catalogue());
        REQUIRE(sweep.cells.size() == 18);
        for (const advise::Cell& cell : sweep.cells) agree(cell.trial, checked(flux, options, cell.settings));
        CHECK(sweep.count(Verdict::cannot_say) == 10);  // a batch of 0, and 500 pixels
    }
}

TEST_CASE("max fits, and the axis's next step does not") {
    struct Case {
        const char* why;
        std::string text;
        advise::Vary vary;
        const char* gpu;
    };
    const std::string wan =
        "vramest: 1\ntrainer: torch\nmodel: wan21_t2v_1_3b\n"
        "train: {method: lora, rank: 16, gradient_checkpointing: true}\ndata: {resolution: [832, 480], frames: 5}\n";
    for (const Case& c : {
             Case{"a batch", flux, advise::Vary::batch_size, "l40s"},
             Case{"sides of a square", flux, advise::Vary::resolution, "l40s"},
             Case{"a rank", flux, advise::Vary::rank, "rtx-5090"},
             Case{"frames", wan, advise::Vary::frames, "rtx-4090"},
             Case{"sides of no square", wan, advise::Vary::resolution, "rtx-4090"},
             Case{"two buckets, scaled alike",
                  "vramest: 1\ntrainer: torch\nmodel: flux1_dev\n"
                  "train: {method: lora, rank: 16, gradient_checkpointing: true}\n"
                  "data: {buckets: [[1024, 1024], [832, 1216]]}\n",
                  advise::Vary::resolution, "l40s"},
             Case{"a call of a component", "vramest: 1\ntrainer: torch\ncomponent: vae_flux1\nop: decode\n",
                  advise::Vary::batch_size, "rtx-3070"},
         }) {
        CAPTURE(c.why);
        CheckOptions options;
        options.gpu = c.gpu;
        const advise::Max max = advise::max(c.text, "job.yaml", {c.vary}, options, laws::catalogue());
        for (const Diagnostic& complaint : max.diagnostics) CAPTURE(to_text(complaint));
        REQUIRE(max.most.size() == 1);
        const advise::Most& most = max.most.front();
        REQUIRE(most.best);
        const Report best = checked(c.text, options, most.best->settings);
        CHECK(best.verdict == Verdict::fits);
        agree(most.best->trial, best);
        REQUIRE(best.peak);
        CHECK(most.phase == best.peak->phase);
        CHECK(most.device_high == best.peak->device_high);
        for (const advise::Tried& tried : most.tried) {
            CAPTURE(tried.value);
            agree(tried.trial, checked(c.text, options, tried.settings));
            if (tried.value > most.best->value) CHECK_FALSE(tried.fits());
        }
        if (!most.next) continue;
        CHECK(most.next->value > most.best->value);
        CHECK(checked(c.text, options, most.next->settings).verdict != Verdict::fits);
    }
}

TEST_CASE("each row of a frontier is a max of its own") {
    CheckOptions options;
    options.gpu = "l40s";
    const advise::Max both =
        advise::max(flux, "job.yaml", {advise::Vary::batch_size, advise::Vary::resolution}, options, laws::catalogue());
    REQUIRE(both.most.size() >= 8);
    for (const advise::Most& row : both.most) {
        REQUIRE(row.beside);
        CAPTURE(*row.beside);
        CheckOptions here = options;
        here.settings.push_back({"data.resolution", std::to_string(*row.beside)});
        const advise::Max one = advise::max(flux, "job.yaml", {advise::Vary::batch_size}, here, laws::catalogue());
        REQUIRE(one.most.size() == 1);
        const std::optional<advise::Tried>& best = one.most.front().best;
        CHECK(row.best.has_value() == best.has_value());
        if (row.best && best) CHECK(row.best->value == best->value);
        CHECK(row.device_high == one.most.front().device_high);
    }
}

TEST_CASE("what grows fits as far as it says") {
    CheckOptions options;
    options.gpu = "l40s";
    const advise::Grow grow = advise::grow(flux, "job.yaml", options, laws::catalogue());
    REQUIRE(grow.verdict == Verdict::fits);
    REQUIRE(grow.lines.size() == 6);
    for (const advise::Growth& line : grow.lines) {
        CAPTURE(line.what);
        CHECK((line.grows || !line.why.empty()));
        if (line.settings.empty()) continue;
        const Report report = checked(flux, options, line.settings);
        CHECK(report.verdict == Verdict::fits);
        REQUIRE(report.peak);
        CHECK(line.device_low == report.peak->device_low);
        CHECK(line.device_high == report.peak->device_high);
    }
}

TEST_CASE("the same question has the same answer") {
    CheckOptions options;
    options.gpu = "rtx-5090";
    const std::vector<advise::Axis> axes{{"train.batch_size", {"1", "2", "3", "x"}},
                                         {"train.rank", {"4", "8", "16", "32"}}};
    const std::string first = to_json(advise::sweep(flux, "job.yaml", axes, options, laws::catalogue()));
    for (int i = 0; i < 3; ++i)
        CHECK(to_json(advise::sweep(flux, "job.yaml", axes, options, laws::catalogue())) == first);
}
