// Recordings of models whose layers live in host memory (tests/reference/truth/offloading.jsonl; format:
// record_offloading.py there), played event by event with what the architectures say of themselves.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/model.hpp"
#include "nn/memory_manager.hpp"
#include "nn/quantize/formats.hpp"
#include "nn/quantize/loader.hpp"
#include "recordings/stages.hpp"
#include "shadow/ops.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/pipeline.hpp"
#include "vram/profile/catalogue.hpp"

using namespace vram;
using nlohmann::json;
using shadow::Op;
using shadow::Run;
using shadow::Tensor;
using shadow::Tensors;

namespace {

/// The profile that a case shrinks.
profile::ModelProfile profile_of(const json& said) {
    const std::string id = said.value("profile", said.value("model", said.value("component", "")));
    profile::ModelProfile out = profile::Catalogue::built_in().model_of(id);
    const auto put = [&](const std::string& key, const json& value) {
        if (value.is_boolean())
            out.config.values[key] = value.get<bool>();
        else
            out.config.values[key] = value.get<std::int64_t>();
    };
    for (const auto& [key, value] : said["config"].items()) {
        if (!value.is_object()) put(key, value);
        if (!value.is_object()) continue;
        const std::string prefix = key == "vision_config" ? "vision_" : "";
        for (const auto& [part, size] : value.items()) put(prefix + part, size);
    }
    out.config.values.erase("vision_model_type");  // the tower is taken away
    if (said.contains("forward")) out.family += "_ai_toolkit";
    return out;
}

/// A scalar of several tensors, whose gradients are new tensors.
Tensor loss_of(Run& run, const Tensors& out) {
    const auto gradient = [](Run& in, shadow::Node& node, Tensors&, Tensors& grads) {
        for (std::size_t i = 0; i < node.meta.size(); ++i) grads[i] = in.empty(node.meta[i], Op::empty);
    };
    shadow::NodeRef node = run.record(Op::custom, gradient, out);
    for (const Tensor& one : out) node->meta.push_back(one.layout());
    Tensor loss = run.empty({}, out[0].dtype(), Op::empty);
    Run::attach(loss, node);
    return loss;
}

std::string id_of(const std::string& qtype) {
    if (qtype == "float8") return "torchao_float8";
    return (qtype.starts_with("q") ? "quanto_" : "toolkit_") + qtype;
}

void play(const json& row) {
    using trainers::ai_toolkit::architecture_named;
    using trainers::ai_toolkit::Offloading;
    const json& said = row["case"];
    const bool is_text = said.contains("component"), before = said.value("before", false);
    const bool attaches = said["attach"] != "none";
    const Offloading offloading =
        attaches ? architecture_named(said["attach"].get<std::string>())->offloading : Offloading{};
    Run run({.scratch = false}, false);
    nn::DeviceState state;
    nn::MemoryManager manager =
        trainers::ai_toolkit::memory_manager(state, 1, is_text ? std::span<const std::string_view>{} : offloading.moved,
                                             is_text ? offloading.left_of_text_encoder : offloading.left);
    manager.before_quantize = before;
    nn::Rules rules;
    if (attaches) rules.manager = &manager;
    if (said.contains("quantize")) rules.quantizer = nn::quantize::format_named(id_of(said["quantize"]));
    nn::Weights weights(run, "model", rules);
    const auto model = models::build(weights, profile_of(said));
    nn::quantize::Loader loader(weights);
    if (attaches) weights.leave_managed_on_host();
    if (before || !attaches) {
        loader.load();
        loader.quantize();
    } else {
        weights.base_to_gpu();
    }
    models::Request request;
    request.batch = said["batch"];
    request.text_tokens = said["text_tokens"];
    request.width = said.value("width", 0);
    request.height = said.value("height", 0);
    request.frames = said.value("frames", 1);
    request.attention_mask = said.value("attention_mask", false);
    request.all_hidden_states = said.value("all_hidden_states", false);
    request.use_cache = said.value("use_cache", is_text);
    std::vector<std::int64_t> moved;
    {
        std::map<shadow::Slot, std::int64_t> alive;
        for (const shadow::Event& event : run.trace.events) {
            if (event.kind == shadow::EventKind::alloc) alive[event.slot] = event.bytes;
            if (event.kind == shadow::EventKind::free) alive.erase(event.slot);
        }
        for (const auto& [slot, bytes] : alive) moved.push_back(bytes);
        std::sort(moved.begin(), moved.end());
    }
    CHECK(json(moved) == row["result"]["moved"]);

    tests::Stages stages(run.trace, row["result"]["stages"]);
    std::vector<shadow::Parameter> args;
    std::vector<bool> leaves;
    for (const models::Value& value : model->inputs(request)) {
        args.emplace_back().value = run.empty(value.shape, value.dtype, Op::input);
        leaves.push_back(value.name.ends_with("hidden_states") && value.name.find("encoder") == std::string::npos);
    }
    stages.check("input");
    const auto forward = [&] {
        Tensors values;
        for (const shadow::Parameter& one : args) values.push_back(one.value);
        return model->forward(values, request);
    };
    {
        const shadow::NoGrad no_grad(run);
        static_cast<void>(forward());
    }
    stages.check("no_grad");
    if (is_text) return;
    model->gradient_checkpointing = said.value("checkpointing", false);
    for (std::size_t i = 0; i < args.size(); ++i)
        if (leaves[i]) run.make_leaf(args[i]);
    Tensors out = forward();
    const Tensor loss = loss_of(run, out);
    stages.check("forward");
    out.clear();
    run.backward(loss);
    stages.check("backward");
}

}  // namespace

TEST_CASE("models whose layers live in host memory are met event by event") {
    CHECK(tests::play_rows("offloading.jsonl", play) == 18);
}
