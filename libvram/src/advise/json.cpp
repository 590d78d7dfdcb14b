#include <nlohmann/json.hpp>

#include "advise/found.hpp"
#include "vram/advise/advise.hpp"

namespace vram::advise {
namespace {

using json = nlohmann::ordered_json;

json json_of(const io::Edited& edit) {
    json out{{"key", edit.edit.path},
             {"file", edit.place.file},
             {"line", edit.place.line},
             {"column", edit.place.column},
             {"new", edit.is_new}};
    out["before"] = edit.is_new ? json() : json(edit.before);
    out["after"] = edit.edit.value ? json(edit.after) : json();
    return out;
}

json json_of(const Placed& placed) {
    json edits = json::array();
    for (const io::Edited& edit : placed.edits) edits.push_back(json_of(edit));
    return {{"lever", to_text(placed.change.lever)},
            {"text", placed.change.text},
            {"edits", std::move(edits)},
            {"settings", advise::json_of(placed.change.settings)},
            {"price", to_text(placed.change.price)},
            {"cost", placed.change.cost},
            {"panel", placed.change.panel},
            {"shell", placed.change.shell}};
}

json json_of(const std::vector<Placed>& changes) {
    json out = json::array();
    for (const Placed& placed : changes) out.push_back(json_of(placed));
    return out;
}

json json_of(const Proposal& proposal) {
    return {{"changes", json_of(proposal.changes)},
            {"verdict", report::to_text(proposal.verdict)},
            {"phase", proposal.phase},
            {"stage", proposal.stage},
            {"device_low", proposal.device_low},
            {"device_high", proposal.device_high},
            {"saves", proposal.saves},
            {"saves_there", proposal.saves_there},
            {"short_of", proposal.short_of},
            {"short_of_low", proposal.short_of_low}};
}

json json_of(const std::vector<Proposal>& proposals) {
    json out = json::array();
    for (const Proposal& proposal : proposals) out.push_back(json_of(proposal));
    return out;
}

}  // namespace

std::string to_json(const Advised& advised, int indent) {
    json out{{"schema", report::schema_version}, {"vramest", report::library_version()}};
    out["before"] = json::parse(report::to_json(advised.before, -1));
    out["video"] = advised.is_video;
    out["fits"] = json_of(advised.fits);
    out["helps"] = json_of(advised.helps);
    out["idle"] = json_of(advised.idle);
    out["nearest"] = advised.nearest ? json_of(*advised.nearest) : json();
    return report::dumped(out, indent);
}

}  // namespace vram::advise
