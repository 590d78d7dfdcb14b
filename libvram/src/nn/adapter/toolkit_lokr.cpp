#include <algorithm>

#include "nn/adapter/toolkit.hpp"
#include "nn/adapter/toolkit_parts.hpp"

namespace vram::nn::adapter {
namespace {

using shadow::Op;

// Places in Adapter::own: lokr_w1, then lokr_w2 or its two parts, then the scalars.
enum : std::size_t { w1, w2, w2_b };

bool takes_apart(const Adapter& adapter) { return adapter.own.size() == 5; }
const Parameter& runtime_scale(const Adapter& adapter) { return *adapter.own[adapter.own.size() - 2]; }

/// (out_l, out_k), (in_m, in_n): the weight is [out_l * out_k, in_m * in_n].
struct Factors {
    std::int64_t out_l, out_k, in_m, in_n;
};
Factors factors_of(const Adapter& adapter) {
    const auto [in_m, in_n] = factorization(adapter.sizes[1], adapter.how.factor);
    const auto [out_l, out_k] = factorization(adapter.sizes[0], adapter.how.factor);
    return {out_l, out_k, in_m, in_n};
}

void build(Weights& weights, Adapter& adapter) {
    const Dtype dtype = weights.rules().adapter_dtype;
    const Factors f = factors_of(adapter);
    const std::int64_t rank = adapter.how.rank;
    std::int64_t kernel = 1;
    for (int i = 2; i < adapter.sizes.rank(); ++i) kernel *= adapter.sizes[i];
    adapter.own.push_back(&weights.adapter({f.out_l, f.in_m}, dtype));
    if (2 * rank < std::max(f.out_k, f.in_n)) {
        adapter.own.push_back(&weights.adapter({f.out_k, rank}, dtype));
        adapter.own.push_back(&weights.adapter({rank, f.in_n * kernel}, dtype));
    } else {
        Dims sizes = adapter.sizes;
        sizes[0] = f.out_k;
        sizes[1] = f.in_n;
        adapter.own.push_back(&weights.adapter(sizes, dtype));
    }
    adapter.own.back()->starts_at_zero = true;
    register_scalars(weights, adapter);
}

/// einsum("...s,os->...o"), as sumproduct_pair of aten/src/ATen/native/Linear.cpp does it: one bmm.
Tensor contract(Tensor x_in, Tensor matrix_in) {
    Tensor x = std::move(x_in), matrix = std::move(matrix_in);
    Dims sizes = x.sizes();
    sizes[x.rank() - 1] = matrix.size(0);
    Tensor left = shadow::reshape(std::move(x), {1, -1, matrix.size(1)});
    matrix = shadow::transpose(std::move(matrix), 0, 1);
    Tensor right = shadow::unsqueeze(std::move(matrix), 0);
    Tensor made = shadow::matmul(std::move(left), std::move(right));
    return shadow::view(std::move(made), sizes);
}

// Mirrors LokrModule._call_forward_fast_linear.
Tensor forward_linear(const Layer& layer, const Tensor& x) {
    const Adapter& adapter = *layer.adapter;
    const Factors f = factors_of(adapter);
    const Tensor base_out = layer.base(x);
    const Dtype compute_dtype = base_out.dtype();
    const Tensor cast = shadow::to(x, compute_dtype);
    const Tensor a = shadow::to(adapter.own[w1]->value, compute_dtype);
    const Tensor w2a = shadow::to(adapter.own[w2]->value, compute_dtype);
    Tensor w2b;
    if (takes_apart(adapter)) w2b = shadow::to(adapter.own[w2_b]->value, compute_dtype);
    const Tensor split = shadow::unflatten(cast, -1, {f.in_m, f.in_n});
    Tensor tmp;
    if (!w2b.defined()) {
        tmp = contract(split, w2a);  // [.., in_m, out_k]
    } else {
        tmp = contract(split, w2b);  // [.., in_m, rank]
        tmp = contract(std::move(tmp), w2a);
    }
    Tensor delta;
    {
        const Tensor scaled = shadow::mul(a, runtime_scale(adapter).value);
        if (f.in_m == 1) {  // nothing to sum over: einsum multiplies
            delta = shadow::mul(tmp, scaled);
        } else {
            Tensor turned = shadow::transpose(tmp, -2, -1);
            delta = contract(std::move(turned), scaled);  // [.., out_k, out_l]
            delta = shadow::transpose(std::move(delta), -2, -1);
        }
    }
    delta = shadow::flatten(std::move(delta), -2, -1);
    Tensor drop;
    if (adapter.how.rank_dropout && layer.weights->adapters_training()) {
        Run& run = x.run();
        {
            const Tensor drawn = run.empty({delta.size(-1)}, Dtype::f32, Op::noise);
            drop = shadow::compare_scalar(drawn);
        }
        const Tensor kept = shadow::to(drop, delta.dtype());
        delta = shadow::mul(delta, kept);
    }
    Tensor multiplier = mean_multiplier(layer);
    multiplier = shadow::to(std::move(multiplier), compute_dtype);
    delta = shadow::mul(delta, multiplier);
    const Tensor sum = shadow::add(base_out, delta);
    return shadow::to(sum, x.dtype());
}

/// torch.kron of [l, m] and [k, n], or [k, n, h, w]: one product, then a view.
Tensor kron(const Tensor& a, const Tensor& b) {
    Tensor left = a, right = b;
    for (int i = 2; i < b.rank(); ++i) left = shadow::unsqueeze(std::move(left), -1);
    Dims sizes;
    for (int i = 0; i < b.rank(); ++i) sizes.push_back(left.size(i) * b.size(i));
    for (int i = b.rank(); i > 0; --i) left = shadow::unsqueeze(std::move(left), i);        // [l, 1, m, 1, ..]
    for (int i = b.rank(); i > 0; --i) right = shadow::unsqueeze(std::move(right), i - 1);  // [1, k, 1, n, ..]
    Tensor made = shadow::mul(std::move(left), std::move(right));
    return shadow::reshape(std::move(made), sizes);
}

// Mirrors LokrModule.get_weight, with make_kron.
Tensor get_weight(const Adapter& adapter) {
    Tensor second = adapter.own[w2]->value;
    if (takes_apart(adapter)) second = shadow::mm(second, adapter.own[w2_b]->value);
    const Tensor rebuild = kron(adapter.own[w1]->value, second);
    Tensor weight = shadow::mul(rebuild, runtime_scale(adapter).value);
    return shadow::reshape(std::move(weight), adapter.sizes);
}

// Mirrors LokrModule._call_forward of a convolution: the weight as a whole.
Tensor forward_conv(const Layer& layer, const Tensor& x) {
    const Tensor orig_weight = layer.full_weight();
    Tensor lokr_weight = get_weight(*layer.adapter);
    lokr_weight = shadow::to(std::move(lokr_weight), orig_weight.dtype());
    const Tensor multiplier = mean_multiplier(layer);
    Tensor weight;
    {
        const Tensor scaled = shadow::mul(lokr_weight, multiplier);
        weight = shadow::add(orig_weight, scaled);
    }
    Tensor bias;
    if (layer.bias != nullptr) bias = layer.bias->value.detach();
    return layer.with(x, weight, bias);
}

Tensor forward(const Layer& layer, Tensor argument) {
    const Tensor held = std::move(argument);  // by Module.__call__
    return layer.adapter->sizes.rank() == 2 ? forward_linear(layer, held) : forward_conv(layer, held);
}

// Mirrors LokrModule.merge_in, which does not ask whether there is anything to add.
void merge(Weights& weights, const Adapter& adapter, bool) {
    Run& run = weights.run();
    const Tensor weight = shadow::to_float(adapter.weight->value.detach());
    const Tensor lokr_weight = get_weight(adapter);
    Tensor merged_weight;
    {
        const Tensor scaled = run.empty(adapter.sizes, Dtype::f32, Op::mul);
        merged_weight = run.empty(adapter.sizes, Dtype::f32, Op::add);
    }
    const Tensor cast = shadow::to(merged_weight, weights.rules().dtype);
}

}  // namespace

std::pair<std::int64_t, std::int64_t> factorization(std::int64_t dimension, std::int64_t factor) {
    if (factor > 0 && dimension % factor == 0) return {factor, dimension / factor};
    if (factor == -1) factor = dimension;
    std::int64_t m = 1, n = dimension;
    const std::int64_t length = m + n;
    while (m < n) {
        std::int64_t new_m = m + 1;
        while (dimension % new_m != 0) ++new_m;
        const std::int64_t new_n = dimension / new_m;
        if (new_m + new_n > length || new_m > factor) break;
        m = new_m;
        n = new_n;
    }
    return {std::min(m, n), std::max(m, n)};
}

const AdapterStyle toolkit_lokr{"toolkit_lokr", build, forward, merge};

}  // namespace vram::nn::adapter
