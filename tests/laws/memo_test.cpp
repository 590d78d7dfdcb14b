#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "laws/plays.hpp"
#include "report/opened.hpp"
#include "shadow/run.hpp"

using namespace vram;
using laws::Kind;

namespace {
/// Events with the frees that follow one another in the order of slots: a copied call whose graph dies without a
/// backward lets go of what it keeps at once, a played one node by node, and no reader of a trace can tell.
std::vector<shadow::Event> in_order(const shadow::Trace& trace) {
    std::vector<shadow::Event> events = trace.events;
    const auto is_free = [](const shadow::Event& event) { return event.kind == shadow::EventKind::free; };
    for (auto first = events.begin(); first != events.end();) {
        first = std::find_if(first, events.end(), is_free);
        const auto last = std::find_if_not(first, events.end(), is_free);
        std::sort(first, last, [](const shadow::Event& a, const shadow::Event& b) { return a.slot < b.slot; });
        first = last;
    }
    return events;
}

/// The first event at which two traces part, or -1.
std::ptrdiff_t part(const shadow::Trace& one, const shadow::Trace& other) {
    const std::vector<shadow::Event> a = in_order(one), b = in_order(other);
    const auto [in_a, in_b] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
    return in_a == a.end() && in_b == b.end() ? -1 : in_a - a.begin();
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

TEST_CASE("a call that is copied leaves the events of one that is played, for files of the trainers") {
    struct Case {
        const char* why;
        std::string text, name;
    };
    const auto example = [](const std::string& name) {
        const std::ifstream file(std::string(VRAM_SOURCE_DIR) + "/examples/" + name, std::ios::binary);
        std::ostringstream text;
        text << file.rdbuf();
        return text.str();
    };
    const std::string flux =
        R"({"LoRA_type": "Flux1", "flux1_checkbox": true, "network_dim": 4, "max_resolution": "512,512",
 "sample_every_n_epochs": 1, "sample_prompts": "b --w 320 --h 512", )";
    for (const Case& c : {
             Case{"ai-toolkit", example("flux_lora.yaml"), "job.yaml"},
             Case{"sd-scripts", example("sd_scripts_sdxl_lora.toml"), "lora.toml"},
             Case{"its text encoders encode before they have adapters, and train",
                  flux + R"("flux1_cache_text_encoder_outputs": true, "text_encoder_lr": 1e-4})", "lora.json"},
             Case{"captions not cached", flux + R"("text_encoder_lr": 0})", "lora.json"},
         }) {
        CAPTURE(std::string(c.why));
        report::CheckOptions options;
        options.gpu = "h200";
        Diagnostics notes;
        const expected<report::Opened> opened = report::open(c.text, c.name, options, laws::catalogue(), notes);
        REQUIRE(opened);
        shadow::Run copied, played({}, false);
        for (shadow::Run* run : {&copied, &played})
            (void)opened->trainer->play(opened->job, laws::catalogue(), *run, run::Asides::left_out);
        CHECK(part(copied.trace, played.trace) == -1);
    }
}
