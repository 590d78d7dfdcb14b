#include "vram/advise/advise.hpp"

#include <ostream>

#include "input.hpp"
#include "verbs.hpp"

namespace vram::cli {
namespace {

/// Writes the first proposal's file, and says what it is; what stands beside the file is said, too, as it is not in it.
/// Returns the exit code.
int write(const Arguments& arguments, const advise::Advised& advised, std::ostream& err) {
    const int code = advise::exit_code(advised);
    if (advised.before.verdict == report::Verdict::fits) {
        err << "nothing has to change, so nothing is written\n";
        return code;
    }
    if (advised.fits.empty()) {
        err << "no change makes it fit, so nothing is written\n";
        return code;
    }
    const advise::Proposal& first = advised.fits.front();
    std::string beside;
    bool has_edits = false;
    for (const advise::Placed& placed : first.changes) {
        has_edits = has_edits || !placed.edits.empty();
        if (!placed.change.shell.empty()) beside += "  " + placed.change.shell + "\n";
    }
    if (!has_edits) {
        err << "no change of the file alone makes it fit, so nothing is written; it fits with\n" << beside;
        return code;
    }
    if (const Diagnostics complaints = write_output(arguments.out, first.file); !complaints.empty()) {
        print_complaints(complaints, err);
        return 2;
    }
    err << arguments.out << ": written, with the first advice in it\n";
    if (!beside.empty()) err << "it fits only with this beside it\n" << beside;
    if (!arguments.options.settings.empty()) err << "what --set and its like say is not in it\n";
    return code;
}

}  // namespace

int advise(const Arguments& arguments, std::ostream& out, std::ostream& err) {
    if (const Diagnostics own = refuse_own_file("--write", arguments.out, arguments.file); !own.empty())
        return refuse(own, arguments.json, out, err);
    const profile::Catalogue catalogue = profile::Catalogue::built_in();
    const expected<std::string> text = read_input(arguments.file);
    if (!text) {
        advise::Advised unread;
        unread.before = report::refused(arguments.file, text.error());
        return refuse_as(unread, text.error(), arguments, out, err);
    }
    const advise::Advised advised = advise::advise(*text, arguments.file, options_of(arguments), catalogue);
    out << (arguments.json ? to_json(advised) + "\n" : to_text(advised));
    const bool writes = !arguments.out.empty() && advised.before.verdict != report::Verdict::cannot_say;
    return writes ? write(arguments, advised, err) : advise::exit_code(advised);
}

}  // namespace vram::cli
