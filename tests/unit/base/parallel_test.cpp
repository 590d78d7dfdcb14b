#include "base/parallel.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

using vram::in_parallel;

TEST_CASE("every task runs once, whatever the machine") {
    std::vector<std::atomic<int>> runs(1000);
    in_parallel(runs.size(), [&](std::size_t i) { ++runs[i]; });
    for (const std::atomic<int>& count : runs) CHECK(count == 1);
    in_parallel(0, [](std::size_t) { FAIL("there is none"); });
}

TEST_CASE("tasks may have tasks of their own") {
    std::atomic<int> runs = 0;
    in_parallel(8, [&](std::size_t) { in_parallel(8, [&](std::size_t) { ++runs; }); });
    CHECK(runs == 64);
}

TEST_CASE("of what tasks throw the first counts, and the others are done") {
    std::atomic<int> runs = 0;
    const auto fail = [&](std::size_t i) {
        ++runs;
        if (i == 3 || i == 40) throw std::runtime_error(std::to_string(i));
    };
    CHECK_THROWS_WITH(in_parallel(100, fail), "3");
    CHECK(runs == 100);
}
