// Question: what does it cost to read a trace, per event? A step of a FLUX LoRA has about 44 thousand events, and an
// interactive answer for a whole image job has 10 ms.
// Result (g++ 12 -O2, one core of a loaded AMD EPYC, the best of 40 runs; spread up to a half):
//   sum 1.6 ns an event; replay native 33, expandable 32, cudaMallocAsync 6; snapshot 2.5
// Conclusion: sum is bound by memory. A replay of two steps costs 3 ms, two thirds of it the free-block index; the rest
// of the 10 ms belongs to the shadow run. VRAM_BENCH_TRACE=FILE measures a recorded trace too (format:
// synthetic_trace.hpp).
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <string>

#include "device/synthetic_trace.hpp"
#include "vram/device/usage.hpp"

using namespace vram;

namespace {

const shadow::Trace& trace_of(std::int64_t which) {
    static const shadow::Trace synthetic = bench::synthetic_step(44000);
    static const char* const path = std::getenv("VRAM_BENCH_TRACE");
    static const shadow::Trace recorded = path != nullptr ? bench::read_trace(path) : shadow::Trace{};
    return which == 0 ? synthetic : recorded;
}

void finish(benchmark::State& state, const shadow::Trace& trace) {
    const auto events = static_cast<double>(trace.events.size());
    state.counters["events"] = events;
    state.counters["ns/event"] =
        benchmark::Counter(events * 1e-9, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void sum_trace(benchmark::State& state) {
    const shadow::Trace& trace = trace_of(state.range(0));
    if (trace.events.empty()) return state.SkipWithError("no VRAM_BENCH_TRACE");
    for (auto _ : state) benchmark::DoNotOptimize(device::sum(trace));
    finish(state, trace);
}

void replay_trace(benchmark::State& state, const char* conf) {
    const shadow::Trace& trace = trace_of(state.range(0));
    if (trace.events.empty()) return state.SkipWithError("no VRAM_BENCH_TRACE");
    const expected<device::AllocatorConfig> config = device::parse(conf);
    for (auto _ : state) benchmark::DoNotOptimize(device::replay(trace, *config));
    finish(state, trace);
}

void snapshot_of_trace(benchmark::State& state) {
    const shadow::Trace& trace = trace_of(state.range(0));
    if (trace.events.empty()) return state.SkipWithError("no VRAM_BENCH_TRACE");
    const device::Usage usage = device::replay(trace, {});
    for (auto _ : state) benchmark::DoNotOptimize(device::snapshot_at_peak(trace, usage.phases.front()));
    finish(state, trace);
}

BENCHMARK(sum_trace)->Arg(0)->Arg(1);
BENCHMARK_CAPTURE(replay_trace, native, "")->Arg(0)->Arg(1);
BENCHMARK_CAPTURE(replay_trace, expandable, "expandable_segments:True")->Arg(0)->Arg(1);
BENCHMARK_CAPTURE(replay_trace, async, "backend:cudaMallocAsync")->Arg(0)->Arg(1);
BENCHMARK(snapshot_of_trace)->Arg(0)->Arg(1);

}  // namespace
