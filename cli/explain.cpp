#include "vram/advise/explain.hpp"

#include <ostream>

#include "input.hpp"
#include "verbs.hpp"

namespace vram::cli {
int explain(const Arguments& arguments, std::ostream& out, std::ostream& err) {
    if (const Diagnostics own = refuse_own_file("--svg", arguments.out, arguments.file); !own.empty())
        return refuse(own, arguments.json, out, err);
    const profile::Catalogue catalogue = profile::Catalogue::built_in();
    const expected<std::string> text = read_input(arguments.file);
    if (!text) {
        advise::Explained unread;
        unread.report = report::refused(arguments.file, text.error());
        return refuse_as(unread, text.error(), arguments, out, err);
    }
    advise::ExplainOptions how;
    how.phase = arguments.phase;
    const advise::Explained explained = advise::explain(*text, arguments.file, options_of(arguments), catalogue, how);
    out << (arguments.json ? to_json(explained) + "\n" : to_text(explained));
    if (const std::string svg = to_svg(explained); !arguments.out.empty() && !svg.empty())
        if (const Diagnostics complaints = write_output(arguments.out, svg); !complaints.empty()) {
            print_complaints(complaints, err);
            return 2;
        }
    return advise::exit_code(explained);
}

}  // namespace vram::cli
