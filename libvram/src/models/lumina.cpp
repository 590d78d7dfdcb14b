#include "models/lumina.hpp"

namespace vram::models {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Tensor;

Tensor apply_complex_rotary_emb(const Tensor& x, const Tensor& freqs_cis_in) {
    Tensor pairs = to_float(x);
    pairs = reshape(std::move(pairs), {x.size(0), x.size(1), x.size(2), x.size(3) / 2, 2});
    const Tensor x_rotated = view_as_complex(std::move(pairs));
    const Tensor freqs_cis = unsqueeze(freqs_cis_in, 2);
    const Tensor x_out = flatten(view_as_real(mul(x_rotated, freqs_cis)), 3, 4);
    return to(x_out, x.dtype());
}

LuminaLayerNormContinuous::LuminaLayerNormContinuous(const nn::Builder& builder, std::int64_t size,
                                                     std::int64_t conditioning, std::int64_t out_size)
    : linear_1(builder.linear("linear_1", conditioning, size)),
      linear_2(builder.linear("linear_2", size, out_size)),
      norm(builder.layer_norm("norm", size, false)) {}

Tensor LuminaLayerNormContinuous::operator()(Tensor x_in, Tensor conditioning_in) const {
    const Tensor held = std::move(x_in), conditioning_embedding = std::move(conditioning_in);
    Tensor emb = to(silu(conditioning_embedding), held.dtype());
    emb = linear_1(std::move(emb));
    Tensor x = norm(held);
    x = mul(std::move(x), unsqueeze(add_scalar(emb), 1));
    x = linear_2(x);
    return x;
}

}  // namespace vram::models
