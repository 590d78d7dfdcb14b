#include "shadow/ops.hpp"

#include <doctest/doctest.h>

#include <functional>

#include "shadow/checkpoint.hpp"

using namespace vram;
using namespace vram::shadow;

namespace {
using Sizes = std::vector<Bytes>;

/// A leaf that trains, as a weight of a module.
struct Leaf {
    Leaf(Run& run, const Dims& sizes) {
        parameter.value = run.empty(sizes, Dtype::f32, Op::parameter);
        run.make_leaf(parameter);
    }
    Parameter parameter;
};

/// Requested bytes of what is allocated while `function` runs, in order.
Sizes allocated(Run& run, const std::function<void()>& function) {
    const std::size_t from = run.trace.events.size();
    function();
    Sizes out;
    for (std::size_t i = from; i < run.trace.events.size(); ++i)
        if (run.trace.events[i].kind == EventKind::alloc) out.push_back(run.trace.events[i].bytes);
    return out;
}

Kernels tensors_only() {
    Kernels kernels;
    kernels.scratch = false;
    return kernels;
}
}  // namespace

TEST_CASE("what a backward allocates, gradient by gradient") {
    struct Case {
        const char* why;
        std::function<Tensor(const Tensor&)> forward;  // x [2, 8, 4, 4] fp32, 1024 bytes
        Sizes backward;                                // after the loss's own gradient of the output
    };
    for (const Case& c : {
             Case{"group norm: a contiguous gradient is used as it is",
                  [](const Tensor& x) { return group_norm(x, 2, {}, {}); },
                  {1024}},
             Case{"group norm: a strided gradient is copied by the formula, where autograd sees it",
                  [](const Tensor& x) {
                      return permute(group_norm(x, 2, {}, {}), {0, 2, 3, 1});
                  },
                  {1024, 1024}},
             Case{"linear: a column-major input gets a column-major gradient, so group norm has nothing to copy",
                  [](const Tensor& x) {
                      Tensor rows = permute(group_norm(slice(x, 0, 0, 1), 2, {}, {}), {0, 2, 3, 1});
                      rows = reshape(std::move(rows), {1, 16, 8});
                      return linear(std::move(rows), x.run().empty({4, 8}, Dtype::f32, Op::parameter), {});
                  },
                  {512, 512, 1024}},  // linear's, group norm's, the slice's
             Case{"clamp: a zero on the GPU, two comparisons of which one takes the other in, where",
                  [](const Tensor& x) { return clamp(x); },
                  {4, 256, 256, 1024}},
             Case{"reflection padding: zeros like the input",
                  [](const Tensor& x) {
                      return reflection_pad(x, {1, 1, 1, 1});
                  },
                  {1024}},
             Case{"addcmul into a slice: the whole, its slice, the factor and the product; the slice's input, the "
                  "product's",
                  [](const Tensor& x) {
                      Tensor y = mul(x, x.run().empty({4}, Dtype::f32));
                      Tensor factor = x.run().empty({2, 8, 4, 2}, Dtype::f32);
                      addcmul_into_slice(y, -1, 0, 2, std::move(factor), slice(x, -1, 2, 4));
                      return y;
                  },
                  {1024, 512, 512, 512, 1024, 1024}},
             Case{"cuDNN's attention: gradients of queries, keys and values as large as these, then the cast's",
                  [](const Tensor& x) {
                      Tensor q = to(view(x, {2, 4, 4, 8}), Dtype::bf16);
                      const Tensor k = x.run().empty({2, 2, 4, 8}, Dtype::bf16);
                      return scaled_dot_product_attention(std::move(q), k, k, {}, false, SdpaPriority::cudnn);
                  },
                  {512, 256, 256, 1024}},
             Case{"clamp_min compares once", [](const Tensor& x) { return clamp_min(x); }, {4, 256, 1024}},
             Case{"a norm: the direction, which places are zero, their product",
                  [](const Tensor& x) { return vector_norm(x, 1); },
                  {1024, 32, 1024}},
             // The quotient's (divisor, then dividend), the broadcast's sum, clamp_min's, the norm's; the two gradients
             // of x are added in place.
             Case{"normalize",
                  [](const Tensor& x) { return normalize(x, 1); },
                  {1024, 1024, 1024, 1024, 1024, 128, 4, 32, 128, 1024, 32, 1024}},
             Case{"topk: zeros, into which the gradient is scattered",
                  [](const Tensor& x) { return topk(x, 1)[0]; },
                  {1024}},
             Case{"rows that a mask picks: zeros like the input",
                  [](const Tensor& x) { return index_mask(x, x.run().empty({2}, Dtype::boolean), 1); },
                  {1024}},
             Case{"rows that a mask writes: zeros like the values, the gradient with these in it, the values'; then "
                  "the slice's and the product's",
                  [](const Tensor& x) {
                      Tensor y = mul_scalar(x);
                      index_put_mask_(y, x.run().empty({2}, Dtype::boolean), slice(x, 0, 0, 1));
                      return y;
                  },
                  {512, 1024, 512, 1024, 1024}},
         }) {
        CAPTURE(c.why);
        Run run(tensors_only());
        Leaf leaf(run, {2, 8, 4, 4});
        const Tensor out = c.forward(leaf.parameter.value);
        Tensors grads;
        grads.push_back(run.empty(out.sizes(), Dtype::f32));
        CHECK(allocated(run, [&] { run.backward(std::span<const Tensor>(&out, 1), std::move(grads)); }) == c.backward);
    }
}

TEST_CASE("a leaf takes its gradient over where nobody else holds that very tensor") {
    struct Case {
        const char* why;
        std::function<Tensor(const Tensor&, const Tensor&)> forward;  // a, b [1, 16] fp32, 64 bytes each
        Sizes backward;                                               // after the product's own
    };
    for (const Case& c : {
             Case{"one gradient, twice: the first leaf copies",
                  [](const Tensor&a, const Tensor&b) { return add(a, b); },
                  {64}},
             Case{"a view of it is a tensor of its own: nobody copies, both look at one storage",
                  [](const Tensor&a, const Tensor&b) { return add(view(a, {16}), view(b, {16})); },
                  {}},
             Case{"parts of a larger one, likewise; one copy repeated is its own gradient",
                  [](const Tensor&a, const Tensor&b) {
                      return cat({repeat(a, {1, 1}), slice(b, 1, 0, 8)}, 1);
                  },
                  {64}},  // the slice's
         }) {
        CAPTURE(c.why);
        Run run(tensors_only());
        Leaf a(run, {1, 16}), b(run, {1, 16});
        const Tensor out = mul_scalar(c.forward(a.parameter.value, b.parameter.value));
        Tensors grads;
        grads.push_back(run.empty(out.sizes(), Dtype::f32));
        Sizes sizes = allocated(run, [&] { run.backward(std::span<const Tensor>(&out, 1), std::move(grads)); });
        REQUIRE(!sizes.empty());
        sizes.erase(sizes.begin());
        CHECK(sizes == c.backward);
    }
}

TEST_CASE("a number that scales a tensor is no saved tensor to checkpointing") {
    struct Case {
        const char* why;
        std::function<Tensor(const Tensor&)> forward;  // x [16] fp32, 64 bytes
        Sizes backward;
    };
    for (const Case& c : {
             Case{"scaled last: the gradient is scaled before anything is played again",
                  [](const Tensor& x) { return mul_scalar(silu(to(x, Dtype::f64))); },
                  {128, 128, 128, 64}},  // scale, the cast of x again, silu's gradient, its cast
             Case{"scaled only: nothing is played again", [](const Tensor& x) { return mul_scalar(x); }, {64}},
         }) {
        CAPTURE(c.why);
        Run run(tensors_only());
        Leaf leaf(run, {16});
        const Tensor out = checkpoint(run, [&](const Tensors& args) { return Tensors{c.forward(args[0])}; },
                                      {leaf.parameter.value})[0];
        Tensors grads;
        grads.push_back(run.empty(out.sizes(), out.dtype()));
        CHECK(allocated(run, [&] { run.backward(std::span<const Tensor>(&out, 1), std::move(grads)); }) == c.backward);
    }
}

TEST_CASE("what an op allocates, in order") {
    struct Case {
        const char* why;
        std::function<void(Run&)> forward;
        Sizes sizes;
    };
    const auto make = [](Run& run, const Dims& sizes, Dtype dtype) { return run.empty(sizes, dtype, Op::input); };
    for (const Case& c : {
             Case{"softmax to fp32: the kernel reads fp16 itself",
                  [&](Run& run) {
                      (void)softmax(make(run, {4, 8}, Dtype::f16), Dtype::f32);
                  },
                  {64, 128}},
             Case{"softmax to fp32: bf16 is cast first",
                  [&](Run& run) {
                      (void)softmax(make(run, {4, 8}, Dtype::bf16), Dtype::f32);
                  },
                  {64, 128, 128}},
             Case{"masked_scatter: a copy; its prefix sum is scratch",
                  [&](Run& run) {
                      const Tensor x = make(run, {4, 8}, Dtype::f32), mask = make(run, {4, 1}, Dtype::boolean);
                      (void)masked_scatter(x, mask, make(run, {2, 8}, Dtype::f32));
                  },
                  {128, 4, 64, 128}},
             Case{"fp32 attention with fewer heads of keys and values: no fused kernel, so q scaled, causal order as a "
                  "mask, k and v repeated, k scaled, scores, softmax, result",
                  [&](Run& run) {
                      const Tensor q = make(run, {1, 4, 2, 8}, Dtype::f32), k = make(run, {1, 2, 2, 8}, Dtype::f32);
                      (void)scaled_dot_product_attention(q, k, k, {}, true);
                  },
                  {256, 128, 256, 4, 4, 4, 4, 16, 256, 256, 256, 64, 64, 256}},
             Case{"cuDNN first: the mask in the query's dtype, result, random state; no statistics without gradients, "
                  "and "
                  "fewer heads of keys and values as they are",
                  [&](Run& run) {
                      const Tensor q = make(run, {1, 4, 6, 8}, Dtype::bf16), k = make(run, {1, 2, 6, 8}, Dtype::bf16);
                      (void)scaled_dot_product_attention(q, k, k, make(run, {1, 1, 6, 6}, Dtype::boolean), false,
                                                         SdpaPriority::cudnn);
                  },
                  {384, 192, 36, 72, 384, 8, 8}},
             Case{"cuDNN first, of heads that it does not take: flash",
                  [&](Run& run) {
                      const Tensor q = make(run, {1, 4, 6, 136}, Dtype::f16);
                      (void)scaled_dot_product_attention(q, q, q, {}, false, SdpaPriority::cudnn);
                  },
                  {6528, 6528, 96, 16, 8}},
             Case{"F.rms_norm is contiguous, whatever it is handed",
                  [&](Run& run) {
                      Tensor y = rms_norm(transpose(make(run, {2, 3, 4}, Dtype::f32), 0, 1), {});
                      (void)reshape(std::move(y), {24});
                  },
                  {96, 96, 24}},
             Case{"attention without tokens: three sums, their sum, and that times nothing",
                  [&](Run& run) {
                      const Tensor q = make(run, {1, 4, 0, 8}, Dtype::bf16);
                      (void)scaled_dot_product_attention(q, q, q);
                  },
                  {2, 2, 2, 2, 2, 2}},
             Case{"topk: values and places",
                  [&](Run& run) {
                      (void)topk(make(run, {4, 8}, Dtype::f32), 2);
                  },
                  {128, 32, 64}},
             Case{"argsort: the sorted values are dropped",
                  [&](Run& run) { (void)argsort(make(run, {16}, Dtype::i64)); },
                  {128, 128, 128}},
         }) {
        CAPTURE(c.why);
        Run run(tensors_only());
        CHECK(allocated(run, [&] { c.forward(run); }) == c.sizes);
    }
}
