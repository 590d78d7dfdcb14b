// Question: what does a step of each denoiser cost, made and summed? An image model's has 2 ms, a video model's 5 ms.
// Result, machine and conclusion: README.md beside this file.
#include <benchmark/benchmark.h>

#include "jobs.hpp"
#include "resident.hpp"
#include "vram/device/usage.hpp"

using namespace vram;

namespace {

/// The first step of a run, so that each kind of block is played before it is copied; its size is the profile's own.
void step(benchmark::State& state, const profile::ModelProfile& profile) {
    std::size_t events = 0;
    for (auto _ : state) {
        state.PauseTiming();
        auto resident = std::make_unique<bench::Resident>(profile, true);
        const std::size_t before = resident->run.trace.events.size();
        state.ResumeTiming();
        resident->step();
        benchmark::DoNotOptimize(device::sum(resident->run.trace));
        state.PauseTiming();
        events = resident->run.trace.events.size() - before;
        resident.reset();
        state.ResumeTiming();
    }
    state.counters["events"] = static_cast<double>(events);
    state.counters["frames"] = static_cast<double>(profile.defaults.frames);
}

const bool registered = [] {
    for (const profile::ModelProfile& profile : bench::catalogue().models())
        if (profile.kind == profile::ModelKind::denoiser)
            benchmark::RegisterBenchmark(("step/" + profile.id).c_str(), step, std::cref(profile))
                ->Unit(benchmark::kMillisecond);
    return true;
}();

}  // namespace
