#include "models/resnet.hpp"

namespace vram::models {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Tensor;
using nn::Tensors;

ResnetBlock2D::ResnetBlock2D(const nn::Builder& parent, std::int64_t in, std::int64_t out, std::int64_t temb_channels,
                             std::int64_t groups, bool divides)
    : ResnetBlock2D(parent.block(*this), in, out, temb_channels, groups, divides) {}

ResnetBlock2D::ResnetBlock2D(const nn::BlockBuilder& builder, std::int64_t in, std::int64_t out,
                             std::int64_t temb_channels, std::int64_t groups, bool divides)
    : norm1(builder.group_norm("norm1", groups, in)),
      conv1(builder.conv2d("conv1", in, out, 3, 1, 1)),
      time_emb_proj(temb_channels > 0 ? builder.linear("time_emb_proj", temb_channels, out) : nn::Linear()),
      norm2(builder.group_norm("norm2", groups, out)),
      conv2(builder.conv2d("conv2", out, out, 3, 1, 1)),
      conv_shortcut(in != out ? builder.conv2d("conv_shortcut", in, out, 1) : nn::Conv()),
      has_temb_(temb_channels > 0),
      has_shortcut_(in != out),
      divides_(divides) {
    builder.finish(*this, "ResnetBlock2D", {has_temb_, has_shortcut_, divides_});
}

Tensors ResnetBlock2D::forward(const Tensors& args) const {
    Tensor input_tensor = args[0];
    Tensor hidden_states = input_tensor;
    hidden_states = norm1(hidden_states);
    hidden_states = silu(hidden_states);
    hidden_states = conv1(hidden_states);
    Tensor temb;
    if (has_temb_) {
        temb = silu(args[1]);
        temb = unsqueeze(unsqueeze(time_emb_proj(temb), 2), 3);
        hidden_states = add(hidden_states, temb);
    }
    hidden_states = norm2(hidden_states);
    hidden_states = silu(hidden_states);
    hidden_states = conv2(hidden_states);
    if (has_shortcut_) {
        if (training) input_tensor = contiguous(input_tensor);
        input_tensor = conv_shortcut(input_tensor);
    }
    Tensor output_tensor = add(input_tensor, hidden_states);
    if (divides_) output_tensor = div_scalar(std::move(output_tensor));
    return {output_tensor};
}

Upsample2D::Upsample2D(const nn::Builder& builder, std::int64_t channels)
    : conv(builder.conv2d("conv", channels, channels, 3, 1, 1)) {}

Tensor Upsample2D::operator()(Tensor hidden_states) const {
    const std::int64_t height = checked_mul(2, hidden_states.size(2)), width = checked_mul(2, hidden_states.size(3));
    return (*this)(std::move(hidden_states), height, width);
}

Tensor Upsample2D::operator()(Tensor hidden_states_in, std::int64_t height, std::int64_t width) const {
    Tensor hidden_states = std::move(hidden_states_in);
    const Tensor held = hidden_states;
    // upsample_nearest_nhwc fails with large batches and beyond 2^31 elements, so the class makes these contiguous.
    if (hidden_states.size(0) >= 64) hidden_states = contiguous(hidden_states);
    if (checked_mul(hidden_states.numel(), 2) > (std::int64_t{1} << 31)) hidden_states = contiguous(hidden_states);
    hidden_states = upsample_nearest_to(hidden_states, {height, width});
    hidden_states = conv(hidden_states);
    return hidden_states;
}

Downsample2D::Downsample2D(const nn::Builder& builder, std::int64_t channels, std::int64_t padding,
                           std::string_view name)
    : conv(builder.conv2d(name, channels, channels, 3, 2, padding)), padding_(padding) {}

Tensor Downsample2D::operator()(Tensor hidden_states_in) const {
    Tensor hidden_states = std::move(hidden_states_in);
    const Tensor held = hidden_states;
    if (padding_ == 0) hidden_states = pad(hidden_states, {0, 1, 0, 1});
    hidden_states = conv(hidden_states);
    return hidden_states;
}

}  // namespace vram::models
