#include "trainers/heaviest.hpp"

#include <doctest/doctest.h>

#include <initializer_list>
#include <vector>

using vram::job::Batch;
using vram::trainers::heaviest;
using Batches = std::vector<Batch>;

TEST_CASE("ai-toolkit: of many sizes those stay that may need the most, in their order") {
    struct Case {
        const char* why;
        Batches all;
        std::size_t most;
        Batches kept;
    };
    for (const Case& c : {
             Case{"few enough: all of them",
                  {{512, 512, 1, 1}, {256, 256, 1, 1}},
                  2,
                  {{512, 512, 1, 1}, {256, 256, 1, 1}}},
             Case{"by pixels, in the order of the file",
                  {{512, 512, 1, 1}, {256, 256, 1, 1}, {1024, 1024, 1, 1}},
                  2,
                  {{512, 512, 1, 1}, {1024, 1024, 1, 1}}},
             Case{"of equals the first",
                  {{512, 1024, 1, 1}, {1024, 512, 1, 1}, {256, 2048, 1, 1}},
                  2,
                  {{512, 1024, 1, 1}, {1024, 512, 1, 1}}},
             Case{"the most pixels stay, however few the items: they are encoded one at a time",
                  {{512, 512, 1, 8}, {512, 512, 1, 7}, {1024, 1024, 1, 1}},
                  1,
                  {{1024, 1024, 1, 1}}},
             Case{"before what another one exceeds in pixels and items comes what none does",
                  {{512, 512, 1, 8}, {512, 480, 1, 8}, {1024, 1024, 1, 1}, {256, 256, 1, 9}},
                  3,
                  {{512, 512, 1, 8}, {1024, 1024, 1, 1}, {256, 256, 1, 9}}},
         }) {
        CAPTURE(c.why);
        CHECK(heaviest(c.all, c.most, 512) == c.kept);
    }
}
