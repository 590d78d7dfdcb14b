#include "vram/advise/advise.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "advise/found.hpp"
#include "advise/practice.hpp"
#include "base/parallel.hpp"
#include "report/opened.hpp"
#include "trainers/job_changes.hpp"
#include "vram/io/path.hpp"

namespace vram::advise {
namespace {

using job::Change;
using job::Lever;
using report::CheckOptions;
using report::Report;
using report::Verdict;

constexpr std::size_t most_proposals = 6;  // a choice: what is left out costs more than these
constexpr std::size_t enough_singles = 3;  // a choice: then pairs are not looked for
constexpr std::size_t most_tried = 24;     // a choice: pairs or triples that are played

using Picks = std::vector<std::size_t>;  // of the changes, in the order of practice

/// A job with some changes made, as it was played.
struct Attempt {
    Picks picks;
    std::vector<Placed> placed;
    std::string file;
    Report report;
};

bool is_video(const job::Job& job) {
    const auto* training = std::get_if<job::Training>(&job.work);
    const auto* call = std::get_if<job::Call>(&job.work);
    if (call != nullptr) return call->batch.frames > 1;
    return training != nullptr && std::any_of(training->batches.begin(), training->batches.end(),
                                              [](const job::Batch& batch) { return batch.frames > 1; });
}

bool is_below(const std::string& path, const std::string& other) {
    return path.starts_with(other) &&
           (path.size() == other.size() || path[other.size()] == '.' || path[other.size()] == '[');
}

/// Whether two changes touch one value, so that the second would undo the first.
bool collide(const Change& a, const Change& b) {
    for (const io::Edit& one : a.edits)
        for (const io::Edit& other : b.edits)
            if (is_below(one.path, other.path) || is_below(other.path, one.path)) return true;
    for (const job::Setting& one : a.settings)
        for (const job::Setting& other : b.settings)
            if (one.key == other.key) return true;
    return false;
}

bool says_already(const io::Document& document, const io::Edit& edit) {
    const io::Node* node = io::find(document.root, edit.path);
    return node != nullptr && edit.value && node->spelled() == *edit.value;
}

int rank_of(Verdict verdict) {
    switch (verdict) {
        case Verdict::fits: return 0;
        case Verdict::tight: return 1;
        case Verdict::does_not_fit: return 2;
        case Verdict::cannot_say: return 3;
    }
    return 3;
}

/// How far the highest need lies above what the card offers; below 0 it fits.
Bytes shortage(const Report& report) { return report.peak->device_high - report.gpu.usable(); }

/// What a phase needs of the card; 0 where a report does not have it.
Bytes need_of(const Report& report, const std::string& phase) {
    const report::Phase* found = report.phase(phase);
    return found == nullptr ? 0 : found->needs_high;
}

class Adviser {
  public:
    Adviser(const io::Document& document, const CheckOptions& options, const profile::Catalogue& catalogue,
            const Report& before, std::vector<Change> changes, bool video)
        : document_(document),
          options_(options),
          catalogue_(catalogue),
          before_(before),
          changes_(std::move(changes)),
          video_(video) {
        std::erase_if(changes_, [&](const Change& change) { return is_set(change); });
        for (Change& change : changes_)
            std::erase_if(change.edits, [&](const io::Edit& edit) { return says_already(document_, edit); });
        std::erase_if(changes_, [](const Change& change) { return change.edits.empty() && change.settings.empty(); });
        std::stable_sort(changes_.begin(), changes_.end(), [&](const Change& a, const Change& b) {
            return place_of(a.lever, video_) < place_of(b.lever, video_);
        });
    }

    void advise(Advised& out) {
        std::vector<Picks> singles;
        for (std::size_t i = 0; i < changes_.size(); ++i) singles.push_back({i});
        singles_ = play(singles);
        for (const std::optional<Attempt>& single : singles_) {
            std::vector<Bytes>& saved = saved_.emplace_back();
            if (!single) continue;
            for (const report::Phase& phase : before_.phases)
                saved.push_back(phase.needs_high - need_of(single->report, phase.name));
        }
        std::vector<Picks> fitting;
        Lever last = Lever::pace;
        for (const std::optional<Attempt>& attempt : singles_) {
            if (!attempt) continue;
            const Change& change = changes_[attempt->picks.front()];
            if (attempt->report.verdict == Verdict::fits) {
                if (!fitting.empty() && change.lever == last) continue;  // the mildest of a lever is enough
                last = change.lever;
                fitting.push_back(attempt->picks);
                if (out.fits.size() < most_proposals) out.fits.push_back(proposal(*attempt));
            } else if (helps(*attempt)) {
                out.helps.push_back(proposal(*attempt));
            } else if (saves_there(*attempt) <= 0) {  // else it helps there, and another phase needs more: with others
                out.idle.push_back(attempt->placed.front());
            }
        }
        // What is typed into a shell is no edit of the file, and comes behind those that are.
        std::stable_partition(out.fits.begin(), out.fits.end(), is_in_file);
        const auto any_in_file = [&] { return std::any_of(out.fits.begin(), out.fits.end(), is_in_file); };
        for (const bool surroundings : {false, true}) {
            with_surroundings_ = surroundings;
            if (surroundings && !out.fits.empty()) break;
            for (const std::size_t size : {std::size_t{2}, std::size_t{3}})
                if (fitting.size() < enough_singles && (size == 2 || !any_in_file())) combine(size, fitting, out);
            if (!any_in_file()) all_together(out);
        }
        std::stable_partition(out.fits.begin(), out.fits.end(), is_in_file);
    }

  private:
    /// Whether the file alone says it all.
    [[nodiscard]] static bool is_in_file(const Proposal& proposal) {
        return std::all_of(proposal.changes.begin(), proposal.changes.end(),
                           [](const Placed& placed) { return placed.change.settings.empty(); });
    }

    /// Nothing where the trainer refuses the changed file, or it cannot be changed in place.
    [[nodiscard]] std::optional<Attempt> play(const Picks& picks) const {
        Attempt attempt{picks, {}, document_.text, {}};
        CheckOptions options = options_;
        std::vector<io::Edit> edits;
        for (const std::size_t i : picks) {
            edits.insert(edits.end(), changes_[i].edits.begin(), changes_[i].edits.end());
            options.settings.insert(options.settings.end(), changes_[i].settings.begin(), changes_[i].settings.end());
        }
        expected<io::EditedDocument> edited = io::edited(document_, edits);
        if (!edited) return {};
        attempt.file = edited->document.text;
        auto next = edited->edits.begin();
        for (const std::size_t i : picks) {
            const auto end = next + static_cast<std::ptrdiff_t>(changes_[i].edits.size());
            attempt.placed.push_back({changes_[i], {next, end}});
            next = end;
        }
        attempt.report = report::check(std::move(edited->document), options, catalogue_);
        if (attempt.report.verdict == Verdict::cannot_say) return {};
        return attempt;
    }
    [[nodiscard]] std::vector<std::optional<Attempt>> play(const std::vector<Picks>& all) const {
        std::vector<std::optional<Attempt>> out(all.size());
        in_parallel(all.size(), [&](std::size_t i) { out[i] = play(all[i]); });
        return out;
    }

    /// Whether --set has the last word on it.
    [[nodiscard]] bool is_set(const Change& change) const {
        return std::any_of(change.edits.begin(), change.edits.end(), [&](const io::Edit& edit) {
            return std::any_of(options_.settings.begin(), options_.settings.end(), [&](const job::Setting& setting) {
                return is_below(edit.path, setting.key) || is_below(setting.key, edit.path);
            });
        });
    }

    [[nodiscard]] Bytes usable() const { return before_.gpu.usable(); }
    [[nodiscard]] Bytes saves(const Attempt& attempt) const {
        return before_.peak->device_high - attempt.report.peak->device_high;
    }
    [[nodiscard]] Bytes saves_there(const Attempt& attempt) const {
        const std::string& phase = before_.peak->phase;
        return attempt.report.phase(phase) == nullptr ? saves(attempt)
                                                      : need_of(before_, phase) - need_of(attempt.report, phase);
    }
    [[nodiscard]] bool helps(const Attempt& attempt) const {
        const Bytes now = shortage(before_), then = shortage(attempt.report);
        return rank_of(attempt.report.verdict) <= rank_of(before_.verdict) && then <= now &&
               (then < now || saves_there(attempt) > 0);
    }

    [[nodiscard]] Proposal proposal(const Attempt& attempt) const {
        const report::Peak& peak = *attempt.report.peak;
        return {attempt.placed,
                attempt.report.verdict,
                peak.phase,
                peak.stage,
                peak.device_low,
                peak.device_high,
                saves(attempt),
                saves_there(attempt),
                std::max<Bytes>(0, shortage(attempt.report)),
                std::max<Bytes>(0, peak.device_low - attempt.report.gpu.usable_high()),
                attempt.file};
    }

    /// What the job would need if what each change saves by itself added up, phase by phase. Only for the order in
    /// which changes are played together.
    [[nodiscard]] Bytes guess(const Picks& picks) const {
        Bytes most = 0;
        for (std::size_t phase = 0; phase < before_.phases.size(); ++phase) {
            Bytes need = before_.phases[phase].needs_high;
            for (const std::size_t i : picks) need -= saved_[i][phase];
            most = std::max(most, need);
        }
        return most;
    }
    /// Whether it saves anything in a phase that is too large.
    [[nodiscard]] bool is_of_use(std::size_t i) const {
        if (!singles_[i] || changes_[i].lever == Lever::pace) return false;
        if (!with_surroundings_ && !changes_[i].settings.empty()) return false;
        for (std::size_t phase = 0; phase < before_.phases.size(); ++phase)
            if (before_.phases[phase].needs_high > usable() && saved_[i][phase] > 0) return true;
        return false;
    }
    [[nodiscard]] bool go_together(const Picks& picks) const {
        for (std::size_t a = 0; a < picks.size(); ++a)
            for (std::size_t b = a + 1; b < picks.size(); ++b)
                if (collide(changes_[picks[a]], changes_[picks[b]])) return false;
        return true;
    }
    [[nodiscard]] std::size_t places(const Picks& picks) const {
        std::size_t sum = 0;
        for (const std::size_t i : picks) sum += place_of(changes_[i].lever, video_);
        return sum;
    }

    void subsets(std::size_t size, std::size_t from, Picks& picks, const std::vector<Picks>& fitting,
                 std::vector<Picks>& out) const {
        if (picks.size() == size) {
            if (go_together(picks) && guess(picks) <= usable()) out.push_back(picks);
            return;
        }
        for (std::size_t i = from; i < changes_.size(); ++i) {
            const bool fits_alone = std::any_of(fitting.begin(), fitting.end(), [&](const Picks& fit) {
                return changes_[fit.front()].lever == changes_[i].lever;
            });
            if (fits_alone || !is_of_use(i)) continue;
            picks.push_back(i);
            subsets(size, i + 1, picks, fitting, out);
            picks.pop_back();
        }
    }

    /// The cheapest pairs or triples of changes of which none is enough alone.
    void combine(std::size_t size, const std::vector<Picks>& fitting, Advised& out) const {
        std::vector<Picks> candidates;
        Picks picks;
        subsets(size, 0, picks, fitting, candidates);
        std::stable_sort(candidates.begin(), candidates.end(),
                         [&](const Picks& a, const Picks& b) { return places(a) < places(b); });
        candidates.resize(std::min(candidates.size(), most_tried));
        constexpr std::size_t at_once = 4;
        std::vector<std::vector<Lever>> met;
        for (std::size_t i = 0; i < candidates.size() && out.fits.size() < enough_singles; i += at_once) {
            const std::vector<Picks> wave(
                candidates.begin() + static_cast<std::ptrdiff_t>(i),
                candidates.begin() + static_cast<std::ptrdiff_t>(std::min(i + at_once, candidates.size())));
            for (const std::optional<Attempt>& attempt : play(wave)) {
                if (!attempt || attempt->report.verdict != Verdict::fits || out.fits.size() >= enough_singles) continue;
                std::vector<Lever> levers;
                for (const std::size_t pick : attempt->picks) levers.push_back(changes_[pick].lever);
                if (std::find(met.begin(), met.end(), levers) != met.end()) continue;
                met.push_back(std::move(levers));
                out.fits.push_back(proposal(*attempt));
            }
        }
    }

    /// Everything that is of use, of each lever what saves most; then without those that are not needed after all, the
    /// costliest first.
    void all_together(Advised& out) const {
        Picks picks;
        for (std::size_t i = 0; i < changes_.size(); ++i) {
            if (!is_of_use(i)) continue;
            // Of those that exclude each other the one with which less is needed.
            const auto rival = std::find_if(picks.begin(), picks.end(), [&](std::size_t pick) {
                const bool excludes = changes_[i].lever != Lever::quantization;  // of two parts both may be quantised
                return collide(changes_[pick], changes_[i]) || (excludes && changes_[pick].lever == changes_[i].lever);
            });
            if (rival == picks.end())
                picks.push_back(i);
            else if (guess({i}) < guess({*rival}))
                *rival = i;
        }
        std::optional<Attempt> best;
        for (const std::optional<Attempt>& single : singles_)
            if (single && is_of_use(single->picks.front()) &&
                (!best || shortage(single->report) < shortage(best->report)))
                best = single;
        if (picks.size() > 1)
            if (std::optional<Attempt> all = play(picks);
                all && (!best || shortage(all->report) < shortage(best->report)))
                best = std::move(all);
        if (!best) return;
        for (std::size_t i = best->picks.size(); i-- > 0 && best->picks.size() > 1;) {
            Picks fewer = best->picks;
            fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
            std::optional<Attempt> attempt = play(fewer);
            const bool as_good = attempt && (best->report.verdict == Verdict::fits
                                                 ? attempt->report.verdict == Verdict::fits
                                                 : shortage(attempt->report) <= shortage(best->report));
            if (as_good) best = std::move(attempt);
        }
        if (best->report.verdict == Verdict::fits) {
            out.fits.push_back(proposal(*best));
            out.nearest.reset();
        }
        if (out.fits.empty() && helps(*best) && (!out.nearest || shortage(best->report) < out.nearest->short_of))
            out.nearest = proposal(*best);
    }

    const io::Document& document_;
    const CheckOptions& options_;
    const profile::Catalogue& catalogue_;
    const Report& before_;
    std::vector<Change> changes_;
    bool video_;
    bool with_surroundings_ = false;               // what is no edit of the file may be combined, too
    std::vector<std::optional<Attempt>> singles_;  // by change
    std::vector<std::vector<Bytes>> saved_;        // by change, by phase of `before_`; empty of one that was refused
};

}  // namespace

Advised advise(std::string_view text, std::string file_name, const CheckOptions& options,
               const profile::Catalogue& catalogue) {
    const io::Format format = io::format_of(file_name, text);
    expected<io::Document> document = io::read(text, file_name, format);
    if (document) return advise(*std::move(document), options, catalogue);
    Advised out;
    out.before = report::refused(std::move(file_name), document.error());
    return out;
}

Advised advise(io::Document document, const CheckOptions& options, const profile::Catalogue& catalogue) {
    Advised out;
    CheckOptions once = options;
    once.compares_checkpointing = false;
    out.before = report::check(document, once, catalogue);
    if (out.before.verdict == Verdict::cannot_say) return out;
    if (out.before.gpu.chosen_by == report::ChosenBy::smallest_that_holds) {
        out.before = report::refused(document.file_name, {card_is_due("advice")});
        return out;
    }
    Diagnostics notes;
    const expected<report::Opened> opened = report::open(document, once, catalogue, notes);
    if (!opened) {
        out.before = report::refused(document.file_name, opened.error());
        return out;
    }
    out.is_video = is_video(opened->job);
    if (out.before.verdict == Verdict::fits) return out;
    std::vector<Change> changes = opened->trainer->changes(opened->document, catalogue, opened->job);
    for (Change& change : trainers::surrounding_changes(opened->job)) changes.push_back(std::move(change));
    Adviser(document, once, catalogue, out.before, std::move(changes), out.is_video).advise(out);
    return out;
}

int exit_code(const Advised& advised) {
    if (advised.before.verdict == Verdict::cannot_say) return 2;
    return advised.before.verdict == Verdict::fits || !advised.fits.empty() ? 0 : 1;
}

}  // namespace vram::advise
