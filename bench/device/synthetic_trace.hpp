#pragma once

#include "vram/shadow/trace.hpp"

namespace vram::bench {

/// A trace of the shape of a LoRA step with checkpointing: resident weights, blocks that keep little in the forward and
/// recompute in the backward, transients of a few repeated sizes, small scalars in between. About `events` events.
[[nodiscard]] shadow::Trace synthetic_step(int events);

/// Reads a trace from text: one event a line, "a SLOT BYTES" (alloc), "s SLOT BYTES" (scratch), "f SLOT", "e"
/// (empty_cache). Slots may be any distinct numbers. An unreadable file gives an empty trace.
[[nodiscard]] shadow::Trace read_trace(const char* path);

}  // namespace vram::bench
