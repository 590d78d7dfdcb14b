// What must hold for every profile, on tensors (reserved memory is rightly not monotone).
#include <doctest/doctest.h>

#include "laws/plays.hpp"

using namespace vram;
using laws::Kind;

namespace {
Bytes peak(const laws::Played& played) { return played.usage.tensors_peak; }

/// musubi's FramePack refuses several samples, unless it takes them one after the other.
bool takes_one_sample(const profile::ModelProfile& profile) {
    return profile.family == "framepack_musubi" && profile.config.text("forward", "") == "musubi";
}
}  // namespace

TEST_CASE("parameters are those that were counted elsewhere") {
    for (const profile::ModelProfile& profile : laws::with_forwards()) {
        CAPTURE(profile.id);
        CAPTURE(profile.family);
        CHECK(laws::play(laws::job_of(profile, Kind::call, false)).facts.counts.parameters ==
              profile.checked.parameters);
    }
}

TEST_CASE("more pictures, more pixels, more text never need less") {
    for (const profile::ModelProfile& profile : laws::with_forwards()) {
        CAPTURE(profile.id);
        CAPTURE(profile.family);
        const Kind kind = profile.kind == profile::ModelKind::denoiser ? Kind::lora : Kind::call;
        const Bytes one = peak(laws::play(laws::job_of(profile, kind, true)));
        if (takes_one_sample(profile))
            CHECK_THROWS_AS((void)laws::play(laws::job_of(profile, kind, true, 2)), shadow::Refused);
        else
            CHECK(peak(laws::play(laws::job_of(profile, kind, true, 2))) >= one);
        CHECK(peak(laws::play(laws::job_of(profile, kind, true, 1, 2))) >= one);
        job::Job wordy = laws::job_of(profile, kind, true);
        if (wordy.text_tokens > 0 && profile.kind == profile::ModelKind::denoiser) {
            wordy.text_tokens *= 2;
            CHECK(peak(laws::play(wordy)) >= one);
        }
    }
}

TEST_CASE("checkpointing never keeps more, LoRA adds exactly its parameters, a frozen base needs no gradients") {
    for (const profile::ModelProfile& profile : laws::with_forwards()) {
        if (profile.kind != profile::ModelKind::denoiser) continue;
        CAPTURE(profile.id);
        CAPTURE(profile.family);
        const laws::Played with = laws::play(laws::job_of(profile, Kind::lora, true));
        const laws::Played without = laws::play(laws::job_of(profile, Kind::lora, false));
        CHECK(with.facts.kept_for_backward <= without.facts.kept_for_backward);
        CHECK(with.facts.kept_without_checkpointing == without.facts.kept_for_backward);
        CHECK(without.facts.kept_without_checkpointing == without.facts.kept_for_backward);
        const laws::Played call = laws::play(laws::job_of(profile, Kind::call, false));
        CHECK(with.facts.counts.parameters == call.facts.counts.parameters);
        CHECK(with.facts.weights == call.facts.weights);
        // In one dtype, each storage rounded alike. Less where nobody reads all that the last block returns: the
        // linears of Qwen-Image's last text output get no gradient, and AdamW no state.
        CHECK(with.facts.gradients <= with.facts.adapter);
        CHECK(with.facts.optimizer_state == 2 * with.facts.gradients);
        CHECK(call.usage.tensors_peak <= without.usage.tensors_peak);
    }
}

TEST_CASE("a trace is sound: each slot is born once, freed at most once, stages lie in phases, phases add up") {
    for (const profile::ModelProfile& profile : laws::with_forwards()) {
        CAPTURE(profile.id);
        CAPTURE(profile.family);
        const Kind kind = profile.kind == profile::ModelKind::denoiser ? Kind::lora : Kind::call;
        const laws::Played played = laws::play(laws::job_of(profile, kind, true));
        std::vector<int> births(static_cast<std::size_t>(played.trace.slots)), deaths(births);
        for (const shadow::Event& event : played.trace.events) {
            if (event.kind == shadow::EventKind::alloc || event.kind == shadow::EventKind::scratch ||
                event.kind == shadow::EventKind::convolution)
                ++births[static_cast<std::size_t>(event.slot)];
            if (event.kind != shadow::EventKind::free) continue;
            ++deaths[static_cast<std::size_t>(event.slot)];
            CHECK(births[static_cast<std::size_t>(event.slot)] == 1);
        }
        for (std::size_t slot = 0; slot < births.size(); ++slot) {
            CHECK(births[slot] == 1);
            CHECK(deaths[slot] <= 1);
        }
        for (const device::PhaseUsage& phase : played.usage.phases) {
            Bytes highest = phase.tensors_start;
            for (const device::Span& stage : phase.stages) highest = std::max(highest, stage.tensors_peak);
            if (!phase.stages.empty()) CHECK(phase.tensors_peak == highest);
        }
    }
}
