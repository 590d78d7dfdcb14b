// Question: what does it cost to read a log of 50 MB, of which most is progress bars and chatter? A person waits for
// the answer, and a user interface may ask while a run is going on. The log is made piece by piece, so that the memory
// is the reader's. Result, machine and conclusion: README.md beside this file.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <string>

#include "vram/diagnose/diagnose.hpp"

using namespace vram;

namespace {

constexpr std::size_t log_size = 50'000'000, piece = 1 << 16;

/// 64 KiB of a training's log, lines whole.
std::string some_lines() {
    std::string text;
    for (int n = 0; text.size() < piece; ++n) {
        text += "steps:  12%|█▏        | " + std::to_string(1000 + n) +
                "/160000 [02:01<14:50,  1.58it/s, avr_loss=0.083]\r";
        if (n % 3 == 0)
            text +=
                "\n2025-01-01 10:00:00 INFO     image " + std::to_string(n) +
                " has the caption: a dog that sits on a chair beside a window, loading nothing   train_util.py:1234\n";
    }
    return text;
}

constexpr std::string_view failure =
    "\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 23.64 GiB "
    "of which "
    "1.00 GiB is free.\n";

void log_of_50_megabytes(benchmark::State& state) {
    const std::string lines = some_lines();
    const diagnosis::Knowledge known = diagnosis::Knowledge::built_in();
    for (auto _ : state) {
        diagnosis::LogReader reader(known);
        for (std::size_t fed = 0; fed < log_size; fed += lines.size()) reader.feed(lines);
        reader.feed(failure);
        if (!reader.finish("log").recognised) return state.SkipWithError("the failure is not seen");
    }
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(log_size));
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    state.counters["most_memory_MiB"] = static_cast<double>(usage.ru_maxrss) / 1024;
}
BENCHMARK(log_of_50_megabytes)->Unit(benchmark::kMillisecond);

void knowledge(benchmark::State& state) {
    for (auto _ : state) benchmark::DoNotOptimize(diagnosis::Knowledge::built_in());
}
BENCHMARK(knowledge)->Unit(benchmark::kMillisecond);

}  // namespace
