#pragma once

#include "nn/module.hpp"

/// What the formats' files share. A statement is an op of the Python function that is played: names live as its names
/// do.
namespace vram::nn::quantize {

/// An op's output of these sizes.
[[nodiscard]] inline Tensor made(Run& run, const Dims& sizes, Dtype dtype) {
    return run.empty(sizes, dtype, shadow::Op::dequantize);
}
[[nodiscard]] inline Tensor made(const QuantizedLayer& layer, const Dims& sizes, Dtype dtype) {
    return made(layer.run(), sizes, dtype);
}
[[nodiscard]] inline Tensor made_like(const Tensor& tensor) {
    return made(tensor.run(), tensor.sizes(), tensor.dtype());
}
[[nodiscard]] inline Tensor made_like(const Tensor& tensor, Dtype dtype) {
    return made(tensor.run(), tensor.sizes(), dtype);
}

/// A stored parameter of the layer, in the order of building.
inline void store(Weights& weights, QuantizedLayer& layer, const Dims& sizes, Dtype dtype, bool buffer = true) {
    layer.stored.push_back(&weights.base(sizes, dtype, buffer));
}

/// x [.., in] → [rows, in]
[[nodiscard]] inline Tensor rows_of(Tensor x) {
    const std::int64_t last = x.size(-1);
    return shadow::reshape(std::move(x), {-1, last});
}

}  // namespace vram::nn::quantize
