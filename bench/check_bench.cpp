// Question: what does a whole answer cost, from a file's text to the report? Reading, resolving, playing, replaying.
// Result, machine and conclusion: README.md beside this file.
#include <benchmark/benchmark.h>

#include "jobs.hpp"
#include "vram/report/check.hpp"

using namespace vram;

namespace {

void check(benchmark::State& state, const char* file, const char* gpu) {
    const std::string text = bench::example(file);
    report::CheckOptions options;
    options.gpu = gpu;
    const report::Report once = report::check(text, file, options, bench::catalogue());
    if (once.verdict == report::Verdict::cannot_say) return state.SkipWithError(once.reason.c_str());
    for (auto _ : state) benchmark::DoNotOptimize(report::check(text, file, options, bench::catalogue()));
}

/// No card named: the smallest that holds the job is looked for.
void check_any_card(benchmark::State& state, const char* file) { check(state, file, ""); }

void built_in_catalogue(benchmark::State& state) {
    for (auto _ : state) benchmark::DoNotOptimize(profile::Catalogue::built_in());
}

BENCHMARK_CAPTURE(check, job_torch_flux, "job_torch_flux.yaml", "a100-80gb")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(check, flux_lora, "flux_lora.yaml", "rtx-4090")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(check_any_card, flux_lora, "flux_lora.yaml")->Unit(benchmark::kMillisecond);
BENCHMARK(built_in_catalogue)->Unit(benchmark::kMillisecond);

}  // namespace
