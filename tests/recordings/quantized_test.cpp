// Recordings of real quantised linears (tests/reference/truth/quantized.jsonl; format: record_quantized.py there),
// played event by event: the same sizes in the same order, and between two allocations the same frees.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "nn/memory_manager.hpp"
#include "nn/module.hpp"
#include "nn/quantize/formats.hpp"
#include "nn/quantize/loader.hpp"
#include "recordings/stages.hpp"
#include "shadow/checkpoint.hpp"

using namespace vram;
using nlohmann::json;
using shadow::Dims;
using shadow::Run;
using shadow::Tensor;
using shadow::Tensors;

namespace {

/// The recorder's names as ours: library and scheme.
std::string id_of(const std::string& name) {
    if (name == "float8" || name == "int8") return "torchao_" + name;
    if (name == "bnb-nf4-double") return "bnb_nf4_dq";
    if (name.starts_with("bnb-")) return "bnb_" + name.substr(4);
    return (name.starts_with("q") ? "quanto_" : "toolkit_") + name;
}

/// The recorder's scalar of a tensor, whose gradient is a new tensor.
void backward_of(Run& run, const Tensor& y) {
    const auto gradient = [](Run& in, shadow::Node& node, Tensors&, Tensors& out) {
        out[0] = in.empty(node.meta[0], shadow::Op::empty);
    };
    shadow::NodeRef node = run.record(shadow::Op::custom, gradient, {&y});
    node->meta.push_back(y.layout());
    Tensor loss = run.empty({}, y.dtype(), shadow::Op::empty);
    Run::attach(loss, node);
    node.reset();
    run.backward(loss);
}

void play(const json& row) {
    const json& said = row["case"];
    const Dtype dtype = said["dtype"] == "fp32" ? Dtype::f32 : Dtype::bf16;
    Run run({.scratch = false}, false);
    nn::Rules rules;
    rules.dtype = dtype;
    if (said["format"] != "none") {
        rules.quantizer = nn::quantize::format_named(id_of(said["format"]));
        REQUIRE(rules.quantizer != nullptr);
    }
    const std::string manager = said.value("manager", "");
    nn::DeviceState state;
    nn::MemoryManager memory_manager(state, [](const nn::LayerFacts&) { return nn::MemoryManager::Taken::yes; });
    memory_manager.before_quantize = manager == "before";
    if (!manager.empty()) rules.manager = &memory_manager;
    nn::Weights weights(run, "model", rules);
    const nn::Builder builder(weights);
    std::vector<nn::Linear> layers;
    for (const json& layer : said["layers"])
        layers.push_back(builder.linear(std::to_string(layers.size()), layer[0], layer[1], layer[2]));
    nn::quantize::Loader loader(weights);

    tests::Stages stages(run.trace, row["result"]["stages"]);
    const bool on_its_way = said["format"].get<std::string>().starts_with("bnb-");
    loader.load();
    stages.check("load");
    const auto attach = [&] {
        weights.leave_managed_on_host();
        for (nn::QuantizedLayer& layer : weights.quantized) layer.full = Tensor();
        stages.check("attach");
    };
    if (manager == "before") attach();
    if (on_its_way) {
        // From the CPU each weight comes to the GPU once more, and is quantised there.
        for (nn::QuantizedLayer& layer : weights.quantized) {
            Tensor old = std::move(layer.full);
            layer.full = run.empty(layer.weight, layer.dtype(), shadow::Op::to_device);
            layer.quantizer->convert(weights, layer);
        }
    } else {
        loader.quantize();
    }
    stages.check("quantize");
    if (manager == "after") attach();
    weights.base_to_cpu();
    stages.check("to cpu");
    weights.base_to_gpu();
    stages.check("to gpu");
    Dims sizes;
    for (const json& size : said["input"]) sizes.push_back(size.get<std::int64_t>());
    shadow::Parameter x;
    x.value = run.empty(sizes, dtype, shadow::Op::input);
    stages.check("input");
    const auto model = [&](const Tensors& args) {
        Tensor y = args[0];
        for (const nn::Linear& layer : layers) y = layer(y);
        return Tensors{y};
    };
    {
        const shadow::NoGrad no_grad(run);
        const Tensors y = model({x.value});
    }
    stages.check("no_grad");
    run.make_leaf(x);
    for (const bool checkpointed : {false, true}) {
        const std::string name = checkpointed ? " checkpointed" : "";
        Tensors y = checkpointed ? shadow::checkpoint(run, model, {x.value}) : model({x.value});
        stages.check("forward" + name);
        backward_of(run, y[0]);
        y.clear();
        x.grad = Tensor();
        stages.check("backward" + name);
    }
}

}  // namespace

TEST_CASE("recorded quantised linears are met event by event") {
    CHECK(tests::play_rows("quantized.jsonl", play) >= 40);
}
