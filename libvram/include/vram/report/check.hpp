#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vram/base/expected.hpp"
#include "vram/io/document.hpp"
#include "vram/job/change.hpp"
#include "vram/profile/catalogue.hpp"
#include "vram/report/report.hpp"

namespace vram::report {

using job::Setting;

/// What a driver says about the card of this machine.
struct DriverCard {
    std::string name;  // "NVIDIA GeForce RTX 4090"
    Bytes total = 0;
    bool operator==(const DriverCard&) const = default;
};

/// What a caller says beside the file.
struct CheckOptions {
    std::vector<Setting> settings;       // in order; they override what the file says, a trainer's own file too
    std::string gpu;                     // id or alias; goes before the job's card. Not together with `capacity`
    Bytes capacity = 0;                  // as torch reports it; 0: not given
    std::optional<DriverCard> driver;    // taken where neither options nor job name a card
    bool compares_checkpointing = true;  // a training is played a second time, with checkpointing the other way
};

/// The whole answer, from a file's text: read → settings → which trainer → resolve → play → replay → summarize.
///
/// A text that holds `vramest: 1` (or `trainer` and a model) is a job file; else the trainer whose config it is reads
/// it, and settings reach that trainer under the root key `vramest`. Whatever goes wrong is in `diagnostics`, and the
/// verdict is then cannot_say; nothing is thrown but std::bad_alloc for lack of memory. No clock, environment or GPU is
/// touched, and no file but those that the config names: its dataset, of which the pictures' headers are read, and its
/// model's folder or file, of which config.json and the headers of the weights are.
[[nodiscard]] Report check(std::string_view text, std::string file_name, const CheckOptions& options,
                           const profile::Catalogue& catalogue);

/// The same of a document that is there already, as one built in code. Complaints about nodes without a text carry
/// their keys and no lines.
[[nodiscard]] Report check(io::Document document, const CheckOptions& options, const profile::Catalogue& catalogue);

/// The report about what was not estimated: cannot_say, with these complaints in the order of the file.
[[nodiscard]] Report refused(std::string source, Diagnostics complaints);

/// The event list of the played job as JSON, to be laid beside a recording of PyTorch (tests/reference/compare.py):
/// {"format": 1, "made_by", "case", "texts", "events": [[kind, slot, bytes, op, where], …]}. Kernels' scratch, which
/// such a recording cannot see, is left out unless `scratch`.
[[nodiscard]] expected<std::string> trace_json(std::string_view text, std::string file_name,
                                               const CheckOptions& options, const profile::Catalogue& catalogue,
                                               bool scratch = false);

}  // namespace vram::report
