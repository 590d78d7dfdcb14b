// Whatever a user of ai-toolkit may be told to change, of whichever architecture: it is played, or refused with a
// reason.
#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "report/opened.hpp"
#include "shadow/run.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/play.hpp"
#include "trainers/ai_toolkit/resolve.hpp"
#include "vram/device/usage.hpp"
#include "vram/io/edit.hpp"
#include "vram/profile/catalogue.hpp"
#include "vram/report/trial.hpp"

using namespace vram;
using trainers::ai_toolkit::Architecture;

namespace {

const profile::Catalogue& catalogue() {
    static const profile::Catalogue built_in = profile::Catalogue::built_in();
    return built_in;
}

const profile::ModelProfile* model_of(const Architecture& architecture) {
    for (const profile::ModelProfile& model : catalogue().models())
        if (architecture.plays != nullptr && architecture.plays(model)) return &model;
    return nullptr;
}

/// `train`: further options of that section.
std::string config_of(const Architecture& architecture, const profile::ModelProfile& model,
                      const std::string& train = "") {
    const std::string frames = architecture.frame_step > 0 ? std::to_string(architecture.frame_step + 1) : "1";
    const std::string controls =
        architecture.fewest_references > 0 || architecture.samples_need_reference ? ", control_path: nowhere" : "";
    const std::string control = architecture.samples_need_reference ? ", ctrl_img: nowhere.png" : "";
    const bool one = architecture.most_items == 1 || architecture.most_items_of_kept_text == 1;
    const std::string batch = one ? "1" : "2";
    return "job: extension\nconfig:\n  name: a\n  process:\n    - type: sd_trainer\n"
           "      network: {type: lora, linear: 16, linear_alpha: 16}\n"
           "      datasets:\n        - {folder_path: nowhere, resolution: [256, 512], num_frames: " +
           frames + controls + "}\n      train: {batch_size: " + batch + ", dtype: bf16, optimizer: adamw" + train +
           "}\n" + "      model: {name_or_path: " + model.id + ", arch: " + std::string(architecture.names.front()) +
           "}\n      sample: {width: 512, height: 512, num_frames: " + frames + ", samples: [{prompt: x" + control +
           "}]}\n";
}

/// What the second step needs of tensors; none where the job is refused, which has a reason.
std::optional<Bytes> step_of(const std::string& text) {
    const expected<io::Document> document = io::read(text, "a.yaml", io::Format::yaml);
    REQUIRE(document);
    Diagnostics notes;
    const expected<job::Job> job = trainers::ai_toolkit::resolve(*document, catalogue(), notes);
    if (!job) {
        CHECK_FALSE(job.error().front().text.empty());
        return std::nullopt;
    }
    shadow::Run run;
    static_cast<void>(trainers::ai_toolkit::play(*job, catalogue(), run, run::Asides::left_out));
    return device::sum(run.trace).phase("step 2")->tensors_peak;
}

bool is_own_error(const report::Trial& trial) {
    return trial.reason.find("an error of vramest's own") != std::string::npos;
}

}  // namespace

TEST_CASE("laws: what an architecture's user may change is played, or refused with a reason") {
    report::CheckOptions options;
    options.gpu = "h200";
    options.compares_checkpointing = false;
    std::size_t played = 0, of_trained_text = 0;
    std::vector<std::string> texts;
    for (const Architecture* architecture : trainers::ai_toolkit::architectures()) {
        const profile::ModelProfile* model = model_of(*architecture);
        if (model == nullptr || !architecture->fails_with.empty()) continue;
        texts.push_back(config_of(*architecture, *model));
        if (architecture->text_encoders_have_backward) {
            texts.push_back(config_of(*architecture, *model, ", train_text_encoder: true"));
            ++of_trained_text;
        }
    }
    CHECK(of_trained_text > 5);
    for (const std::string& text : texts) {
        CAPTURE(text);
        const expected<io::Document> document = io::read(text, "a.yaml", io::Format::yaml);
        REQUIRE(document);
        Diagnostics notes;
        const expected<report::Opened> opened = report::open(*document, options, catalogue(), notes);
        if (!opened) FAIL(to_text(opened.error().front()));
        for (const job::Change& change : opened->trainer->changes(opened->document, catalogue(), opened->job)) {
            CAPTURE(change.text);
            expected<io::EditedDocument> edited = io::edited(*document, change.edits);
            REQUIRE(edited);
            const report::Trial trial = report::try_job(std::move(edited->document), options, catalogue());
            CHECK(!is_own_error(trial));
            if (trial.verdict == report::Verdict::cannot_say)
                CHECK(!trial.reason.empty());
            else
                ++played;
        }
    }
    CHECK(played > 100);
}

TEST_CASE("laws: training the text encoders, too, never needs less, and without checkpointing not less than with it") {
    std::size_t played = 0;
    for (const Architecture* architecture : trainers::ai_toolkit::architectures()) {
        const profile::ModelProfile* model = model_of(*architecture);
        if (model == nullptr || !architecture->fails_with.empty()) continue;
        for (const char* network : {"", "full"}) {
            Bytes checkpointed = 0;
            for (const char* checkpoints : {"true", "false"}) {
                std::vector<Bytes> needs;
                for (const char* trains : {"false", "true"}) {
                    std::string text = config_of(*architecture, *model,
                                                 std::string(", disable_sampling: true, gradient_checkpointing: ") +
                                                     checkpoints + ", train_text_encoder: " + trains);
                    const std::size_t at = text.find("      network:");
                    if (*network != '\0') text.erase(at, text.find('\n', at) + 1 - at);
                    CAPTURE(text);
                    const std::optional<Bytes> need = step_of(text);
                    if (!need) break;  // refused, with a reason
                    needs.push_back(*need);
                }
                if (needs.size() < 2) continue;
                CHECK(needs[1] >= needs[0]);
                CHECK(needs[1] >= checkpointed);
                checkpointed = needs[1];
                ++played;
            }
        }
    }
    CHECK(played > 20);
}
