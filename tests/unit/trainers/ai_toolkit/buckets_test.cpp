#include <doctest/doctest.h>

#include <initializer_list>
#include <string>

#include "trainers/ai_toolkit/buckets.hpp"

using vram::trainers::ai_toolkit::bucket_of;
using vram::trainers::ai_toolkit::heaviest_bucket;
using vram::trainers::ai_toolkit::Size;

namespace doctest {
template <>
struct StringMaker<Size> {
    static String convert(const Size& size) {
        return (std::to_string(size.width) + "x" + std::to_string(size.height)).c_str();
    }
};
}  // namespace doctest

TEST_CASE("ai-toolkit takes the bucket nearest in area, below the cap") {
    struct Case {
        const char* why;
        Size image;
        std::int64_t resolution, step;
        Size bucket;
    };
    for (const Case& c : {
             Case{"1184 x 880 is farther, 1184 x 896 is above the cap", {4000, 3000}, 1024, 16, {1168, 896}},
             Case{"a small image keeps its own area, and may exceed it a little", {800, 600}, 1024, 32, {800, 608}},
             Case{"a square of the resolution's own size is met exactly", {1024, 1024}, 1024, 32, {1024, 1024}},
             Case{"a large square is scaled down to the resolution", {4096, 4096}, 1024, 32, {1024, 1024}},
             Case{"one side of a square rounds up where the cap allows it", {2000, 2000}, 632, 16, {624, 640}},
             Case{"portrait is landscape turned", {3000, 4000}, 1024, 16, {896, 1168}},
             Case{"nothing below the step: one step each way", {20, 20}, 1024, 32, {32, 32}},
             Case{"a strip has a zero side in two candidates", {1000, 10}, 1024, 32, {992, 32}},
             Case{"above the cap with every whole side: the degenerate fallback", {4000, 16}, 32, 32, {480, 32}},
         }) {
        CAPTURE(c.why);
        CHECK(bucket_of(c.image, c.resolution, c.step) == c.bucket);
    }
}

TEST_CASE("A dataset that cannot be measured is taken for the heaviest bucket of its resolution") {
    struct Case {
        const char* why;
        std::int64_t resolution, step;
        Size bucket;
    };
    for (const Case& c : {
             Case{"a multiple of the step: the square", 1024, 32, {1024, 1024}},
             Case{"512 too", 512, 32, {512, 512}},
             Case{"632² holds 390 cells of 32²: 26 x 15 of them", 632, 32, {832, 480}},
             Case{"below one step", 16, 32, {32, 32}},
         }) {
        CAPTURE(c.why);
        const Size heaviest = heaviest_bucket(c.resolution, c.step);
        CHECK(heaviest == c.bucket);
        CHECK(bucket_of(heaviest, c.resolution, c.step) == heaviest);
    }
}

TEST_CASE("No image gets a bucket above the heaviest") {
    for (std::int64_t resolution : {256, 512, 632, 768, 1000, 1024, 1536}) {
        const Size heaviest = heaviest_bucket(resolution, 32);
        for (std::int64_t width = 600; width < 2400; width += 37) {
            for (std::int64_t height = width / 2 + 1; height < 2 * width; height += 41) {
                const Size bucket = bucket_of({width, height}, resolution, 32);
                REQUIRE(bucket.width * bucket.height <= heaviest.width * heaviest.height);
            }
        }
    }
}
