#include "report/words.hpp"

namespace vram::report {

std::string range_text(Bytes low, Bytes high) {
    const std::string to = vram::to_text(high);
    std::string from = vram::to_text(low);
    if (from == to) return to;
    const std::string unit = to.substr(to.find(' '));
    if (from.ends_with(unit)) from.resize(from.size() - unit.size());  // "25.24 to 25.48 GiB"
    return from + " to " + to;
}

}  // namespace vram::report
