#include "vram/report/check.hpp"

#include <algorithm>
#include <utility>

#include "report/kernels.hpp"
#include "report/opened.hpp"
#include "report/summarize.hpp"
#include "vram/io/path.hpp"

namespace vram::report {
namespace {

/// A job that was played for some kernels.
struct Played {
    shadow::Kernels kernels;
    shadow::Trace trace;
    run::Facts facts;
    Unlimited unlimited;
};

/// For the card, or where it is null for kernels of sm89. `job` is the one that was opened, or one like it.
expected<Played> play(const Opened& opened, const job::Job& job, const profile::DeviceProfile* card,
                      const device::AllocatorConfig& config, const profile::Catalogue& catalogue) {
    const shadow::Kernels kernels = kernels_of(opened.job.environment, card);
    shadow::Run run(kernels);
    expected<run::Facts> facts = guarded([&] { return opened.trainer->play(job, catalogue, run); }, opened);
    if (!facts) return Unexpected{facts.error()};
    Unlimited unlimited = unlimited_need(run.trace, config, library_of(opened.job.environment, card));
    if (unlimited.usage.failure)
        return Unexpected{{{Severity::error,
                            Problem::overflow,
                            {opened.document.file_name, 0, 0},
                            {},
                            {},
                            {},
                            "this job is too large: it needs more than 1 PiB"}}};
    return Played{kernels, std::move(run.trace), *std::move(facts), std::move(unlimited)};
}

/// An adapter that meets no module trains nothing, and so does a fine-tune of no parameter. Steps inside backward leave
/// no gradient, but state.
Diagnostics targets_complaint(const Opened& opened, const run::Facts& facts) {
    const auto* training = std::get_if<job::Training>(&opened.job.work);
    if (training == nullptr || facts.gradients > 0 || facts.optimizer_state > 0) return {};
    const std::string& key =
        std::visit([](const auto& method) -> const std::string& { return method.said_at; }, training->method);
    const bool is_lora = std::holds_alternative<job::Lora>(training->method);
    const io::Node* node = io::find(opened.document.root, key);
    const io::Node& at = node == nullptr ? opened.document.root : *node;
    return {{Severity::error,
             Problem::bad_value,
             opened.document.place_of(at),
             key,
             node == nullptr ? "" : at.spelled(),
             {},
             key + " meets no " + (is_lora ? "linear" : "parameter") + " of " + opened.job.model}};
}

device::AllocatorConfig allocator_of(const Opened& opened, Diagnostics& notes) {
    const job::Environment& environment = opened.job.environment;
    expected<device::AllocatorConfig> config = device::parse(environment.alloc_conf);
    if (!config) return {};  // resolve has refused what does not parse
    if (config->expandable_segments && environment.os != job::Environment::Os::linux_) {
        // Source: torch warns "expandable_segments not supported on this platform" and goes on without.
        config->expandable_segments = false;
        const std::string key = "environment.alloc_conf";
        notes.push_back({Severity::warning,
                         Problem::unsupported,
                         opened.document.place_of(said(opened.document, key)),
                         key,
                         environment.alloc_conf,
                         {},
                         "expandable_segments is ignored on Windows"});
    }
    return *config;
}

Report answer(const Opened& opened, const Played& played, const device::AllocatorConfig& config, const Card& card) {
    return summarize(opened.job, played.facts, played.trace, need_on(played.trace, config, card, played.unlimited),
                     card);
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
    const expected<Played> played = play(opened, job, card.profile, config, catalogue);
    if (!played) return {};
    const Need need = need_on(played->trace, config, card, played->unlimited);
    return OtherWay{deciding_phase(need).name, need.device_low, need.device_high,
                    verdict_of(need.device_low, need.device_high, card.line)};
}

/// Every known card, from the least that torch may have on it to the most.
std::vector<Card> by_size(const job::Environment& environment, const profile::DeviceCatalogue& catalogue) {
    std::vector<Card> cards;
    for (const profile::DeviceProfile& profile : catalogue.devices())
        cards.push_back(card_of(profile, environment, ChosenBy::smallest_that_holds));
    std::stable_sort(cards.begin(), cards.end(),
                     [](const Card& a, const Card& b) { return a.line.capacity < b.line.capacity; });
    return cards;
}

/// The smallest card that holds the job, or the largest that is known. Each is asked with its own kernels; `first` is
/// what kernels of sm89 did, and cards that could not even hold its tensors are passed over.
Report on_smallest(const Opened& opened, Played first, const device::AllocatorConfig& config,
                   const profile::Catalogue& catalogue) {
    std::vector<Played> plays;  // one for each kind of kernels
    plays.push_back(std::move(first));
    const std::vector<Card> cards = by_size(opened.job.environment, catalogue.cards());
    for (const Card& card : cards) {
        const bool is_last = &card == &cards.back();
        if (plays.front().unlimited.usage.tensors_peak > card.line.usable() && !is_last) continue;
        const shadow::Kernels kernels = kernels_of(opened.job.environment, card.profile);
        auto played = std::find_if(plays.begin(), plays.end(), [&](const Played& p) { return p.kernels == kernels; });
        if (played == plays.end()) {
            expected<Played> fresh = play(opened, opened.job, card.profile, config, catalogue);
            if (!fresh) return refused(opened.document.file_name, fresh.error());
            plays.push_back(*std::move(fresh));
            played = plays.end() - 1;
        }
        if (is_last || fits(played->trace, config, card, played->unlimited))
            return answer(opened, *played, config, card);
    }
    return refused(
        opened.document.file_name,
        {{Severity::error, Problem::unknown_gpu, {}, "gpu", {}, {}, "no card is known, and none was named"}});
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
    const Card card = named_card(options, opened.job, catalogue.cards());
    const device::AllocatorConfig config = allocator_of(opened, notes);
    expected<Played> played = play(opened, opened.job, card.profile, config, catalogue);
    if (!played) return refused(opened.document.file_name, played.error());
    if (const Diagnostics complaints = targets_complaint(opened, played->facts); !complaints.empty())
        return refused(opened.document.file_name, complaints);
    const bool is_named = card.profile != nullptr || card.line.capacity != 0;
    Report report =
        is_named ? answer(opened, *played, config, card) : on_smallest(opened, *std::move(played), config, catalogue);
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
