#include "models/vae.hpp"

#include <algorithm>

namespace vram::models {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Tensor;
using nn::Tensors;

Tensors diagonal_gaussian(Tensor parameters_in) {
    const Tensor parameters = std::move(parameters_in);
    const Tensors halves = chunk(parameters, 2, 1);
    const Tensor logvar = clamp(halves[1]);
    const Tensor std = exp(mul_scalar(logvar));
    const Tensor var = exp(logvar);
    return {parameters, halves[0], logvar, std, var};
}

ChannelRmsNorm::ChannelRmsNorm(const nn::Builder& builder, std::string_view name, std::int64_t channels, bool images)
    : gamma(builder[name].parameter("gamma", images ? Dims{channels, 1, 1} : Dims{channels, 1, 1, 1})) {}

Tensor ChannelRmsNorm::operator()(Tensor x_in) const {
    const Tensor x = std::move(x_in);
    const Tensor normalized = to(normalize(to_float(x), 1), x.dtype());
    Tensor out = mul_scalar(normalized);
    out = mul(out, gamma.value);
    return add_scalar(out, true);  // a bias of 0.0
}

ReplicationCausalConv3d::ReplicationCausalConv3d(const nn::Builder& builder, std::string_view name, std::int64_t in,
                                                 std::int64_t out, std::int64_t kernel_size,
                                                 const std::array<std::int64_t, 3>& stride)
    : kernel_size_(kernel_size),
      conv(builder[name].conv("conv", in, out, {kernel_size, kernel_size, kernel_size},
                              {stride[0], stride[1], stride[2]}, {0, 0, 0})) {}

Tensor ReplicationCausalConv3d::operator()(Tensor hidden_states_in) const {
    const Tensor held = std::move(hidden_states_in);
    const std::int64_t half = kernel_size_ / 2;
    const Tensor hidden_states = replication_pad(held, {half, half, half, half, kernel_size_ - 1, 0});
    return conv(hidden_states);
}

Blend::Lines::Lines(const nn::Builder& builder, int dim, std::int64_t extent) : dim_(dim), extent_(extent) {
    gemms = false;
    builder.block(*this).finish(*this, "blend", {dim, extent});
}

Tensors Blend::Lines::forward(const Tensors& args) const {
    const Tensor &a = args[0], &b = args[1];
    const std::int64_t extent = std::min({a.size(dim_), b.size(dim_), extent_});
    for (std::int64_t line = 0; line < extent; ++line) {
        Tensor from = mul_scalar(select(a, dim_, line));
        Tensor own = mul_scalar(select(b, dim_, line));
        const Tensor mixed = add(std::move(from), std::move(own));
    }
    return {};
}

Tensor join_tiles(const nn::Caller& call, const std::vector<std::vector<Tensor>>& rows, Tensor& tile,
                  std::vector<Tensor>& result_rows, const Blend& blend, std::int64_t stride) {
    const int height = rows.front().front().rank() - 2, width = height + 1;
    std::vector<Tensor> result_row;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        result_row.clear();
        for (std::size_t j = 0; j < rows[i].size(); ++j) {
            tile = rows[i][j];
            if (i > 0) blend.v(call, rows[i - 1][j], tile);
            if (j > 0) blend.h(call, rows[i][j - 1], tile);
            result_row.push_back(slice(slice(tile, height, 0, stride), width, 0, stride));
        }
        result_rows.push_back(cat(result_row, width));
    }
    return cat(result_rows, height);
}

}  // namespace vram::models
