#include "models/ltx2_attention.hpp"

#include "models/attention.hpp"

namespace vram::models::ltx2 {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Builder;
using nn::Tensor;

namespace {

// apply_split_rotary_emb: x [B, S, C] with cos, sin [B, H, S, R], written into the halves of the product.
Tensor apply_split_rotary_emb(Tensor x_in, const Tensor& cos, const Tensor& sin) {
    const Tensor held = std::move(x_in);
    const std::int64_t b = cos.size(0), h = cos.size(1), t = cos.size(2), r = cos.size(3);
    const Tensor x = transpose(reshape(held, {b, t, h, -1}), 1, 2);
    const Tensor split_x = to_float(reshape(x, {b, h, t, 2, r}));
    const Tensor first_x = slice(split_x, -2, 0, 1);
    const Tensor second_x = slice(split_x, -2, 1, 2);
    const Tensor cos_u = unsqueeze(cos, -2), sin_u = unsqueeze(sin, -2);
    Tensor product = mul(split_x, cos_u);
    addcmul_into_slice(product, -2, 0, 1, neg(sin_u), second_x);
    addcmul_into_slice(product, -2, 1, 2, sin_u, first_x);
    Tensor out = reshape(product, {b, h, t, 2 * r});
    out = reshape(transpose(out, 1, 2), {b, t, -1});
    return to(out, held.dtype());
}

}  // namespace

LTX2Attention::LTX2Attention(const Builder& builder, const AttentionSizes& sizes, const AttentionStyle& style)
    : heads_(sizes.heads),
      style_(style),
      norm_q(builder.rms_norm("norm_q", sizes.heads * sizes.head_dim)),
      norm_k(builder.rms_norm("norm_k", sizes.heads * sizes.head_dim)),
      to_q(builder.linear("to_q", sizes.query_dim, sizes.heads * sizes.head_dim)),
      to_k(builder.linear("to_k", sizes.context_dim, sizes.heads * sizes.head_dim)),
      to_v(builder.linear("to_v", sizes.context_dim, sizes.heads * sizes.head_dim)),
      to_out(builder["to_out"].linear("0", sizes.heads * sizes.head_dim, sizes.query_dim)) {
    if (sizes.gated) to_gate_logits = builder.linear("to_gate_logits", sizes.query_dim, sizes.heads);
}

Tensor LTX2Attention::operator()(Tensor hidden_states_in, Tensor encoder_hidden_states_in,
                                 const Rotary& query_rotary_emb, const Rotary& key_rotary_emb, const Tensor& mask,
                                 bool all_perturbed) const {
    const Tensor held = std::move(hidden_states_in), held_encoder = std::move(encoder_hidden_states_in);
    Tensor hidden_states = held, gate_logits;
    const Tensor encoder_hidden_states = held_encoder.defined() ? held_encoder : held;
    Tensor attention_mask = mask;
    if (mask.defined()) {  // prepare_attention_mask
        attention_mask = repeat_interleave(attention_mask, heads_, 0);
        attention_mask = view(attention_mask, {held.size(0), heads_, -1, attention_mask.size(-1)});
    }
    if (to_gate_logits) gate_logits = (*to_gate_logits)(hidden_states);

    Tensor query, key, value;
    if (style_.perturbed) value = to_v(encoder_hidden_states);
    if (all_perturbed) {
        hidden_states = value;
    } else {
        query = to_q(hidden_states);
        key = to_k(encoder_hidden_states);
        if (!style_.perturbed) value = to_v(encoder_hidden_states);
        query = norm_q(query);
        key = norm_k(key);
        if (query_rotary_emb.cos.defined()) {
            query = rotate(query, query_rotary_emb);
            key = rotate(key, key_rotary_emb);
        }
        query = unflatten(query, 2, {heads_, -1});
        key = unflatten(key, 2, {heads_, -1});
        value = unflatten(value, 2, {heads_, -1});

        hidden_states = dispatch_attention(query, key, value, attention_mask);
        hidden_states = flatten(hidden_states, 2, 3);
        hidden_states = to(hidden_states, query.dtype());
    }
    Tensor gates;
    if (to_gate_logits) {
        hidden_states = unflatten(hidden_states, 2, {heads_, -1});
        gates = mul_scalar(sigmoid(gate_logits));
        hidden_states = mul(hidden_states, unsqueeze(gates, -1));
        hidden_states = flatten(hidden_states, 2, 3);
    }
    return to_out(hidden_states);
}

Tensor LTX2Attention::rotate(const Tensor& x, const Rotary& freqs) const {
    return style_.split ? apply_split_rotary_emb(x, freqs.cos, freqs.sin)
                        : apply_interleaved_rotary_emb(x, freqs.cos, freqs.sin);
}

}  // namespace vram::models::ltx2
