// What a run is made of: a forward with and without grad, the parts of a peak, the stages of a phase. On tensors.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "laws/plays.hpp"
#include "models/model.hpp"
#include "vram/report/check.hpp"

using namespace vram;
using laws::Kind;

namespace {

/// The peak of one forward at the smallest size, above what is alive before: with every parameter to be trained, or
/// under no_grad.
Bytes forward_needs(const profile::ModelProfile& profile, models::Request::Operation operation, bool grad,
                    bool checkpointing) {
    shadow::Run run({}, true);
    nn::Rules rules;
    rules.keep_in_fp32 = profile.keep_in_fp32;
    rules.train_base = grad;
    nn::Weights weights(run, "model", rules);
    const std::unique_ptr<models::Model> model = models::build(weights, profile);
    model->gradient_checkpointing = checkpointing;
    models::Request request;
    request.text_tokens = profile.defaults.text_tokens;
    if (profile.defaults.width > 0) request.width = request.height = 256;
    request.frames = profile.frame_step + 1;
    request.operation = operation;
    shadow::Tensors inputs, outputs;
    for (const models::Value& value : model->inputs(request))
        inputs.push_back(run.empty(value.shape, value.dtype, shadow::Op::input));
    {
        const shadow::PhaseScope phase(run, "forward");
        if (grad) {
            outputs = model->forward(inputs, request);
        } else {
            const shadow::NoGrad no_grad(run);
            outputs = model->forward(inputs, request);
        }
    }
    run.drop_recordings();
    const device::Usage usage = device::sum(run.trace);
    return usage.phases.front().tensors_peak - usage.phases.front().tensors_start;
}

/// Live tensors after an event, each part rounded as the sum is.
Bytes parts_after(const shadow::Trace& trace, std::int64_t event) {
    std::map<std::pair<std::string, shadow::Category>, Bytes> parts;
    for (const device::LiveSlot& slot : device::alive_after(trace, event)) {
        if (slot.scratch) continue;
        const shadow::Tag& tag = trace.tags[slot.tag];
        parts[{tag.component, tag.category}] += round_up(slot.bytes, 512);
    }
    Bytes sum = 0;
    for (const auto& [part, bytes] : parts) sum += bytes;
    return sum;
}

std::string job_file(const profile::ModelProfile& profile) {
    const bool trains = profile.kind == profile::ModelKind::denoiser;
    std::string text = "vramest: 1\ntrainer: torch\n";
    text += (trains ? "model: " : "component: ") + profile.id + "\n";
    if (trains) text += "train: {method: lora, rank: 8, gradient_checkpointing: true, batch_size: 1}\n";
    if (profile.kind == profile::ModelKind::vae) text += "op: decode\n";
    if (profile.kind == profile::ModelKind::text_encoder) text += "op: forward\n";
    if (profile.defaults.width > 0)
        text += (profile.fixed_resolution ? "data: {frames: " : "data: {resolution: [256, 256], frames: ") +
                std::to_string(profile.frame_step + 1) + "}\n";
    return text;
}

}  // namespace

TEST_CASE("a forward under no_grad never needs more than one with grad") {
    using Operation = models::Request::Operation;
    for (const profile::ModelProfile& profile : laws::catalogue().models()) {
        CAPTURE(profile.id);
        const bool vae = profile.kind == profile::ModelKind::vae;
        for (const Operation operation : {Operation::forward, Operation::encode, Operation::decode}) {
            if (vae == (operation == Operation::forward)) continue;
            const Bytes without = forward_needs(profile, operation, false, false);
            CHECK(without <= forward_needs(profile, operation, true, false));
            if (profile.kind == profile::ModelKind::denoiser)
                CHECK(without <= forward_needs(profile, operation, true, true));
        }
    }
}

TEST_CASE("the parts of a phase's and of a stage's peak add up to it") {
    for (const profile::ModelProfile& profile : laws::with_forwards()) {
        CAPTURE(profile.id);
        const Kind kind = profile.kind == profile::ModelKind::denoiser ? Kind::lora : Kind::call;
        const laws::Played played = laws::play(laws::job_of(profile, kind, true));
        for (const device::PhaseUsage& phase : played.usage.phases) {
            CAPTURE(phase.name);
            CHECK(parts_after(played.trace, phase.tensors_peak_event) == phase.tensors_peak);
            for (const device::Span& stage : phase.stages) {
                CAPTURE(stage.name);
                CHECK(parts_after(played.trace, stage.tensors_peak_event) == stage.tensors_peak);
            }
        }
    }
}

TEST_CASE("a report adds up: stages to their phase, phases to the run, the breakdown to the peak") {
    report::CheckOptions options;
    options.gpu = "rtx-4090";
    for (const profile::ModelProfile& profile : laws::catalogue().models()) {
        CAPTURE(profile.id);
        const report::Report report = report::check(job_file(profile), "job.yaml", options, laws::catalogue());
        REQUIRE(report.peak);
        Bytes highest = 0, low = 0, high = 0;
        for (const report::Phase& phase : report.phases) {
            CAPTURE(phase.name);
            Bytes in_stages = phase.tensors_start;
            for (const report::Stage& stage : phase.stages) in_stages = std::max(in_stages, stage.tensors_peak);
            if (!phase.stages.empty()) CHECK(phase.tensors_peak == in_stages);
            CHECK(phase.tensors_end <= phase.tensors_peak);
            highest = std::max(highest, phase.tensors_peak);
        }
        CHECK(report.peak->tensors == highest);
        for (const report::Part& part : report.breakdown) {
            low += part.low;
            high += part.high;
        }
        CHECK(low == report.peak->device_low);
        CHECK(high == report.peak->device_high);
    }
}
