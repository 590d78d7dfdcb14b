#include "models/sd_scripts_unet.hpp"

#include "models/sd_scripts_attention.hpp"

namespace vram::models::sd_scripts {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Tensor;
using nn::Tensors;

CrossAttention::CrossAttention(const nn::Builder& builder, std::int64_t dim, std::int64_t cross_dim, Heads heads)
    : heads_(heads),
      to_q(builder.linear("to_q", dim, dim, false)),
      to_k(builder.linear("to_k", cross_dim, dim, false)),
      to_v(builder.linear("to_v", cross_dim, dim, false)),
      to_out(builder["to_out"].linear("0", dim, dim)) {}

Attention attention_named(std::string_view word) {
    return word == "mem_eff_attn" ? Attention::mem_eff : word == "plain" ? Attention::plain : Attention::sdpa;
}

Tensor CrossAttention::split(Tensor t) const {
    const Dims sizes{t.size(0), t.size(1), heads_.count, t.size(2) / heads_.count};
    return transpose(view(std::move(t), sizes), 1, 2);
}

Tensor CrossAttention::to_batch(Tensor t) const {
    const Dims rows{t.size(0) * heads_.count, t.size(1), t.size(2) / heads_.count};
    return reshape(split(std::move(t)), rows);
}

Tensor CrossAttention::operator()(Tensor x_in, const Tensor& context_in) const {
    const Tensor x = std::move(x_in);
    Tensor q = to_q(x);
    const Tensor context = to(context_in.defined() ? context_in : x, x.dtype());
    Tensor k = to_k(context);
    Tensor v = to_v(context);
    if (heads_.attention == Attention::plain) {
        q = to_batch(q);
        k = to_batch(k);
        v = to_batch(v);
        const Tensor hidden_states = plain_attention(q, k, v, heads_.count);
        return to_out(hidden_states);
    }
    q = split(std::move(q));
    k = split(std::move(k));
    v = split(std::move(v));
    Tensor out =
        heads_.attention == Attention::mem_eff ? mem_eff_attention(q, k, v) : scaled_dot_product_attention(q, k, v);
    out = reshape(transpose(std::move(out), 1, 2), {x.size(0), x.size(1), -1});
    return to_out(out);
}

TransformerLayer::TransformerLayer(const nn::Builder& builder, std::int64_t dim, std::int64_t cross_dim, Heads heads)
    : attn1(builder["attn1"], dim, dim, heads),
      ff(builder["ff"], dim, 4 * dim, FeedForward::Activation::geglu),
      attn2(builder["attn2"], dim, cross_dim, heads),
      norm1(builder.layer_norm("norm1", dim)),
      norm2(builder.layer_norm("norm2", dim)),
      norm3(builder.layer_norm("norm3", dim)) {}

Tensor TransformerLayer::operator()(const Tensor& hidden_states_in, const Tensor& context) const {
    Tensor hidden_states = hidden_states_in;
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
    return add(std::move(change), hidden_states);
}

BasicTransformerBlock::BasicTransformerBlock(const nn::Builder& parent, std::int64_t dim, std::int64_t cross_dim,
                                             Heads heads)
    : BasicTransformerBlock(parent.block(*this), dim, cross_dim, heads) {}

BasicTransformerBlock::BasicTransformerBlock(const nn::BlockBuilder& builder, std::int64_t dim, std::int64_t cross_dim,
                                             Heads heads)
    : layer(builder, dim, cross_dim, heads) {
    builder.finish(*this, "sd_scripts.BasicTransformerBlock",
                   {heads.count, static_cast<std::int64_t>(heads.attention)});
}

Tensors BasicTransformerBlock::forward(const Tensors& args) const { return {layer(args[0], args[1])}; }

Rows::Rows(const nn::Builder& builder, std::int64_t channels, bool use_linear_projection)
    : use_linear_projection_(use_linear_projection), norm(builder.group_norm("norm", 32, channels)) {
    if (use_linear_projection_) {
        linear_in = builder.linear("proj_in", channels, channels);
    } else {
        conv_in = builder.conv2d("proj_in", channels, channels, 1);
    }
}

void Rows::build_out(const nn::Builder& builder, std::int64_t channels) {
    if (use_linear_projection_) {
        linear_out = builder.linear("proj_out", channels, channels);
    } else {
        conv_out = builder.conv2d("proj_out", channels, channels, 1);
    }
}

Tensor Rows::in(const Tensor& residual) const {
    Tensor hidden_states = norm(residual);
    if (!use_linear_projection_) hidden_states = conv_in(hidden_states);
    hidden_states = reshape(permute(hidden_states, {0, 2, 3, 1}),
                            {residual.size(0), residual.size(2) * residual.size(3), residual.size(1)});
    if (use_linear_projection_) hidden_states = linear_in(hidden_states);
    return hidden_states;
}

Tensor Rows::out(Tensor hidden_states_in, const Tensor& residual) const {
    Tensor hidden_states = std::move(hidden_states_in);
    if (use_linear_projection_) hidden_states = linear_out(hidden_states);
    const Dims picture{residual.size(0), residual.size(2), residual.size(3), residual.size(1)};
    hidden_states = contiguous(permute(reshape(hidden_states, picture), {0, 3, 1, 2}));
    if (!use_linear_projection_) hidden_states = conv_out(hidden_states);
    return add(hidden_states, residual);
}

Transformer2DModel::Transformer2DModel(const nn::Builder& builder, const Sizes& sizes)
    : rows(builder, sizes.channels, sizes.use_linear_projection) {
    for (std::int64_t i = 0; i < sizes.layers; ++i)
        transformer_blocks.emplace_back(builder["transformer_blocks"][i], sizes.channels, sizes.cross_dim, sizes.how());
    rows.build_out(builder, sizes.channels);
}

Tensor Transformer2DModel::operator()(const nn::Caller& call, Tensor hidden_states_in,
                                      const Tensor& encoder_hidden_states) const {
    const Tensor residual = std::move(hidden_states_in);
    Tensor hidden_states = rows.in(residual);
    for (const BasicTransformerBlock& block : transformer_blocks)
        hidden_states = call(block, {hidden_states, encoder_hidden_states})[0];
    return rows.out(std::move(hidden_states), residual);
}

Transformer2DBlock::Transformer2DBlock(const nn::Builder& parent, const Transformer2DModel::Sizes& sizes)
    : Transformer2DBlock(parent.block(*this), sizes) {}

Transformer2DBlock::Transformer2DBlock(const nn::BlockBuilder& builder, const Transformer2DModel::Sizes& sizes)
    : rows(builder, sizes.channels, sizes.use_linear_projection) {
    for (std::int64_t i = 0; i < sizes.layers; ++i)
        layers.emplace_back(builder["transformer_blocks"][i], sizes.channels, sizes.cross_dim, sizes.how());
    rows.build_out(builder, sizes.channels);
    builder.finish(*this, "sd_scripts.Transformer2DModel",
                   {sizes.heads, sizes.use_linear_projection, static_cast<std::int64_t>(sizes.attention)});
}

Tensors Transformer2DBlock::forward(const Tensors& args) const {
    const Tensor& residual = args[0];
    Tensor hidden_states = rows.in(residual);
    for (const TransformerLayer& layer : layers) hidden_states = layer(hidden_states, args[1]);
    return {rows.out(std::move(hidden_states), residual)};
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
