#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "vram/base/expected.hpp"
#include "vram/io/document.hpp"
#include "vram/report/check.hpp"
#include "vram/report/trial.hpp"

namespace vram::advise {

/// A key of the job (docs/job-file.md §1) and the values that it takes in turn, each YAML flow as in `--set`.
struct Axis {
    std::string key;
    std::vector<std::string> values;
    bool operator==(const Axis&) const = default;
};

/// "train.batch_size=1,2,4": commas outside of brackets and quotes separate. Errors, at `--set`: unknown_option
/// without a key and a '='.
[[nodiscard]] expected<Axis> axis_of(std::string_view setting);

/// One combination of the axes' values.
struct Cell {
    std::vector<std::size_t> at;            // by axis: the index of its value
    std::vector<report::Setting> settings;  // the values, that make `check` play it
    report::Trial trial;
};

/// Every combination, the last axis fastest.
struct Sweep {
    std::string source;  // the file's name
    std::vector<Axis> axes;
    std::vector<Cell> cells;
    Diagnostics diagnostics;  // why there are no cells

    /// How many cells have this verdict.
    [[nodiscard]] std::size_t count(report::Verdict verdict) const;
};

inline constexpr std::size_t most_cells = 100'000;

/// Called now and then with how many cells of how many are done, from one thread at a time.
using Progress = std::function<void(std::size_t done, std::size_t all)>;

/// What `check` says of every combination of values, each set behind `options.settings`. Cells that are refused have
/// the verdict cannot_say and their complaints. On the cores that the machine has; the answer does not depend on them.
///
/// No cells, and the reasons in `diagnostics`: those of reading the text; conflict for a key or a value that is there
/// twice, or for a card that the options name too; bad_value for an axis without values, or an empty one; out_of_range
/// for more than `most_cells`; those of the options' card.
[[nodiscard]] Sweep sweep(std::string_view text, std::string file_name, const std::vector<Axis>& axes,
                          const report::CheckOptions& options, const profile::Catalogue& catalogue,
                          const Progress& progress = {});
/// The same of a document that is there already.
[[nodiscard]] Sweep sweep(const io::Document& document, const std::vector<Axis>& axes,
                          const report::CheckOptions& options, const profile::Catalogue& catalogue,
                          const Progress& progress = {});

/// 0 where a cell fits or is tight, 1 where none is and one does not fit, 2 where nothing could be said.
[[nodiscard]] int exit_code(const Sweep& sweep);

/// For a terminal: a table a combination of all axes but the last two, in GiB.
[[nodiscard]] std::string to_text(const Sweep& sweep);
/// A row a cell: the axes' keys, then verdict, card, usable, tensors_peak, device_low, device_high, reason. Bytes;
/// empty where nothing is said, device_high also where nobody replayed.
[[nodiscard]] std::string to_csv(const Sweep& sweep);
/// One JSON object: docs/sweep.md. Sizes are bytes.
[[nodiscard]] std::string to_json(const Sweep& sweep, int indent = 2);
/// A picture that needs nothing beside it: cells coloured by verdict with their GiB inside, a panel a combination of
/// all axes but the last two. Legible on light and on dark ground.
[[nodiscard]] std::string to_svg(const Sweep& sweep);

}  // namespace vram::advise
