// Question: what does a whole answer cost, from a file's text to the report? Reading, resolving, playing, replaying.
// Result, machine and conclusion: README.md beside this file.
#include <benchmark/benchmark.h>

#include "jobs.hpp"
#include "report/opened.hpp"
#include "shadow/run.hpp"
#include "vram/advise/advise.hpp"
#include "vram/device/usage.hpp"
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

/// All phases of a job that is read already, for the kernels of sm89: played, and what the reader makes of the trace.
template <class Reader>
void play(benchmark::State& state, const char* file, Reader reader) {
    Diagnostics notes;
    const expected<report::Opened> opened = report::open(bench::example(file), file, {}, bench::catalogue(), notes);
    if (!opened) return state.SkipWithError(to_text(opened.error().front()).c_str());
    std::size_t events = 0;
    for (auto _ : state) {
        shadow::Run run;
        benchmark::DoNotOptimize(opened->trainer->play(opened->job, bench::catalogue(), run, run::Asides::played));
        benchmark::DoNotOptimize(reader(run.trace));
        events = run.trace.events.size();
    }
    state.counters["events"] = static_cast<double>(events);
}
void by_tensors(benchmark::State& state, const char* file) { play(state, file, device::sum); }
void with_allocator(benchmark::State& state, const char* file) {
    play(state, file, [](const shadow::Trace& trace) { return device::replay(trace, {}); });
}

/// No card named: the smallest that holds the job is looked for.
void check_any_card(benchmark::State& state, const char* file) { check(state, file, ""); }

/// Every change that the trainer has, and pairs of them, played.
void advice(benchmark::State& state, const char* file, const char* gpu) {
    const std::string text = bench::example(file);
    report::CheckOptions options;
    options.gpu = gpu;
    const advise::Advised once = advise::advise(text, file, options, bench::catalogue());
    if (once.before.verdict == report::Verdict::cannot_say || once.before.verdict == report::Verdict::fits)
        return state.SkipWithError("nothing to advise");
    for (auto _ : state) benchmark::DoNotOptimize(advise::advise(text, file, options, bench::catalogue()));
    state.counters["proposals"] = static_cast<double>(once.fits.size() + once.helps.size());
}

void built_in_catalogue(benchmark::State& state) {
    for (auto _ : state) {
        const profile::Catalogue all = profile::Catalogue::built_in();
        benchmark::DoNotOptimize(all.models().size() + all.cards().devices().size());
    }
}

BENCHMARK_CAPTURE(by_tensors, job_torch_flux, "job_torch_flux.yaml")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(by_tensors, flux_lora, "flux_lora.yaml")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(with_allocator, job_torch_flux, "job_torch_flux.yaml")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(with_allocator, flux_lora, "flux_lora.yaml")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(check, job_torch_flux, "job_torch_flux.yaml", "a100-80gb")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(check, flux_lora, "flux_lora.yaml", "rtx-4090")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(check_any_card, flux_lora, "flux_lora.yaml")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(advice, job_torch_flux, "job_torch_flux.yaml", "rtx-4090")
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(advice, flux_lora, "flux_lora.yaml", "rtx-4090")->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(built_in_catalogue)->Unit(benchmark::kMillisecond);

}  // namespace
