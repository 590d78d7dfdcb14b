#pragma once

#include <string>
#include <vector>

#include "vram/advise/sweep.hpp"

/// How a sweep lies on a page: the last axis goes to the right, the one before it down, and each combination of the
/// others is a panel of its own.
namespace vram::advise {

struct Panel {
    std::string title;  // "train.rank=16, train.method=lora"; empty where there is one panel
    std::size_t first;  // its first cell
};

struct Layout {
    std::vector<std::string> rows, columns;  // values; one empty row where there is one axis
    std::string row_key, column_key;         // empty where there is no such axis
    std::vector<Panel> panels;
    bool names_cards = false;  // cells are about several cards, and no axis says which

    [[nodiscard]] std::size_t at(const Panel& panel, std::size_t row, std::size_t column) const {
        return panel.first + row * columns.size() + column;
    }
};
/// Of a sweep that has cells.
[[nodiscard]] Layout layout_of(const Sweep& sweep);

/// "25.48", "25.48~" where it is tight, "41.20x" or ">80.12x" where it does not fit, "?".
[[nodiscard]] std::string figure(const report::Trial& trial);
/// What these signs mean.
[[nodiscard]] std::string legend();
/// The card that all cells are about: "a100-80gb has 79.15 GiB". Empty where there are several, or none is known.
[[nodiscard]] std::string common_card(const Sweep& sweep);

}  // namespace vram::advise
