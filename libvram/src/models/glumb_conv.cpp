#include "models/glumb_conv.hpp"

namespace vram::models {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Tensor;
using nn::Tensors;

GluMbConv::GluMbConv(const nn::Builder& builder, std::int64_t channels, std::int64_t hidden, bool norm_and_residual)
    : norm_and_residual_(norm_and_residual),
      conv_inverted(builder.conv2d("conv_inverted", channels, 2 * hidden, 1)),
      conv_depth(builder.conv2d("conv_depth", 1, 2 * hidden, 3, 1, 1)),
      conv_point(builder.conv2d("conv_point", hidden, channels, 1, 1, 0, false)),
      norm(norm_and_residual ? PlainRmsNorm(builder["norm"], channels, true) : PlainRmsNorm()) {
    conv_depth.how.groups = 2 * hidden;
}

Tensor GluMbConv::operator()(Tensor hidden_states_in) const {
    const Tensor residual = std::move(hidden_states_in);
    Tensor hidden_states = conv_inverted(residual);
    hidden_states = silu(hidden_states);
    hidden_states = conv_depth(hidden_states);
    Tensors halves = chunk(hidden_states, 2, 1);
    hidden_states = halves[0];
    const Tensor gate = halves[1];
    halves.clear();
    hidden_states = mul(hidden_states, silu(gate));
    hidden_states = conv_point(hidden_states);
    if (norm_and_residual_) {
        hidden_states = permute(norm(permute(hidden_states, {0, 2, 3, 1})), {0, 3, 1, 2});
        hidden_states = add(hidden_states, residual);
    }
    return hidden_states;
}

}  // namespace vram::models
