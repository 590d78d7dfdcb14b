#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vram/job/change.hpp"
#include "vram/report/check.hpp"

namespace vram::advise {

/// A change, and where it lands in the user's file.
struct Placed {
    job::Change change;
    std::vector<io::Edited> edits;  // none where it is one of what surrounds the job
    bool operator==(const Placed&) const = default;
};

/// Changes made together, and what the job came to when it was played with them.
struct Proposal {
    std::vector<Placed> changes;
    report::Verdict verdict = report::Verdict::cannot_say;
    std::string phase, stage;               // the tightest then
    Bytes device_low = 0, device_high = 0;  // what it needs of the card then
    Bytes saves = 0;                        // of the highest need: device_high before − after
    Bytes saves_there = 0;   // of what the phase needs that was tightest before; as `saves` where that phase is gone
    Bytes short_of = 0;      // how far device_high lies above what the card offers; 0: it fits
    Bytes short_of_low = 0;  // and device_low; 0: it may fit
    std::string file;        // the whole text with the edits in it; empty where the job was built in code
    bool operator==(const Proposal&) const = default;
};

struct Advised {
    report::Report before;            // the job as it is; cannot_say holds the complaints
    bool is_video = false;            // which order of practice was followed
    std::vector<Proposal> fits;       // one change first, then pairs, then more; the safest first
    std::vector<Proposal> helps;      // one change each that is not enough by itself, in the same order
    std::vector<Placed> idle;         // moves nothing where the job is tightest, nor at its highest
    std::optional<Proposal> nearest;  // where nothing fits: what comes closest
    bool operator==(const Advised&) const = default;
};

/// The smallest changes that make a job fit on its card, each played as `check` plays it: the text with the edits in it
/// is checked, so that `fits` here is `fits` there.
///
/// Which comes first is what practice knows as safe: of images checkpointing, batch, the top bucket, samples, what is
/// cached, then low VRAM, quantising and offloading; of videos frames before the batch. A card must be named, by the
/// options, the job or the driver; before.verdict is cannot_say otherwise. A job that fits gets no proposals.
/// What the options set is not advised on. Nothing is written; errors and limits are those of `check`.
[[nodiscard]] Advised advise(std::string_view text, std::string file_name, const report::CheckOptions& options,
                             const profile::Catalogue& catalogue);

/// The same of a document that is there already, as one built in code.
[[nodiscard]] Advised advise(io::Document document, const report::CheckOptions& options,
                             const profile::Catalogue& catalogue);

/// 0 where it fits or a proposal does, 1 where none does, 2 where nothing can be said.
[[nodiscard]] int exit_code(const Advised& advised);

/// One JSON object: {"schema", "vramest", "before", "video", "fits", "helps", "idle", "nearest"}; docs/advise.md names
/// the fields.
[[nodiscard]] std::string to_json(const Advised& advised, int indent = 2);

/// For a terminal: what decides, the proposals with the lines to change, what moves nothing.
[[nodiscard]] std::string to_text(const Advised& advised);

}  // namespace vram::advise
