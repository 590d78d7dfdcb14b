// Question: what does it cost to play a job without data, and to read what it leaves? The whole answer about an image
// job has 10 ms, and a user interface asks at each keystroke.
// Result, machine and conclusion: README.md beside this file.
#include <benchmark/benchmark.h>

#include "jobs.hpp"
#include "resident.hpp"
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

const profile::ModelProfile& flux1_dev() { return bench::catalogue().model_of("flux1_dev"); }

/// Forward, loss and backward of a job's first step: the memo starts empty.
void flux_step(benchmark::State& state, bool memo) {
    std::size_t events = 0;
    for (auto _ : state) {
        state.PauseTiming();
        auto flux = std::make_unique<bench::Resident>(flux1_dev(), memo);
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
        bench::Resident flux(flux1_dev(), true);
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
