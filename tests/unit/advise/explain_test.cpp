#include "vram/advise/explain.hpp"

#include <doctest/doctest.h>

#include <algorithm>

using namespace vram;
using namespace vram::advise;

namespace {

const profile::Catalogue& catalogue() {
    static const profile::Catalogue all = profile::Catalogue::built_in();
    return all;
}

constexpr const char* lora = R"(vramest: 1
trainer: torch
model: flux1_dev
train: {method: lora, rank: 16, gradient_checkpointing: true, ema: true, batch_size: 2, autocast: bf16}
data: {resolution: 256}
gpu: h200
)";

Explained explained(const std::string& text, const ExplainOptions& how = {}, const report::CheckOptions& options = {}) {
    return explain(text, "job.yaml", options, catalogue(), how);
}

bool has_option(const Explained& explained, std::string_view option) {
    return std::any_of(explained.contributions.begin(), explained.contributions.end(),
                       [&](const Contribution& one) { return one.option == option; });
}

}  // namespace

TEST_CASE("only options that the job has are compared") {
    const Explained all = explained(lora);
    for (const char* option :
         {"train.gradient_checkpointing", "train.ema", "train.batch_size", "train.autocast", "train.optimizer"}) {
        CAPTURE(option);
        CHECK(has_option(all, option));
    }
    for (const char* option : {"quantize", "sample", "data.frames", "environment.alloc_conf", "tiling"}) {
        CAPTURE(option);
        CHECK_FALSE(has_option(all, option));
    }
    const Explained call = explained("vramest: 1\ntrainer: torch\nmodel: flux1_dev\ndata: {resolution: 256}\n");
    CHECK(call.contributions.empty());
}

TEST_CASE("checkpointing saves, a moving average and a second picture cost") {
    const Explained all = explained(lora);
    for (const Contribution& one : all.contributions) {
        CAPTURE(one.option);
        REQUIRE(one.difference);
        if (one.option == "train.gradient_checkpointing") CHECK(one.difference->device_high < -GiB);
        if (one.option == "train.ema") CHECK(one.difference->tensors > 0);
        if (one.option == "train.batch_size") CHECK(one.difference->device_high > 0);
    }
}

TEST_CASE("a block says who made it, where and when") {
    const Explained all = explained(lora, {"step 2", 400, 100000});
    const Moment& moment = all.moment;
    CHECK(moment.left_out_blocks == 0);
    CHECK(moment.left_out == 0);
    const auto find = [&](shadow::Category category, std::string_view module) {
        return std::find_if(moment.blocks.begin(), moment.blocks.end(),
                            [&](const LiveBlocks& one) { return one.category == category && one.module == module; });
    };
    const auto weights = find(shadow::Category::weights, "single_transformer_blocks.*.proj_out.weight");
    REQUIRE(weights != moment.blocks.end());
    CHECK(weights->count == 38);                     // FLUX.1 has as many single blocks
    CHECK(weights->bytes == 3072LL * 5 * 3072 * 2);  // [3072, 4 · 3072 + 3072] in bf16
    CHECK(weights->op == "parameter");
    CHECK(weights->phase == "load");
    const auto checkpoints = find(shadow::Category::checkpoints, "single_transformer_blocks.*");
    REQUIRE(checkpoints != moment.blocks.end());
    CHECK(checkpoints->class_name == "FluxSingleTransformerBlock");
    CHECK(checkpoints->phase == "step 2");
    CHECK(checkpoints->stage == "forward");
    CHECK_FALSE(checkpoints->backward);
    CHECK(std::is_sorted(moment.blocks.begin(), moment.blocks.end(),
                         [](const LiveBlocks& a, const LiveBlocks& b) { return a.total > b.total; }));
    const Explained few = explained(lora, {"step 2", 400, 3});
    const auto is_weights = [](const LiveBlocks& one) { return one.category == shadow::Category::weights; };
    CHECK(few.moment.blocks.size() == 6);
    CHECK(std::count_if(few.moment.blocks.begin(), few.moment.blocks.end(), is_weights) == 3);
    Bytes all_of_it = 0, rest = few.moment.left_out;
    for (const LiveBlocks& one : moment.blocks) all_of_it += one.total;
    for (const LiveBlocks& one : few.moment.blocks) rest += one.total;
    CHECK(rest == all_of_it);
}

TEST_CASE("a phase that the job does not have is answered with the nearest one") {
    const Explained none = explained(lora, {"step2", 400, 20});
    CHECK(exit_code(none) == 2);
    REQUIRE(none.report.diagnostics.size() == 1);
    CHECK(none.report.diagnostics[0].problem == Problem::bad_value);
    CHECK(none.report.diagnostics[0].found == "step2");
    CHECK(none.report.diagnostics[0].nearest == "step 2");
    CHECK(to_svg(none).empty());
    CHECK(explained("vramest: 1\ntrainer: torch\nmodel: flux1_dve\n").report.verdict == report::Verdict::cannot_say);
    CHECK(exit_code(explained("{", {}, {})) == 2);
    CHECK(exit_code(explained("", {}, {})) == 2);
}

TEST_CASE("the picture names phases and card, and is well-formed whatever a file is called") {
    Explained all = explained(lora);
    const std::string svg = to_svg(all);
    for (const char* part :
         {"<svg ", "</svg>", ">load</text>", ">step 1</text>", ">step 2</text>", ">h200: 139.80 GiB<",
          "prefers-color-scheme: dark", "class=\"reserved\"", "class=\"allocated\""})
        CHECK(svg.find(part) != std::string::npos);
    CHECK(to_text(all).find("█") == std::string::npos);  // 25 GiB of 140 fill two eighths of the height
    CHECK(to_text(all).find("▂") != std::string::npos);
    all.report.job.model = "a<b>&\"\x01\xff\xc3\xa9";
    CHECK(to_svg(all).find("a&lt;b&gt;&amp;&quot;??\xc3\xa9 (torch)") != std::string::npos);
}
