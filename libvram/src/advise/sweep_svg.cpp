#include <algorithm>

#include "advise/found.hpp"
#include "advise/sweep_panels.hpp"
#include "advise/xml.hpp"

namespace vram::advise {
namespace {

using report::Trial;
using report::Verdict;

// Sizes in pixels; a character of the labels takes about eight.
constexpr int row_height = 28, gap = 24, title_height = 24, character = 8, widest_page = 1600, legend_height = 64;
constexpr std::size_t longest_label = 24;

constexpr std::string_view style = R"(<style>
  text { font: 12px system-ui, sans-serif; fill: #1c1c1e } .ground { fill: #ffffff } .title { font-weight: 600 }
  .in { text-anchor: middle } .row { text-anchor: end } .fits, .does_not_fit, .cannot_say, .tight { stroke: none }
  rect.fits { fill: #00735a } rect.tight { fill: #e69f00 } rect.does_not_fit { fill: #a63603 } rect.cannot_say { fill: #5f6368 }
  text.fits, text.does_not_fit, text.cannot_say { fill: #ffffff } text.tight { fill: #000000 }
  @media (prefers-color-scheme: dark) { text { fill: #ececec } .ground { fill: #17181c } }
</style>
)";

int width_of(const std::string& text) { return static_cast<int>(std::min(text.size(), longest_label + 1)) * character; }

std::string text_at(int x, int y, std::string_view classes, const std::string& content) {
    return "<text x=\"" + std::to_string(x) + "\" y=\"" + std::to_string(y) + "\" class=\"" + std::string(classes) +
           "\">" + content + "</text>\n";
}
std::string box(int x, int y, int width, int height, std::string_view classes, const std::string& title = {}) {
    const std::string rect = "<rect x=\"" + std::to_string(x) + "\" y=\"" + std::to_string(y) + "\" width=\"" +
                             std::to_string(width) + "\" height=\"" + std::to_string(height) + "\" class=\"" +
                             std::string(classes) + "\"";
    return title.empty() ? rect + "/>\n" : rect + "><title>" + title + "</title></rect>\n";
}

class Picture {
  public:
    explicit Picture(const Sweep& sweep) : sweep_(sweep), layout_(layout_of(sweep)) {
        for (const Cell& cell : sweep.cells) cell_ = std::max(cell_, width_of(inside(cell.trial)) + character);
        for (const std::string& column : layout_.columns) cell_ = std::max(cell_, width_of(column) + character);
        label_ = width_of(layout_.row_key);
        for (const std::string& row : layout_.rows) label_ = std::max(label_, width_of(row));
        label_ += character;
        width_ = label_ + static_cast<int>(layout_.columns.size()) * cell_;
        // Titles stand above a panel and may be wider than it.
        for (const Panel& panel : layout_.panels)
            width_ = std::max(width_, static_cast<int>(std::min<std::size_t>(panel.title.size(), 60)) * character);
        width_ = std::max(width_, label_ + width_of(layout_.column_key));
        height_ = 2 * title_height + row_height + static_cast<int>(layout_.rows.size()) * row_height;
        if (panels() > 1) across_ = std::clamp((widest_page - gap) / (width_ + gap), 1, static_cast<int>(panels()));
    }

    [[nodiscard]] std::string svg() const {
        const int down = (static_cast<int>(panels()) + across_ - 1) / across_;
        const int least = static_cast<int>(legend().size()) * character + 2 * gap;
        const int width = std::max(across_ * (width_ + gap) + gap, least);
        const int height = title_height + gap + down * (height_ + gap) + legend_height;
        std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + std::to_string(width) +
                          "\" height=\"" + std::to_string(height) + "\" viewBox=\"0 0 " + std::to_string(width) + " " +
                          std::to_string(height) + "\" role=\"img\">\n";
        const std::string card = common_card(sweep_);
        const std::string title = sweep_.source + (card.empty() ? "" : "; " + card);
        out += "<title>" + xml(title) + "</title>\n" + std::string(style);
        out += box(0, 0, width, height, "ground") + text_at(gap, gap, "title", xml(title));
        for (std::size_t i = 0; i < panels(); ++i) {
            const int column = static_cast<int>(i) % across_, row = static_cast<int>(i) / across_;
            out += panel(layout_.panels[i], gap + column * (width_ + gap), title_height + gap + row * (height_ + gap));
        }
        return out + key(height - legend_height + gap) + "</svg>\n";
    }

  private:
    [[nodiscard]] std::size_t panels() const { return layout_.panels.size(); }

    [[nodiscard]] std::string panel(const Panel& panel, int left, int top) const {
        std::string out = text_at(left, top + 14, "title", xml(panel.title, 60));
        top += title_height;
        const int right = left + label_;
        out += text_at(right, top + 14, "", xml(layout_.column_key));
        out += text_at(right - character, top + title_height + 18, "row", xml(layout_.row_key));
        top += title_height;
        for (std::size_t column = 0; column < layout_.columns.size(); ++column)
            out += text_at(right + static_cast<int>(column) * cell_ + cell_ / 2, top + 18, "in",
                           xml(layout_.columns[column], longest_label));
        for (std::size_t row = 0; row < layout_.rows.size(); ++row) {
            top += row_height;
            out += text_at(right - character, top + 18, "row", xml(layout_.rows[row], longest_label));
            for (std::size_t column = 0; column < layout_.columns.size(); ++column)
                out +=
                    cell(sweep_.cells[layout_.at(panel, row, column)], right + static_cast<int>(column) * cell_, top);
        }
        return out;
    }

    [[nodiscard]] std::string cell(const Cell& cell, int left, int top) const {
        const Trial& trial = cell.trial;
        const std::string_view verdict = report::to_text(trial.verdict);
        std::string about;
        for (std::size_t i = 0; i < sweep_.axes.size(); ++i)
            about += sweep_.axes[i].key + "=" + sweep_.axes[i].values[cell.at[i]] + "\n";
        if (!trial.gpu.id.empty()) about += trial.gpu.id + ": ";
        return box(left + 1, top + 1, cell_ - 2, row_height - 2, verdict, spoken(about + found(trial))) +
               text_at(left + cell_ / 2, top + 18, "in " + std::string(verdict), xml(inside(trial)));
    }

    [[nodiscard]] std::string inside(const Trial& trial) const {
        return figure(trial) + (layout_.names_cards && !trial.gpu.id.empty() ? " " + trial.gpu.id : "");
    }

    /// Several lines of a tooltip.
    static std::string spoken(const std::string& text) {
        std::string out;
        std::size_t at = 0;
        for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', at)) {
            out += xml(text.substr(at, end - at)) + "\n";
            at = end + 1;
        }
        return out + xml(text.substr(at));
    }

    [[nodiscard]] static std::string key(int top) {
        std::string out;
        int left = gap;
        for (const Verdict verdict : {Verdict::fits, Verdict::tight, Verdict::does_not_fit, Verdict::cannot_say}) {
            const std::string words = report::words(verdict);
            out += box(left, top - 11, 14, 14, report::to_text(verdict)) + text_at(left + 20, top, "", words);
            left += 20 + width_of(words) + gap;
        }
        return out + text_at(gap, top + 22, "", xml(legend()));
    }

    const Sweep& sweep_;
    Layout layout_;
    int cell_ = 0, label_ = 0;    // widths of a column and of the rows' names
    int width_ = 0, height_ = 0;  // of a panel
    int across_ = 1;
};

}  // namespace

std::string to_svg(const Sweep& sweep) {
    if (!sweep.cells.empty()) return Picture(sweep).svg();
    return "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"600\" height=\"60\" role=\"img\">\n" +
           std::string(style) + box(0, 0, 600, 60, "ground") +
           text_at(gap, 36, "",
                   xml(sweep.diagnostics.empty() ? "nothing was swept" : sweep.diagnostics.front().text, 80)) +
           "</svg>\n";
}

}  // namespace vram::advise
