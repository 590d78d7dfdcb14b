// Question: what does it cost to play a job without data, and to read what it leaves? The whole answer about an image
// job has 10 ms, and a user interface asks at each keystroke.
// Result, machine and conclusion: README.md beside this file.
#include <benchmark/benchmark.h>

#include "jobs.hpp"
#include "models/model.hpp"
#include "nn/adapter/peft.hpp"
#include "nn/adapter/targets.hpp"
#include "shadow/ops.hpp"
#include "trainers/torch/play.hpp"
#include "vram/device/usage.hpp"

using namespace vram;
using shadow::Run;
using shadow::Tensor;
using shadow::Tensors;

namespace {

/// Linear and add with their tape, and the frees of both: four events.
void linear_add(benchmark::State& state) {
    Run run;
    const Tensor x = run.empty({1, 4096, 3072}, Dtype::bf16);
    shadow::Parameter weight{run.empty({3072, 3072}, Dtype::bf16), {}, false};
    run.make_leaf(weight);
    for (auto _ : state) {
        Tensor y = shadow::linear(x, weight.value, {});
        benchmark::DoNotOptimize(shadow::add(x, std::move(y)));
        if (run.trace.events.size() > 100'000) run.trace.events.clear();  // the trace alone would fill the memory
    }
    state.SetItemsProcessed(2 * state.iterations());
}

/// FLUX.1 dev as in flux_lora(), resident, with its inputs: ready to step.
struct Flux {
    explicit Flux(bool memo) : run({}, memo), weights(run, "transformer", rules()) {
        model = models::build(weights, bench::catalogue().model_of("flux1_dev"));
        model->gradient_checkpointing = true;
        weights.to_gpu();
        request.batch = 1;
        request.width = request.height = 1024;
        request.text_tokens = 512;
        for (const models::Value& value : model->inputs(request))
            inputs.push_back(run.empty(value.shape, value.dtype, shadow::Op::input));
        target = run.empty(model->outputs(request).front(), Dtype::bf16, shadow::Op::target);
    }

    void step() {
        Tensors preds = model->forward(inputs, request);
        Tensor prediction = shadow::to_float(preds[0]);
        Tensor wanted = shadow::to_float(target);
        const Tensor loss = shadow::mse_loss(std::move(prediction), std::move(wanted));
        preds.clear();
        run.backward(loss);
    }

    static nn::Rules rules() {
        nn::Rules rules;
        rules.adapter = &nn::adapter::peft;
        rules.adapts = nn::adapter::targets({"attention"});
        rules.rank = 16;
        return rules;
    }

    Run run;
    nn::Weights weights;
    std::unique_ptr<models::Model> model;
    models::Request request;
    Tensors inputs;
    Tensor target;
};

/// Forward, loss and backward of a job's first step: the memo starts empty.
void flux_step(benchmark::State& state, bool memo) {
    std::size_t events = 0;
    for (auto _ : state) {
        state.PauseTiming();
        auto flux = std::make_unique<Flux>(memo);
        const std::size_t before = flux->run.trace.events.size();
        state.ResumeTiming();
        flux->step();
        state.PauseTiming();
        events = flux->run.trace.events.size() - before;
        flux.reset();
        state.ResumeTiming();
    }
    state.counters["events"] = static_cast<double>(events);
}

/// The job as the plain loop plays it: building, loading, two steps, and the forward without checkpointing that the
/// report compares with.
void flux_job(benchmark::State& state, bool memo) {
    const job::Job job = bench::flux_lora();
    std::size_t events = 0;
    for (auto _ : state) {
        Run run({}, memo);
        benchmark::DoNotOptimize(trainers::torch::play(job, bench::catalogue(), run));
        events = run.trace.events.size();
    }
    state.counters["events"] = static_cast<double>(events);
}

const shadow::Trace& trace_of_a_step() {
    static const shadow::Trace trace = [] {
        Flux flux(true);
        flux.step();
        return flux.run.trace;
    }();
    return trace;
}

void finish(benchmark::State& state, const shadow::Trace& trace) {
    const auto events = static_cast<double>(trace.events.size());
    state.counters["events"] = events;
    state.counters["ns/event"] =
        benchmark::Counter(events * 1e-9, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void flux_step_sum(benchmark::State& state) {
    const shadow::Trace& trace = trace_of_a_step();
    for (auto _ : state) benchmark::DoNotOptimize(device::sum(trace));
    finish(state, trace);
}

void flux_step_replay(benchmark::State& state, const char* conf) {
    const shadow::Trace& trace = trace_of_a_step();
    const expected<device::AllocatorConfig> config = device::parse(conf);
    for (auto _ : state) benchmark::DoNotOptimize(device::replay(trace, *config));
    finish(state, trace);
}

BENCHMARK(linear_add);
BENCHMARK_CAPTURE(flux_step, memo, true)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(flux_step, no_memo, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(flux_job, memo, true)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(flux_job, no_memo, false)->Unit(benchmark::kMillisecond);
BENCHMARK(flux_step_sum)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(flux_step_replay, native, "")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(flux_step_replay, expandable, "expandable_segments:True")->Unit(benchmark::kMillisecond);

}  // namespace
