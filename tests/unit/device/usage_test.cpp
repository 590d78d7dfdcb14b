#include "vram/device/usage.hpp"

#include <doctest/doctest.h>

#include <map>
#include <random>
#include <string>

using namespace vram;
using namespace vram::device;
using shadow::Category;
using shadow::EventKind;
using shadow::MarkKind;
using shadow::Slot;
using shadow::Trace;

namespace {

// Writes traces by hand.
struct Pen {
    Trace trace;

    std::uint16_t tag(std::string component, Category category) {
        trace.tags.push_back({std::move(component), category});
        return static_cast<std::uint16_t>(trace.tags.size() - 1);
    }
    Slot alloc(Bytes bytes, std::uint16_t tag_index = 0, EventKind kind = EventKind::alloc) {
        trace.events.push_back({bytes, trace.slots, tag_index, kind, 0});
        return trace.slots++;
    }
    void free(Slot slot) { trace.events.push_back({0, slot, 0, EventKind::free, 0}); }
    void retag(Slot slot, std::uint16_t tag_index) {
        trace.events.push_back({0, slot, tag_index, EventKind::retag, 0});
    }
    void mark(MarkKind kind, std::string name = {}) {
        trace.events.push_back({0, static_cast<Slot>(trace.marks.size()), 0, EventKind::mark, 0});
        trace.marks.push_back({kind, std::move(name)});
    }
};

}  // namespace

TEST_CASE("tensors count once, rounded up to 512; scratch is allocated but no tensor") {
    Pen pen;
    pen.tag("transformer", Category::activations);
    pen.mark(MarkKind::phase_begin, "step 1");
    const Slot first = pen.alloc(1);
    pen.alloc(1000);
    const Slot workspace = pen.alloc(8519680, 0, EventKind::scratch);
    pen.free(first);
    pen.free(workspace);
    pen.mark(MarkKind::phase_end);

    const Usage summed = sum(pen.trace);
    CHECK(summed.tensors_peak == 1536);
    CHECK(summed.tensors_peak_event == 2);
    CHECK(summed.allocated_peak == 0);
    REQUIRE(summed.phase("step 1") != nullptr);
    CHECK(summed.phase("step 1")->tensors_end == 1024);

    const Usage replayed = replay(pen.trace, {});
    CHECK(replayed.tensors_peak == 1536);
    CHECK(replayed.allocated_peak == 1536 + 8519680);
    CHECK(replayed.reserved_peak == 22 * MiB);
    CHECK(replayed.allocated_peak_event == 3);
    CHECK_FALSE(replayed.failure);
}

TEST_CASE("a stretch that says what it comes to is read as its events are") {
    Pen pen;
    pen.tag("transformer", Category::activations);
    pen.mark(MarkKind::phase_begin, "step 1");
    pen.alloc(4096);
    const Slot scratch = pen.alloc(8192, 0, EventKind::scratch);  // from here …
    const Slot first = pen.alloc(1000);
    const Slot second = pen.alloc(600);
    pen.free(first);
    pen.free(scratch);  // … to here, one slot still alive
    const Slot outlives = pen.alloc(512);
    pen.free(second);  // a stretch of one
    pen.free(outlives);
    pen.mark(MarkKind::phase_end);

    const Usage plain = sum(pen.trace);
    CHECK(plain.tensors_peak == 4096 + 1024 + 1024);
    CHECK(plain.tensors_peak_event == 4);
    pen.trace.stretches = {{2, 5, 1024, 2048, 2}, {8, 1, -1024, -1024, 0}};
    CHECK(sum(pen.trace) == plain);
}

TEST_CASE("a phase's peaks start from what is current, as after reset_peak_memory_stats") {
    Pen pen;
    pen.tag("transformer", Category::weights);
    pen.mark(MarkKind::phase_begin, "load");
    const Slot weights = pen.alloc(100 * MiB);
    const Slot source = pen.alloc(200 * MiB);
    pen.free(source);
    pen.mark(MarkKind::phase_end);
    pen.mark(MarkKind::phase_begin, "step 1");
    const Slot small = pen.alloc(30 * MiB);
    pen.free(small);
    pen.mark(MarkKind::phase_end);
    pen.mark(MarkKind::empty_cache);
    pen.mark(MarkKind::phase_begin, "step 2");
    pen.mark(MarkKind::phase_end);
    pen.free(weights);

    const Usage usage = replay(pen.trace, {});
    REQUIRE(usage.phases.size() == 3);
    const PhaseUsage &load = usage.phases[0], &one = usage.phases[1], &two = usage.phases[2];
    CHECK(load.tensors_start == 0);
    CHECK(load.tensors_peak == 300 * MiB);
    CHECK(load.tensors_end == 100 * MiB);
    CHECK(load.reserved_peak == 300 * MiB);
    CHECK(one.tensors_start == 100 * MiB);
    CHECK(one.tensors_peak == 130 * MiB);
    CHECK(one.allocated_peak == 130 * MiB);
    CHECK(one.reserved_peak == 300 * MiB);  // the cached 200 MiB served it
    CHECK(two.reserved_peak == 100 * MiB);  // given back in between
    CHECK(two.allocated_peak == 100 * MiB);
    CHECK(two.allocated_peak_event == 10);  // there already at its begin mark
    CHECK(usage.reserved_peak == 300 * MiB);
}

TEST_CASE("stages played several times in a phase are one entry: the highest peak, the last end") {
    Pen pen;
    pen.tag("transformer", Category::activations);
    pen.mark(MarkKind::phase_begin, "step 1");
    Slot kept = 0;
    for (const Bytes extra : {10 * MiB, 30 * MiB, 20 * MiB}) {
        pen.mark(MarkKind::stage_begin, "forward");
        const Slot activation = pen.alloc(extra);
        pen.mark(MarkKind::stage_end, "forward");
        pen.mark(MarkKind::stage_begin, "backward");
        kept = pen.alloc(1 * MiB);
        pen.free(activation);
        pen.mark(MarkKind::stage_end, "backward");
    }
    pen.mark(MarkKind::phase_end, "step 1");
    pen.free(kept);
    for (const Usage& usage : {sum(pen.trace), replay(pen.trace, {})}) {
        REQUIRE(usage.phases.size() == 1);
        REQUIRE(usage.phases[0].stages.size() == 2);
        const Span& forward = *usage.phases[0].stage("forward");
        CHECK(forward.tensors_start == 0);
        CHECK(forward.tensors_peak == 31 * MiB);
        CHECK(forward.tensors_end == 22 * MiB);
        const Span& backward = *usage.phases[0].stage("backward");
        CHECK(backward.tensors_peak == 32 * MiB);
        CHECK(backward.tensors_end == 3 * MiB);
        CHECK(usage.phases[0].tensors_peak == 32 * MiB);
        CHECK(usage.phases[0].stage("optimizer") == nullptr);
    }
}

TEST_CASE("running out is a value; tensors are counted to the end") {
    Pen pen;
    pen.tag("transformer", Category::activations);
    pen.mark(MarkKind::phase_begin, "step 1");
    pen.mark(MarkKind::stage_begin, "forward");
    pen.alloc(60 * MiB);
    const Slot large = pen.alloc(60 * MiB);
    pen.mark(MarkKind::stage_end);
    pen.free(large);
    pen.mark(MarkKind::phase_end);
    pen.mark(MarkKind::phase_begin, "step 2");
    pen.alloc(100 * MiB);
    pen.mark(MarkKind::phase_end);
    const Usage usage = replay(pen.trace, {}, 100 * MiB);
    REQUIRE(usage.failure);
    CHECK(usage.failure->phase == "step 1");
    CHECK(usage.failure->stage == "forward");
    CHECK(usage.failure->event == 3);
    CHECK(usage.failure->out_of_memory == OutOfMemory{60 * MiB, 60 * MiB, 60 * MiB, 60 * MiB, 40 * MiB});
    CHECK(usage.retries == 1);
    CHECK(usage.phases[0].allocated_peak == 60 * MiB);
    CHECK(usage.phases[0].tensors_peak == 120 * MiB);
    CHECK(usage.phases[1].tensors_peak == 160 * MiB);
    CHECK(usage.phases[1].allocated_peak == 0);
    CHECK(usage.tensors_peak == 160 * MiB);
    CHECK(usage.allocated_peak == 60 * MiB);
}

TEST_CASE("a snapshot takes the highest moment apart, to the byte") {
    Pen pen;
    const auto weights = pen.tag("transformer", Category::weights);
    const auto activations = pen.tag("transformer", Category::activations);
    const auto gradients = pen.tag("adapter", Category::gradients);
    const auto cublas = pen.tag("cublas", Category::workspace);
    const auto more_weights = pen.tag("transformer", Category::weights);
    pen.mark(MarkKind::phase_begin, "step 1");
    pen.alloc(3 * MiB / 2, weights);
    pen.alloc(700, more_weights);
    pen.alloc(8519680, cublas, EventKind::scratch);
    const Slot hidden = pen.alloc(33 * MiB, activations);  // 34 MiB, unsplit
    pen.retag(hidden, gradients);
    pen.alloc(1, activations);
    pen.free(hidden);
    pen.alloc(5 * MiB, activations);
    pen.mark(MarkKind::phase_end);

    const Usage usage = replay(pen.trace, {});
    const Snapshot snapshot = snapshot_at_peak(pen.trace, usage.phases[0]);
    CHECK(snapshot.event == 6);
    CHECK(snapshot.tensors == std::vector<TagBytes>{{"transformer", Category::weights, 3 * MiB / 2 + 1024},
                                                    {"transformer", Category::activations, 512},
                                                    {"adapter", Category::gradients, 33 * MiB}});
    CHECK(snapshot.scratch == std::vector<ScratchBytes>{{"cublas", 8519680, 8519680, 8519680}});
    CHECK(snapshot.workspace == 8519680);
    CHECK(snapshot.rounding == 1 * MiB);
    CHECK(snapshot.allocated == 34 * MiB + 3 * MiB / 2 + 1024 + 512 + 8519680);
    CHECK(snapshot.reserved == 56 * MiB);
    CHECK(snapshot.unallocated == snapshot.reserved - snapshot.allocated);

    const std::vector<LiveSlot> alive = alive_after(pen.trace, 6);
    REQUIRE(alive.size() == 5);
    CHECK(alive[2].scratch);
    CHECK(alive[3] == LiveSlot{hidden, gradients, 0, false, 33 * MiB, 4});
    CHECK(alive_after(pen.trace, 7).size() == 4);
}

TEST_CASE("the sum and the replay agree on tensors, and with a plain count, over random traces") {
    for (std::uint32_t seed = 1; seed <= 60; ++seed) {
        CAPTURE(seed);
        std::mt19937 engine(seed);
        const auto random = [&engine] { return static_cast<std::uint32_t>(engine()); };
        Pen pen;
        pen.tag("a", Category::activations);
        pen.tag("b", Category::weights);
        std::map<Slot, Bytes> live;
        Bytes now = 0, highest = 0;
        for (int phase = 0; phase < 4; ++phase) {
            pen.mark(MarkKind::phase_begin, "phase " + std::to_string(phase));
            for (int stage = 0; stage < 6; ++stage) {
                pen.mark(MarkKind::stage_begin, stage % 2 == 0 ? "forward" : "backward");
                for (int step = 0; step < 60; ++step) {
                    if (random() % 5 < 3 || live.empty()) {
                        const Bytes bytes = 1 + static_cast<Bytes>(random() % (1U << (10 + random() % 16)));
                        const bool scratch = random() % 8 == 0;
                        const Slot slot = pen.alloc(bytes, static_cast<std::uint16_t>(random() % 2),
                                                    scratch ? EventKind::scratch : EventKind::alloc);
                        live[slot] = scratch ? 0 : round_up(bytes, 512);
                        now += live[slot];
                        highest = std::max(highest, now);
                    } else {
                        auto pick = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
                        now -= pick->second;
                        pen.free(pick->first);
                        live.erase(pick);
                    }
                    if (random() % 50 == 0) pen.mark(MarkKind::empty_cache);
                }
                pen.mark(MarkKind::stage_end);
            }
            pen.mark(MarkKind::phase_end);
        }
        Usage summed = sum(pen.trace);
        AllocatorConfig expandable;
        expandable.expandable_segments = true;
        for (const AllocatorConfig& config : {AllocatorConfig{}, expandable}) {
            Usage replayed = replay(pen.trace, config);
            REQUIRE(summed.tensors_peak == highest);
            REQUIRE(replayed.tensors_peak == highest);
            REQUIRE(replayed.tensors_peak_event == summed.tensors_peak_event);
            REQUIRE(replayed.phases.size() == summed.phases.size());
            Bytes reserved = 0;
            for (std::size_t i = 0; i < summed.phases.size(); ++i) {
                PhaseUsage& phase = replayed.phases[i];
                const Snapshot snapshot = snapshot_at_peak(pen.trace, phase);
                Bytes parts = snapshot.workspace + snapshot.rounding + snapshot.unallocated;
                for (const TagBytes& part : snapshot.tensors) parts += part.bytes;
                REQUIRE(parts == phase.reserved_peak);
                REQUIRE(snapshot.rounding >= 0);
                reserved = std::max(reserved, phase.reserved_peak);
                // Apart from the allocator's counters the two are the same.
                REQUIRE(phase.stages.size() == 2);
                for (Span* span : {static_cast<Span*>(&phase), &phase.stages[0], &phase.stages[1]}) {
                    REQUIRE(span->allocated_peak <= span->reserved_peak);
                    REQUIRE(span->allocated_peak >= span->tensors_peak);
                    span->allocated_peak = span->reserved_peak = 0;
                    span->allocated_peak_event = 0;
                }
                PhaseUsage plain = summed.phases[i];
                plain.allocated_peak_event = plain.stages[0].allocated_peak_event =
                    plain.stages[1].allocated_peak_event = 0;
                REQUIRE(phase == plain);
            }
            REQUIRE(reserved == replayed.reserved_peak);
        }
    }
}
