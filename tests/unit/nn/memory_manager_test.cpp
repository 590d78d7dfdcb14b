#include "nn/memory_manager.hpp"

#include <doctest/doctest.h>

#include "nn/adapter/toolkit.hpp"
#include "nn/quantize/formats.hpp"

using namespace vram;
using namespace vram::nn;
using shadow::Op;

namespace {
constexpr Bytes weight = 64 * 64 * 2, input = 32 * 64 * 2;
using Taken = MemoryManager::Taken;
Taken all(const LayerFacts&) { return Taken::yes; }

struct Stack {
    explicit Stack(Rules rules, std::int64_t count) : weights(run, "model", std::move(rules)) {
        for (std::int64_t i = 0; i < count; ++i)
            layers.push_back(Builder(weights).linear(std::to_string(i), 64, 64, false));
        weights.leave_managed_on_host();
        weights.base_to_gpu();
    }
    Run run{{.scratch = false}, false};
    Weights weights;
    std::vector<Linear> layers;
};
}  // namespace

TEST_CASE("a managed layer stays on the host, and what it brought stays in a ring of four") {
    DeviceState state;
    MemoryManager manager(state, [](const LayerFacts& layer) { return layer.name != "0" ? Taken::yes : Taken::no; });
    Rules rules;
    rules.manager = &manager;
    Stack stack(std::move(rules), 7);
    CHECK(stack.run.live() == weight);  // the one that is not managed
    const Tensor x = stack.run.empty({32, 64}, Dtype::bf16, Op::input);
    const shadow::NoGrad no_grad(stack.run);
    for (std::size_t i = 0; i < stack.layers.size(); ++i) {
        const Tensor y = stack.layers[i](x);
        CHECK(stack.run.live() == weight + 2 * input + weight * static_cast<Bytes>(std::min<std::size_t>(i, 4)));
    }
    state.clear();
    CHECK(stack.run.live() == weight + input);
}

TEST_CASE("a managed layer keeps its input for backward, and backward brings the weight again") {
    DeviceState state;
    MemoryManager manager(state, all);
    Rules rules;
    rules.manager = &manager;
    Stack stack(std::move(rules), 1);
    Parameter leaf;
    leaf.value = stack.run.empty({32, 64}, Dtype::bf16, Op::input);
    stack.run.make_leaf(leaf);
    Tensor loss;
    {
        const Tensor x = shadow::mul_scalar(leaf.value);
        const Tensor y = stack.layers[0](x);
        loss = shadow::sum_all(y);
    }
    CHECK(stack.run.live() == 2 * input + weight + 512);
    stack.run.backward(loss);
    loss = Tensor();
    CHECK(stack.run.live() == 2 * input + 2 * weight);  // the leaf, its gradient, a slot of each ring
    state.clear();
}

TEST_CASE("what is quantised comes as it is stored") {
    DeviceState state;
    MemoryManager manager(state, all);
    Rules rules;
    rules.manager = &manager;
    rules.quantizer = quantize::format_named("toolkit_uint4");
    Stack stack(std::move(rules), 1);
    CHECK(stack.run.live() == 0);
    const Tensor x = stack.run.empty({32, 64}, Dtype::bf16, Op::input);
    const shadow::NoGrad no_grad(stack.run);
    const Tensor y = stack.layers[0](x);
    CHECK(stack.run.live() == 2 * input + 64 * 64 / 2 + 512 + 512);  // codes, scales, zeros
    state.clear();
}

TEST_CASE("an accuracy recovery adapter lies below the trained one, and its matrices get gradients that stay") {
    Run run({.scratch = false}, false);
    Rules own;
    own.adapts = [](const LayerFacts& layer) {
        return layer.name == "0" ? Adaptation{.style = &adapter::toolkit, .rank = 8} : Adaptation{};
    };
    Weights recovery(run, "recovery adapter", own);
    Rules rules;
    rules.inner = &recovery;
    rules.quantizer = quantize::format_named("toolkit_uint3");
    Weights weights(run, "model", rules);
    const Builder builder(weights);
    const Linear adapted = builder.linear("0", 64, 64, false), plain = builder.linear("1", 64, 64, false);
    CHECK(adapted.inner != nullptr);
    CHECK(plain.inner == nullptr);
    CHECK(recovery.adapter_parameters() == 2 * 8 * 64);
    weights.set_adapters(false, true);  // the trained ones
    weights.base_to_gpu();
    recovery.adapter_to_gpu();
    const Bytes before = run.live();
    {
        const Tensor x = run.empty({32, 64}, Dtype::bf16, Op::input);
        const Tensor y = adapted(x);
        run.backward(shadow::sum_all(y));
    }
    CHECK(run.live() == before + 2 * 8 * 64 * 2);  // nothing zeroes them: they are no optimizer's
}
