#include "models/z_image_parts.hpp"

#include <algorithm>

#include "models/embeddings.hpp"

namespace vram::models {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Tensor;

namespace {
constexpr std::int64_t frequency_embedding_size = 256;

Tensor timestep_frequencies(const Tensor& t, std::int64_t dim) {
    const AutocastScope off(t.run(), {false, t.run().autocast().dtype});
    Tensor freqs = mul_scalar(arange(t.run(), dim / 2, Dtype::f32));
    freqs = div_scalar(std::move(freqs));
    freqs = exp(std::move(freqs));
    Tensor args = to_float(unsqueeze(t, 1));
    args = mul(std::move(args), unsqueeze(freqs, 0));
    Tensor cosine = cos(args);
    Tensor sine = sin(args);
    return cat({std::move(cosine), std::move(sine)}, -1);
}
}  // namespace

ZImageTimestepEmbedder::ZImageTimestepEmbedder(const nn::Builder& builder, std::int64_t out_size, std::int64_t mid_size)
    : linear_1(builder["mlp"].linear("0", frequency_embedding_size, mid_size)),
      linear_2(builder["mlp"].linear("2", mid_size, out_size)) {}

Tensor ZImageTimestepEmbedder::operator()(Tensor t_in) const {
    const Tensor t = std::move(t_in);
    Tensor t_freq = timestep_frequencies(t, frequency_embedding_size);
    t_freq = to(t_freq, linear_1.bias->value.dtype());
    Tensor t_emb = linear_1(t_freq);
    t_emb = silu(t_emb);
    t_emb = linear_2(t_emb);
    return t_emb;
}

ZImageFinalLayer::ZImageFinalLayer(const nn::Builder& builder, std::int64_t hidden_size, std::int64_t out_channels)
    : norm_final(builder.layer_norm("norm_final", hidden_size, false)),
      linear(builder.linear("linear", hidden_size, out_channels)),
      adaLN_modulation(
          builder["adaLN_modulation"].linear("1", std::min(hidden_size, z_image_adaln_embed_dim), hidden_size)) {}

Tensor ZImageFinalLayer::operator()(Tensor x_in, Tensor c_in) const {
    const Tensor held = std::move(x_in), c = std::move(c_in);
    Tensor scale = adaLN_modulation(silu(c));
    scale = add_scalar(std::move(scale), true);
    scale = unsqueeze(scale, 1);
    Tensor x = mul(norm_final(held), scale);
    x = linear(x);
    return x;
}

Tensor z_image_rotary_emb(const Tensor& x_in, const Tensor& freqs_cis_in) {
    const AutocastScope off(x_in.run(), {false, x_in.run().autocast().dtype});
    Tensor wide = to_float(x_in);
    wide = reshape(std::move(wide), {x_in.size(0), x_in.size(1), x_in.size(2), -1, 2});
    const Tensor x = view_as_complex(std::move(wide));
    const Tensor freqs_cis = unsqueeze(freqs_cis_in, 2);
    const Tensor x_out = flatten(view_as_real(mul(x, freqs_cis)), 3, 4);
    return to(x_out, x_in.dtype());
}

Tensor z_image_coordinate_grid(Run& run, const std::array<std::int64_t, 3>& size) {
    const auto [f, h, w] = size;
    const Tensor frames = arange(run, f, Dtype::i32);
    const Tensor rows = arange(run, h, Dtype::i32);
    const Tensor columns = arange(run, w, Dtype::i32);
    return flatten(stack(meshgrid(frames, rows, columns), -1), 0, 2);
}

}  // namespace vram::models
