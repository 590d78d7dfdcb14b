#include "vram/device/allocator.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "unit/device/reference_allocator.hpp"

using namespace vram;
using namespace vram::device;

namespace {

// One step of a sequence: n > 0 allocates n bytes, -k frees the k-th allocation (from 1), 0 empties the cache.
using Steps = std::vector<Bytes>;

Allocator played(const Steps& steps, const AllocatorConfig& config, Capacity capacity = unlimited) {
    Allocator allocator(config, capacity);
    std::vector<Block> blocks;
    for (Bytes step : steps) {
        if (step > 0)
            blocks.push_back(allocator.allocate(step));
        else if (step < 0)
            allocator.free(blocks[static_cast<std::size_t>(-step - 1)]);
        else
            allocator.empty_cache();
    }
    return allocator;
}

AllocatorConfig expandable() {
    AllocatorConfig config;
    config.expandable_segments = true;
    return config;
}

// What must hold after every step, seen from outside: blocks tile their segments, sums equal counters, neighbours
// merged.
void check_invariants(const Allocator& allocator, const AllocatorConfig& config) {
    const Counters& counters = allocator.counters();
    Bytes allocated = 0, mapped = 0;
    std::int64_t segments = 0;
    const std::vector<Allocator::Piece> pieces = allocator.layout();
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        const Allocator::Piece& piece = pieces[i];
        REQUIRE(piece.size > 0);
        REQUIRE(piece.size % 512 == 0);
        if (piece.state == Allocator::State::allocated) allocated += piece.size;
        if (piece.state != Allocator::State::unmapped) mapped += piece.size;
        if (piece.starts) ++segments;
        if (i == 0) {
            REQUIRE(piece.starts);
            continue;
        }
        const Allocator::Piece& before = pieces[i - 1];
        REQUIRE(before.address + before.size <= piece.address);
        if (!piece.starts) {
            REQUIRE(before.address + before.size == piece.address);
            REQUIRE(before.small == piece.small);
            if (piece.state != Allocator::State::allocated) REQUIRE(before.state != piece.state);
        }
    }
    REQUIRE(allocated == counters.allocated);
    REQUIRE(mapped == counters.reserved);
    if (!config.expandable_segments) REQUIRE(segments == counters.segments);
    REQUIRE(counters.allocated <= counters.reserved);
    REQUIRE(counters.allocated_peak >= counters.allocated);
    REQUIRE(counters.reserved_peak >= counters.reserved);
}

}  // namespace

TEST_CASE("the caching allocator's two counters, as worked out from PyTorch's rules") {
    struct Case {
        const char* why;
        Steps steps;
        Bytes allocated, reserved, allocated_expandable, reserved_expandable;
    };
    const Steps fourteen(14, 3 * MiB / 2);
    for (const Case& c : {
             Case{"one byte takes 512 of a 2 MiB segment", {1}, 512, 2 * MiB, 512, 2 * MiB},
             Case{"1 MiB is small, one byte more is not", {1 * MiB, 1 * MiB + 1}, 2097664, 22 * MiB, 2097664, 22 * MiB},
             Case{"the 13th block is 2 MiB: 0.5 MiB is too little to split off", fourteen, 22544384, 40 * MiB, 22020096,
                  40 * MiB},
             Case{"10 MiB has a segment of its own", {10 * MiB}, 10485760, 10 * MiB, 10485760, 20 * MiB},
             Case{"below 10 MiB a segment of 20", {10 * MiB - 512, 9 * MiB}, 19922432, 20 * MiB, 19922432, 20 * MiB},
             Case{"33 MiB lie in 34 unsplit, and 32 MiB + 1 reuse them",
                  {33 * MiB, -1, 32 * MiB + 1},
                  35651584,
                  34 * MiB,
                  34603008,
                  40 * MiB},
             Case{"64 MiB serve 40 and then 24",
                  {64 * MiB, -1, 40 * MiB, 24 * MiB},
                  64 * MiB,
                  64 * MiB,
                  64 * MiB,
                  80 * MiB},
             Case{"a hole of 100 does not hold 120",
                  {100 * MiB, 50 * MiB, -1, 120 * MiB},
                  170 * MiB,
                  270 * MiB,
                  170 * MiB,
                  280 * MiB},
             Case{"two holes side by side are one only in an expandable segment",
                  {30 * MiB, 30 * MiB, 30 * MiB, 30 * MiB, -2, -3, 60 * MiB},
                  120 * MiB,
                  180 * MiB,
                  120 * MiB,
                  120 * MiB},
             Case{"a cuBLAS workspace", {8519680}, 8519680, 20 * MiB, 8519680, 20 * MiB},
         }) {
        CAPTURE(std::string(c.why));
        const Allocator native = played(c.steps, {});
        CHECK(native.counters().allocated_peak == c.allocated);
        CHECK(native.counters().reserved_peak == c.reserved);
        const Allocator grown = played(c.steps, expandable());
        CHECK(grown.counters().allocated_peak == c.allocated_expandable);
        CHECK(grown.counters().reserved_peak == c.reserved_expandable);
    }
    CHECK(played({33 * MiB, -1, 32 * MiB + 1}, {}).counters().allocated == 33554944);
    CHECK(played({33 * MiB, -1, 32 * MiB + 1}, expandable()).counters().allocated == 33554944);
}

TEST_CASE("a request that does not fit first gives cached memory back, once") {
    for (const AllocatorConfig& config : {AllocatorConfig{}, expandable()}) {
        const Allocator allocator = played({100 * MiB, 100 * MiB, -1, 120 * MiB}, config, 256 * MiB);
        CHECK(allocator.counters().allocated == 220 * MiB);
        CHECK(allocator.counters().reserved_peak == 220 * MiB);
        CHECK(allocator.counters().retries == 1);
        CHECK(allocator.counters().failures == 0);
    }
}

TEST_CASE("out of memory is a value, in the terms of torch's message") {
    Allocator allocator({}, 256 * MiB);
    for (int i = 0; i < 2; ++i) CHECK(allocator.allocate(100 * MiB) != no_block);
    CHECK(allocator.allocate(57 * MiB) == no_block);
    CHECK(allocator.out_of_memory() == OutOfMemory{57 * MiB, 58 * MiB, 200 * MiB, 200 * MiB, 56 * MiB});
    CHECK(allocator.allocate(5 * MiB) != no_block);  // and the allocator goes on
    CHECK(allocator.counters().failures == 1);
    CHECK(allocator.allocate(Bytes{1} << 62) == no_block);
    CHECK(allocator.out_of_memory().requested == Bytes{1} << 62);
}

TEST_CASE("options of PYTORCH_CUDA_ALLOC_CONF change the counters as they do in PyTorch") {
    struct Case {
        const char* why;
        const char* conf;
        Steps steps;
        Capacity capacity;
        Counters expected;
    };
    for (const Case& c : {
             Case{"1200 MiB with 4 divisions between 1024 and 2048",
                  "roundup_power2_divisions:4",
                  {1200 * MiB},
                  unlimited,
                  {1280 * MiB, 1280 * MiB, 1280 * MiB, 1280 * MiB, 1, 0, 0}},
             Case{"sizes up to 512 x divisions keep the 512 rule",
                  "roundup_power2_divisions:8",
                  {4096},
                  unlimited,
                  {4096, 4096, 2 * MiB, 2 * MiB, 1, 0, 0}},
             Case{"a cached 100 MiB is not split for 40 under max_split_size",
                  "max_split_size_mb:64",
                  {100 * MiB, -1, 40 * MiB},
                  unlimited,
                  {40 * MiB, 100 * MiB, 140 * MiB, 140 * MiB, 2, 0, 0}},
             Case{"nor handed out whole for a request that is 20 MiB smaller",
                  "max_split_size_mb:64",
                  {100 * MiB, -1, 80 * MiB},
                  unlimited,
                  {80 * MiB, 100 * MiB, 180 * MiB, 180 * MiB, 2, 0, 0}},
             Case{"but within 20 MiB it is, whole",
                  "max_split_size_mb:64",
                  {100 * MiB, -1, 81 * MiB},
                  unlimited,
                  {100 * MiB, 100 * MiB, 100 * MiB, 100 * MiB, 1, 0, 0}},
             Case{"a wider rounding lets it",
                  "max_split_size_mb:64,max_non_split_rounding_mb:40",
                  {100 * MiB, -1, 80 * MiB},
                  unlimited,
                  {100 * MiB, 100 * MiB, 100 * MiB, 100 * MiB, 1, 0, 0}},
             Case{"oversized blocks go back before the general retry",
                  "max_split_size_mb:64",
                  {100 * MiB, 90 * MiB, 30 * MiB, -1, -2, -3, 140 * MiB},
                  300 * MiB,
                  {140 * MiB, 220 * MiB, 170 * MiB, 220 * MiB, 2, 0, 0}},
             Case{"a larger segment for requests of 1 to 10 MiB",
                  "large_segment_size_mb:64",
                  {5 * MiB},
                  unlimited,
                  {5 * MiB, 5 * MiB, 64 * MiB, 64 * MiB, 1, 0, 0}},
             Case{"and larger pages",
                  "large_segment_size_mb:64,expandable_segments:True",
                  {70 * MiB},
                  unlimited,
                  {70 * MiB, 70 * MiB, 128 * MiB, 128 * MiB, 0, 0, 0}},
             Case{"a memory fraction limits the segments",
                  "per_process_memory_fraction:0.5",
                  {100 * MiB, -1, 120 * MiB},
                  256 * MiB,
                  {120 * MiB, 120 * MiB, 120 * MiB, 120 * MiB, 1, 1, 0}},
             Case{"or refuses at once",
                  "per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True",
                  {100 * MiB, -1, 120 * MiB},
                  256 * MiB,
                  {0, 100 * MiB, 100 * MiB, 100 * MiB, 1, 0, 1}},
             Case{"above the threshold what was free longest goes first",
                  "per_process_memory_fraction:0.5,garbage_collection_threshold:0.5",
                  {40 * MiB, 44 * MiB, -1, 30 * MiB, -2, 50 * MiB},
                  256 * MiB,
                  {80 * MiB, 84 * MiB, 90 * MiB, 90 * MiB, 2, 0, 0}},
         }) {
        CAPTURE(std::string(c.why));
        const expected<AllocatorConfig> config = parse(c.conf);
        REQUIRE(config);
        const Counters counters = played(c.steps, *config, c.capacity).counters();
        CHECK(counters.allocated == c.expected.allocated);
        CHECK(counters.allocated_peak == c.expected.allocated_peak);
        CHECK(counters.reserved == c.expected.reserved);
        CHECK(counters.reserved_peak == c.expected.reserved_peak);
        CHECK(counters.segments == c.expected.segments);
        CHECK(counters.retries == c.expected.retries);
        CHECK(counters.failures == c.expected.failures);
    }
}

TEST_CASE("empty_cache gives back segments that are free as a whole, and whole pages of expandable ones") {
    // 5 MiB of a 20 MiB segment keep all of it; 30 MiB of their own segment go.
    CHECK(played({5 * MiB, 5 * MiB, 30 * MiB, -1, -3, 0}, {}).counters().reserved == 20 * MiB);
    // The first 5 MiB end inside page one: only pages two and three lie in the free rest.
    CHECK(played({5 * MiB, 50 * MiB, -2, 0}, expandable()).counters().reserved == 20 * MiB);
    CHECK(played({5 * MiB, 50 * MiB, -1, -2, 0}, expandable()).counters().reserved == 0);
    CHECK(played({5 * MiB, 50 * MiB, -1, -2, 0}, expandable()).layout().empty());
}

TEST_CASE("the fast allocator and the literal one agree at every step, in every setting") {
    struct Setting {
        const char* conf;
        Bytes capacity;
    };
    constexpr Setting settings[] = {
        {"", unlimited},
        {"", 400 * MiB},
        {"expandable_segments:True", unlimited},
        {"expandable_segments:True", 400 * MiB},
        {"expandable_segments:True", 150 * MiB},
        {"max_split_size_mb:32", unlimited},
        {"max_split_size_mb:20,max_non_split_rounding_mb:40", 300 * MiB},
        {"max_split_size_mb:32", 300 * MiB},
        {"max_split_size_mb:32,expandable_segments:True", 300 * MiB},
        {"roundup_power2_divisions:4", 500 * MiB},
        {"roundup_power2_divisions:[1:2,4:8,16:1,>:4]", 500 * MiB},
        {"large_segment_size_mb:33", 400 * MiB},
        {"large_segment_size_mb:12,expandable_segments:True", 400 * MiB},
        {"per_process_memory_fraction:0.75", 500 * MiB},
        {"per_process_memory_fraction:0.75,throw_on_cudamalloc_oom:True", 500 * MiB},
        {"per_process_memory_fraction:0.75,garbage_collection_threshold:0.6", 500 * MiB},
        {"per_process_memory_fraction:0.9,garbage_collection_threshold:0.3,max_split_size_mb:40", 500 * MiB},
        {"per_process_memory_fraction:0.75,garbage_collection_threshold:0.6,expandable_segments:True", 500 * MiB},
    };
    for (const Setting& setting : settings) {
        CAPTURE(std::string(setting.conf));
        CAPTURE(setting.capacity);
        const expected<AllocatorConfig> config = parse(setting.conf);
        REQUIRE(config);
        for (std::uint32_t seed = 1; seed <= 12; ++seed) {
            CAPTURE(seed);
            std::mt19937 engine(seed);
            const auto random = [&engine] { return static_cast<std::uint32_t>(engine()); };
            Allocator fast(*config, setting.capacity);
            ReferenceAllocator slow(*config, setting.capacity);
            struct Live {
                Block fast;
                ReferenceAllocator::Piece* slow;
            };
            std::vector<Live> live;
            // Sizes from a few classes repeat, as tensors do; the rest is anything up to 64 MiB.
            std::vector<Bytes> classes;
            for (int i = 0; i < 12; ++i)
                classes.push_back(Bytes{1} + static_cast<Bytes>(random() % (1U << (9 + i * 3 / 2))));
            for (int step = 0; step < 600; ++step) {
                CAPTURE(step);
                const std::uint32_t dice = random() % 1000;
                const bool grows = (step / 100) % 2 == 0;
                if (dice < 4) {
                    fast.empty_cache();
                    slow.empty_cache();
                } else if (dice < 6) {
                    fast.reset_peaks();
                    slow.stats.allocated_peak = slow.stats.allocated;
                    slow.stats.reserved_peak = slow.stats.reserved;
                } else if (dice < (grows ? 600U : 420U) || live.empty()) {
                    const std::uint32_t kind = random() % 10;
                    const Bytes bytes = kind < 6   ? classes[random() % classes.size()]
                                        : kind < 8 ? 1 + static_cast<Bytes>(random() % static_cast<unsigned>(3 * MiB))
                                                   : 1 + static_cast<Bytes>(random() % static_cast<unsigned>(64 * MiB));
                    const Block block = fast.allocate(bytes);
                    ReferenceAllocator::Piece* const piece = slow.allocate(bytes);
                    REQUIRE((block == no_block) == (piece == nullptr));
                    if (piece == nullptr) {
                        REQUIRE(fast.out_of_memory() == slow.failure);
                    } else {
                        REQUIRE(fast.size_of(block) == piece->size);
                        live.push_back({block, piece});
                    }
                } else {
                    const std::size_t pick = random() % live.size();
                    fast.free(live[pick].fast);
                    slow.free(live[pick].slow);
                    live[pick] = live.back();
                    live.pop_back();
                }
                REQUIRE(fast.counters() == slow.stats);
                REQUIRE(fast.layout() == slow.layout());
                if (step % 20 == 0) check_invariants(fast, *config);
            }
        }
    }
}

TEST_CASE("thousands of equal free blocks keep their order by address") {
    Allocator allocator({}, unlimited);
    std::vector<Block> blocks;
    for (int i = 0; i < 20000; ++i) blocks.push_back(allocator.allocate(512));
    for (std::size_t i = 0; i < blocks.size(); i += 2) allocator.free(blocks[i]);
    // The lowest hole is the first of all: a new 512 lands where block 0 was, the next where block 2 was.
    const std::vector<Allocator::Piece> before = allocator.layout();
    static_cast<void>(allocator.allocate(512));
    static_cast<void>(allocator.allocate(1));
    const std::vector<Allocator::Piece> after = allocator.layout();
    CHECK(before[0].state == Allocator::State::free);
    CHECK(after[0].state == Allocator::State::allocated);
    CHECK(after[2].state == Allocator::State::allocated);
    CHECK(after[4].state == Allocator::State::free);
    check_invariants(allocator, {});
}

TEST_CASE("hundreds of free blocks of a size come and go in any order as the reference's do") {
    Allocator fast({}, unlimited);
    ReferenceAllocator slow({}, unlimited);
    std::mt19937 engine(7);
    std::vector<std::pair<Block, ReferenceAllocator::Piece*>> live;
    const auto allocate = [&](Bytes bytes) { live.emplace_back(fast.allocate(bytes), slow.allocate(bytes)); };
    // Three stay and three come and go, in turn, so that hundreds of holes of a size lie apart.
    for (int i = 0; i < 1500; ++i) allocate(i % 3 == 0 ? 2 * MiB + 512 * (i % 7) : 512);
    std::vector<std::pair<Block, ReferenceAllocator::Piece*>> stay, come_and_go;
    for (std::size_t i = 0; i < live.size(); ++i) (i / 3 % 2 == 0 ? stay : come_and_go).push_back(live[i]);
    for (int round = 0; round < 4; ++round) {
        std::shuffle(come_and_go.begin(), come_and_go.end(), engine);
        std::vector<Bytes> sizes;
        for (const auto& [block, piece] : come_and_go) {
            sizes.push_back(fast.size_of(block));
            fast.free(block);
            slow.free(piece);
        }
        REQUIRE(fast.layout() == slow.layout());
        std::shuffle(sizes.begin(), sizes.end(), engine);
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            come_and_go[i] = {fast.allocate(sizes[i]), slow.allocate(sizes[i])};
            REQUIRE(fast.size_of(come_and_go[i].first) == come_and_go[i].second->size);
        }
        REQUIRE(fast.layout() == slow.layout());
        REQUIRE(fast.counters() == slow.stats);
        check_invariants(fast, {});
    }
}

TEST_CASE("cudaMallocAsync counts exact bytes and reserves steps of 32 MiB") {
    const expected<AllocatorConfig> config = parse("backend:cudaMallocAsync");
    REQUIRE(config);
    AsyncAllocator allocator(*config, 128 * MiB);
    const Block first = allocator.allocate(1);
    CHECK(allocator.counters().allocated == 1);
    CHECK(allocator.counters().reserved == 32 * MiB);
    const Block second = allocator.allocate(90 * MiB);
    CHECK(allocator.counters().reserved == 96 * MiB);
    CHECK(allocator.allocate(50 * MiB) == no_block);
    CHECK(allocator.out_of_memory().requested == 50 * MiB);
    allocator.free(second);
    CHECK(allocator.counters().reserved == 96 * MiB);
    allocator.empty_cache();
    CHECK(allocator.counters().reserved == 32 * MiB);
    allocator.free(first);
    CHECK(allocator.counters().allocated == 0);
    CHECK(allocator.counters().allocated_peak == 90 * MiB + 1);
}
