#pragma once

#include "report/card.hpp"
#include "report/need.hpp"
#include "vram/run/facts.hpp"
#include "vram/shadow/trace.hpp"

namespace vram::report {

/// The report of a played job on a card. The breakdown is taken at the moment of the highest `allocated` of the
/// deciding phase, and adds up to device_low and device_high, to the byte. Deciding is the phase, and in it the stage,
/// with the highest `reserved`; since later ones keep what earlier ones reserved, the highest `allocated` of those.
/// Nothing can fail here.
[[nodiscard]] Report summarize(const job::Job& job, const run::Facts& facts, const shadow::Trace& trace,
                               const Need& need, const Card& card);

/// The moment of a phase's highest `allocated`, taken apart: adds up to the two ends of what is reserved, which are the
/// caller's to say, and what stands beside it on the card.
[[nodiscard]] std::vector<Part> breakdown_of(const shadow::Trace& trace, const Need& need, const Card& card,
                                             const device::PhaseUsage& phase, Bytes reserved_low, Bytes reserved_high);

}  // namespace vram::report
