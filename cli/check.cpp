#include <ostream>

#include "input.hpp"
#include "verbs.hpp"

namespace vram::cli {

int refuse(const Diagnostics& complaints, bool, std::ostream&, std::ostream& err) {
    for (const Diagnostic& complaint : complaints) err << to_text(complaint) << '\n';
    return 2;
}

int check(const Arguments&, std::ostream&, std::ostream& err) {
    err << "vramest: check is not there yet\n";
    return 2;
}

int schema(std::ostream&) { return 2; }

}  // namespace vram::cli
