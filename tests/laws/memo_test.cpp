#include <doctest/doctest.h>

#include "laws/plays.hpp"

using namespace vram;
using laws::Kind;

namespace {
/// The first event at which two traces part, or -1.
std::ptrdiff_t part(const shadow::Trace& a, const shadow::Trace& b) {
    const std::size_t common = std::min(a.events.size(), b.events.size());
    for (std::size_t i = 0; i < common; ++i)
        if (!(a.events[i] == b.events[i])) return static_cast<std::ptrdiff_t>(i);
    return a.events.size() == b.events.size() ? -1 : static_cast<std::ptrdiff_t>(common);
}
}  // namespace

TEST_CASE("a call that is copied leaves the events of one that is played, for every profile") {
    for (const profile::ModelProfile& profile : laws::with_forwards()) {
        CAPTURE(profile.id);
        CAPTURE(profile.family);
        for (const Kind kind : {Kind::call, Kind::lora, Kind::lora_autocast, Kind::full}) {
            if (profile.kind != profile::ModelKind::denoiser && kind != Kind::call) continue;
            for (const bool checkpointing : {false, true}) {
                if (kind == Kind::call && checkpointing) continue;
                const std::string named = laws::to_text(kind);
                CAPTURE(named);
                CAPTURE(checkpointing);
                job::Job job = laws::job_of(profile, kind, checkpointing);
                // Gradients that exist are added to: the second micro-step differs from the first.
                if (auto* training = std::get_if<job::Training>(&job.work); training != nullptr && kind == Kind::lora)
                    training->gradient_accumulation = 2;
                const laws::Played copied = laws::play(job, true), played = laws::play(job, false);
                const std::ptrdiff_t at = part(copied.trace, played.trace);
                CHECK(at == -1);
                CHECK(copied.trace.tags == played.trace.tags);
                CHECK(copied.trace.slots == played.trace.slots);
                CHECK(copied.facts == played.facts);
                // What a copied stretch says it comes to is what its events come to.
                CHECK(copied.usage == played.usage);
            }
        }
    }
}
