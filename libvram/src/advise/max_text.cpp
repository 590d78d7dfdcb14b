#include <algorithm>

#include "advise/found.hpp"
#include "vram/advise/max.hpp"

namespace vram::advise {
namespace {

using json = nlohmann::ordered_json;
using advise::json_of;  // beside those below

std::string list_of(const std::vector<std::int64_t>& values) {
    std::string out;
    for (const std::int64_t value : values) out += (out.empty() ? "" : ", ") + std::to_string(value);
    return out;
}

std::string needs(const Most& most) {
    return "needs " + report::range_text(most.device_low, most.device_high) + ", tightest in " + most.phase +
           (most.stage.empty() ? "" : ", " + most.stage);
}

/// What was found around the best: is there a hole below, is there anything above?
std::string around(const Most& most) {
    std::string out;
    if (const auto failing = most.smaller_that_fail(); !failing.empty())
        out += "though " + list_of(failing) + (failing.size() == 1 ? " does not" : " do not") +
               " fit: what torch reserves may fall where more is asked for\n";
    if (const auto larger = most.larger_tried(); !larger.empty())
        out += "larger values tried: " + list_of(larger) + "; none fits\n";
    return out;
}

std::string one(const Max& max) {
    const Most& most = max.most.front();
    const std::string what(to_text(max.vary.front()));
    std::string out;
    if (!most.best) {
        out = what + ": no value fits; " + offer(max.gpu) + "\n";
        for (const Tried& tried : most.tried)
            out += "  " + std::to_string(tried.value) + ": " + found(tried.trial) + "\n";
        return out;
    }
    out = what + ": " + std::to_string(most.best->value) + " is the most that fits (the job says " +
          std::to_string(max.now) + "); " + offer(max.gpu) + "\n\n";
    out += "  " + std::to_string(most.best->value) + ": " + needs(most) + "\n";
    if (most.next)
        out += "  " + std::to_string(most.next->value) + ": " + found(most.next->trial) + "\n";
    else
        out += "  no larger value is tried\n";
    for (const report::Setting& setting : most.best->settings)
        out += "  --set '" + setting.key + "=" + setting.value + "'\n";  // a shell takes brackets for a pattern
    const std::string more = around(most);
    return out + (more.empty() ? "" : "\n" + more);
}

std::string frontier(const Max& max) {
    const std::string what(to_text(max.vary.front())), beside(to_text(max.vary.back()));
    const std::size_t width = std::max<std::size_t>(beside.size(), 10) + 2;
    std::string out = "the largest " + what + " for each " + beside + "; " + offer(max.gpu) + "\n\n";
    out += report::left(beside, width) + report::right(what, std::max<std::size_t>(what.size(), 6)) + "\n";
    for (const Most& most : max.most) {
        const std::string value = most.best ? std::to_string(most.best->value) : "none";
        out +=
            report::left(most.beside_name, width) + report::right(value, std::max<std::size_t>(what.size(), 6)) + "   ";
        if (most.best)
            out += needs(most) + (most.smaller_that_fail().empty()
                                      ? ""
                                      : "; " + list_of(most.smaller_that_fail()) + " below it do not fit");
        else
            out += std::to_string(most.tried.front().value) + ": " + found(most.tried.front().trial);
        out += "\n";
    }
    return out;
}

json json_of(const Tried& tried) {
    json out{{"value", tried.value}, {"settings", json_of(tried.settings)}};
    out.update(json_of(tried.trial));
    return out;
}

json json_of(const Most& most) {
    json tried = json::array();
    for (const Tried& one : most.tried) tried.push_back(json_of(one));
    json out = json::object();
    if (most.beside) out["beside"] = *most.beside;
    out["value"] = most.best ? json(most.best->value) : json(nullptr);
    out["settings"] = most.best ? json_of(most.best->settings) : json::object();
    out["phase"] = most.phase;
    out["stage"] = most.stage;
    out["device_low"] = most.best ? json(most.device_low) : json(nullptr);
    out["device_high"] = most.best ? json(most.device_high) : json(nullptr);
    out["next"] = most.next ? json_of(*most.next) : json(nullptr);
    out["smaller_that_fail"] = most.smaller_that_fail();
    out["larger_tried"] = most.larger_tried();
    out["tried"] = std::move(tried);
    return out;
}

}  // namespace

std::string to_text(const Max& max) {
    if (max.most.empty()) return lines_of(max.diagnostics);
    return max.vary.size() == 1 ? one(max) : frontier(max);
}

std::string to_json(const Max& max, int indent) {
    json out = heading(max.source);
    out["gpu"] = report::json_of(max.gpu);
    json vary = json::array(), most = json::array();
    for (const Vary axis : max.vary) vary.push_back(to_text(axis));
    for (const Most& one : max.most) most.push_back(json_of(one));
    out["vary"] = std::move(vary);
    out["keys"] = max.keys;
    out["now"] = max.most.empty() ? json(nullptr) : json(max.now);
    out["max"] = std::move(most);
    out["diagnostics"] = report::json_of(max.diagnostics);
    return report::dumped(out, indent);
}

}  // namespace vram::advise
