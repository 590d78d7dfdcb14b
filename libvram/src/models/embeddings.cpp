#include "models/embeddings.hpp"

#include <array>
#include <utility>

namespace vram::models {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Tensor;
using nn::Tensors;

Tensor timestep_embedding(Tensor timesteps_in, std::int64_t size, bool flip_sin_to_cos) {
    const Tensor timesteps = std::move(timesteps_in);
    Run& run = timesteps.run();
    const std::int64_t half = size / 2;
    Tensor exponent = mul_scalar(arange(run, half, Dtype::f32));
    exponent = div_scalar(std::move(exponent));
    Tensor emb = exp(exponent);
    Tensor wide = to_float(unsqueeze(timesteps, 1));
    emb = mul(std::move(wide), unsqueeze(emb, 0));
    emb = mul_scalar(emb);
    {
        Tensor sine = sin(emb);
        Tensor cosine = cos(emb);
        emb = cat({std::move(sine), std::move(cosine)}, -1);
    }
    if (flip_sin_to_cos) emb = cat({slice(emb, 1, half, size), slice(emb, 1, 0, half)}, -1);
    if (size % 2 == 1) emb = pad(emb, {0, 1});
    return emb;
}

Tensors rotary_pos_embed_1d(Tensor positions_in, std::int64_t size, Dtype freqs_dtype) {
    const Tensor positions = std::move(positions_in);
    Run& run = positions.run();
    Tensor freqs = div_scalar(arange(run, size / 2, freqs_dtype));
    freqs = scalar_pow(std::move(freqs));
    freqs = div_scalar(rdiv_scalar(std::move(freqs)));
    freqs = outer(positions, std::move(freqs));
    Tensor freqs_cos = repeat_interleave(cos(freqs), 2, 1);
    freqs_cos = to_float(std::move(freqs_cos));
    Tensor freqs_sin = repeat_interleave(sin(freqs), 2, 1);
    freqs_sin = to_float(std::move(freqs_sin));
    return {freqs_cos, freqs_sin};
}

Tensor apply_rotary_emb(Tensor x_in, const Tensor& cos_in, const Tensor& sin_in, int sequence_dim) {
    const Tensor x = std::move(x_in);
    const Tensor cos = sequence_dim == 2 ? unsqueeze(unsqueeze(cos_in, 0), 0) : unsqueeze(unsqueeze(cos_in, 0), 2);
    const Tensor sin = sequence_dim == 2 ? unsqueeze(unsqueeze(sin_in, 0), 0) : unsqueeze(unsqueeze(sin_in, 0), 2);
    Tensor x_rotated;
    const Tensors halves = unbind(reshape(x, {x.size(0), x.size(1), x.size(2), -1, 2}), -1);  // [B, S, H, D/2] each
    {
        const std::array<Tensor, 2> turned{neg(halves[1]), halves[0]};
        x_rotated = flatten(stack(turned, -1), 3, 4);
    }
    Tensor a = mul(to_float(x), cos);
    Tensor b = mul(to_float(x_rotated), sin);
    Tensor out = add(std::move(a), std::move(b));
    out = to(std::move(out), x.dtype());
    return out;
}

Tensors flux_pos_embed(Tensor ids_in, std::span<const std::int64_t> axes_dims) {
    const Tensor ids = std::move(ids_in);
    const Tensor pos = to_float(ids);
    Tensors cos_out, sin_out, pair;
    for (std::size_t i = 0; i < axes_dims.size(); ++i) {
        pair = rotary_pos_embed_1d(select(pos, 1, static_cast<std::int64_t>(i)), axes_dims[i], Dtype::f64);
        cos_out.push_back(pair[0]);
        sin_out.push_back(pair[1]);
    }
    Tensor freqs_cos = cat(cos_out, -1);
    Tensor freqs_sin = cat(sin_out, -1);
    return {freqs_cos, freqs_sin};
}

Tensors meshgrid(const Tensor& f, const Tensor& h, const Tensor& w) {
    const Dims whole{f.size(0), h.size(0), w.size(0)};
    return {expand(view(f, {-1, 1, 1}), whole), expand(view(h, {1, -1, 1}), whole), expand(view(w, {1, 1, -1}), whole)};
}

Tensor apply_interleaved_rotary_emb(Tensor x_in, const Tensor& cos, const Tensor& sin) {
    const Tensor x = std::move(x_in);
    const Tensors halves = unbind(unflatten(x, 2, {-1, 2}), -1);  // x_real, x_imag: [B, S, C / 2]
    Tensor x_rotated;
    {
        const std::array<Tensor, 2> turned{neg(halves[1]), halves[0]};
        x_rotated = flatten(stack(turned, -1), 2, 3);
    }
    Tensor a = mul(to_float(x), cos);
    Tensor b = mul(to_float(x_rotated), sin);
    Tensor out = add(std::move(a), std::move(b));
    out = to(std::move(out), x.dtype());
    return out;
}

TimestepEmbedding::TimestepEmbedding(const nn::Builder& builder, std::int64_t in, std::int64_t size, bool bias)
    : linear_1(builder.linear("linear_1", in, size, bias)), linear_2(builder.linear("linear_2", size, size, bias)) {}

Tensor TimestepEmbedding::operator()(Tensor sample_in) const {
    const Tensor held = std::move(sample_in);
    Tensor sample = linear_1(held);
    sample = silu(sample);
    sample = linear_2(sample);
    return sample;
}

CombinedTimestepEmbeddings::CombinedTimestepEmbeddings(const nn::Builder& builder, std::int64_t size)
    : timestep_embedder(builder["timestep_embedder"], 256, size) {}

Tensor CombinedTimestepEmbeddings::operator()(Tensor timestep_in, Dtype hidden_dtype) const {
    const Tensor timestep = std::move(timestep_in);
    const Tensor timesteps_proj = timestep_embedding(timestep, 256, true);
    return timestep_embedder(to(timesteps_proj, hidden_dtype));
}

TextProjection::TextProjection(const nn::Builder& builder, std::int64_t in, std::int64_t size, Activation activation)
    : linear_1(builder.linear("linear_1", in, size)),
      linear_2(builder.linear("linear_2", size, size)),
      activation_(activation) {}

Tensor TextProjection::operator()(Tensor caption) const {
    const Tensor held = std::move(caption);
    Tensor hidden_states = linear_1(held);
    hidden_states = activation_ == Activation::silu ? silu(hidden_states) : gelu(hidden_states);
    hidden_states = linear_2(hidden_states);
    return hidden_states;
}

namespace {
// Half of what the first linear gives is the other half's gate.
bool gated(FeedForward::Activation activation) {
    return activation == FeedForward::Activation::geglu || activation == FeedForward::Activation::swiglu;
}
}  // namespace

FeedForward::FeedForward(const nn::Builder& builder, std::int64_t size, std::int64_t inner, Activation activation,
                         std::int64_t out_size, bool bias)
    : proj(builder["net"]["0"].linear("proj", size, gated(activation) ? 2 * inner : inner, bias)),
      out(builder["net"].linear("2", inner, out_size == 0 ? size : out_size, bias)),
      activation_(activation) {}

Tensor FeedForward::operator()(Tensor hidden_states_in) const {
    Tensor hidden_states = std::move(hidden_states_in);
    const Tensor held = hidden_states;
    if (!gated(activation_)) {
        Tensor inner = proj(hidden_states);
        inner = activation_ == Activation::gelu ? gelu(inner) : silu(inner);
        hidden_states = std::move(inner);
    } else {
        Tensor gate;
        Tensor inner = proj(hidden_states);
        Tensors halves = chunk(std::move(inner), 2, -1);
        inner = halves[0];
        gate = halves[1];
        halves.clear();
        hidden_states = mul(inner, activation_ == Activation::geglu ? gelu(gate) : silu(gate));
    }
    return out(hidden_states);
}

}  // namespace vram::models
