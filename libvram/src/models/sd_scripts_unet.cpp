#include "models/sd_scripts_unet.hpp"

namespace vram::models::sd_scripts {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Tensor;
using nn::Tensors;

CrossAttention::CrossAttention(const nn::Builder& builder, std::int64_t dim, std::int64_t cross_dim, std::int64_t heads)
    : heads_(heads),
      to_q(builder.linear("to_q", dim, dim, false)),
      to_k(builder.linear("to_k", cross_dim, dim, false)),
      to_v(builder.linear("to_v", cross_dim, dim, false)),
      to_out(builder["to_out"].linear("0", dim, dim)) {}

Tensor CrossAttention::operator()(Tensor x_in, const Tensor& context_in) const {
    const Tensor x = std::move(x_in);
    const auto split_heads = [&](Tensor t) {  // "b n (h d) -> b h n d"
        return transpose(view(std::move(t), {x.size(0), -1, heads_, x.size(2) / heads_}), 1, 2);
    };
    Tensor q = to_q(x);
    const Tensor context = to(context_in.defined() ? context_in : x, x.dtype());
    Tensor k = to_k(context);
    Tensor v = to_v(context);
    q = split_heads(std::move(q));
    k = split_heads(std::move(k));
    v = split_heads(std::move(v));
    Tensor out = scaled_dot_product_attention(q, k, v);
    out = reshape(transpose(std::move(out), 1, 2), {x.size(0), x.size(1), -1});
    return to_out(out);
}

BasicTransformerBlock::BasicTransformerBlock(const nn::Builder& parent, std::int64_t dim, std::int64_t cross_dim,
                                             std::int64_t heads)
    : BasicTransformerBlock(parent.block(*this), dim, cross_dim, heads) {}

BasicTransformerBlock::BasicTransformerBlock(const nn::BlockBuilder& builder, std::int64_t dim, std::int64_t cross_dim,
                                             std::int64_t heads)
    : attn1(builder["attn1"], dim, dim, heads),
      ff(builder["ff"], dim, 4 * dim, FeedForward::Activation::geglu),
      attn2(builder["attn2"], dim, cross_dim, heads),
      norm1(builder.layer_norm("norm1", dim)),
      norm2(builder.layer_norm("norm2", dim)),
      norm3(builder.layer_norm("norm3", dim)) {
    builder.finish(*this, "sd_scripts.BasicTransformerBlock", {heads});
}

Tensors BasicTransformerBlock::forward(const Tensors& args) const {
    Tensor hidden_states = args[0];
    const Tensor& context = args[1];
    // 1. Self-Attention
    Tensor norm_hidden_states = norm1(hidden_states);
    Tensor change = attn1(norm_hidden_states, {});
    hidden_states = add(std::move(change), hidden_states);
    // 2. Cross-Attention
    norm_hidden_states = norm2(hidden_states);
    change = attn2(norm_hidden_states, context);
    hidden_states = add(std::move(change), hidden_states);
    // 3. Feed-forward
    change = ff(norm3(hidden_states));
    hidden_states = add(std::move(change), hidden_states);
    return {hidden_states};
}

Transformer2DModel::Transformer2DModel(const nn::Builder& builder, const Sizes& sizes)
    : use_linear_projection_(sizes.use_linear_projection), norm(builder.group_norm("norm", 32, sizes.channels)) {
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
    const Tensor residual = std::move(hidden_states_in);
    const std::int64_t batch = residual.size(0), channels = residual.size(1), height = residual.size(2),
                       width = residual.size(3);
    // 1. Input
    Tensor hidden_states = norm(residual);
    if (!use_linear_projection_) hidden_states = conv_in(hidden_states);
    hidden_states = reshape(permute(hidden_states, {0, 2, 3, 1}), {batch, height * width, channels});
    if (use_linear_projection_) hidden_states = linear_in(hidden_states);
    // 2. Blocks
    for (const BasicTransformerBlock& block : transformer_blocks)
        hidden_states = call(block, {hidden_states, encoder_hidden_states})[0];
    // 3. Output
    if (use_linear_projection_) hidden_states = linear_out(hidden_states);
    hidden_states = contiguous(permute(reshape(hidden_states, {batch, height, width, channels}), {0, 3, 1, 2}));
    if (!use_linear_projection_) hidden_states = conv_out(hidden_states);
    return add(hidden_states, residual);
}

Tensor upsample(const nn::Conv& conv, Tensor hidden_states_in, const nn::Dims& size) {
    const Tensor held = std::move(hidden_states_in);
    Tensor hidden_states = held;
    const bool narrow = held.dtype() == Dtype::bf16;
    if (narrow) hidden_states = to_float(hidden_states);
    if (hidden_states.size(0) >= 64) hidden_states = contiguous(hidden_states);
    hidden_states = size.rank() == 0 ? upsample_nearest(hidden_states, 2) : upsample_nearest_to(hidden_states, size);
    if (narrow) hidden_states = to(hidden_states, held.dtype());
    return conv(hidden_states);
}

}  // namespace vram::models::sd_scripts
