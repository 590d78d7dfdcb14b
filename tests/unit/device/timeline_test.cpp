#include "vram/device/timeline.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "vram/device/usage.hpp"

using namespace vram;
using namespace vram::device;
using shadow::EventKind;
using shadow::MarkKind;
using shadow::Trace;

namespace {

void mark(Trace& trace, MarkKind kind, std::string name = {}) {
    trace.events.push_back({0, static_cast<shadow::Slot>(trace.marks.size()), 0, EventKind::mark, 0});
    trace.marks.push_back({kind, std::move(name)});
}

/// `phases` phases of `blocks` blocks each, every other one of which goes again; one block before them.
Trace run_of(int phases, int blocks) {
    Trace trace;
    trace.tags.push_back({"transformer", shadow::Category::activations});
    const auto alloc = [&](Bytes bytes) { trace.events.push_back({bytes, trace.slots++, 0, EventKind::alloc, 0}); };
    alloc(3 * MiB);
    for (int phase = 0; phase < phases; ++phase) {
        mark(trace, MarkKind::phase_begin, "phase " + std::to_string(phase));
        for (int block = 0; block < blocks; ++block) {
            alloc((1 + block % 7) * MiB);
            if (block % 2 == 1) trace.events.push_back({0, trace.slots - 1, 0, EventKind::free, 0});
        }
        mark(trace, MarkKind::phase_end);
    }
    return trace;
}

}  // namespace

TEST_CASE("a timeline covers every event once, and its highest points are the replay's peaks") {
    struct Case {
        const char* why;
        int phases, blocks;
        std::size_t most;
    };
    for (const Case& c : {
             Case{"more events than points", 3, 500, 40},
             Case{"fewer events than points", 2, 3, 400},
             Case{"more phases than points: one each", 30, 10, 8},
             Case{"no phase at all", 0, 0, 400},
         }) {
        CAPTURE(c.why);
        const Trace trace = run_of(c.phases, c.blocks);
        const Timeline line = timeline(trace, {}, c.most);
        const Usage usage = replay(trace, {});
        CHECK(line.points.size() <= std::max(c.most, line.parts.size()));
        std::int64_t at = 0;
        std::size_t point = 0, phase = 0;
        for (const TimelinePart& part : line.parts) {
            CHECK(part.begin == at);
            CHECK(part.first_point == point);
            REQUIRE(part.points >= 1);
            CHECK(line.points[point].event == at);
            at = part.end;
            point += part.points;
            if (part.phase.empty()) continue;
            Bytes allocated = 0, reserved = 0;
            for (std::size_t i = part.first_point; i < point; ++i) {
                allocated = std::max(allocated, line.points[i].allocated);
                reserved = std::max(reserved, line.points[i].reserved);
            }
            CHECK(usage.phases[phase].name == part.phase);
            CHECK(usage.phases[phase].allocated_peak == allocated);
            CHECK(usage.phases[phase].reserved_peak == reserved);
            ++phase;
        }
        CHECK(at == static_cast<std::int64_t>(trace.events.size()));
        CHECK(point == line.points.size());
        CHECK(phase == usage.phases.size());
        CHECK(timeline(trace, {}, c.most) == line);
    }
    CHECK(timeline({}, {}, 400) == Timeline{});
}
