#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "vram/base/bytes.hpp"
#include "vram/device/allocator.hpp"
#include "vram/device/scratch.hpp"
#include "vram/shadow/trace.hpp"

namespace vram::device {

/// The highest that torch's counters stand, in bytes, after one of the events from `event` to the next point's.
struct Point {
    std::int64_t event = 0;
    Bytes allocated = 0, reserved = 0;
    bool operator==(const Point&) const = default;
};

/// A phase, or what lies between two of them (`phase` is empty then): events [begin, end) of the trace, from its begin
/// mark to its end mark, and the points that stand for them.
struct TimelinePart {
    std::string phase;
    std::int64_t begin = 0, end = 0;
    std::size_t first_point = 0, points = 0;
    bool operator==(const TimelinePart&) const = default;
};

/// A run as a picture needs it. Parts and points are in the order of the run and cover all of its events.
struct Timeline {
    std::vector<Point> points;
    std::vector<TimelinePart> parts;
    bool operator==(const Timeline&) const = default;
};

/// What `replay` of the same arguments goes through: the highest point of a phase is its allocated_peak and its
/// reserved_peak. At most `most_points`, or one a part where there are more of these.
[[nodiscard]] Timeline timeline(const shadow::Trace& trace, const AllocatorConfig& config, std::size_t most_points,
                                Capacity capacity = unlimited, const Scratch& scratch = {});

}  // namespace vram::device
