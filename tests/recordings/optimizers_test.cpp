// Recordings of real optimizers (tests/reference/truth/optimizers.jsonl; format: record_optimizers.py there), played
// event by event: the same sizes in the same order, and between two allocations the same frees.
#include <doctest/doctest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "recordings/stages.hpp"
#include "run/optimizer.hpp"

using namespace vram;
using nlohmann::json;
using shadow::Parameter;
using shadow::Run;
using shadow::Tensor;

namespace {

using Algorithm = job::Bitsandbytes::Algorithm;
using Loop = job::AdamW::Loop;

/// The recorded classes and their arguments as ours; a case is one of these with a type for its parameters.
const std::map<std::string, job::Optimizer> kinds{
    {"adamw", job::AdamW{}},
    {"adamw-amsgrad", job::AdamW{.amsgrad = true}},
    {"adamw-loop", job::AdamW{.loop = Loop::one_by_one}},
    {"adamw-fused", job::AdamW{.loop = Loop::fused}},
    {"adamw-capturable", job::AdamW{.capturable = true}},
    {"adam", job::AdamW{}},
    {"adam-decay", job::AdamW{.decays_gradient = true}},
    {"adam-decay-loop", job::AdamW{.loop = Loop::one_by_one, .decays_gradient = true}},
    {"sgd", job::Sgd{}},
    {"sgd-momentum", job::Sgd{.momentum = true}},
    {"sgd-nesterov-decay", job::Sgd{.momentum = true, .nesterov = true, .weight_decay = true}},
    {"adagrad", job::Adagrad{}},
    {"adagrad-decay", job::Adagrad{.weight_decay = true}},
    {"adam8bit", job::Bitsandbytes{}},
    {"adamw8bit", job::Bitsandbytes{}},
    {"lion8bit", job::Bitsandbytes{.algorithm = Algorithm::lion}},
    {"ademamix8bit", job::Bitsandbytes{.algorithm = Algorithm::ademamix}},
    {"bnb-adamw32bit", job::Bitsandbytes{.bits = 32}},
    {"bnb-lion32bit", job::Bitsandbytes{.algorithm = Algorithm::lion, .bits = 32}},
    {"bnb-ademamix32bit", job::Bitsandbytes{.algorithm = Algorithm::ademamix, .bits = 32}},
    {"sgd8bit", job::Bitsandbytes{.algorithm = Algorithm::sgd}},
    {"pagedadamw8bit", job::Bitsandbytes{.paged = true}},
    {"pagedadamw32bit", job::Bitsandbytes{.bits = 32, .paged = true}},
    {"pagedlion8bit", job::Bitsandbytes{.algorithm = Algorithm::lion, .paged = true}},
    {"pagedademamix8bit", job::Bitsandbytes{.algorithm = Algorithm::ademamix, .paged = true}},
    {"lion", job::Lion{}},
    {"prodigy", job::Prodigy{}},
    {"prodigy-slice", job::Prodigy{.slice_p = 11}},
    {"prodigy-nomomentum", job::Prodigy{.momentum = false}},
    {"dadaptadam", job::DAdapt{}},
    {"dadaptlion", job::DAdapt{.algorithm = job::DAdapt::Algorithm::lion}},
    {"came", job::Came{}},
    {"adafactor", job::Adafactor{}},
    {"adafactor-beta1", job::Adafactor{.momentum = true}},
    {"adafactor-relative", job::Adafactor{.scale_parameter = true}},
    {"adafactor-relative-decay", job::Adafactor{.scale_parameter = true, .weight_decay = true}},
    {"adamwschedulefree", job::AdamWScheduleFree{}},
    {"adamwschedulefree-loop", job::AdamWScheduleFree{.foreach = false}},
    {"toolkit-adafactor", job::Adafactor{.clones = true, .stochastic_accumulation = true, .stochastic_rounding = true}},
    {"toolkit-adafactor-beta1",
     job::Adafactor{.momentum = true, .clones = true, .stochastic_accumulation = true, .stochastic_rounding = true}},
    {"toolkit-adafactor-plain", job::Adafactor{.clones = true}},
    {"adam8", job::Adam8{}},
    {"adam8-accumulate", job::Adam8{}},
    {"prodigy8bit", job::Prodigy8bit{}},
    {"automagic", job::Automagic{}},
    {"automagic-decay", job::Automagic{.weight_decay = true}},
    {"automagic2", job::Automagic2{}},
    {"automagic3", job::Automagic3{}},
    {"automagic3-vote", job::Automagic3{.polarity_history = 2}},
    {"automagic3-unfused-vote", job::Automagic3{.polarity_history = 2, .fused = false}},
    {"automagicexperiment", job::AutomagicExperiment{}},
    {"automagicexperiment-vote", job::AutomagicExperiment{.polarity_history = 2}},
    {"automagicexperiment-unfused-vote", job::AutomagicExperiment{.polarity_history = 2, .fused = false}},
    {"automagic3-accumulate", job::Automagic3{.polarity_history = 2, .fused = false}},
};

Dtype dtype_of(const std::string& name) {
    if (name == "fp32") return Dtype::f32;
    return name == "bf16" ? Dtype::bf16 : Dtype::f16;
}

/// The recorder's scalar of a parameter, whose gradient is a new tensor.
void backward(Run& run, Parameter& parameter) {
    const auto gradient = [](Run& in, shadow::Node& node, shadow::Tensors&, shadow::Tensors& out) {
        out[0] = in.empty(node.meta[0], shadow::Op::empty);
    };
    const Tensor* inputs[] = {&parameter.value};
    shadow::NodeRef node = run.record(shadow::Op::custom, gradient, {inputs[0]});
    node->meta.push_back(parameter.value.layout());
    Tensor loss = run.empty({}, parameter.value.dtype(), shadow::Op::empty);
    Run::attach(loss, node);
    node.reset();
    run.backward(loss);
}

void play(const json& row, const job::Optimizer& kind) {
    Run run({.scratch = false});
    std::vector<Parameter> parameters(row["case"]["parameters"].size());
    std::vector<Parameter*> trained;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const json& said = row["case"]["parameters"][i];
        shadow::Dims shape;
        for (const json& size : said[0]) shape.push_back(size.get<std::int64_t>());
        parameters[i].value = run.empty(shape, dtype_of(said[1]), shadow::Op::parameter);
        parameters[i].starts_at_zero = i == 1;
        run.make_leaf(parameters[i]);
        trained.push_back(&parameters[i]);
    }
    tests::Stages stages(run.trace, row["result"]["stages"]);
    run::Optimizer optimizer(run, kind, trained);
    optimizer.start();
    stages.check("constructor");
    const std::int64_t micro_steps = row["case"].value("micro_steps", 1);
    for (std::int64_t step = 1; step <= row["case"]["steps"].get<std::int64_t>(); ++step) {
        for (std::int64_t micro = 0; micro < micro_steps; ++micro)
            for (Parameter& parameter : parameters) backward(run, parameter);
        const std::string number = std::to_string(step);
        stages.check("backward " + number);
        optimizer.step();
        stages.check("step " + number);
        optimizer.zero_grad();
        stages.check("zero_grad " + number);
    }
    CHECK(optimizer.state_bytes() == row["result"]["state_bytes"].get<Bytes>());
}

}  // namespace

TEST_CASE("recorded optimizers are met event by event") {
    const auto by_kind = [](const json& row) {
        const std::string id = row["case"]["id"];
        const auto kind = kinds.find(id.substr(0, id.rfind('-')));
        REQUIRE(kind != kinds.end());
        play(row, kind->second);
    };
    CHECK(tests::play_rows("optimizers.jsonl", by_kind) >= 90);
}
