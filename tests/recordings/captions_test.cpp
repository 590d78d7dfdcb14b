// Recordings of denoisers that are handed captions of several lengths (tests/reference/truth/captions.jsonl; format:
// record_captions.py there), played event by event.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/model.hpp"
#include "nn/memory_manager.hpp"
#include "recordings/stages.hpp"
#include "shadow/ops.hpp"
#include "vram/profile/catalogue.hpp"

using namespace vram;
using nlohmann::json;
using shadow::Op;
using shadow::Run;
using shadow::Tensor;
using shadow::Tensors;

namespace {

profile::ModelProfile shrunken() {
    profile::ModelProfile out = profile::Catalogue::built_in().model_of("z_image");
    for (const auto& [key, value] : {std::pair<const char*, std::int64_t>{"dim", 256},
                                     {"n_layers", 1},
                                     {"n_refiner_layers", 1},
                                     {"n_heads", 2},
                                     {"n_kv_heads", 2},
                                     {"cap_feat_dim", 128}})
        out.config.values[key] = value;
    return out;
}

/// The recorder's scalar of a tensor, whose gradient is a new tensor.
void backward_of(Run& run, const Tensors& out) {
    const auto gradient = [](Run& in, shadow::Node& node, Tensors&, Tensors& grads) {
        grads[0] = in.empty(node.meta[0], Op::empty);
    };
    Tensor y = shadow::stack(out, 0);
    shadow::NodeRef node = run.record(Op::custom, gradient, {&y});
    node->meta.push_back(y.layout());
    Tensor loss = run.empty({}, y.dtype(), Op::empty);
    Run::attach(loss, node);
    node.reset();
    y = Tensor();
    run.backward(loss);
}

void play(const json& row) {
    const json& said = row["case"];
    Run run({.scratch = false}, false);
    nn::DeviceState state;
    nn::MemoryManager manager(state, [](const nn::LayerFacts&) { return nn::MemoryManager::Taken::yes; });
    nn::Rules rules;
    const bool offloaded = said.contains("offloaded");
    if (offloaded) rules.manager = &manager;
    nn::Weights weights(run, "transformer", rules);
    const auto model = models::build(weights, shrunken());
    weights.base_to_gpu();
    const std::int64_t width = said["width"].get<std::int64_t>() / 8, height = said["height"].get<std::int64_t>() / 8;
    const std::vector<std::int64_t> captions = said["captions"];
    const auto count = static_cast<std::int64_t>(captions.size());
    std::vector<shadow::Parameter> x(captions.size());
    Tensors others;
    const auto call = [&](const std::vector<std::int64_t>& lengths) {
        for (shadow::Parameter& one : x) one.value = run.empty({16, 1, height, width}, Dtype::bf16, Op::input);
        others = {run.empty({count}, Dtype::bf16, Op::input)};
        for (const std::int64_t length : lengths) others.push_back(run.empty({length, 128}, Dtype::bf16, Op::input));
    };
    const auto forward = [&] {
        Tensors args;
        for (const shadow::Parameter& one : x) args.push_back(one.value);
        for (const Tensor& one : others) args.push_back(one);
        return model->forward(args, {});
    };
    {
        // The rotary tables come with the first call, and stay.
        const shadow::NoGrad no_grad(run);
        call(std::vector<std::int64_t>(captions.size(), 32));
        static_cast<void>(forward());
        x = std::vector<shadow::Parameter>(captions.size());
        others.clear();
    }
    state.clear();
    tests::Stages stages(run.trace, row["result"]["stages"]);
    if (offloaded) {
        weights.leave_managed_on_host();
        stages.check("attach");
    }
    call(captions);
    stages.check("input");
    {
        const shadow::NoGrad no_grad(run);
        static_cast<void>(forward());
    }
    stages.check("no_grad");
    for (shadow::Parameter& one : x) run.make_leaf(one);
    const Tensors out = forward();
    stages.check("forward");
    backward_of(run, out);
    stages.check("backward");
}

}  // namespace

TEST_CASE("captions of several lengths in one call are met event by event") {
    CHECK(tests::play_rows("captions.jsonl", play) == 6);
}
