// Question: what do ten thousand configurations cost, on the cores that there are, and what one search for the most
// that fits? Wanted: 10 s on two cores; 100 ms.
// Result, machine and conclusion: README.md beside this file.
#include <benchmark/benchmark.h>

#include "jobs.hpp"
#include "vram/advise/max.hpp"
#include "vram/advise/sweep.hpp"

using namespace vram;

namespace {

std::vector<std::string> from_to(int first, int last, int step) {
    std::vector<std::string> out;
    for (int value = first; value <= last; value += step) out.push_back(std::to_string(value));
    return out;
}

/// batch × resolution × rank × checkpointing, from 25 GiB to far beyond the card; state.range(0) is the most of a
/// batch.
void sweep(benchmark::State& state, const char* file) {
    const std::string text = bench::example(file);
    const std::vector<advise::Axis> axes{{"train.batch_size", from_to(1, static_cast<int>(state.range(0)), 1)},
                                         {"data.resolution", from_to(256, 1792, 64)},
                                         {"train.rank", from_to(4, 80, 4)},
                                         {"train.gradient_checkpointing", {"true", "false"}}};
    double cells = 0, fitting = 0;
    for (auto _ : state) {
        const advise::Sweep done = advise::sweep(text, file, axes, {}, bench::catalogue());
        if (!done.diagnostics.empty()) return state.SkipWithError(to_text(done.diagnostics.front()).c_str());
        cells = static_cast<double>(done.cells.size());
        fitting = static_cast<double>(done.count(report::Verdict::fits));
    }
    state.counters["cells"] = cells;
    state.counters["fitting"] = fitting;
}

BENCHMARK_CAPTURE(sweep, job_torch_flux, "job_torch_flux.yaml")
    ->Arg(1)
    ->Arg(10)
    ->Unit(benchmark::kMillisecond)
    ->MeasureProcessCPUTime()
    ->UseRealTime();

void max(benchmark::State& state, const char* file, advise::Vary vary) {
    const std::string text = bench::example(file);
    std::size_t tried = 0;
    for (auto _ : state) {
        const advise::Max done = advise::max(text, file, {vary}, {}, bench::catalogue());
        if (done.most.empty()) return state.SkipWithError(to_text(done.diagnostics.front()).c_str());
        tried = done.most.front().tried.size();
    }
    state.counters["tried"] = static_cast<double>(tried);
}
BENCHMARK_CAPTURE(max, batch_size, "job_torch_flux.yaml", advise::Vary::batch_size)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(max, resolution, "job_torch_flux.yaml", advise::Vary::resolution)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(max, rank, "job_torch_flux.yaml", advise::Vary::rank)->Unit(benchmark::kMillisecond);

}  // namespace
