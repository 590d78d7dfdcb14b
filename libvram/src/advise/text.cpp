#include <algorithm>
#include <utility>

#include "advise/found.hpp"
#include "report/words.hpp"
#include "vram/advise/advise.hpp"

namespace vram::advise {
namespace {

using report::Verdict;

std::string place_of(const io::Edited& edit) {
    std::string out = edit.place.file + ":" + std::to_string(edit.place.line) + ": ";
    if (edit.is_new) {
        const std::size_t dot = edit.edit.path.rfind('.');
        const bool is_root = dot == std::string::npos;
        return out + "add " + edit.edit.path.substr(is_root ? 0 : dot + 1) + ": " + edit.after +
               (is_root ? "" : " to " + edit.edit.path.substr(0, dot));
    }
    if (!edit.edit.value) return out + "take away " + edit.edit.path + " (" + edit.before + ")";
    return out + edit.edit.path + ": " + edit.before + " -> " + edit.after;
}

std::vector<std::string> steps_of(const Placed& placed) {
    std::vector<std::string> out;
    for (const io::Edited& edit : placed.edits) out.push_back(place_of(edit));
    if (!placed.change.shell.empty()) out.push_back(placed.change.shell);
    if (!placed.change.panel.empty()) out.push_back("in the web interface: " + placed.change.panel);
    return out;
}

std::string lines_of(const Placed& placed, const std::string& indent) {
    std::string out;
    for (const std::string& step : steps_of(placed)) out += indent + step + "\n";
    return out;
}

std::string cost_of(const Placed& placed) {
    std::string cost(job::to_text(placed.change.price));
    return placed.change.cost.empty() ? cost : cost + " (" + placed.change.cost + ")";
}

/// "1.20 GiB too little", in the words of the report's own headline.
std::string lacks(const Proposal& proposal) {
    return report::room_text(proposal.verdict, 0, proposal.short_of_low, proposal.short_of);
}

/// "saves 3.10 GiB in sample, 2.00 GiB at its highest; then fits: 21.40 to 21.61 GiB, tightest in step 2".
std::string effect_of(const Proposal& proposal, const report::Report& before) {
    std::string out = "saves " + vram::to_text(proposal.saves_there) + " in " + before.peak->phase;
    if (proposal.saves != proposal.saves_there) out += ", " + vram::to_text(proposal.saves) + " at its highest";
    out += "; then " + report::words(proposal.verdict) + ": " +
           report::range_text(proposal.device_low, proposal.device_high) + ", tightest in " + proposal.phase;
    if (proposal.short_of > 0) out += ", " + lacks(proposal);
    return out;
}

std::string text_of(const Proposal& proposal, const report::Report& before, const std::string& number) {
    const std::string indent(number.size(), ' ');
    std::string out = number + what_of(proposal) + "\n" + indent + effect_of(proposal, before) + "\n";
    if (proposal.changes.size() == 1)
        return out + indent + "costs " + cost_of(proposal.changes.front()) + "\n" +
               lines_of(proposal.changes.front(), indent);
    for (const Placed& placed : proposal.changes)
        out += indent + placed.change.text + "\n" + indent + "  costs " + cost_of(placed) + "\n" +
               lines_of(placed, indent + "  ");
    return out;
}

/// What closes another process saves nothing of the job.
std::string saving(const Proposal& proposal) {
    const Bytes most = std::max(proposal.saves, proposal.saves_there);
    return most > 0 ? "saves " + vram::to_text(most) : "leaves the job more";
}

/// Of each lever the change that leaves least to do; all of them stand in the JSON.
std::vector<Proposal> best_of_each(const std::vector<Proposal>& proposals) {
    std::vector<Proposal> out;
    for (const Proposal& proposal : proposals) {
        const bool is_next =
            out.empty() || out.back().changes.front().change.lever != proposal.changes.front().change.lever;
        if (is_next)
            out.push_back(proposal);
        else if (proposal.short_of < out.back().short_of)
            out.back() = proposal;
    }
    return out;
}

}  // namespace

std::string to_text(const Advised& advised) {
    const report::Report& before = advised.before;
    std::string out = report::words(before.verdict) + ": " + before.reason + "\n";
    if (before.verdict == Verdict::cannot_say) return out;
    if (before.verdict == Verdict::fits) return out + "nothing has to change\n";
    if (!advised.fits.empty()) {
        out += "\nwhat makes it fit, the safest first\n";
        for (std::size_t i = 0; i < advised.fits.size(); ++i)
            out += text_of(advised.fits[i], before, "  " + std::to_string(i + 1) + ". ");
    } else {
        out += "\nno change that is known makes it fit\n";
        if (advised.nearest) out += "nearest\n" + text_of(*advised.nearest, before, "     ");
    }
    if (!advised.helps.empty()) {
        out += "\nneeds less, and is not enough alone\n";
        for (const Proposal& proposal : best_of_each(advised.helps))
            out += "  - " + what_of(proposal) + ": " + saving(proposal) + ", then " + lacks(proposal) + " in " +
                   proposal.phase + "\n";
    }
    if (!advised.idle.empty()) {
        out += "\nmoves nothing where it is tightest (" + before.peak->phase + ")\n";
        for (const Placed& placed : advised.idle) out += "  - " + placed.change.text + "\n";
    }
    return out;
}

std::vector<std::string> lines_of(const Proposal& proposal, const report::Report& before) {
    std::vector<std::string> out{what_of(proposal) + ": " + effect_of(proposal, before)};
    for (const Placed& placed : proposal.changes)
        for (std::string& step : steps_of(placed)) out.push_back(std::move(step));
    return out;
}

}  // namespace vram::advise
