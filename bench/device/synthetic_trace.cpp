#include "device/synthetic_trace.hpp"

#include <fstream>
#include <map>
#include <random>
#include <string>

namespace vram::bench {

using shadow::EventKind;
using shadow::MarkKind;
using shadow::Slot;
using shadow::Trace;

namespace {
void mark(Trace& trace, MarkKind kind, std::string name) {
    trace.events.push_back({0, static_cast<Slot>(trace.marks.size()), 0, EventKind::mark, 0});
    trace.marks.push_back({kind, std::move(name)});
}
Slot alloc(Trace& trace, Bytes bytes, EventKind kind = EventKind::alloc) {
    trace.events.push_back({bytes, trace.slots, 0, kind, 0});
    return trace.slots++;
}
void free(Trace& trace, Slot slot) { trace.events.push_back({0, slot, 0, EventKind::free, 0}); }
}  // namespace

Trace synthetic_step(int events) {
    Trace trace;
    trace.tags.push_back({"transformer", shadow::Category::activations});
    constexpr Bytes token_row = Bytes{4608} * 3072 * 2;
    const Bytes sizes[] = {token_row, token_row, token_row * 3,     token_row * 4, token_row * 2,
                           3072 * 2,  18432 * 2, 4608 * 4,          4608 * 16 * 2, 16 * 4608 * 2,
                           512,       4,         4608 * 128 * 2 * 2};
    mark(trace, MarkKind::phase_begin, "step 1");
    for (int i = 0; i < 500; ++i) {
        alloc(trace, 3072 * 3072 * 2 * (1 + i % 4));
        alloc(trace, 3072 * 16 * 2);
        alloc(trace, 3072 * 2);
    }
    // Two kinds of block, each the same calls every time, as 19 double and 38 single blocks are.
    constexpr int blocks = 57;
    const int per_block = std::max(8, (events - 1500) / (blocks * 2));
    for (const char* stage : {"forward", "backward"}) {
        mark(trace, MarkKind::stage_begin, stage);
        for (int block = 0; block < blocks; ++block) {
            std::mt19937 random(static_cast<unsigned>(stage[0]) + (block < 19 ? 1U : 2U));
            std::vector<Slot> local;
            for (int i = 0; i < per_block; ++i) {
                if (local.size() > 24 || (local.size() > 4 && random() % 2 == 0)) {
                    // Mostly the newest die, as temporaries of a forward do.
                    const std::size_t pick = random() % 4 == 0 ? random() % local.size() : local.size() - 1;
                    free(trace, local[pick]);
                    local.erase(local.begin() + static_cast<std::ptrdiff_t>(pick));
                } else {
                    local.push_back(alloc(trace, sizes[random() % std::size(sizes)]));
                }
            }
            for (Slot slot : local) free(trace, slot);
            alloc(trace, token_row);  // a checkpoint, or gradients later
        }
        mark(trace, MarkKind::stage_end, stage);
    }
    mark(trace, MarkKind::phase_end, "step 1");
    return trace;
}

Trace read_trace(const char* path) {
    Trace trace;
    trace.tags.push_back({"file", shadow::Category::activations});
    std::ifstream file(path);
    std::map<std::int64_t, Slot> slots;
    std::string kind;
    std::int64_t slot = 0;
    Bytes bytes = 0;
    mark(trace, MarkKind::phase_begin, "file");
    while (file >> kind) {
        if (kind == "e") {
            mark(trace, MarkKind::empty_cache, {});
        } else if (kind == "f") {
            if (!(file >> slot)) break;
            if (const auto found = slots.find(slot); found != slots.end()) {
                free(trace, found->second);
                slots.erase(found);
            }
        } else {
            if (!(file >> slot >> bytes)) break;
            slots[slot] = alloc(trace, bytes, kind == "s" ? EventKind::scratch : EventKind::alloc);
        }
    }
    mark(trace, MarkKind::phase_end, "file");
    return trace;
}

}  // namespace vram::bench
