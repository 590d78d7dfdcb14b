#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vram/advise/advise.hpp"
#include "vram/report/check.hpp"

namespace vram::advise {

/// What becomes of one batch of the dataset without gradient checkpointing: its costliest phase.
struct BucketRisk {
    std::array<std::int64_t, 3> bucket{};  // width, height, frames
    std::int64_t batch_size = 0;
    std::string phase;
    Bytes needs_low = 0, needs_high = 0;  // of the card, by itself
    report::Verdict verdict = report::Verdict::cannot_say;
    bool operator==(const BucketRisk&) const = default;
};

/// One run of the plan: the job with these settings, and what it is predicted to need.
struct PlannedRun {
    std::string text;                       // what is new in it: "the job's batch, 4"
    std::vector<report::Setting> settings;  // beside those that the caller gave
    report::Verdict verdict = report::Verdict::cannot_say;
    std::string phase;  // the tightest
    Bytes device_low = 0, device_high = 0;
    std::string why_not;  // why it could not be played; empty where it was
    bool operator==(const PlannedRun&) const = default;
};

/// What turning gradient checkpointing off would mean for a training.
struct CheckpointingRisk {
    report::Report on, off;  // as `check` says them; cannot_say of either holds the complaints
    bool is_on = false;      // in the job as it is
    report::RiskLevel level = report::RiskLevel::high;  // of having it off
    std::vector<std::string> why;                       // from the figures of the two reports
    std::vector<BucketRisk> buckets;                    // in the order of the run
    std::vector<Proposal> instead;  // where off does not fit: what makes it fit without checkpointing
    std::vector<PlannedRun> plan;   // one variable a run; ends at the first that does not fit
    bool operator==(const CheckpointingRisk&) const = default;
};

/// Plays the job with and without gradient checkpointing, by the job file's own key, whoever's file it is.
///
/// low: off fits, and nothing is near. medium: it fits with less than 5 % of the card left, or by what `check` calls a
/// risk. high: it may not fit. Where no card is named, both are about the smallest that holds the job with
/// checkpointing. A job that is no training is a complaint at its model's line; errors and limits are else those of
/// `check`.
[[nodiscard]] CheckpointingRisk risk(std::string_view text, std::string file_name, const report::CheckOptions& options,
                                     const profile::Catalogue& catalogue);
/// The same of a document that is there already.
[[nodiscard]] CheckpointingRisk risk(io::Document document, const report::CheckOptions& options,
                                     const profile::Catalogue& catalogue);

/// 0 where it fits without checkpointing, 1 where it may not, 2 where nothing can be said.
[[nodiscard]] int exit_code(const CheckpointingRisk& risk);

/// One JSON object: {"schema", "vramest", "level", "why", "is_on", "on", "off", "breaks_first", "buckets", "instead",
/// "plan"}; docs/risk.md names the fields.
[[nodiscard]] std::string to_json(const CheckpointingRisk& risk, int indent = 2);

/// For a terminal: both needs, the reasons, the buckets, what to change instead, the plan.
[[nodiscard]] std::string to_text(const CheckpointingRisk& risk);

}  // namespace vram::advise
