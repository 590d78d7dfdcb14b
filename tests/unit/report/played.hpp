#pragma once

#include <string>

#include "vram/shadow/trace.hpp"

namespace vram::report {

/// Writes a trace by hand.
class TraceWriter {
  public:
    shadow::Trace trace;

    shadow::Slot alloc(Bytes bytes, std::string component = "transformer",
                       shadow::Category category = shadow::Category::activations,
                       shadow::EventKind kind = shadow::EventKind::alloc) {
        trace.tags.push_back({std::move(component), category});
        trace.events.push_back({bytes, trace.slots, static_cast<std::uint16_t>(trace.tags.size() - 1), kind, 0});
        return trace.slots++;
    }
    void free(shadow::Slot slot) { trace.events.push_back({0, slot, 0, shadow::EventKind::free, 0}); }
    void mark(shadow::MarkKind kind, std::string name = {}) {
        trace.marks.push_back({kind, std::move(name)});
        trace.events.push_back({0, static_cast<shadow::Slot>(trace.marks.size() - 1), 0, shadow::EventKind::mark, 0});
    }
    template <class Body>
    void phase(const std::string& name, Body body) {
        mark(shadow::MarkKind::phase_begin, name);
        body();
        mark(shadow::MarkKind::phase_end, name);
    }
    template <class Body>
    void stage(const std::string& name, Body body) {
        mark(shadow::MarkKind::stage_begin, name);
        body();
        mark(shadow::MarkKind::stage_end, name);
    }
};

}  // namespace vram::report
