#include <ostream>

#include "input.hpp"
#include "verbs.hpp"

namespace vram::cli {

void print_complaints(const Diagnostics& complaints, std::ostream& err) {
    for (const Diagnostic& complaint : complaints) err << to_text(complaint) << '\n';
}

int refuse(const Diagnostics& complaints, bool json, std::ostream& out, std::ostream& err) {
    if (json) out << report::to_json(report::refused({}, complaints)) << '\n';
    print_complaints(complaints, err);
    return 2;
}

int check(const Arguments& arguments, std::ostream& out, std::ostream& err) {
    const profile::Catalogue catalogue = profile::Catalogue::built_in();
    const expected<std::string> text = read_input(arguments.file);
    if (!text) return refuse(text.error(), arguments.json, out, err);
    const report::Report report = report::check(*text, arguments.file, options_of(arguments), catalogue);
    out << (arguments.json ? report::to_json(report) + "\n" : report::to_text(report));
    using enum report::Verdict;
    if (!arguments.json && arguments.file != "-" && (report.verdict == does_not_fit || report.verdict == tight))
        out << "\nwhat to change: vramest advise " << arguments.file
            << (report.gpu.id.empty() ? "" : " --gpu " + report.gpu.id) << '\n';
    if (report.verdict == report::Verdict::cannot_say) {
        Diagnostics rest = report.diagnostics;
        // The answer names the first one already.
        if (!arguments.json)
            std::erase_if(rest, [&](const Diagnostic& d) { return report.reason.starts_with(to_text(d)); });
        print_complaints(rest, err);
    }
    return report::exit_code(report, arguments.strict);
}

}  // namespace vram::cli
