#include "run/optimizer.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "run/optimizers/names.hpp"

using namespace vram;
using shadow::Parameter;
using shadow::Run;

TEST_CASE("AdamW takes groups of a dtype in the reverse of their first appearance") {
    struct Case {
        const char* why;
        std::vector<Dtype> parameters;
        std::vector<Bytes> roots;  // sqrt(exp_avg_sq), after two moments a parameter
    };
    for (const Case& c : {
             Case{"one dtype: in order", {Dtype::bf16, Dtype::bf16}, {200, 400}},
             Case{"Wan: scale_shift_table is fp32 and first, so bf16 goes first",
                  {Dtype::f32, Dtype::bf16, Dtype::f32},
                  {400, 400, 1200}},
             Case{"bf16 first: fp32 goes first", {Dtype::bf16, Dtype::f32}, {800, 200}},
         }) {
        CAPTURE(c.why);
        Run run({}, false);
        std::vector<Parameter> parameters(c.parameters.size());
        std::vector<Parameter*> trained;
        for (std::size_t i = 0; i < parameters.size(); ++i) {
            parameters[i].value = run.empty({100 * (static_cast<std::int64_t>(i) + 1)}, c.parameters[i]);
            parameters[i].grad = run.empty({100 * (static_cast<std::int64_t>(i) + 1)}, c.parameters[i]);
            trained.push_back(&parameters[i]);
        }
        vram::run::Optimizer optimizer(run, job::AdamW{}, trained);
        const std::size_t first = run.trace.events.size();
        optimizer.step();
        std::vector<Bytes> made;
        for (std::size_t i = first; i < run.trace.events.size(); ++i)
            if (run.trace.events[i].kind == shadow::EventKind::alloc) made.push_back(run.trace.events[i].bytes);
        made.erase(made.begin(), made.begin() + 2 * static_cast<std::ptrdiff_t>(parameters.size()));
        CHECK(made == c.roots);
    }
}

TEST_CASE("what a job file's name makes goes by one of these names") {
    const auto names = vram::run::optimizer_names();
    for (const io::Choice<job::Optimizer>& choice : names) {
        CAPTURE(choice.word);
        const std::string_view name = job::name_of(choice.value);
        CHECK(std::any_of(names.begin(), names.end(), [&](const auto& other) { return other.word == name; }));
    }
}

TEST_CASE("a step inside backward leaves no gradient, and sees every accumulation") {
    Run run({.scratch = false});
    Parameter parameter;
    parameter.value = run.empty({64, 64}, Dtype::f32);
    run.make_leaf(parameter);
    CHECK_FALSE(run.accumulates_with_hooks);
    {
        vram::run::Optimizer optimizer(run, job::Automagic2{}, std::vector{&parameter});
        CHECK(run.accumulates_with_hooks);
        CHECK(optimizer.state_bytes() == 0);
        run.backward(shadow::sum_all(parameter.value));
        CHECK_FALSE(parameter.grad.defined());
        CHECK(optimizer.gradient_bytes() == 0);
        CHECK(optimizer.state_bytes() == 512 + 4096 + 512 + 512);  // lr, last_polarity, row, col
    }
    CHECK_FALSE(run.accumulates_with_hooks);
    run.backward(shadow::sum_all(parameter.value));
    CHECK(parameter.grad.defined());
}

TEST_CASE("16-bit gradients that are set aside count as gradients") {
    Run run({.scratch = false});
    Parameter parameter;
    parameter.value = run.empty({64, 64}, Dtype::bf16);
    run.make_leaf(parameter);
    vram::run::Optimizer optimizer(run, job::Adam8{}, std::vector{&parameter});
    run.backward(shadow::sum_all(parameter.value));
    CHECK_FALSE(parameter.grad.defined());
    CHECK(optimizer.gradient_bytes() == 64 * 64 * 2);
    optimizer.step();
    CHECK(parameter.grad.defined());
    optimizer.zero_grad();
    CHECK(optimizer.gradient_bytes() == 0);
}
