#include "vram/advise/explain.hpp"

#include <ostream>

#include "input.hpp"
#include "verbs.hpp"
#include "vram/probe/driver.hpp"

namespace vram::cli {
int explain(const Arguments& arguments, std::ostream& out, std::ostream& err) {
    if (const Diagnostics own = refuse_own_file("--svg", arguments.out, arguments.file); !own.empty())
        return refuse(own, arguments.json, out, err);
    const profile::Catalogue catalogue = profile::Catalogue::built_in();
    const expected<std::string> text = read_input(arguments.file);
    if (!text && arguments.json) {
        advise::Explained unread;
        unread.report = report::refused(arguments.file, text.error());
        out << to_json(unread) << '\n';
        return refuse(text.error(), false, out, err);
    }
    if (!text) return refuse(text.error(), false, out, err);
    report::CheckOptions options = arguments.options;
    if (arguments.asks_driver) options.driver = probe::card_of_this_machine();
    advise::ExplainOptions how;
    how.phase = arguments.phase;
    const advise::Explained explained = advise::explain(*text, arguments.file, options, catalogue, how);
    out << (arguments.json ? to_json(explained) + "\n" : to_text(explained));
    if (const std::string svg = to_svg(explained); !arguments.out.empty() && !svg.empty())
        if (const Diagnostics complaints = write_output(arguments.out, svg); !complaints.empty()) {
            for (const Diagnostic& complaint : complaints) err << to_text(complaint) << '\n';
            return 2;
        }
    return advise::exit_code(explained);
}

}  // namespace vram::cli
