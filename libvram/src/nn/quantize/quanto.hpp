#pragma once

#include <vector>

#include "nn/module.hpp"

namespace vram::nn::quantize {

/// optimum-quanto's QLinear with qfloat8 weights and plain activations: one byte a weight, one scale a row in the
/// model's dtype, two scalar buffers a layer. Forward and backward hold the dequantised weight twice for a moment; a
/// layer whose input requires grad keeps it, even though nothing of the layer trains. Source: quanto 0.2.4,
/// nn/qmodule.py, tensor/qbytes.py, tensor/qtensor_func.py, library/qbytes_mm.py.
extern const Quantizer quanto_qfloat8;

/// How a model becomes quantised: it stands on the GPU in full, then quanto's quantize() and freeze() go over its
/// layers. What is quantised on the CPU needs none of this: Weights::base_to_gpu.
class QuantoLoader {
  public:
    explicit QuantoLoader(Weights& weights) : weights_(weights) {}
    /// model.to("cuda"): everything, the layers that will be quantised in the model's dtype.
    void load();
    /// quantize(model): each layer is made anew, its weight and bias copied, then the old ones die.
    void quantize();
    /// freeze(model): each weight becomes codes and scales.
    void freeze();

  private:
    Weights& weights_;
    std::vector<Tensor> full_;  // the weights of layers to quantise, in their order
};

}  // namespace vram::nn::quantize
