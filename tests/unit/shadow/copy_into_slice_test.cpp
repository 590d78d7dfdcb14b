#include <doctest/doctest.h>

#include <vector>

#include "shadow/ops.hpp"

using namespace vram;
using namespace vram::shadow;

namespace {
std::vector<Bytes> allocations_since(const Run& run, std::size_t first) {
    std::vector<Bytes> out;
    for (std::size_t i = first; i < run.trace.events.size(); ++i)
        if (run.trace.events[i].kind == EventKind::alloc) out.push_back(run.trace.events[i].bytes);
    return out;
}
}  // namespace

// out = torch.empty(4, 16); out[..., 0::2] = a; out[..., 1::2] = b, as a rotary embedding writes its halves.
TEST_CASE("backward of writes into slices allocates what torch's CopySlices does") {
    struct Case {
        const char* why;
        Dtype value;
        bool first_trains, second_trains;
        std::vector<Bytes> backward;
    };
    // By write, the last first: the whole (128 B), its slice (64 B), zeros for what lay there before (64 B), the
    // value's dtype.
    for (const Case& c : {
             Case{"fp32 into bf16: each slice is cast; nothing lay there before the first write",
                  Dtype::f32,
                  true,
                  true,
                  {128, 64, 64, 128, 128, 64, 128}},
             Case{"bf16 into bf16: the slice itself is the gradient", Dtype::bf16, true, true, {128, 64, 64, 128, 64}},
             Case{"only the second trains: one node", Dtype::f32, false, true, {128, 64, 128}},
             Case{"only the first trains: the second passes zeros on",
                  Dtype::f32,
                  true,
                  false,
                  {128, 64, 64, 128, 64, 128}},
         }) {
        CAPTURE(c.why);
        Kernels kernels;
        kernels.scratch = false;
        Run run(kernels, false);
        Parameter a, b;
        a.value = run.empty({4, 8}, c.value);
        b.value = run.empty({4, 8}, c.value);
        if (c.first_trains) run.make_leaf(a);
        if (c.second_trains) run.make_leaf(b);
        Tensor out = run.empty({4, 16}, Dtype::bf16);
        const std::size_t forward = run.trace.events.size();
        copy_into_slice(out, -1, 0, 16, 2, a.value);
        copy_into_slice(out, -1, 1, 16, 2, b.value);
        CHECK(allocations_since(run, forward).empty());
        Tensors grads;
        grads.push_back(run.empty({4, 16}, Dtype::bf16));
        const std::size_t backward = run.trace.events.size();
        run.backward(std::span<const Tensor>(&out, 1), std::move(grads));
        CHECK(allocations_since(run, backward) == c.backward);
        CHECK(a.grad.defined() == c.first_trains);
        CHECK(b.grad.defined() == c.second_trains);
    }
}
