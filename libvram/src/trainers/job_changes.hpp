#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vram/job/change.hpp"
#include "vram/job/job.hpp"

namespace vram::trainers {

/// What a job file may say else to need less, by its own keys (Trainer::changes), whoever's loop it asks for.
[[nodiscard]] std::vector<job::Change> job_changes(const io::Document& document, const job::Job& job);

/// What changes around the job, whatever the file: `environment.*`.
[[nodiscard]] std::vector<job::Change> surrounding_changes(const job::Job& job);

/// A key of a trainer's own file, and one of the job file that has the last word on it where it stands under the file's
/// `vramest`.
struct DecidedBy {
    std::string own;           // "config.process[0].datasets.resolution": whichever dataset
    std::string_view job_key;  // "data.buckets"
};
/// Without those changes of a trainer's own file that such a key would overrule: what a user set beside the file is not
/// for advice to take back.
void drop_decided(const io::Document& document, std::span<const DecidedBy> keys, std::vector<job::Change>& changes);

// What several trainers' changes are made of.

/// What recomputing costs: one more forward beside a forward and a backward of twice its operations.
inline constexpr const char* checkpointing_cost = "a step takes about a third longer: every block runs forward twice";

/// Smaller batches than `size`, largest first, with how many of them make up as many items: each divides it.
struct SmallerBatch {
    std::int64_t size = 1, accumulated = 1;
};
[[nodiscard]] std::vector<SmallerBatch> smaller_batches(std::int64_t size, std::int64_t accumulated);

/// Fewer frames than these, most first: n · step + 1 each, about three quarters of the one before, and 1 at last.
[[nodiscard]] std::vector<std::int64_t> fewer_frames(std::int64_t frames, std::int64_t step);

/// Usual sides below this one, largest first: 1536, 1024, 768, 512, 384, 256.
[[nodiscard]] std::vector<std::int64_t> smaller_sides(std::int64_t side);

/// Halves of a rank, down to 4.
[[nodiscard]] std::vector<std::int64_t> smaller_ranks(std::int64_t rank);

}  // namespace vram::trainers
