#include <algorithm>
#include <map>

#include "advise/found.hpp"
#include "advise/sweep_panels.hpp"

namespace vram::advise {
namespace {

using json = nlohmann::ordered_json;
using report::Trial;
using report::Verdict;

constexpr Verdict verdicts[] = {Verdict::fits, Verdict::tight, Verdict::does_not_fit, Verdict::cannot_say};

/// "12 fit, 2 are tight": of verdicts that there are.
std::string counts(const Sweep& sweep) {
    std::string out;
    for (const Verdict verdict : verdicts)
        if (const std::size_t count = sweep.count(verdict); count > 0)
            out += (out.empty() ? "" : ", ") + std::to_string(count) + " " + report::words(verdict);
    return out;
}

/// Why cells were refused, each reason once.
std::string refusals(const Sweep& sweep) {
    std::vector<std::pair<std::string, std::size_t>> reasons;
    std::map<std::string, std::size_t> known;
    for (const Cell& cell : sweep.cells) {
        if (cell.trial.verdict != Verdict::cannot_say) continue;
        const auto [at, fresh] = known.emplace(cell.trial.reason, reasons.size());
        if (fresh) reasons.emplace_back(cell.trial.reason, 0);
        ++reasons[at->second].second;
    }
    std::string out;
    constexpr std::size_t most = 20;
    for (std::size_t i = 0; i < std::min(most, reasons.size()); ++i)
        out += "? " + reasons[i].first +
               (reasons[i].second > 1 ? " (" + std::to_string(reasons[i].second) + " cells)" : "") + "\n";
    if (reasons.size() > most) out += "? and " + std::to_string(reasons.size() - most) + " other reasons (--json)\n";
    return out;
}

std::string quoted(const std::string& text) {
    if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
    std::string out = "\"";
    for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
    return out + "\"";
}

std::string card_of(const Trial& trial) { return trial.gpu.id.empty() ? trial.gpu.name : trial.gpu.id; }

}  // namespace

std::string to_text(const Sweep& sweep) {
    if (sweep.cells.empty()) return lines_of(sweep.diagnostics);
    const Layout layout = layout_of(sweep);
    const auto shown = [&](std::size_t i) {
        const Trial& trial = sweep.cells[i].trial;
        return figure(trial) + (layout.names_cards && !card_of(trial).empty() ? " " + card_of(trial) : "");
    };
    const std::string corner = layout.row_key + (layout.row_key.empty() ? "" : " \\ ") + layout.column_key;
    std::size_t label = corner.size(), width = 0;
    for (const std::string& row : layout.rows) label = std::max(label, row.size());
    for (const std::string& column : layout.columns) width = std::max(width, column.size());
    for (std::size_t i = 0; i < sweep.cells.size(); ++i) width = std::max(width, shown(i).size());
    const std::string card = common_card(sweep);
    std::string out = counts(sweep) + (card.empty() ? "" : "; " + card) + "\n";
    for (const Panel& panel : layout.panels) {
        out += "\n" + (panel.title.empty() ? "" : panel.title + "\n") + report::left(corner, label);
        for (const std::string& column : layout.columns) out += report::right(column, width + 2);
        out += "\n";
        for (std::size_t row = 0; row < layout.rows.size(); ++row) {
            out += report::left(layout.rows[row], label);
            for (std::size_t column = 0; column < layout.columns.size(); ++column)
                out += report::right(shown(layout.at(panel, row, column)), width + 2);
            out += "\n";
        }
    }
    const std::string refused = refusals(sweep);
    return out + "\n" + legend() + "\n" + (refused.empty() ? "" : "\n" + refused);
}

std::string to_csv(const Sweep& sweep) {
    std::string out;
    for (const Axis& axis : sweep.axes) out += quoted(axis.key) + ",";
    out += "verdict,card,usable,tensors_peak,device_low,device_high,reason\n";
    for (const Cell& cell : sweep.cells) {
        const Trial& trial = cell.trial;
        const bool said = trial.verdict != Verdict::cannot_say;
        const auto figure_of = [](bool known, Bytes bytes) { return (known ? std::to_string(bytes) : "") + ","; };
        for (std::size_t i = 0; i < sweep.axes.size(); ++i) out += quoted(sweep.axes[i].values[cell.at[i]]) + ",";
        out += std::string(report::to_text(trial.verdict)) + "," + quoted(card_of(trial)) + "," +
               figure_of(said, trial.gpu.usable()) + figure_of(said, trial.tensors_peak) +
               figure_of(said, trial.device_low) + figure_of(trial.replayed, trial.device_high) + quoted(trial.reason) +
               "\n";
    }
    return out;
}

std::string to_json(const Sweep& sweep, int indent) {
    json out = heading(sweep.source);
    json axes = json::array(), count = json::object(), cells = json::array();
    for (const Axis& axis : sweep.axes) axes.push_back({{"key", axis.key}, {"values", axis.values}});
    for (const Verdict verdict : verdicts) count[std::string(report::to_text(verdict))] = sweep.count(verdict);
    for (const Cell& cell : sweep.cells) {
        json one{{"at", cell.at}, {"settings", json_of(cell.settings)}, {"gpu", card_of(cell.trial)}};
        one["usable"] = cell.trial.gpu.usable();
        one.update(json_of(cell.trial));
        if (cell.trial.verdict == Verdict::cannot_say) one["diagnostics"] = report::json_of(cell.trial.diagnostics);
        cells.push_back(std::move(one));
    }
    out["axes"] = std::move(axes);
    out["counts"] = std::move(count);
    out["cells"] = std::move(cells);
    out["diagnostics"] = report::json_of(sweep.diagnostics);
    return report::dumped(out, indent);
}

}  // namespace vram::advise
