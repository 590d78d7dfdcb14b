#include "vram/advise/advise.hpp"

#include <filesystem>
#include <ostream>

#include "input.hpp"
#include "verbs.hpp"
#include "vram/probe/driver.hpp"

namespace vram::cli {
namespace {

Diagnostics refusal(Problem problem, const std::string& file, std::string text) {
    return {{Severity::error, problem, {}, "--write", file, {}, std::move(text)}};
}

/// Writes the first proposal's file. The user's own is never touched.
Diagnostics write(const Arguments& arguments, const advise::Advised& advised) {
    std::error_code ignored;
    if (std::filesystem::equivalent(arguments.file, arguments.out, ignored))
        return refusal(Problem::conflict, arguments.out, "--write names the file itself, which is never touched");
    if (advised.fits.empty())
        return refusal(Problem::no_data, arguments.out,
                       advised.before.verdict == report::Verdict::fits
                           ? "nothing has to change, so nothing is written"
                           : "no change makes it fit, so nothing is written");
    return write_output(arguments.out, advised.fits.front().file);
}

}  // namespace

int advise(const Arguments& arguments, std::ostream& out, std::ostream& err) {
    const profile::Catalogue catalogue = profile::Catalogue::built_in();
    const expected<std::string> text = read_input(arguments.file);
    if (!text) return refuse(text.error(), arguments.json, out, err);
    report::CheckOptions options = arguments.options;
    if (arguments.asks_driver) options.driver = probe::card_of_this_machine();
    const advise::Advised advised = advise::advise(*text, arguments.file, options, catalogue);
    out << (arguments.json ? to_json(advised) + "\n" : to_text(advised));
    if (!arguments.out.empty() && advised.before.verdict != report::Verdict::cannot_say)
        if (const Diagnostics complaints = write(arguments, advised); !complaints.empty()) {
            for (const Diagnostic& complaint : complaints) err << to_text(complaint) << '\n';
            return std::max(1, advise::exit_code(advised));
        }
    return advise::exit_code(advised);
}

}  // namespace vram::cli
