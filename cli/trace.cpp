#include <ostream>

#include "input.hpp"
#include "verbs.hpp"

namespace vram::cli {

int trace(const Arguments& arguments, std::ostream& out, std::ostream& err) {
    const profile::Catalogue catalogue = profile::Catalogue::built_in();
    const expected<std::string> text = read_input(arguments.file);
    if (!text) return refuse(text.error(), false, out, err);
    const expected<std::string> events =
        report::trace_json(*text, arguments.file, arguments.options, catalogue, arguments.scratch);
    if (!events) return refuse(events.error(), false, out, err);
    if (arguments.out.empty()) {
        out << *events;
        return 0;
    }
    const Diagnostics complaints = write_output(arguments.out, *events);
    return complaints.empty() ? 0 : refuse(complaints, false, out, err);
}

}  // namespace vram::cli
