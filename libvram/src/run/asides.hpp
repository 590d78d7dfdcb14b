#pragma once

#include <cstdint>

namespace vram::run {

/// Whether a play goes through what leaves no events and only a report asks for: what a step would keep without
/// gradient checkpointing. Left out, Facts::kept_without_checkpointing is kept_for_backward.
enum class Asides : std::uint8_t { played, left_out };

}  // namespace vram::run
