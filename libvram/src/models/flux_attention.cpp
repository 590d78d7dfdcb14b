#include "models/flux_attention.hpp"

#include "models/attention.hpp"
#include "models/embeddings.hpp"

namespace vram::models {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Tensor;
using nn::Tensors;

FluxAttention::FluxAttention(const nn::Builder& builder, std::int64_t dim, std::int64_t heads, std::int64_t head_dim,
                             bool joint)
    : head_dim_(head_dim),
      joint_(joint),
      norm_q(builder.rms_norm("norm_q", head_dim)),
      norm_k(builder.rms_norm("norm_k", head_dim)) {
    const std::int64_t inner = heads * head_dim;
    to_q = builder.linear("to_q", dim, inner);
    to_k = builder.linear("to_k", dim, inner);
    to_v = builder.linear("to_v", dim, inner);
    if (!joint) return;  // pre_only: the block projects the output itself
    to_out = builder["to_out"].linear("0", inner, dim);
    norm_added_q = builder.rms_norm("norm_added_q", head_dim);
    norm_added_k = builder.rms_norm("norm_added_k", head_dim);
    add_q_proj = builder.linear("add_q_proj", dim, inner);
    add_k_proj = builder.linear("add_k_proj", dim, inner);
    add_v_proj = builder.linear("add_v_proj", dim, inner);
    to_add_out = builder.linear("to_add_out", inner, dim);
}

Tensors FluxAttention::operator()(Tensor hidden_states_in, Tensor encoder_hidden_states_in, const Tensor& cos,
                                  const Tensor& sin) const {
    const Tensor held = std::move(hidden_states_in), held_encoder = std::move(encoder_hidden_states_in);
    Tensor query = to_q(held);
    Tensor key = to_k(held);
    Tensor value = to_v(held);
    Tensor encoder_query, encoder_key, encoder_value;
    if (joint_) {
        encoder_query = add_q_proj(held_encoder);
        encoder_key = add_k_proj(held_encoder);
        encoder_value = add_v_proj(held_encoder);
    }
    query = unflatten(query, -1, {-1, head_dim_});
    key = unflatten(key, -1, {-1, head_dim_});
    value = unflatten(value, -1, {-1, head_dim_});
    query = norm_q(query);
    key = norm_k(key);
    if (joint_) {
        encoder_query = unflatten(encoder_query, -1, {-1, head_dim_});
        encoder_key = unflatten(encoder_key, -1, {-1, head_dim_});
        encoder_value = unflatten(encoder_value, -1, {-1, head_dim_});
        encoder_query = norm_added_q(encoder_query);
        encoder_key = norm_added_k(encoder_key);
        query = cat({encoder_query, query}, 1);
        key = cat({encoder_key, key}, 1);
        value = cat({encoder_value, value}, 1);
    }
    query = apply_rotary_emb(query, cos, sin, 1);
    key = apply_rotary_emb(key, cos, sin, 1);

    Tensor hidden_states = dispatch_attention(query, key, value);
    hidden_states = flatten(std::move(hidden_states), 2, 3);
    hidden_states = to(std::move(hidden_states), query.dtype());
    if (!joint_) return {hidden_states};

    const std::int64_t text = held_encoder.size(1);
    const Tensors parts = split(hidden_states, Dims{text, hidden_states.size(1) - text}, 1);
    Tensor encoder_hidden_states = parts[0];
    hidden_states = to_out(contiguous(parts[1]));
    encoder_hidden_states = to_add_out(contiguous(encoder_hidden_states));
    return {hidden_states, encoder_hidden_states};
}

}  // namespace vram::models
