#include "models/transformer_2d.hpp"

namespace vram::models {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Tensor;
using nn::Tensors;

Attention::Attention(const nn::Builder& builder, std::int64_t dim, std::int64_t cross_dim, std::int64_t heads,
                     bool bias)
    : heads_(heads),
      to_q(builder.linear("to_q", dim, dim, bias)),
      to_k(builder.linear("to_k", cross_dim, dim, bias)),
      to_v(builder.linear("to_v", cross_dim, dim, bias)),
      to_out(builder["to_out"].linear("0", dim, dim)) {}

Tensor Attention::operator()(Tensor hidden_states_in, Tensor encoder_hidden_states_in,
                             const Tensor& attention_mask_in) const {
    const Tensor held = std::move(hidden_states_in);
    Tensor hidden_states = held, encoder_hidden_states = std::move(encoder_hidden_states_in);
    const std::int64_t batch = hidden_states.size(0), inner = hidden_states.size(2);
    const Dims heads{batch, -1, heads_, inner / heads_};
    Tensor attention_mask = attention_mask_in;
    if (attention_mask.defined()) {  // prepare_attention_mask: one a head
        attention_mask = repeat_interleave(attention_mask, heads_, 0);
        attention_mask = view(attention_mask, {batch, heads_, -1, attention_mask.size(-1)});
    }
    Tensor query = to_q(hidden_states);
    if (!encoder_hidden_states.defined()) encoder_hidden_states = hidden_states;
    Tensor key = to_k(encoder_hidden_states);
    Tensor value = to_v(encoder_hidden_states);
    query = transpose(view(query, heads), 1, 2);  // [B, H, T, D/H]
    key = transpose(view(key, heads), 1, 2);
    value = transpose(view(value, heads), 1, 2);
    hidden_states = scaled_dot_product_attention(query, key, value, attention_mask);
    hidden_states = reshape(transpose(hidden_states, 1, 2), {batch, -1, inner});
    hidden_states = to(hidden_states, query.dtype());
    hidden_states = to_out(hidden_states);
    hidden_states = div_scalar(hidden_states);  // by rescale_output_factor, which is 1
    return hidden_states;
}

BasicTransformerBlock::BasicTransformerBlock(const nn::Builder& parent, std::int64_t dim, std::int64_t cross_dim,
                                             std::int64_t heads)
    : BasicTransformerBlock(parent.block(*this), dim, cross_dim, heads) {}

BasicTransformerBlock::BasicTransformerBlock(const nn::BlockBuilder& builder, std::int64_t dim, std::int64_t cross_dim,
                                             std::int64_t heads)
    : norm1(builder.layer_norm("norm1", dim)),
      attn1(builder["attn1"], dim, dim, heads),
      norm2(builder.layer_norm("norm2", dim)),
      attn2(builder["attn2"], dim, cross_dim, heads),
      norm3(builder.layer_norm("norm3", dim)),
      ff(builder["ff"], dim, 4 * dim, FeedForward::Activation::geglu) {
    builder.finish(*this, "BasicTransformerBlock", {heads});
}

Tensors BasicTransformerBlock::forward(const Tensors& args) const {
    Tensor hidden_states = args[0];
    const Tensor& encoder_hidden_states = args[1];
    // Self-Attention
    Tensor norm_hidden_states = norm1(hidden_states);
    Tensor attn_output = attn1(norm_hidden_states, {});
    hidden_states = add(attn_output, hidden_states);
    // Cross-Attention
    norm_hidden_states = norm2(hidden_states);
    attn_output = attn2(norm_hidden_states, encoder_hidden_states);
    hidden_states = add(attn_output, hidden_states);
    // Feed-forward
    norm_hidden_states = norm3(hidden_states);
    const Tensor ff_output = ff(norm_hidden_states);
    hidden_states = add(ff_output, hidden_states);
    return {hidden_states};
}

Transformer2DModel::Transformer2DModel(const nn::Builder& builder, const Sizes& sizes, std::int64_t groups)
    : use_linear_projection_(sizes.use_linear_projection), norm(builder.group_norm("norm", groups, sizes.channels)) {
    const std::int64_t channels = sizes.channels;
    if (use_linear_projection_) {
        linear_in = builder.linear("proj_in", channels, channels);
    } else {
        conv_in = builder.conv2d("proj_in", channels, channels, 1);
    }
    for (std::int64_t i = 0; i < sizes.layers; ++i)
        transformer_blocks.emplace_back(builder["transformer_blocks"][i], channels, sizes.cross_dim, sizes.heads);
    if (use_linear_projection_) {
        linear_out = builder.linear("proj_out", channels, channels);
    } else {
        conv_out = builder.conv2d("proj_out", channels, channels, 1);
    }
}

Tensor Transformer2DModel::operator()(const nn::Caller& call, Tensor hidden_states_in,
                                      const Tensor& encoder_hidden_states) const {
    Tensor hidden_states = std::move(hidden_states_in);
    const std::int64_t batch = hidden_states.size(0), channels = hidden_states.size(1), height = hidden_states.size(2),
                       width = hidden_states.size(3);
    const Tensor residual = hidden_states;
    const Dims rows{batch, height * width, channels}, picture{batch, height, width, channels};

    // _operate_on_continuous_inputs
    {
        Tensor inner = norm(residual);
        if (!use_linear_projection_) inner = conv_in(inner);
        inner = reshape(permute(inner, {0, 2, 3, 1}), rows);
        if (use_linear_projection_) inner = linear_in(inner);
        hidden_states = std::move(inner);
    }
    for (const BasicTransformerBlock& block : transformer_blocks)
        hidden_states = call(block, {hidden_states, encoder_hidden_states})[0];

    // _get_output_for_continuous_inputs; the caller holds hidden_states meanwhile
    Tensor inner = hidden_states;
    if (use_linear_projection_) inner = linear_out(inner);
    inner = contiguous(permute(reshape(inner, picture), {0, 3, 1, 2}));
    if (!use_linear_projection_) inner = conv_out(inner);
    return add(inner, residual);
}

}  // namespace vram::models
