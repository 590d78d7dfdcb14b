#pragma once

#include <string>
#include <vector>

#include "nn/weights.hpp"

namespace vram::nn::quantize {

/// How a model becomes quantised on the GPU. What is quantised on the CPU needs none of this: Weights::base_to_gpu
/// brings what is stored.
class Loader {
  public:
    explicit Loader(Weights& weights) : weights_(weights) {}
    /// model.to("cuda"): everything but what a memory manager brings, the layers that will be quantised in the model's
    /// dtype.
    void load();
    /// quantize(model) and freeze(model): layer by layer, in the order of building. The model stands on the GPU.
    void quantize();
    /// ai-toolkit's quantize_model: each block of these lists ("transformer_blocks") goes to the GPU, is quantised
    /// there, and goes to the CPU; what is in none of them is quantised where it stands. Source:
    /// toolkit/util/quantize.py.
    void quantize_model(const std::vector<std::string>& block_lists);
    /// The same blocks; then all goes to the GPU, where what is in none of them is quantised.
    void quantize_blocks_first(const std::vector<std::string>& block_lists);
    /// Each layer quantised and frozen before the next, where it stands. Whether that is the GPU.
    bool quantize_each();
    /// What the first call would leave on the GPU for the process; so that no block's call does.
    void constants();

  private:
    /// Parameters [first, last) of the base; in front of what stands at the place of one of these layers, its weight in
    /// full.
    void load(std::size_t first, std::size_t last, const std::vector<QuantizedLayer*>& in_full);
    /// What is in no block.
    [[nodiscard]] std::vector<QuantizedLayer*> quantize_blocks(const std::vector<std::string>& block_lists);
    [[nodiscard]] std::vector<QuantizedLayer*> layers();
    void convert(const std::vector<QuantizedLayer*>& layers);

    Weights& weights_;
    bool on_gpu_ = false;
};

}  // namespace vram::nn::quantize
