#include "models/flux_attention.hpp"

#include "models/attention.hpp"
#include "models/normalization.hpp"

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

FluxJointLayers::FluxJointLayers(const nn::Builder& builder, std::int64_t dim, std::int64_t heads,
                                 std::int64_t head_dim)
    : attn(builder["attn"], dim, heads, head_dim, true),
      norm2(builder.layer_norm("norm2", dim, false)),
      ff(builder["ff"], dim, 4 * dim, FeedForward::Activation::gelu),
      norm2_context(builder.layer_norm("norm2_context", dim, false)),
      ff_context(builder["ff_context"], dim, 4 * dim, FeedForward::Activation::gelu) {}

Tensors FluxJointLayers::operator()(Tensor hidden_states, Tensor encoder_hidden_states, Tensors modulated,
                                    Tensors modulated_context, const Tensor& cos, const Tensor& sin) const {
    Tensor norm_hidden_states = modulated[0];
    const Tensor gate_msa = modulated[1], shift_mlp = modulated[2], scale_mlp = modulated[3], gate_mlp = modulated[4];
    modulated.clear();
    Tensor norm_encoder_hidden_states = modulated_context[0];
    const Tensor c_gate_msa = modulated_context[1], c_shift_mlp = modulated_context[2],
                 c_scale_mlp = modulated_context[3], c_gate_mlp = modulated_context[4];
    modulated_context.clear();

    // Attention.
    const Tensors attention_outputs = attn(norm_hidden_states, norm_encoder_hidden_states, cos, sin);
    Tensor attn_output = attention_outputs[0], context_attn_output = attention_outputs[1];

    // Process attention outputs for the `hidden_states`.
    attn_output = mul(unsqueeze(gate_msa, 1), attn_output);
    hidden_states = add(hidden_states, attn_output);
    norm_hidden_states = norm2(hidden_states);
    norm_hidden_states = scale_and_shift(norm_hidden_states, scale_mlp, shift_mlp);
    Tensor ff_output = ff(norm_hidden_states);
    ff_output = mul(unsqueeze(gate_mlp, 1), ff_output);
    hidden_states = add(hidden_states, ff_output);

    // Process attention outputs for the `encoder_hidden_states`.
    context_attn_output = mul(unsqueeze(c_gate_msa, 1), context_attn_output);
    encoder_hidden_states = add(encoder_hidden_states, context_attn_output);
    norm_encoder_hidden_states = norm2_context(encoder_hidden_states);
    norm_encoder_hidden_states = scale_and_shift(norm_encoder_hidden_states, c_scale_mlp, c_shift_mlp);
    const Tensor context_ff_output = ff_context(norm_encoder_hidden_states);
    encoder_hidden_states = add(encoder_hidden_states, mul(unsqueeze(c_gate_mlp, 1), context_ff_output));
    if (encoder_hidden_states.dtype() == Dtype::f16) encoder_hidden_states = clamp(encoder_hidden_states);
    return {encoder_hidden_states, hidden_states};
}

}  // namespace vram::models
