// Question: what does it cost to read a config, with the place of every value? It happens at each keystroke of a user
// interface and once for every line of a sweep.
// Result, machine and conclusion: README.md beside this file.
#include <benchmark/benchmark.h>

#include "jobs.hpp"
#include "vram/io/document.hpp"

using namespace vram;

namespace {

void read_yaml(benchmark::State& state, const char* file) {
    const std::string text = bench::example(file);
    if (!io::read(text, file, io::Format::yaml)) return state.SkipWithError("the example does not read");
    for (auto _ : state) benchmark::DoNotOptimize(io::read(text, file, io::Format::yaml));
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
}

BENCHMARK_CAPTURE(read_yaml, flux_lora, "flux_lora.yaml")->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(read_yaml, job_torch_flux, "job_torch_flux.yaml")->Unit(benchmark::kMicrosecond);

}  // namespace
