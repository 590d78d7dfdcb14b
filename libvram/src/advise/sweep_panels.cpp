#include "advise/sweep_panels.hpp"

#include <algorithm>

#include "advise/found.hpp"

namespace vram::advise {

using report::GpuLine;
using report::Trial;
using report::Verdict;

namespace {

/// Of the first cell that has one.
const GpuLine* first_card(const Sweep& sweep) {
    for (const Cell& cell : sweep.cells)
        if (cell.trial.verdict != Verdict::cannot_say) return &cell.trial.gpu;
    return nullptr;
}

bool is_one_card(const Sweep& sweep, const GpuLine& card) {
    return std::all_of(sweep.cells.begin(), sweep.cells.end(), [&](const Cell& cell) {
        return cell.trial.verdict == Verdict::cannot_say ||
               (cell.trial.gpu.id == card.id && cell.trial.gpu.usable() == card.usable());
    });
}

}  // namespace

Layout layout_of(const Sweep& sweep) {
    Layout out;
    const std::vector<Axis>& axes = sweep.axes;
    out.rows = out.columns = {std::string()};
    if (!axes.empty()) {
        out.columns = axes.back().values;
        out.column_key = axes.back().key;
    }
    if (axes.size() > 1) {
        out.rows = axes[axes.size() - 2].values;
        out.row_key = axes[axes.size() - 2].key;
    }
    const std::size_t others = axes.size() > 2 ? axes.size() - 2 : 0, size = out.rows.size() * out.columns.size();
    for (std::size_t first = 0; first < sweep.cells.size(); first += size) {
        Panel panel{{}, first};
        for (std::size_t i = 0; i < others; ++i)
            panel.title += (i == 0 ? "" : ", ") + axes[i].key + "=" + axes[i].values[sweep.cells[first].at[i]];
        out.panels.push_back(std::move(panel));
    }
    const bool says_card =
        std::any_of(axes.begin(), axes.end(), [](const Axis& a) { return a.key == "gpu" || a.key == "capacity"; });
    const GpuLine* card = first_card(sweep);
    out.names_cards = !says_card && card != nullptr && !is_one_card(sweep, *card);
    return out;
}

std::string figure(const Trial& trial) {
    switch (trial.verdict) {
        case Verdict::fits: return report::gib(trial.device_high);
        case Verdict::tight: return report::gib(trial.device_high) + "~";
        case Verdict::does_not_fit: return (trial.replayed ? "" : ">") + report::gib(trial.device_low) + "x";
        case Verdict::cannot_say: break;
    }
    return "?";
}

std::string legend() { return "GiB of the card; ~ tight, x does not fit (its least; > more than that), ? cannot say"; }

std::string common_card(const Sweep& sweep) {
    const GpuLine* card = first_card(sweep);
    return card != nullptr && is_one_card(sweep, *card) ? offer(*card) : "";
}

}  // namespace vram::advise
