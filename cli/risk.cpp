#include "vram/advise/risk.hpp"

#include <ostream>

#include "input.hpp"
#include "verbs.hpp"

namespace vram::cli {

int risk(const Arguments& arguments, std::ostream& out, std::ostream& err) {
    const profile::Catalogue catalogue = profile::Catalogue::built_in();
    const expected<std::string> text = read_input(arguments.file);
    if (!text) {
        advise::CheckpointingRisk unread;
        unread.on = unread.off = report::refused(arguments.file, text.error());
        return refuse_as(unread, text.error(), arguments, out, err);
    }
    const advise::CheckpointingRisk risk = advise::risk(*text, arguments.file, options_of(arguments), catalogue);
    out << (arguments.json ? to_json(risk) + "\n" : to_text(risk));
    return advise::exit_code(risk);
}

}  // namespace vram::cli
