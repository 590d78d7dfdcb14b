#include "vram/advise/explain.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "laws/plays.hpp"
#include "shadow/memo.hpp"
#include "shadow/provenance.hpp"

using namespace vram;
using advise::Explained;
constexpr shadow::Category activations = shadow::Category::activations;

namespace {

struct Case {
    const char* why;
    const char* file;  // below the source
    const char* gpu;
    const char* phase;
    Bytes capacity = 0;
};

// clang-format off
constexpr Case cases[] = {
    {"a LoRA of FLUX that fits", "tests/golden/flux_lora_fits.yaml", "", ""},
    {"another phase than the one that decides", "tests/golden/flux_lora_fits.yaml", "", "load"},
    {"fits only where cached memory goes back", "tests/golden/flux_lora_fits.yaml", "", "step 2", 25 * GiB + GiB / 2},
    {"a call, with convolutions that the card decides about", "tests/golden/vae_decode.yaml", "", ""},
    {"a trainer's own file, with all its phases", "examples/flux_lora.yaml", "rtx-4090", ""},
    {"its samples", "examples/flux_lora.yaml", "rtx-4090", "sample"},
    {"the smallest card that holds it", "examples/flux_lora.yaml", "", "step 2"},
};
// clang-format on

std::string read(const std::string& path) {
    const std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    if (file) text << file.rdbuf();
    return text.str();
}

std::string text_of(const Case& c) { return read(std::string(VRAM_SOURCE_DIR) + "/" + c.file); }

report::CheckOptions options_of(const Case& c) {
    report::CheckOptions options;
    options.gpu = c.gpu;
    options.capacity = c.capacity;
    options.compares_checkpointing = false;
    return options;
}

Explained explain(const Case& c, const advise::ExplainOptions& how) {
    return advise::explain(text_of(c), c.file, options_of(c), laws::catalogue(), how);
}

}  // namespace

TEST_CASE("what explain says adds up to what check says, to the byte") {
    for (const Case& c : cases) {
        CAPTURE(c.why);
        advise::ExplainOptions how;
        how.phase = c.phase;
        const Explained explained = explain(c, how);
        const report::Report checked = report::check(text_of(c), c.file, options_of(c), laws::catalogue());
        REQUIRE(checked.peak);
        CHECK(explained.report == checked);
        if (c.capacity != 0) CHECK(checked.peak->decides == report::Counter::allocated);
        const advise::Moment& moment = explained.moment;
        const report::Phase* phase = checked.phase(how.phase.empty() ? checked.peak->phase : how.phase);
        REQUIRE(phase != nullptr);
        CHECK(moment.phase == phase->name);
        CHECK(moment.allocated == phase->allocated_peak);
        CHECK(moment.reserved == phase->reserved_peak);

        Bytes low = 0, high = 0, blocks = moment.left_out, tensors = 0, workspace = 0;
        for (const report::Part& part : moment.breakdown) {
            low += part.low;
            high += part.high;
            if (part.category == shadow::Category::workspace) workspace += part.low + (part.high - part.low) / 2;
        }
        CHECK(low == moment.device_low);
        CHECK(high == moment.device_high);
        if (phase->name == checked.peak->phase) {
            CHECK(moment.breakdown == checked.breakdown);
            CHECK(moment.device_low == checked.peak->device_low);
            CHECK(moment.device_high == checked.peak->device_high);
        }
        for (const advise::LiveBlocks& one : moment.blocks) {
            blocks += one.total;
            CHECK(one.total == one.count * ((one.bytes + 511) / 512 * 512));
            CHECK(checked.phase(one.phase) != nullptr);
            if (one.category != shadow::Category::workspace) tensors += one.total;
        }
        CHECK(tensors <= moment.tensors);
        bool is_ranged = false;
        for (const report::Part& part : moment.breakdown)
            is_ranged = is_ranged || (part.category == shadow::Category::workspace && part.low != part.high);
        if (!is_ranged) CHECK(blocks == moment.tensors + workspace);

        CHECK(explained.timeline.points.size() <= how.most_points);
        for (const device::TimelinePart& part : explained.timeline.parts) {
            if (part.phase.empty()) continue;
            Bytes allocated = 0, reserved = 0;
            for (std::size_t i = part.first_point; i < part.first_point + part.points; ++i) {
                allocated = std::max(allocated, explained.timeline.points[i].allocated);
                reserved = std::max(reserved, explained.timeline.points[i].reserved);
            }
            REQUIRE(checked.phase(part.phase) != nullptr);
            CHECK(checked.phase(part.phase)->allocated_peak == allocated);
            CHECK(checked.phase(part.phase)->reserved_peak == reserved);
        }
    }
}

TEST_CASE("what an option adds is the difference of two checks") {
    for (const Case& c : {cases[0], cases[3], cases[4], cases[6]}) {
        CAPTURE(c.why);
        const Explained explained = explain(c, {});
        std::size_t compared = 0;
        for (const advise::Contribution& one : explained.contributions) {
            CAPTURE(one.option);
            CHECK(one.difference.has_value() == one.why_not.empty());
            if (!one.difference) continue;
            ++compared;
            report::CheckOptions options = options_of(c);
            options.gpu = explained.report.gpu.id;
            options.settings = {one.instead};
            const report::Report without = report::check(text_of(c), c.file, options, laws::catalogue());
            REQUIRE(without.peak);
            CHECK(one.difference->device_low == explained.report.peak->device_low - without.peak->device_low);
            CHECK(one.difference->device_high == explained.report.peak->device_high - without.peak->device_high);
            CHECK(one.difference->tensors == explained.report.peak->tensors - without.peak->tensors);
            CHECK(one.difference->without == without.verdict);
            const report::Phase* there = without.phase(explained.report.peak->phase);
            REQUIRE(there != nullptr);
            CHECK(one.difference->needs_high ==
                  explained.report.phase(explained.report.peak->phase)->needs_high - there->needs_high);
        }
        if (std::string(c.file) != "tests/golden/vae_decode.yaml") CHECK(compared >= 2);
    }
}

TEST_CASE("explain says the same twice, and of a dict what it says of its text") {
    const Case& c = cases[4];
    const Explained once = explain(c, {}), again = explain(c, {});
    CHECK(once == again);
    CHECK(advise::to_svg(once) == advise::to_svg(again));
    const std::string text = text_of(c);
    const expected<io::Document> document = io::read(text, c.file, io::Format::yaml);
    REQUIRE(document);
    CHECK(advise::explain(*document, options_of(c), laws::catalogue()) == once);
}

TEST_CASE("a run that notes where everything comes from leaves the same trace") {
    for (const profile::ModelProfile& profile : laws::with_forwards()) {
        if (profile.kind != profile::ModelKind::denoiser) continue;
        CAPTURE(profile.id);
        const job::Job job = laws::job_of(profile, laws::Kind::lora, true);
        const laws::Played plain = laws::play(job);
        shadow::Run run({}, false);
        shadow::Provenance provenance;
        run.provenance = &provenance;
        (void)trainers::torch::play(job, laws::catalogue(), run);
        run.provenance = nullptr;
        CHECK(run.trace == plain.trace);
        std::set<std::string> files;
        std::size_t in_blocks = 0, backward = 0;
        for (std::size_t i = 0; i < run.trace.events.size(); ++i) {
            const shadow::Event& event = run.trace.events[i];
            const shadow::Provenance::Birth birth = provenance.birth(i);
            if (event.kind != shadow::EventKind::alloc || run.trace.tags[event.tag].category != activations) continue;
            REQUIRE(birth.block < static_cast<std::int32_t>(provenance.blocks().size()));
            REQUIRE(birth.line < static_cast<std::int32_t>(provenance.lines().size()));
            if (birth.line < 0) continue;
            files.insert(provenance.lines()[static_cast<std::size_t>(birth.line)].file);
            in_blocks += birth.block >= 0 ? 1 : 0;
            backward += birth.backward ? 1 : 0;
        }
        CHECK(in_blocks > 0);
        CHECK(backward > 0);
        CHECK(std::any_of(files.begin(), files.end(), [](const std::string& f) { return f.starts_with("models/"); }));
        // What ops are made of is the models' to call.
        CHECK(std::none_of(files.begin(), files.end(), [](const std::string& f) { return f.starts_with("shadow/"); }));
    }
}
