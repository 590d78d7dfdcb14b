#include "models/bfl_autoencoder.hpp"

#include <string>
#include <utility>

namespace vram::models::bfl_autoencoder {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Tensor;
using nn::Tensors;

Tensor swish(const Tensor& x) {
    Tensor gate = sigmoid(x);
    return mul(x, std::move(gate));
}

ResnetBlock::ResnetBlock(const nn::Builder& parent, std::string_view tree, std::int64_t in, std::int64_t out)
    : ResnetBlock(parent.block(*this), tree, in, out) {}

ResnetBlock::ResnetBlock(const nn::BlockBuilder& builder, std::string_view tree, std::int64_t in, std::int64_t out)
    : norm1(builder.group_norm("norm1", groups, in)),
      conv1(builder.conv2d("conv1", in, out, 3, 1, 1)),
      norm2(builder.group_norm("norm2", groups, out)),
      conv2(builder.conv2d("conv2", out, out, 3, 1, 1)),
      nin_shortcut(in != out ? builder.conv2d("nin_shortcut", in, out, 1) : nn::Conv()),
      has_shortcut_(in != out) {
    builder.finish(*this, std::string(tree) + ".ResnetBlock", {has_shortcut_});
}

Tensors ResnetBlock::forward(const Tensors& args) const {
    Tensor x = args[0];
    Tensor h = norm1(x);
    h = swish(h);
    h = conv1(h);
    h = norm2(h);
    h = swish(h);
    h = conv2(h);
    if (has_shortcut_) x = nin_shortcut(x);
    return {add(x, h)};
}

AttnBlock::AttnBlock(const nn::Builder& parent, std::string_view tree, std::int64_t channels)
    : AttnBlock(parent.block(*this), tree, channels) {}

AttnBlock::AttnBlock(const nn::BlockBuilder& builder, std::string_view tree, std::int64_t channels)
    : norm(builder.group_norm("norm", groups, channels)),
      q(builder.conv2d("q", channels, channels, 1)),
      k(builder.conv2d("k", channels, channels, 1)),
      v(builder.conv2d("v", channels, channels, 1)),
      proj_out(builder.conv2d("proj_out", channels, channels, 1)) {
    builder.finish(*this, std::string(tree) + ".AttnBlock", {});
}

Tensors AttnBlock::forward(const Tensors& args) const {
    const Tensor& x = args[0];
    Tensor attended = proj_out(attention(x));
    return {add(x, std::move(attended))};
}

namespace {

// "b c h w -> b 1 (h w) c", contiguous
Tensor rows(const Tensor& x) {
    return contiguous(view(permute(x, {0, 2, 3, 1}), {x.size(0), 1, x.size(2) * x.size(3), x.size(1)}));
}

}  // namespace

Tensor AttnBlock::attention(const Tensor& x) const {
    Tensor h = norm(x);
    Tensor query = q(h);
    Tensor key = k(h);
    Tensor value = v(h);
    query = rows(query);
    key = rows(key);
    value = rows(value);
    h = scaled_dot_product_attention(query, key, value);
    h = view(h, {x.size(0), x.size(2), x.size(3), x.size(1)});
    return permute(std::move(h), {0, 3, 1, 2});
}

Middle::Middle(const nn::Builder& builder, std::string_view tree, std::int64_t channels)
    : block_1(builder["block_1"], tree, channels, channels),
      attn_1(builder["attn_1"], tree, channels),
      block_2(builder["block_2"], tree, channels, channels) {}

Tensor Middle::operator()(const nn::Caller& call, Tensor h) const {
    h = call(block_1, {h})[0];
    h = call(attn_1, {h})[0];
    return call(block_2, {h})[0];
}

}  // namespace vram::models::bfl_autoencoder
