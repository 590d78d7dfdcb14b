#include "report/played.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "report/kernels.hpp"
#include "vram/io/path.hpp"

namespace vram::report {
namespace {

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

/// Every known card, from the least that torch may have on it to the most.
std::vector<Card> by_size(const job::Environment& environment, const profile::DeviceCatalogue& catalogue) {
    std::vector<Card> cards;
    for (const profile::DeviceProfile& profile : catalogue.devices())
        cards.push_back(card_of(profile, environment, ChosenBy::smallest_that_holds));
    std::stable_sort(cards.begin(), cards.end(),
                     [](const Card& a, const Card& b) { return a.line.capacity < b.line.capacity; });
    return cards;
}

/// Replays what was not replayed yet. False where tensors alone say what is asked.
expected<bool> replay(OnCard& on, const Opened& opened, const device::AllocatorConfig& config, Depth depth) {
    if (on.unlimited) return true;
    if (depth == Depth::verdict && exceeds(on.played.tensors.tensors_peak, config, on.card)) return false;
    expected<Unlimited> unlimited = unlimited_of(opened, on.played, config, on.card.profile,
                                                 depth == Depth::report ? Alone::replayed : Alone::not_asked);
    if (!unlimited) return Unexpected{unlimited.error()};
    on.unlimited = *std::move(unlimited);
    return true;
}

/// `first` is what kernels of sm89 did; cards that could not even hold its tensors are passed over.
expected<OnCard> on_smallest(const Opened& opened, Played first, const device::AllocatorConfig& config,
                             const profile::Catalogue& catalogue, Depth depth) {
    const Bytes tensors = first.tensors.tensors_peak;
    std::vector<OnCard> plays;  // one for each kind of kernels
    plays.push_back({{}, std::move(first), {}});
    const std::vector<Card> cards = by_size(opened.job.environment, catalogue.cards());
    for (const Card& card : cards) {
        const bool is_last = &card == &cards.back();
        if (tensors > card.line.usable() && !is_last) continue;
        const shadow::Kernels kernels = kernels_of(opened.job.environment, card.profile);
        auto on =
            std::find_if(plays.begin(), plays.end(), [&](const OnCard& p) { return p.played.kernels == kernels; });
        if (on == plays.end()) {
            expected<Played> fresh = play(opened, opened.job, card.profile, catalogue, depth);
            if (!fresh) return Unexpected{fresh.error()};
            plays.push_back({{}, *std::move(fresh), {}});
            on = plays.end() - 1;
        }
        on->card = card;
        const expected<bool> replayed = replay(*on, opened, config, depth);
        if (!replayed) return Unexpected{replayed.error()};
        if (is_last || (*replayed && fits(on->played.trace, config, card, *on->unlimited))) return std::move(*on);
    }
    return Unexpected{
        {{Severity::error, Problem::unknown_gpu, {}, "gpu", {}, {}, "no card is known, and none was named"}}};
}

}  // namespace

expected<Played> play(const Opened& opened, const job::Job& job, const profile::DeviceProfile* card,
                      const profile::Catalogue& catalogue, Depth depth) {
    const shadow::Kernels kernels = kernels_of(opened.job.environment, card);
    shadow::Run run(kernels);
    const run::Asides asides = depth == Depth::report ? run::Asides::played : run::Asides::left_out;
    expected<run::Facts> facts = guarded([&] { return opened.trainer->play(job, catalogue, run, asides); }, opened);
    if (!facts) return Unexpected{facts.error()};
    device::Usage tensors = device::sum(run.trace);
    return Played{kernels, std::move(run.trace), *std::move(facts), std::move(tensors)};
}

expected<Unlimited> unlimited_of(const Opened& opened, const Played& played, const device::AllocatorConfig& config,
                                 const profile::DeviceProfile* card, Alone alone) {
    Unlimited unlimited = unlimited_need(played.trace, config, library_of(opened.job.environment, card), alone);
    if (!unlimited.usage.failure) return unlimited;
    return Unexpected{{{Severity::error,
                        Problem::overflow,
                        {opened.document.file_name, 0, 0},
                        {},
                        {},
                        {},
                        "this job is too large: it needs more than 1 PiB"}}};
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

bool exceeds(Bytes tensors, const device::AllocatorConfig& config, const Card& card) {
    // cudaMallocAsync counts exact bytes, of which there may be fewer than of tensors. Far above any card a replay is
    // asked all the same: it alone says `overflow`, beyond device::unlimited.
    constexpr Bytes surely_counted = 1024 * GiB;
    if (config.backend != device::AllocatorConfig::Backend::native || tensors > surely_counted) return false;
    return tensors > card.line.usable_high() - card.outside_low();
}

expected<OnCard> place(const Opened& opened, const CheckOptions& options, const device::AllocatorConfig& config,
                       const profile::Catalogue& catalogue, Depth depth) {
    Card card = named_card(options, opened.job, catalogue.cards());
    expected<Played> played = play(opened, opened.job, card.profile, catalogue, depth);
    if (!played) return Unexpected{played.error()};
    if (Diagnostics complaints = targets_complaint(opened, played->facts); !complaints.empty())
        return Unexpected{std::move(complaints)};
    if (card.profile == nullptr && card.line.capacity == 0)
        return on_smallest(opened, *std::move(played), config, catalogue, depth);
    OnCard on{std::move(card), *std::move(played), {}};
    if (const expected<bool> replayed = replay(on, opened, config, depth); !replayed)
        return Unexpected{replayed.error()};
    return on;
}

}  // namespace vram::report
