#include "vram/diagnose/knowledge.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "diagnose/signs.hpp"
#include "profile/embedded.hpp"

namespace vram::diagnosis {
namespace {

std::string_view embedded(std::string_view name) {
    for (const profile::EmbeddedFile& file : profile::embedded_failures())
        if (file.name == name) return file.text;
    throw std::logic_error(std::string(name) + " is not built in");
}

template <class T>
bool holds_for(const std::vector<T>& listed, T one) {
    return listed.empty() || std::find(listed.begin(), listed.end(), one) != listed.end();
}

/// Does the job say already what a change asks for?
bool is_done(const Change& change, const report::Report* report) {
    if (report == nullptr || change.unless_key.empty()) return false;
    const auto it = report->job.resolved.find(change.unless_key);
    if (it == report->job.resolved.end()) return false;
    const std::string_view value = change.unless_value;
    if (value == "set") return it->second != "none" && !it->second.empty();
    return value.starts_with('*') ? it->second.ends_with(value.substr(1)) : it->second == value;
}

}  // namespace

Knowledge::Knowledge(std::shared_ptr<const Signs> signs, std::shared_ptr<const Changes> changes)
    : signs_(std::move(signs)), changes_(std::move(changes)) {}

expected<Knowledge> Knowledge::of(std::string_view signs, std::string_view changes) {
    expected<Signs> read = read_signs(signs, "failures/signs.yaml");
    if (!read) return Unexpected{read.error()};
    expected<Changes> table = read_changes(changes, "failures/changes.yaml");
    if (!table) return Unexpected{table.error()};
    return Knowledge(std::make_shared<const Signs>(*std::move(read)),
                     std::make_shared<const Changes>(*std::move(table)));
}

Knowledge Knowledge::built_in() {
    expected<Knowledge> known = of(embedded("failures/signs.yaml"), embedded("failures/changes.yaml"));
    if (!known) throw std::logic_error(vram::to_text(known.error().front()));
    return *std::move(known);
}

Advised first_change(const Knowledge& knowledge, Kind kind, Phase phase, System system, const report::Report* report,
                     std::string_view by) {
    const KindOfFailure& failure = knowledge.changes().kinds.at(kind);
    Advised advised{failure.cause, {}};
    for (const Change& change : failure.changes)
        if (holds_for(change.phases, phase) && holds_for(change.systems, system) &&
            (change.by.empty() || change.by == by) && !is_done(change, report))
            advised.changes.push_back(change.text);
    return advised;
}

}  // namespace vram::diagnosis
