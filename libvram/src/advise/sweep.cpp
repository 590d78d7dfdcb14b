#include "vram/advise/sweep.hpp"

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "base/parallel.hpp"
#include "report/card.hpp"

namespace vram::advise {
namespace {

using report::CheckOptions;
using report::Setting;
using report::Verdict;

Diagnostic complaint(Problem problem, std::string key, std::string found, std::string text) {
    return {Severity::error, problem, {"--set", 0, 0}, std::move(key), std::move(found), {}, std::move(text)};
}

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t") == std::string_view::npos; }

void check_axis(const Axis& axis, const CheckOptions& options, Diagnostics& complaints) {
    if (axis.values.empty())
        complaints.push_back(complaint(Problem::bad_value, axis.key, {}, axis.key + " has no values"));
    std::set<std::string_view> met;
    for (const std::string& value : axis.values) {
        if (is_blank(value))
            complaints.push_back(
                complaint(Problem::bad_value, axis.key, value, axis.key + " has an empty value; write null for none"));
        else if (!met.insert(value).second)
            complaints.push_back(complaint(Problem::conflict, axis.key, value, axis.key + " has " + value + " twice"));
    }
    if ((axis.key == "gpu" || axis.key == "capacity") && (!options.gpu.empty() || options.capacity > 0))
        complaints.push_back(complaint(Problem::conflict, axis.key, options.gpu,
                                       axis.key + " is swept and the card is given beside it: leave one of them out"));
}

Diagnostics complaints_about(const std::vector<Axis>& axes, const CheckOptions& options) {
    Diagnostics complaints;
    std::size_t cells = 1;
    for (auto axis = axes.begin(); axis != axes.end(); ++axis) {
        check_axis(*axis, options, complaints);
        if (std::any_of(axes.begin(), axis, [&](const Axis& other) { return other.key == axis->key; }))
            complaints.push_back(complaint(Problem::conflict, axis->key, {},
                                           axis->key + " is swept twice: give all its values at once"));
        if (cells <= most_cells) cells *= std::max<std::size_t>(axis->values.size(), 1);
    }
    if (cells > most_cells)
        complaints.push_back(
            complaint(Problem::out_of_range, {}, {},
                      "more than " + std::to_string(most_cells) + " combinations: sweep fewer values at a time"));
    return complaints;
}

std::vector<std::size_t> place_of(std::size_t cell, const std::vector<Axis>& axes) {
    std::vector<std::size_t> at(axes.size());
    for (std::size_t i = axes.size(); i-- > 0;) {
        at[i] = cell % axes[i].values.size();
        cell /= axes[i].values.size();
    }
    return at;
}

class Counting {
  public:
    Counting(const Progress& progress, std::size_t all) : progress_(progress), all_(all) {}
    void one_more() {
        if (!progress_) return;
        const std::lock_guard lock(mutex_);
        progress_(++done_, all_);
    }

  private:
    const Progress& progress_;
    std::size_t all_, done_ = 0;
    std::mutex mutex_;
};

}  // namespace

expected<Axis> axis_of(std::string_view setting) {
    const std::size_t equals = setting.find('=');
    if (equals == std::string_view::npos || equals == 0)
        return Unexpected{{{Severity::error,
                            Problem::unknown_option,
                            {},
                            "--set",
                            std::string(setting),
                            {},
                            "--set takes KEY=VALUE,VALUE…, not " + std::string(setting)}}};
    Axis axis{std::string(setting.substr(0, equals)), {{}}};
    int depth = 0;
    char quote = 0;
    for (const char c : setting.substr(equals + 1)) {
        std::string& value = axis.values.back();
        // Quotes stand around a whole value or an item; within a word they are letters.
        const bool opens =
            (c == '\'' || c == '"') && (is_blank(value) || value.find_last_of("[{,: ") == value.size() - 1);
        if (quote != 0)
            quote = c == quote ? char{0} : quote;
        else if (opens)
            quote = c;
        else if (c == '[' || c == '{')
            ++depth;
        else if (c == ']' || c == '}')
            --depth;
        if (c == ',' && depth <= 0 && quote == 0)
            axis.values.emplace_back();
        else
            value += c;
    }
    return axis;
}

std::size_t Sweep::count(Verdict verdict) const {
    return static_cast<std::size_t>(
        std::count_if(cells.begin(), cells.end(), [&](const Cell& cell) { return cell.trial.verdict == verdict; }));
}

Sweep sweep(std::string_view text, std::string file_name, const std::vector<Axis>& axes, const CheckOptions& options,
            const profile::Catalogue& catalogue, const Progress& progress) {
    const io::Format format = io::format_of(file_name, text);
    const expected<io::Document> document = io::read(text, file_name, format);
    if (!document) return {std::move(file_name), axes, {}, document.error()};
    return sweep(*document, axes, options, catalogue, progress);
}

Sweep sweep(const io::Document& document, const std::vector<Axis>& axes, const CheckOptions& options,
            const profile::Catalogue& catalogue, const Progress& progress) {
    Sweep out{document.file_name, axes, {}, complaints_about(axes, options)};
    if (std::optional<Diagnostic> complaint = report::complaint_of(options, catalogue.cards()))
        out.diagnostics.push_back(*std::move(complaint));
    if (!out.diagnostics.empty()) return out;
    std::size_t cells = 1;
    for (const Axis& axis : axes) cells *= axis.values.size();
    out.cells.resize(cells);
    Counting counting(progress, cells);
    in_parallel(cells, [&](std::size_t i) {
        Cell& cell = out.cells[i];
        cell.at = place_of(i, axes);
        for (std::size_t axis = 0; axis < axes.size(); ++axis)
            cell.settings.push_back({axes[axis].key, axes[axis].values[cell.at[axis]]});
        CheckOptions here = options;
        here.settings.insert(here.settings.end(), cell.settings.begin(), cell.settings.end());
        cell.trial = report::try_job(document, here, catalogue);
        counting.one_more();
    });
    return out;
}

int exit_code(const Sweep& sweep) {
    if (sweep.count(Verdict::fits) + sweep.count(Verdict::tight) > 0) return 0;
    return sweep.count(Verdict::does_not_fit) > 0 ? 1 : 2;
}

}  // namespace vram::advise
