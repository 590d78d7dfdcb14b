#include <doctest/doctest.h>

#include "shadow/ops.hpp"

using namespace vram;
using namespace vram::shadow;

// x = weight + weight; y = x * weight, which saves x (512 bytes); a view of y; then only the view is kept.
TEST_CASE("a view that is made under no_grad holds the history of its base, as torch's view metadata do") {
    struct Case {
        const char* why;
        bool grad, detached, copied;
        Bytes alive;  // beside the weight
    };
    for (const Case& c : {
             Case{"y, and x, which its history saves", false, false, false, 1024},
             Case{"with grad the view has a history of its own, which saves x", true, false, false, 1024},
             Case{"detach() makes a view that autograd knows nothing of", false, true, false, 512},
             Case{"a copy is no view", false, false, true, 512},
         }) {
        CAPTURE(c.why);
        Kernels kernels;
        kernels.scratch = false;
        Run run(kernels, false);
        Parameter weight;
        weight.value = run.empty({8, 16}, Dtype::f32);
        run.make_leaf(weight);
        const Bytes before = run.live();
        Tensor kept;
        {
            Tensor x = add(weight.value, weight.value);
            Tensor y = mul(std::move(x), weight.value);
            if (c.detached) y = y.detach();
            if (c.grad) {
                kept = slice(y, 0, 0, 8);
            } else {
                const NoGrad no_grad(run);
                kept = slice(y, 0, 0, 8);
                if (c.copied) kept = add(kept, kept);
            }
        }
        CHECK(static_cast<bool>(kept.node()) == c.grad);
        CHECK(kept.requires_grad() == !(c.detached || c.copied));
        CHECK(run.live() - before == c.alive);
        kept = Tensor();
        CHECK(run.live() == before);
    }
}
