#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vram/device/timeline.hpp"
#include "vram/report/check.hpp"

namespace vram::advise {

/// Blocks of torch's allocator that are alike: as large, of one part, asked for by one op at one place.
struct LiveBlocks {
    std::int64_t count = 0;
    Bytes bytes = 0;  // one of them, as requested
    Bytes total = 0;  // all of them, each rounded up to 512
    std::string component;
    shadow::Category category = shadow::Category::activations;
    std::string op;            // as PyTorch calls it: "addmm"
    std::string phase, stage;  // in which they were born; empty: outside of one
    /// The Python module in whose forward, or backward, they were born; of a parameter its own name. Of several modules
    /// numbers that differ are "*": "single_transformer_blocks.*". Empty: in none that the model calls as a block.
    std::string module;
    std::string class_name;  // of the module; empty of a parameter
    bool backward = false;   // born in backward, what is recomputed there included
    /// The statement that made them, or whose backward did: "models/flux.cpp:66", below libvram/src, where each model
    /// mirrors its Python class, and each trainer its own. Empty: a parameter.
    std::string line;
    bool operator==(const LiveBlocks&) const = default;
};

/// The moment of a phase's highest `allocated`.
struct Moment {
    std::string phase, stage;  // stage: where in the phase that is; empty: in none
    Bytes tensors = 0, allocated = 0, reserved = 0;
    Bytes device_low = 0, device_high = 0;
    std::vector<report::Part> breakdown;  // adds up to device_low and device_high
    /// The largest of weights and of all else, the largest first by their total. With those left out they add up to the
    /// breakdown's tensors and workspace, where a convolution's scratch counts as it was replayed.
    std::vector<LiveBlocks> blocks;
    std::int64_t left_out_blocks = 0;
    Bytes left_out = 0;
    bool operator==(const Moment&) const = default;
};

/// What an option of the job adds to what is needed: below 0, it saves.
struct Difference {
    Bytes device_low = 0, device_high = 0;       // at the run's highest
    std::optional<Bytes> needs_low, needs_high;  // of the phase that decides; none where it is gone without the option
    Bytes tensors = 0;                           // at the run's highest
    report::Verdict without = report::Verdict::cannot_say;  // the verdict without it
    bool operator==(const Difference&) const = default;
};

/// An option that the job has, and the same job played without it.
struct Contribution {
    std::string option, value;  // "train.gradient_checkpointing", "true"
    report::Setting instead;    // what was played in its place; no key where nothing can be
    std::string why_not;        // why it could not be played without; empty where it was
    std::optional<Difference> difference;
    bool operator==(const Contribution&) const = default;
};

struct ExplainOptions {
    std::string phase;              // whose peak is taken apart; empty: the one that decides
    std::size_t most_points = 400;  // of the timeline
    std::size_t most_blocks = 12;   // of weights, and as many of all else
};

/// Why a job needs what it needs.
struct Explained {
    report::Report report;  // as `check` says it, without checkpointing.other
    device::Timeline timeline;
    Moment moment;
    std::vector<Contribution> contributions;
    bool operator==(const Explained&) const = default;
};

/// Checks the job, takes the peak of a phase apart, and plays it without each of its options: every difference is that
/// of two reports of `check`, the second with `instead` as a setting. Where no card is named, all of it is about the
/// one that the report chose. A phase that the job does not have is a complaint, and the verdict cannot_say; errors and
/// limits are else those of `check`.
[[nodiscard]] Explained explain(std::string_view text, std::string file_name, const report::CheckOptions& options,
                                const profile::Catalogue& catalogue, const ExplainOptions& how = {});
/// The same of a document that is there already.
[[nodiscard]] Explained explain(io::Document document, const report::CheckOptions& options,
                                const profile::Catalogue& catalogue, const ExplainOptions& how = {});

/// As of `check`.
[[nodiscard]] int exit_code(const Explained& explained, bool strict = false);

/// One JSON object: {"schema", "vramest", "report", "timeline", "moment", "contributions"}; docs/explain.md names the
/// fields. Where nothing can be said timeline and moment are null.
[[nodiscard]] std::string to_json(const Explained& explained, int indent = 2);

/// For a terminal: the run as a line of blocks, what is alive at the peak, what each option adds.
[[nodiscard]] std::string to_text(const Explained& explained);

/// The timeline as a picture that stands alone: reserved and allocated over the run, the phases, what the card has. Its
/// colours follow the reader's light or dark. Empty where nothing can be said.
[[nodiscard]] std::string to_svg(const Explained& explained);

}  // namespace vram::advise
