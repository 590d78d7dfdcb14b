#include "models/attention.hpp"

namespace vram::models {

nn::Tensor dispatch_attention(const nn::Tensor& query, const nn::Tensor& key, const nn::Tensor& value,
                              const nn::Tensor& mask) {
    using shadow::transpose;
    nn::Tensor out = shadow::scaled_dot_product_attention(transpose(query, 1, 2), transpose(key, 1, 2),
                                                          transpose(value, 1, 2), mask);
    return transpose(std::move(out), 1, 2);
}

}  // namespace vram::models
