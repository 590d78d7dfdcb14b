// Recordings of ai-toolkit's networks on single layers (tests/reference/truth/networks.jsonl; format:
// record_networks.py there), played event by event: the same sizes in the same order, and between two allocations the
// same frees.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "nn/adapter/toolkit.hpp"
#include "nn/memory_manager.hpp"
#include "nn/quantize/formats.hpp"
#include "nn/quantize/loader.hpp"
#include "nn/quantize/quanto.hpp"
#include "recordings/stages.hpp"
#include "shadow/checkpoint.hpp"
#include "trainers/ai_toolkit/network.hpp"

using namespace vram;
using nlohmann::json;
using shadow::Dims;
using shadow::Run;
using shadow::Tensor;
using shadow::Tensors;

namespace {

job::Lora lora_of(const json& network) {
    job::Lora out;
    out.targets = {"all"};
    out.dtype = Dtype::f32;
    out.rank = network.value("linear", 4);
    out.layers.conv_rank = network.value("conv", 0);
    const std::string type = network["type"];
    if (type == "dora") out.kind = job::AdapterKind::dora;
    if (type == "fullrank") out.kind = job::AdapterKind::full_rank;
    if (type == "lokr") {
        out.kind = job::AdapterKind::lokr;
        if (network.value("lokr_full_rank", true)) out.rank = out.layers.conv_rank = 9999999999;
    }
    out.factor = network.value("lokr_factor", -1);
    out.dropout = network.contains("dropout");
    const json kwargs = network.value("network_kwargs", json::object());
    out.rank_dropout = kwargs.contains("rank_dropout");
    if (kwargs.contains("full_if_contains")) out.layers.full = kwargs["full_if_contains"];
    out.layers.all = network.value("all_layers", false);
    return out;
}

std::unique_ptr<nn::Layer> layer_of(const nn::Builder& builder, const json& said) {
    const std::string kind = said["kind"];
    if (kind == "linear")
        return std::make_unique<nn::Linear>(builder.linear("layer", said["in"], said["out"], said["bias"]));
    if (kind == "conv")
        return std::make_unique<nn::Conv>(builder.conv2d("layer", said["in"], said["out"], said["kernel"],
                                                         said["stride"], said["padding"], said["bias"]));
    if (kind == "norm") return std::make_unique<nn::LayerNorm>(builder.layer_norm("layer", said["size"]));
    if (kind == "rms_norm") return std::make_unique<nn::RmsNorm>(builder.rms_norm("layer", said["size"]));
    if (kind == "group_norm")
        return std::make_unique<nn::GroupNorm>(builder.group_norm("layer", said["groups"], said["channels"]));
    REQUIRE(kind == "embedding");
    return std::make_unique<nn::Embedding>(builder.embedding("layer", said["count"], said["size"]));
}

void play(const json& row) {
    const json& said = row["case"];
    const Dtype dtype = said.value("dtype", "bf16") == "fp32" ? Dtype::f32 : Dtype::bf16;
    Run run({.scratch = false}, false);
    nn::Rules rules;
    rules.dtype = dtype;
    rules.adapter_dtype = Dtype::f32;
    if (said.contains("quantize")) rules.quantizer = &nn::quantize::quanto_qfloat8;
    rules.adapts = trainers::ai_toolkit::adapts(lora_of(said["network"]), {});
    std::unique_ptr<nn::Weights> recovery;
    if (said.contains("recovery")) {
        nn::Rules own;
        own.dtype = own.adapter_dtype = dtype;
        own.adapts = [rank = said["recovery"]["rank"].get<std::int64_t>()](const nn::LayerFacts&) {
            return nn::Adaptation{.style = &nn::adapter::toolkit, .rank = rank};
        };
        recovery = std::make_unique<nn::Weights>(run, "recovery", own);
        rules.inner = recovery.get();
        rules.quantizer = nn::quantize::format_named("toolkit_" + said["recovery"]["qtype"].get<std::string>());
    }
    nn::DeviceState state;
    nn::MemoryManager manager(state, [](const nn::LayerFacts&) { return nn::MemoryManager::Taken::yes; });
    const bool offloaded = said.value("offloaded", false);
    if (offloaded) rules.manager = &manager;
    nn::Weights weights(run, "transformer", rules);
    const std::unique_ptr<nn::Layer> layer = layer_of(nn::Builder(weights), said["layer"]);
    nn::quantize::Loader loader(weights);
    if (recovery)
        loader.load();
    else
        weights.base_to_gpu();
    tests::Stages stages(run.trace, row["result"]["stages"]);
    Tensor torch_multiplier;
    if (recovery) {
        recovery->adapter_to_gpu();
        recovery->multipliers = 1;
        torch_multiplier = run.empty({1}, dtype, shadow::Op::to_copy);
        torch_multiplier = run.empty({1}, dtype, shadow::Op::clone);
        CHECK(loader.quantize_each());
        stages.check("recovery");
        if (offloaded) {
            weights.leave_managed_on_host();
            stages.check("attach");
        }
        // The second network looks at each layer's weight, where it lies.
        if (!offloaded) static_cast<void>(layer->full_weight());
        stages.check("network");
    }
    weights.adapter_to_gpu();
    stages.check("force_to");
    CHECK(weights.adapter_parameters() == row["result"]["parameters"].get<std::int64_t>());
    CHECK(weights.adapter_bytes() == row["result"]["adapter_bytes"].get<Bytes>());

    const bool has_one = said.contains("multiplier");
    const Dims items{has_one ? 1 : said["input"][0].get<std::int64_t>()};
    Tensor multiplier = run.empty(items, Dtype::f32, shadow::Op::to_copy);
    multiplier = run.empty(items, Dtype::f32, shadow::Op::clone);
    weights.multipliers = has_one ? 1 : 0;
    stages.check("multiplier");

    shadow::Parameter input;
    Dims shape;
    for (const json& size : said["input"]) shape.push_back(size.get<std::int64_t>());
    const bool is_ids = said["layer"]["kind"] == "embedding", grad = said["call"] != "no_grad";
    input.value = run.empty(shape, is_ids ? Dtype::i64 : dtype, shadow::Op::input);
    if (!is_ids && !said.value("first", false)) run.make_leaf(input);
    stages.check("input");

    Tensor y;
    if (!grad) {
        const shadow::NoGrad no_grad(run);
        weights.set_adapters(true, false);
        y = (*layer)(input.value);
    } else if (said["call"] == "checkpoint") {
        y = shadow::checkpoint(run, [&](const Tensors& args) { return Tensors{(*layer)(args[0])}; }, {input.value})[0];
    } else {
        y = (*layer)(input.value);
    }
    stages.check("forward");
    Tensor gradient;
    if (grad) {
        gradient = run.empty_like(y, shadow::Op::empty);
        stages.check("gradient");
        Tensors grads;
        grads.push_back(gradient);
        run.backward(std::span<const Tensor>(&y, 1), std::move(grads));
        grads = {};
        stages.check("backward");
        gradient = Tensor();
    }
    y = Tensor();
    for (shadow::Parameter* parameter : weights.trainable()) parameter->grad = Tensor();
    input = {};
    stages.check(grad ? "between" : "gradient");
    {
        const shadow::NoGrad no_grad(run);
        if (!said.contains("quantize") && !recovery) {
            for (const nn::Adapter& adapter : weights.adapters)
                if (adapter.how.style->merge != nullptr) adapter.how.style->merge(weights, adapter, false);
            stages.check("merge_in");
        }
    }
}

}  // namespace

TEST_CASE("recorded networks are met event by event") { CHECK(tests::play_rows("networks.jsonl", play) >= 120); }
