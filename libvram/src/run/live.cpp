#include "run/live.hpp"

namespace vram::run {

Bytes Live::now() {
    const std::vector<shadow::Event>& events = run_.trace.events;
    for (; at_ < events.size(); ++at_) {
        const shadow::Event& event = events[at_];
        const auto slot = static_cast<std::size_t>(event.slot);
        if (event.kind == shadow::EventKind::alloc) {
            if (sizes_.size() <= slot) sizes_.resize(slot + 1);
            sizes_[slot] = round_up(event.bytes, 512);
            live_ = checked_add(live_, sizes_[slot]);
        } else if (event.kind == shadow::EventKind::free && slot < sizes_.size()) {
            live_ -= sizes_[slot];
            sizes_[slot] = 0;
        }
    }
    return live_;
}

}  // namespace vram::run
