#include "models/safe_conv3d.hpp"

namespace vram::models {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Tensor;

Tensor SafeConv3d::operator()(Tensor input_in) const {
    const Tensor input = std::move(input_in);
    constexpr std::int64_t most = std::int64_t{1} << 30;  // elements
    if (input.numel() <= most) return conv(input);
    std::vector<Tensor> input_chunks;
    for (const Tensor& part : chunk(input, input.numel() / most + 1, 2)) input_chunks.push_back(part);
    if (kernel_size_ > 1) {
        std::vector<Tensor> longer{input_chunks[0]};
        for (std::size_t i = 1; i < input_chunks.size(); ++i) {
            const Tensor& before = input_chunks[i - 1];
            longer.push_back(cat({slice(before, 2, 1 - kernel_size_, before.size(2)), input_chunks[i]}, 2));
        }
        input_chunks = std::move(longer);
    }
    std::vector<Tensor> output_chunks;
    for (const Tensor& input_chunk : input_chunks) output_chunks.push_back(conv(input_chunk));
    return cat(output_chunks, 2);
}

}  // namespace vram::models
