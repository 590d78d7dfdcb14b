#include "models/lumina.hpp"

namespace vram::models {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Tensor;
using nn::Tensors;

Tensor apply_complex_rotary_emb(const Tensor& x, const Tensor& freqs_cis_in) {
    Tensor pairs = to_float(x);
    pairs = reshape(std::move(pairs), {x.size(0), x.size(1), x.size(2), x.size(3) / 2, 2});
    const Tensor x_rotated = view_as_complex(std::move(pairs));
    const Tensor freqs_cis = unsqueeze(freqs_cis_in, 2);
    const Tensor x_out = flatten(view_as_real(mul(x_rotated, freqs_cis)), 3, 4);
    return to(x_out, x.dtype());
}

LuminaAttention::LuminaAttention(const nn::Builder& builder, const LuminaSizes& sizes)
    : heads_(sizes.heads),
      kv_heads_(sizes.kv_heads),
      head_dim_(sizes.dim / sizes.heads),
      norm_q(builder["norm_q"], head_dim_),
      norm_k(builder["norm_k"], head_dim_),
      to_q(builder.linear("to_q", sizes.dim, sizes.dim, false)),
      to_k(builder.linear("to_k", sizes.dim, kv_heads_ * head_dim_, false)),
      to_v(builder.linear("to_v", sizes.dim, kv_heads_ * head_dim_, false)),
      to_out(builder["to_out"].linear("0", sizes.dim, sizes.dim, false)) {}

Tensors LuminaAttention::rotated(const Tensor& hidden_states, const Tensor& image_rotary_emb) const {
    const std::int64_t batch_size = hidden_states.size(0);
    Tensor query = to_q(hidden_states);
    Tensor key = to_k(hidden_states);
    Tensor value = to_v(hidden_states);
    const Dtype dtype = query.dtype();
    query = view(query, {batch_size, -1, heads_, head_dim_});
    key = view(key, {batch_size, -1, kv_heads_, head_dim_});
    value = view(value, {batch_size, -1, kv_heads_, head_dim_});

    // Apply Query-Key normalization
    query = norm_q(query);
    key = norm_k(key);

    // Apply Rotary Position Embeddings
    query = apply_complex_rotary_emb(query, image_rotary_emb);
    key = apply_complex_rotary_emb(key, image_rotary_emb);
    query = to(query, dtype);
    key = to(key, dtype);
    return {query, key, value};
}

Tensor LuminaAttention::attended(const Tensor& query, const Tensor& key, const Tensor& value,
                                 const Tensor& attention_mask) const {
    Tensor hidden_states = scaled_dot_product_attention(query, key, value, attention_mask);
    hidden_states = reshape(transpose(hidden_states, 1, 2), {query.size(0), -1, heads_ * head_dim_});
    hidden_states = to(hidden_states, query.dtype());
    hidden_states = to_out(hidden_states);
    return hidden_states;
}

LuminaFeedForward::LuminaFeedForward(const nn::Builder& builder, const LuminaSizes& sizes)
    : linear_1(builder.linear("linear_1", sizes.dim, sizes.inner_dim, false)),
      linear_2(builder.linear("linear_2", sizes.inner_dim, sizes.dim, false)),
      linear_3(builder.linear("linear_3", sizes.dim, sizes.inner_dim, false)) {}

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
