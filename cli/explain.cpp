#include "vram/advise/explain.hpp"

#include <filesystem>
#include <ostream>

#include "input.hpp"
#include "verbs.hpp"
#include "vram/probe/driver.hpp"

namespace vram::cli {
namespace {

/// The user's own file is never touched.
Diagnostics write_picture(const Arguments& arguments, const std::string& svg) {
    std::error_code ignored;
    if (std::filesystem::equivalent(arguments.file, arguments.out, ignored))
        return {{Severity::error,
                 Problem::conflict,
                 {},
                 "--svg",
                 arguments.out,
                 {},
                 "--svg names the job itself, which is never touched"}};
    return write_output(arguments.out, svg);
}

}  // namespace

int explain(const Arguments& arguments, std::ostream& out, std::ostream& err) {
    const profile::Catalogue catalogue = profile::Catalogue::built_in();
    const expected<std::string> text = read_input(arguments.file);
    if (!text) return refuse(text.error(), arguments.json, out, err);
    report::CheckOptions options = arguments.options;
    if (arguments.asks_driver) options.driver = probe::card_of_this_machine();
    advise::ExplainOptions how;
    how.phase = arguments.phase;
    const advise::Explained explained = advise::explain(*text, arguments.file, options, catalogue, how);
    out << (arguments.json ? to_json(explained) + "\n" : to_text(explained));
    if (const std::string svg = to_svg(explained); !arguments.out.empty() && !svg.empty())
        if (const Diagnostics complaints = write_picture(arguments, svg); !complaints.empty()) {
            for (const Diagnostic& complaint : complaints) err << to_text(complaint) << '\n';
            return 2;
        }
    return advise::exit_code(explained);
}

}  // namespace vram::cli
