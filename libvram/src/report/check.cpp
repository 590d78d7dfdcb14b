#include "vram/report/check.hpp"

#include <algorithm>
#include <utility>

#include "report/opened.hpp"
#include "report/played.hpp"
#include "report/summarize.hpp"
#include "vram/io/path.hpp"

namespace vram::report {
namespace {

Report answer(const Opened& opened, const OnCard& on, const device::AllocatorConfig& config) {
    const Need need = need_on(on.played.trace, config, on.card, *on.unlimited);
    return summarize(opened.job, on.played.facts, on.played.trace, need, on.card);
}

/// The job with checkpointing turned the other way, on the card that the report is about. Nothing where that is no
/// training, or is too large to be played.
std::optional<OtherWay> other_way(const Opened& opened, const Report& report, const device::AllocatorConfig& config,
                                  const profile::Catalogue& catalogue) {
    if (report.verdict == Verdict::cannot_say || !std::holds_alternative<job::Training>(opened.job.work)) return {};
    job::Job job = opened.job;
    auto& training = std::get<job::Training>(job.work);
    training.gradient_checkpointing = !training.gradient_checkpointing;
    const job::Environment& environment = job.environment;
    const profile::DeviceProfile* profile = catalogue.cards().device(report.gpu.id);
    const Card card = profile != nullptr ? card_of(*profile, environment, report.gpu.chosen_by)
                                         : card_of(report.gpu.capacity, environment, report.gpu.chosen_by);
    const expected<Played> played = play(opened, job, card.profile, catalogue);
    if (!played) return {};
    const expected<Unlimited> unlimited = unlimited_of(opened, *played, config, card.profile, Alone::replayed);
    if (!unlimited) return {};
    const Need need = need_on(played->trace, config, card, *unlimited);
    return OtherWay{deciding_phase(need).name, need.device_low, need.device_high,
                    verdict_of(need.device_low, need.device_high, card.line)};
}

/// Of a model that cannot be played: what its files hold, and why that is all.
Report weights_alone(const Opened& opened, const job::WeightsOnly& only) {
    Report report = refused(opened.document.file_name, {only.why});
    for (const job::StoredWeights& stored : opened.job.stored) {
        report.facts.weights += stored.bytes;
        report.facts.counts.parameters += stored.parameters;
    }
    return report;
}

Report check_opened(const Opened& opened, const CheckOptions& options, const profile::Catalogue& catalogue,
                    Diagnostics& notes) {
    if (const auto* only = std::get_if<job::WeightsOnly>(&opened.job.work)) return weights_alone(opened, *only);
    const device::AllocatorConfig config = allocator_of(opened, notes);
    const expected<OnCard> on = place(opened, options, config, catalogue, Depth::report);
    if (!on) return refused(opened.document.file_name, on.error());
    Report report = answer(opened, *on, config);
    if (options.compares_checkpointing) report.checkpointing.other = other_way(opened, report, config, catalogue);
    return report;
}

Report report_of(const expected<Opened>& opened, const std::string& file_name, const CheckOptions& options,
                 const profile::Catalogue& catalogue, Diagnostics notes) {
    Diagnostics complaints = opened ? Diagnostics{} : opened.error();
    if (std::optional<Diagnostic> complaint = complaint_of(options, catalogue.cards()))
        complaints.push_back(*std::move(complaint));
    Report report = !complaints.empty() || has_errors(notes) ? refused(file_name, std::move(complaints))
                                                             : check_opened(*opened, options, catalogue, notes);
    report.job.source = file_name;
    if (opened) {
        report.job.trainer = opened->job.trainer;
        report.job.model = opened->job.model;
        report.job.resolved = opened->job.resolved;
        report.stored = opened->job.stored;
    }
    report.diagnostics.insert(report.diagnostics.end(), notes.begin(), notes.end());
    if (report.reason.empty()) report.reason = refused(file_name, notes).reason;
    return report;
}

}  // namespace

Report refused(std::string source, Diagnostics complaints) {
    const auto at = [](const Diagnostic& d) { return std::pair(d.place.line, d.place.column); };
    std::stable_sort(complaints.begin(), complaints.end(),
                     [&](const Diagnostic& a, const Diagnostic& b) { return at(a) < at(b); });
    Report report;
    report.job.source = std::move(source);
    const auto first = std::find_if(complaints.begin(), complaints.end(),
                                    [](const Diagnostic& d) { return d.severity == Severity::error; });
    const auto errors = std::count_if(complaints.begin(), complaints.end(),
                                      [](const Diagnostic& d) { return d.severity == Severity::error; });
    if (first != complaints.end()) report.reason = to_text(*first);
    if (errors > 1) report.reason += " (and " + std::to_string(errors - 1) + " more)";
    report.risk = {RiskLevel::high, {"it was not estimated"}};
    report.diagnostics = std::move(complaints);
    return report;
}

Report check(std::string_view text, std::string file_name, const CheckOptions& options,
             const profile::Catalogue& catalogue) {
    Diagnostics notes;
    const expected<Opened> opened = open(text, file_name, options, catalogue, notes);
    return report_of(opened, file_name, options, catalogue, std::move(notes));
}

Report check(io::Document document, const CheckOptions& options, const profile::Catalogue& catalogue) {
    Diagnostics notes;
    const std::string file_name = document.file_name;
    const expected<Opened> opened = open(std::move(document), options, catalogue, notes);
    return report_of(opened, file_name, options, catalogue, std::move(notes));
}

}  // namespace vram::report
