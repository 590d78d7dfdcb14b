#include "advise/found.hpp"
#include "vram/advise/grow.hpp"

namespace vram::advise {
namespace {

using json = nlohmann::ordered_json;
using advise::json_of;  // beside those below

std::string change(const Growth& line) {
    if (!line.grows) return line.from;
    return line.from.empty() ? line.to : line.from + " -> " + line.to;
}

json json_of(const Growth& line) {
    return {{"what", line.what},
            {"from", line.from},
            {"to", line.grows ? json(line.to) : json(nullptr)},
            {"grows", line.grows},
            {"settings", json_of(line.settings)},
            {"device_low", line.grows ? json(line.device_low) : json(nullptr)},
            {"device_high", line.grows ? json(line.device_high) : json(nullptr)},
            {"why", line.why}};
}

}  // namespace

std::string to_text(const Grow& grow) {
    if (grow.verdict == report::Verdict::cannot_say) return lines_of(grow.diagnostics);
    std::string out = report::words(grow.verdict) + ": " + grow.reason + "\n";
    if (grow.lines.empty()) return out + "nothing can grow before it fits: vramest advise\n";
    out += "\n" + report::left("what to raise, each alone", 27) + report::left("from -> to", 22) + "needs then (GiB)\n";
    for (const Growth& line : grow.lines) {
        out += "  " + report::left(line.what, 25) + report::left(change(line), 22);
        if (line.grows)
            out += report::range(line.device_low, line.device_high) + (line.why.empty() ? "" : "; " + line.why);
        else
            out += "stays: " + line.why;
        out += "\n";
    }
    return out;
}

std::string to_json(const Grow& grow, int indent) {
    json out = heading(grow.source);
    const bool said = grow.verdict != report::Verdict::cannot_say;
    out["gpu"] = report::json_of(grow.gpu);
    out["verdict"] = report::to_text(grow.verdict);
    out["reason"] = grow.reason;
    out["device_low"] = said ? json(grow.device_low) : json(nullptr);
    out["device_high"] = said ? json(grow.device_high) : json(nullptr);
    json lines = json::array();
    for (const Growth& line : grow.lines) lines.push_back(json_of(line));
    out["lines"] = std::move(lines);
    out["diagnostics"] = report::json_of(grow.diagnostics);
    return report::dumped(out, indent);
}

}  // namespace vram::advise
