#include "models/clip_layer.hpp"

#include "shadow/ops.hpp"

namespace vram::models::clip {

using namespace shadow;  // NOLINT: the ops of a forward

namespace {

// input * sigmoid(1.702 * input)
Tensor quick_gelu(const Tensor& input) { return mul(input, sigmoid(mul_scalar(input))); }

}  // namespace

CLIPEncoderLayer::CLIPEncoderLayer(const Builder& parent, const Sizes& sizes)
    : CLIPEncoderLayer(parent.block(*this), sizes) {}

CLIPEncoderLayer::CLIPEncoderLayer(const BlockBuilder& builder, const Sizes& sizes)
    : sizes_(sizes),
      k_proj(builder["self_attn"].linear("k_proj", sizes.hidden, sizes.hidden)),
      v_proj(builder["self_attn"].linear("v_proj", sizes.hidden, sizes.hidden)),
      q_proj(builder["self_attn"].linear("q_proj", sizes.hidden, sizes.hidden)),
      out_proj(builder["self_attn"].linear("out_proj", sizes.hidden, sizes.hidden)),
      layer_norm1(builder.layer_norm("layer_norm1", sizes.hidden)),
      fc1(builder["mlp"].linear("fc1", sizes.hidden, sizes.intermediate)),
      fc2(builder["mlp"].linear("fc2", sizes.intermediate, sizes.hidden)),
      layer_norm2(builder.layer_norm("layer_norm2", sizes.hidden)) {
    builder.finish(*this, "CLIPEncoderLayer", {sizes.heads, sizes.quick_gelu, sizes.causal, sizes.copies_heads});
}

Tensors CLIPEncoderLayer::forward(const Tensors& args) const {
    Tensor hidden_states = args[0];
    Tensor residual = hidden_states;
    hidden_states = layer_norm1(hidden_states);
    hidden_states = self_attn(hidden_states, args[1]);
    hidden_states = add(residual, hidden_states);
    residual = hidden_states;
    hidden_states = layer_norm2(hidden_states);
    hidden_states = mlp(hidden_states);
    hidden_states = add(residual, hidden_states);
    return {hidden_states};
}

Tensor CLIPEncoderLayer::self_attn(Tensor argument, const Tensor& mask) const {
    const Tensor hidden_states = std::move(argument);
    const Dims shape{hidden_states.size(0), hidden_states.size(1), sizes_.heads, -1};
    Tensor queries = q_proj(hidden_states);
    Tensor keys = k_proj(hidden_states);
    Tensor values = v_proj(hidden_states);
    queries = transpose(view(queries, shape), 1, 2);
    keys = transpose(view(keys, shape), 1, 2);
    values = transpose(view(values, shape), 1, 2);
    Tensor attn_output;
    {
        const Tensor query = sizes_.copies_heads ? contiguous(queries) : queries;
        const Tensor key = sizes_.copies_heads ? contiguous(keys) : keys;
        const Tensor value = sizes_.copies_heads ? contiguous(values) : values;
        attn_output = scaled_dot_product_attention(query, key, value, mask, sizes_.causal && !mask.defined());
        attn_output = contiguous(transpose(attn_output, 1, 2));
    }
    attn_output = reshape(attn_output, {hidden_states.size(0), hidden_states.size(1), -1});
    attn_output = out_proj(attn_output);
    return attn_output;
}

Tensor CLIPEncoderLayer::mlp(Tensor argument) const {
    const Tensor held = std::move(argument);
    Tensor hidden_states = fc1(held);
    hidden_states = sizes_.quick_gelu ? quick_gelu(hidden_states) : gelu(hidden_states);
    hidden_states = fc2(hidden_states);
    return hidden_states;
}

}  // namespace vram::models::clip
