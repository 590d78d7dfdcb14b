#include "models/bfl_attention.hpp"

#include <array>

namespace vram::models {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Tensor;
using nn::Tensors;

namespace {

Tensors apply_rope(const Tensor& xq, const Tensor& xk, const Tensor& freqs_cis) {
    const Tensor xq_ = bfl_pairs(xq);
    const Tensor xk_ = bfl_pairs(xk);
    const Tensor xq_out = bfl_turned(xq_, freqs_cis);
    const Tensor xk_out = bfl_turned(xk_, freqs_cis);
    Tensor q = reshape(xq_out, xq.sizes());
    q = to(std::move(q), xq.dtype());
    Tensor k = reshape(xk_out, xk.sizes());
    k = to(std::move(k), xk.dtype());
    return {q, k};
}

// rope: pos [B, L] → [B, L, dim / 2, 2, 2] fp32
Tensor rope(const Tensor& pos, std::int64_t dim, Dtype counted) {
    const Tensor scale = div_scalar(arange(pos.run(), dim / 2, counted));
    const Tensor omega = rdiv_scalar(scalar_pow(scale));
    Tensor out;
    {
        const Tensor lowered = autocast_lower(pos);  // einsum "...n,d->...nd", of which autocast takes the fp32 part
        out = mul(unsqueeze(lowered, 2), omega);
    }
    {
        Tensor cosine = cos(out);
        Tensor negative = neg(sin(out));
        Tensor sine = sin(out);
        Tensor last = cos(out);
        const std::array<Tensor, 4> parts{std::move(cosine), std::move(negative), std::move(sine), std::move(last)};
        out = stack(parts, -1);
    }
    return to_float(view(out, {pos.size(0), pos.size(1), dim / 2, 2, 2}));
}

}  // namespace

Tensor bfl_pairs(const Tensor& x) {
    Tensor wide = to_float(x);
    return reshape(std::move(wide), {x.size(0), x.size(1), x.size(2), -1, 1, 2});
}

Tensor bfl_turned(const Tensor& x_, const Tensor& freqs_cis) {
    const auto part = [&](std::int64_t i) {
        Tensor freqs = select(freqs_cis, -1, i);
        Tensor x = select(x_, -1, i);
        return mul(std::move(freqs), std::move(x));
    };
    Tensor first = part(0);
    Tensor second = part(1);
    return add(std::move(first), std::move(second));
}

Tensor modulated_norm(const nn::LayerNorm& norm, const Tensor& x, const Tensor& scale, const Tensor& shift) {
    Tensor product = add_scalar(scale);
    {
        Tensor normed = norm(x);
        product = mul(std::move(product), std::move(normed));
    }
    return add(std::move(product), shift);
}

Mlp::Mlp(const nn::Builder& builder, const Names& names, const Sizes& sizes, bool bias, Activation activation)
    : in_(builder.linear(names.in, sizes.in, sizes.wide, bias)),
      out_(builder.linear(names.out, sizes.inner, sizes.out, bias)),
      activation_(activation) {}

Tensor Mlp::operator()(Tensor x_in) const {
    const Tensor held = std::move(x_in);
    Tensor x = in_(held);
    x = activation_(x);
    return out_(x);
}

Tensor plain_rms(Tensor x_in) {
    const Tensor x = std::move(x_in);
    Tensor scale = mean(pow_scalar(x), -1, true);
    scale = add_scalar(std::move(scale));
    scale = rsqrt(std::move(scale));
    return mul(x, std::move(scale));
}

Tensor Fp32RmsNorm::operator()(Tensor x_in) const {
    const Tensor x = std::move(x_in);
    Tensor normed = plain_rms(to_float(x));
    normed = to(std::move(normed), x.dtype());
    return mul(std::move(normed), to(weight->value, x.dtype()));
}

Tensors heads_of(const Tensor& qkv, std::int64_t heads) {
    Tensor parts = view(qkv, {qkv.size(0), qkv.size(1), 3, heads, -1});
    parts = permute(std::move(parts), {2, 0, 3, 1, 4});
    return unbind(std::move(parts), 0);
}

Tensor bfl_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& pe, const Tensor& mask) {
    const Tensors roped = apply_rope(q, k, pe);
    Tensor x = scaled_dot_product_attention(roped[0], roped[1], v, mask);
    x = transpose(std::move(x), 1, 2);
    return reshape(std::move(x), {x.size(0), x.size(1), -1});
}

Tensor bfl_waves(const Tensor& t, const Tensor& freqs, Dtype dtype) {
    Tensor args = to_float(unsqueeze(t, 1));
    args = mul(std::move(args), unsqueeze(freqs, 0));
    Tensor embedding;
    {
        Tensor cosine = cos(args);
        Tensor sine = sin(args);
        embedding = cat({std::move(cosine), std::move(sine)}, -1);
    }
    return to(std::move(embedding), dtype);
}

Tensor bfl_timestep_embedding(const Tensor& t, std::int64_t dim, Dtype dtype) {
    Run& run = t.run();
    const Tensor freqs = to_cuda(run, run.on_cpu({dim / 2}, Dtype::f32));
    return bfl_waves(t, freqs, dtype);
}

Tensor embed_nd(const Tensor& ids, std::span<const std::int64_t> axes_dim, Dtype counted) {
    Tensors axes;
    for (std::size_t i = 0; i < axes_dim.size(); ++i)
        axes.push_back(rope(select(ids, -1, static_cast<std::int64_t>(i)), axes_dim[i], counted));
    const Tensor emb = cat(axes, -3);
    return unsqueeze(emb, 1);
}

}  // namespace vram::models
