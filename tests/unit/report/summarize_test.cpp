#include "report/summarize.hpp"

#include <doctest/doctest.h>

#include <numeric>

#include "played.hpp"
#include "vram/device/usage.hpp"

using namespace vram;
using namespace vram::report;
using shadow::Category;

namespace {

/// 10 GiB of weights; each step holds 2 GiB for a moment, and the first one leaves 1 GiB of optimizer state.
shadow::Trace two_steps() {
    TraceWriter writer;
    writer.phase("load", [&] { (void)writer.alloc(10 * GiB, "transformer", Category::weights); });
    for (const char* name : {"step 1", "step 2"}) {
        writer.phase(name, [&] {
            shadow::Slot kept = 0;
            writer.stage("forward", [&] { kept = writer.alloc(2 * GiB + 100); });
            writer.stage("backward", [&] {
                writer.free(writer.alloc(8 * MiB, "cublas", Category::workspace, shadow::EventKind::scratch));
                writer.free(kept);
            });
            writer.stage("optimizer", [&] {
                if (std::string(name) == "step 1")
                    (void)writer.alloc(1 * GiB, "transformer", Category::optimizer_state);
            });
        });
    }
    return writer.trace;
}

/// Nothing that is cached could go back to the card: what one transient leaves is what the other one takes.
shadow::Trace steady() {
    TraceWriter writer;
    writer.phase("load", [&] { (void)writer.alloc(10 * GiB, "transformer", Category::weights); });
    for (const char* name : {"step 1", "step 2"})
        writer.phase(name, [&] { writer.stage("forward", [&] { writer.free(writer.alloc(2 * GiB)); }); });
    return writer.trace;
}

run::Facts facts_of_two_steps() {
    run::Facts facts;
    facts.counts.parameters = 5 * GiB;
    facts.weights = 10 * GiB;
    facts.checkpointing = true;
    facts.kept_for_backward = 2 * GiB;
    facts.kept_without_checkpointing = 16 * GiB;
    facts.phases = {{"load", "load", {}, 0, 0},
                    {"step 1", "train", {1024, 1024, 1}, 2, 2 * GiB},
                    {"step 2", "train", {1024, 1024, 1}, 2, 2 * GiB}};
    return facts;
}

job::Job job_of() {
    job::Job job;
    job.trainer = "torch";
    job.model = "flux1_dev";
    return job;
}

Report report_on(const shadow::Trace& trace, const Card& card, const device::AllocatorConfig& config = {}) {
    return summarize(job_of(), facts_of_two_steps(), trace, need_on(trace, config, card), card);
}
Report report_with(Bytes capacity) { return report_on(two_steps(), card_of(capacity, {}, ChosenBy::flag)); }

Bytes sum_of(const Report& report, Bytes Part::*end) {
    return std::accumulate(report.breakdown.begin(), report.breakdown.end(), Bytes{0},
                           [&](Bytes sum, const Part& part) { return sum + part.*end; });
}

const Part* part_of(const Report& report, Category category) {
    for (const Part& part : report.breakdown)
        if (part.category == category) return &part;
    return nullptr;
}

}  // namespace

TEST_CASE("parts add up to the peak, to the byte") {
    for (const Bytes capacity : {8 * GiB, 14 * GiB, 80 * GiB}) {
        CAPTURE(capacity);
        const Report report = report_with(capacity);
        REQUIRE(report.peak);
        CHECK(sum_of(report, &Part::low) == report.peak->device_low);
        CHECK(sum_of(report, &Part::high) == report.peak->device_high);
        CHECK(report.peak->device_low <= report.peak->device);
        CHECK(report.peak->device <= report.peak->device_high);
        CHECK(report.peak->reserved >= report.peak->allocated);
        CHECK(report.peak->allocated >= report.peak->tensors);
    }
}

TEST_CASE("the breakdown is of the fullest moment") {
    const Report report = report_with(80 * GiB);
    CHECK(report.peak->phase == "step 2");  // reserves no more than step 1, and fills it more
    CHECK(report.peak->stage == "backward");
    CHECK(report.peak->decides == Counter::reserved);
    CHECK(part_of(report, Category::weights)->low == 10 * GiB);
    CHECK(part_of(report, Category::optimizer_state)->low == GiB);
    CHECK(part_of(report, Category::activations)->low == 2 * GiB + 512);
    CHECK(part_of(report, Category::workspace)->low == 8 * MiB);
    const Part& unallocated = *part_of(report, Category::unallocated);
    CHECK(unallocated.high - unallocated.low == 2 * GiB + 512);  // one largest transient
    CHECK(part_of(report, Category::context)->low < part_of(report, Category::context)->high);
}

TEST_CASE("a verdict changes at the byte") {
    const auto asked = [](Bytes capacity) { return report_on(steady(), card_of(capacity, {}, ChosenBy::flag)); };
    const Report roomy = asked(80 * GiB);
    const Bytes low = roomy.peak->device_low, high = roomy.peak->device_high;
    struct Case {
        const char* why;
        Bytes capacity;
        Verdict verdict;
        int code, strict_code;
    };
    for (const Case& c : {
             Case{"all of the range", high, Verdict::fits, 0, 0},
             Case{"all but a byte", high - 1, Verdict::tight, 0, 1},
             Case{"the low end", low, Verdict::tight, 0, 1},
             Case{"not even that", low - 1, Verdict::does_not_fit, 1, 1},
         }) {
        CAPTURE(c.why);
        const Report report = asked(c.capacity);
        CHECK(report.verdict == c.verdict);
        CHECK(exit_code(report) == c.code);
        CHECK(exit_code(report, true) == c.strict_code);
        CHECK(report.phase("step 2")->verdict == c.verdict);
    }
    CHECK(asked(low - 1).phase("load")->verdict == Verdict::fits);
}

TEST_CASE("a phase answers for itself") {
    TraceWriter writer;
    writer.phase("load", [&] { (void)writer.alloc(4 * GiB, "transformer", Category::weights); });
    for (const auto& [name, transient] : {std::pair("768", 3 * GiB), std::pair("1536", 9 * GiB), std::pair("512", GiB)})
        writer.phase(name, [&] { writer.free(writer.alloc(transient)); });
    const Report report = report_on(writer.trace, card_of(12 * GiB, {}, ChosenBy::flag));
    CHECK(report.verdict == Verdict::does_not_fit);
    CHECK(report.peak->phase == "1536");
    CHECK(report.phase("768")->verdict == Verdict::fits);
    CHECK(report.phase("1536")->verdict == Verdict::does_not_fit);
    CHECK(report.phase("512")->verdict == Verdict::fits);  // though the cache that 1536 left is still reserved
    CHECK(report.phase("512")->reserved_peak == report.phase("1536")->reserved_peak);
}

TEST_CASE("the phase that decides is the one that needs most by itself") {
    TraceWriter writer;
    writer.phase("large", [&] { writer.free(writer.alloc(9 * GiB)); });
    // Only what large left in the cache makes this one reserve more: nothing of it fits a block of 10 GiB.
    writer.phase("small", [&] { writer.free(writer.alloc(GiB, "late", Category::activations)); });
    writer.phase("odd", [&] {
        const shadow::Slot kept = writer.alloc(GiB);
        writer.free(writer.alloc(8 * GiB + MiB));  // does not fit beside the gibibyte in the large block
        writer.free(kept);
    });
    const Report report = report_on(writer.trace, card_of(80 * GiB, {}, ChosenBy::flag));
    CHECK(report.phase("odd")->reserved_peak > report.phase("large")->reserved_peak);
    CHECK(report.peak->phase == "odd");  // 9 GiB and a mebibyte by itself
    CHECK(report.phase("small")->needs_low < 2 * GiB);
    CHECK(report.peak->device_low <= report.peak->device_high);

    TraceWriter other;
    other.phase("large", [&] { other.free(other.alloc(9 * GiB)); });
    other.phase("smaller", [&] {
        const shadow::Slot kept = other.alloc(4 * GiB);
        other.free(other.alloc(5 * GiB - MiB));
        other.free(other.alloc(5 * GiB + MiB));  // a segment of its own on top of all that is cached
        other.free(kept);
    });
    const Report inherited = report_on(other.trace, card_of(80 * GiB, {}, ChosenBy::flag));
    CHECK(inherited.phase("smaller")->reserved_peak > inherited.phase("large")->reserved_peak);
    CHECK(inherited.phase("smaller")->needs_low > inherited.phase("large")->needs_low);
    CHECK(inherited.peak->phase == "smaller");
}

TEST_CASE("a transient widens the range of its own phase alone") {
    TraceWriter writer;
    writer.phase("load", [&] { (void)writer.alloc(10 * GiB, "transformer", Category::weights); });
    writer.phase("sample", [&] { writer.free(writer.alloc(3 * GiB)); });
    writer.phase("save", [&] { writer.free(writer.alloc(GiB)); });
    const Need need = need_on(writer.trace, {}, card_of(80 * GiB, {}, ChosenBy::flag));
    CHECK(need.reserved_high == 16 * GiB);
    TraceWriter early;
    early.phase("load", [&] { early.free(early.alloc(12 * GiB)); });
    early.phase("sample", [&] { early.free(early.alloc(2 * GiB)); });
    CHECK(need_on(early.trace, {}, card_of(80 * GiB, {}, ChosenBy::flag)).reserved_high == 24 * GiB);
}

TEST_CASE("other processes take from the card") {
    job::Environment environment;
    environment.other_processes = 70 * GiB;
    const Card card = card_of(80 * GiB, environment, ChosenBy::job);
    CHECK(card.line.usable() == 10 * GiB);
    CHECK(report_on(two_steps(), card).verdict == Verdict::does_not_fit);
}

TEST_CASE("reserved memory that goes back to the card lets a job fit, and is a risk") {
    TraceWriter writer;
    writer.phase("load", [&] { writer.free(writer.alloc(6 * GiB)); });
    writer.phase("step 1", [&] { writer.free(writer.alloc(8 * GiB)); });
    const Card card = card_of(24 * GiB, {}, ChosenBy::flag);
    const Need roomy = need_on(writer.trace, {}, card);
    CHECK(!roomy.squeezed);
    CHECK(roomy.usage.reserved_peak == 14 * GiB);

    const Report report = report_on(writer.trace, card_of(18 * GiB, {}, ChosenBy::flag));
    CHECK(report.peak->reserved == 8 * GiB);
    CHECK(report.peak->decides == Counter::allocated);
    CHECK(report.verdict == Verdict::fits);
    CHECK(report.risk.level == RiskLevel::medium);
    CHECK(sum_of(report, &Part::high) == report.peak->device_high);
}

TEST_CASE("what stands beside torch may be what does not fit") {
    const Report roomy = report_with(80 * GiB);
    const Need need = need_on(two_steps(), {}, card_of(80 * GiB, {}, ChosenBy::flag));
    const Report report = report_with(need.reserved_high);
    CHECK(report.verdict == Verdict::tight);
    CHECK(report.peak->decides == Counter::device);
}

TEST_CASE("a nominal capacity is a range") {
    profile::DeviceProfile profile = *profile::DeviceCatalogue::built_in().device("rtx-4090");
    const Card asked = card_of(profile, {}, ChosenBy::flag);
    const Need need = need_on(steady(), {}, asked);
    // The low end of the need lies within the range of the capacity.
    profile.linux_capacity = {need.device_low - MiB, need.device_low + MiB, profile::Evidence::nominal, "made up"};
    CHECK(report_on(steady(), card_of(profile, {}, ChosenBy::flag)).verdict == Verdict::tight);
    profile.linux_capacity.evidence = profile::Evidence::measured;
    CHECK(report_on(steady(), card_of(profile, {}, ChosenBy::flag)).verdict == Verdict::does_not_fit);
}

TEST_CASE("the band is the largest block that is born and dies within one phase") {
    TraceWriter writer;
    shadow::Slot longer = 0;
    writer.phase("load", [&] {
        longer = writer.alloc(5 * GiB);
        writer.free(writer.alloc(100 * MiB + 1));
    });
    writer.phase("step 1", [&] {
        writer.free(longer);
        (void)writer.alloc(3 * GiB);
        writer.free(writer.alloc(200, "vae", Category::workspace, shadow::EventKind::scratch));
    });
    device::AllocatorConfig config;
    writer.phase("step 2", [&] { writer.free(writer.alloc(300 * MiB)); });
    CHECK(reserved_bands(writer.trace, config) == std::vector<Bytes>{100 * MiB + 512, 512, 300 * MiB});
    config.expandable_segments = true;
    CHECK(reserved_bands(writer.trace, config) == std::vector<Bytes>{20 * MiB, 512, 20 * MiB});
    CHECK(reserved_bands({}, config).empty());
}

TEST_CASE("checkpointing's factor is a result") {
    const Report report = report_with(80 * GiB);
    CHECK(report.checkpointing == Checkpointing{true, 2 * GiB, 16 * GiB, 0.125});
}

TEST_CASE("a phase says what it was") {
    const Report report = report_with(80 * GiB);
    const Phase& step = *report.phase("step 2");
    CHECK(step.kind == "train");
    CHECK(step.bucket == std::array<std::int64_t, 3>{1024, 1024, 1});
    CHECK(step.batch_size == 2);
    CHECK(step.kept_for_backward == 2 * GiB);
    CHECK(step.tensors_start == 11 * GiB);
    CHECK(step.tensors_peak == 13 * GiB + 512);
    CHECK(step.tensors_end == 11 * GiB);
    REQUIRE(step.stages.size() == 3);
    CHECK(step.stages[0].name == "forward");
    CHECK(step.stages[0].tensors_end == 13 * GiB + 512);
    CHECK(step.stages[2].tensors_peak == 11 * GiB);
}

TEST_CASE("a trace without phases gives no peak") {
    const Report report = report_on({}, card_of(GiB, {}, ChosenBy::flag));
    CHECK(report.verdict == Verdict::cannot_say);
    CHECK(!report.peak);
    CHECK(to_text(report) == "cannot say: nothing was played\n");
}
