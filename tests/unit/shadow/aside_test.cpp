#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <string_view>

#include "shadow/ops.hpp"

using namespace vram;
using namespace vram::shadow;

TEST_CASE("an aside leaves no trace, and says what crosses its end") {
    struct Case {
        std::string_view why;
        bool takes_old, leaves_new;
        std::string_view error;
    };
    for (const Case& c : {
             Case{"what it makes dies in it", false, false, ""},
             Case{"a new tensor's death would have no birth", false, true,
                  "a tensor outlives the aside in which it was made"},
             Case{"an old one's birth would have no death", true, false,
                  "a tensor died aside from the trace in which it was made"},
             Case{"the sum of both is right, and both are wrong", true, true,
                  "a tensor died aside from the trace in which it was made"},
         }) {
        CAPTURE(c.why);
        Run run;
        Tensor kept = run.empty({2, 4}, Dtype::f32, Op::none), outside;
        const Trace before = run.trace;
        const Bytes live = run.live();
        const auto aside = [&] {
            const Aside scope(run);
            if (c.takes_old) kept = Tensor();
            const Tensor made = run.empty({2, 4}, Dtype::f32, Op::none);
            if (c.leaves_new) outside = made;
        };
        if (c.error.empty())
            CHECK_NOTHROW(aside());
        else
            CHECK_THROWS_WITH_AS(aside(), std::string(c.error).c_str(), std::logic_error);
        CHECK(run.trace.events == before.events);
        CHECK(run.trace.slots == before.slots);
        CHECK(run.live() == live);
    }
}

TEST_CASE("an aside lets another exception pass") {
    Run run;
    Tensor outside;
    const auto aside = [&] {
        const Aside scope(run);
        outside = run.empty({2, 4}, Dtype::f32, Op::none);
        throw std::runtime_error("on its way");
    };
    CHECK_THROWS_WITH_AS(aside(), "on its way", std::runtime_error);
}
