#include "vram/advise/max.hpp"

#include <algorithm>
#include <utility>

#include "advise/search.hpp"
#include "base/parallel.hpp"
#include "report/card.hpp"

namespace vram::advise {
namespace {

using report::CheckOptions;
using report::Opened;
using report::Verdict;

constexpr std::string_view words[] = {"batch_size", "resolution", "frames", "rank"};

Diagnostics complaints_about(const std::vector<Vary>& vary) {
    const auto complain = [](Problem problem, std::string found, std::string text) {
        return Diagnostics{{Severity::error, problem, {}, "--vary", std::move(found), {}, std::move(text)}};
    };
    if (vary.empty() || vary.size() > 2)
        return complain(Problem::out_of_range, std::to_string(vary.size()), "one or two axes can be varied");
    if (vary.size() == 2 && vary.front() == vary.back())
        return complain(Problem::conflict, std::string(to_text(vary.front())),
                        std::string(to_text(vary.front())) + " is varied twice");
    return {};
}

/// What `check` says of the best.
void tell_best(Most& most, const io::Document& document, const CheckOptions& options,
               const profile::Catalogue& catalogue) {
    if (!most.best) return;
    CheckOptions here = options;
    here.compares_checkpointing = false;
    here.settings.insert(here.settings.end(), most.best->settings.begin(), most.best->settings.end());
    const report::Report report = report::check(document, here, catalogue);
    if (!report.peak) return;
    most.phase = report.peak->phase;
    most.stage = report.peak->stage;
    most.device_low = report.peak->device_low;
    most.device_high = report.peak->device_high;
}

void look(Max& out, const io::Document& document, const Opened& opened, const CheckOptions& options,
          const profile::Catalogue& catalogue) {
    const Axes axes(opened, catalogue);
    for (const Vary vary : out.vary) {
        out.keys.push_back(axes.key(vary));
        if (std::optional<Diagnostic> complaint = axes.complaint(vary))
            out.diagnostics.push_back(*std::move(complaint));
    }
    if (!out.diagnostics.empty()) return;
    const Vary first = out.vary.front();
    out.now = axes.now(first);
    out.gpu = report::named_card(options, opened.job, catalogue.cards()).line;
    std::vector<Line> lines;
    const Line line{first, {}, axes.values(first), out.now};
    if (out.vary.size() == 1) {
        lines.push_back(line);
    } else {
        for (const std::int64_t beside : axes.usual(out.vary.back())) {
            lines.push_back(line);
            lines.back().beside[out.vary.back()] = beside;
        }
    }
    out.most.resize(lines.size());
    in_parallel(lines.size(), [&](std::size_t i) {
        Most& most = out.most[i] = search(document, axes, lines[i], options, catalogue);
        if (out.vary.size() == 2) {
            most.beside = lines[i].beside.at(out.vary.back());
            most.beside_name = axes.name(out.vary.back(), *most.beside);
        }
        tell_best(most, document, options, catalogue);
    });
}

}  // namespace

std::string_view to_text(Vary vary) { return words[static_cast<std::size_t>(vary)]; }

expected<Vary> read_vary(const std::string& word) {
    const auto found = std::find(std::begin(words), std::end(words), word);
    if (found != std::end(words)) return static_cast<Vary>(found - std::begin(words));
    return Unexpected{{{Severity::error,
                        Problem::bad_value,
                        {},
                        "--vary",
                        word,
                        nearest(word, words),
                        "what varies is batch_size, resolution, frames or rank, not " + word}}};
}

std::vector<std::int64_t> Most::smaller_that_fail() const {
    std::vector<std::int64_t> out;
    for (const Tried& value : tried)
        if (best && value.value < best->value && !value.fits()) out.push_back(value.value);
    return out;
}

std::vector<std::int64_t> Most::larger_tried() const {
    std::vector<std::int64_t> out;
    for (const Tried& value : tried)
        if (best && value.value > best->value) out.push_back(value.value);
    return out;
}

Max max(std::string_view text, std::string file_name, const std::vector<Vary>& vary, const CheckOptions& options,
        const profile::Catalogue& catalogue) {
    const io::Format format = io::format_of(file_name, text);
    const expected<io::Document> document = io::read(text, file_name, format);
    if (document) return max(*document, vary, options, catalogue);
    Max out;
    out.source = std::move(file_name);
    out.vary = vary;
    out.diagnostics = document.error();
    return out;
}

Max max(const io::Document& document, const std::vector<Vary>& vary, const CheckOptions& options,
        const profile::Catalogue& catalogue) {
    Max out;
    out.source = document.file_name;
    out.vary = vary;
    out.diagnostics = complaints_about(vary);
    if (!out.diagnostics.empty()) return out;
    Diagnostics notes;
    const expected<Opened> opened = open_for("max", document, options, catalogue, notes);
    if (!opened)
        out.diagnostics = opened.error();
    else
        look(out, document, *opened, options, catalogue);
    return out;
}

int exit_code(const Max& max) {
    if (max.most.empty()) return 2;
    if (std::any_of(max.most.begin(), max.most.end(), [](const Most& most) { return most.best.has_value(); })) return 0;
    const bool any_said = std::any_of(max.most.begin(), max.most.end(), [](const Most& most) {
        return std::any_of(most.tried.begin(), most.tried.end(),
                           [](const Tried& tried) { return tried.trial.verdict != Verdict::cannot_say; });
    });
    return any_said ? 1 : 2;
}

}  // namespace vram::advise
