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

Tensors SlicingAutoencoder::forward(const Tensors& args, const Request& request) const {
    const Tensor& x = args[0];
    const Caller call(x.run(), false);
    const bool encodes = request.operation == Request::Operation::encode;
    Tensor out;
    Tensors slices;
    if (request.slicing && x.size(0) > 1) {
        for (const Tensor& slice : split(x, 1, 0)) slices.push_back(whole(call, slice, encodes, request.tiling));
        out = cat(slices, 0);
    } else {
        out = whole(call, x, encodes, request.tiling);
    }
    return encodes ? diagonal_gaussian(out) : Tensors{out};
}

namespace {
Dims videos(const Request& request, std::int64_t channels) {
    return {request.batch, channels, request.frames, request.height, request.width};
}
}  // namespace

std::vector<Value> VideoAutoencoder::inputs(const Request& request) const {
    if (request.operation == Request::Operation::encode)
        return {{"x", videos(request, sizes_.in_channels), request.dtype}};
    return {{"z", latents(request), request.dtype}};
}

std::vector<Dims> VideoAutoencoder::outputs(const Request& request) const {
    if (request.operation == Request::Operation::encode) return {latents(request)};
    return {videos(request, sizes_.out_channels)};
}

Dims VideoAutoencoder::latents(const Request& request) const {
    return {request.batch, sizes_.latent_channels, (request.frames - 1) / temporal_ + 1, request.height / spatial_,
            request.width / spatial_};
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

std::int64_t tile_step(std::int64_t stride) {
    if (stride < 1) throw Refused("a tile's stride is less than one latent");
    return stride;
}

Tensor join_tiles(const nn::Caller& call, const std::vector<std::vector<Tensor>>& rows, Tensor& tile,
                  std::vector<Tensor>& result_rows, const Blend& blend, std::int64_t stride_height,
                  std::int64_t stride_width) {
    const int height = rows.front().front().rank() - 2, width = height + 1;
    std::vector<Tensor> result_row;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        result_row.clear();
        for (std::size_t j = 0; j < rows[i].size(); ++j) {
            tile = rows[i][j];
            if (i > 0) blend.v(call, rows[i - 1][j], tile);
            if (j > 0) blend.h(call, rows[i][j - 1], tile);
            result_row.push_back(slice(slice(tile, height, 0, stride_height), width, 0, stride_width));
        }
        result_rows.push_back(cat(result_row, width));
    }
    return cat(result_rows, height);
}

Tensor join_tiles(const nn::Caller& call, const std::vector<std::vector<Tensor>>& rows, Tensor& tile,
                  std::vector<Tensor>& result_rows, const Blend& blend, std::int64_t stride) {
    return join_tiles(call, rows, tile, result_rows, blend, stride, stride);
}

}  // namespace vram::models
