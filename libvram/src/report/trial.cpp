#include "vram/report/trial.hpp"

#include <algorithm>
#include <utility>

#include "report/played.hpp"

namespace vram::report {
namespace {

Trial refusal(const std::string& file_name, Diagnostics complaints) {
    Report report = refused(file_name, std::move(complaints));
    Trial trial;
    trial.reason = std::move(report.reason);
    trial.diagnostics = std::move(report.diagnostics);
    return trial;
}

Trial measured(const OnCard& on, const device::AllocatorConfig& config) {
    const device::Usage& tensors = on.played.tensors;
    Trial trial;
    trial.gpu = on.card.line;
    trial.tensors_peak = tensors.tensors_peak;
    const auto highest = std::max_element(
        tensors.phases.begin(), tensors.phases.end(),
        [](const device::PhaseUsage& a, const device::PhaseUsage& b) { return a.tensors_peak < b.tensors_peak; });
    if (highest == tensors.phases.end()) {
        trial.reason = "nothing was played";
        return trial;
    }
    trial.tensors_phase = highest->name;
    trial.replayed = on.unlimited.has_value();
    if (!trial.replayed) {
        trial.verdict = Verdict::does_not_fit;
        trial.device_low = tensors.tensors_peak + on.card.outside_low();
        return trial;
    }
    const Need need = need_on(on.played.trace, config, on.card, *on.unlimited);
    trial.device_low = need.device_low;
    trial.device_high = need.device_high;
    trial.verdict = verdict_of(need.device_low, need.device_high, on.card.line);
    return trial;
}

Trial try_opened(const Opened& opened, const CheckOptions& options, const profile::Catalogue& catalogue,
                 Diagnostics& notes) {
    const std::string& file_name = opened.document.file_name;
    if (const auto* only = std::get_if<job::WeightsOnly>(&opened.job.work)) return refusal(file_name, {only->why});
    const device::AllocatorConfig config = allocator_of(opened, notes);
    expected<OnCard> on = place(opened, options, config, catalogue, Depth::verdict);
    return on ? measured(*on, config) : refusal(file_name, on.error());
}

}  // namespace

Trial try_job(io::Document document, const CheckOptions& options, const profile::Catalogue& catalogue) {
    Diagnostics notes;
    const std::string file_name = document.file_name;
    const expected<Opened> opened = open(std::move(document), options, catalogue, notes);
    Diagnostics complaints = opened ? Diagnostics{} : opened.error();
    if (std::optional<Diagnostic> complaint = complaint_of(options, catalogue.cards()))
        complaints.push_back(*std::move(complaint));
    Trial trial = !complaints.empty() || has_errors(notes) ? refusal(file_name, std::move(complaints))
                                                           : try_opened(*opened, options, catalogue, notes);
    if (trial.reason.empty() && trial.verdict == Verdict::cannot_say) trial.reason = refused(file_name, notes).reason;
    trial.diagnostics.insert(trial.diagnostics.end(), notes.begin(), notes.end());
    return trial;
}

}  // namespace vram::report
