#include "nn/adapter/low_rank.hpp"

namespace vram::nn::adapter {

void add_low_rank(Weights& weights, Adapter& adapter) {
    const Dtype dtype = weights.rules().adapter_dtype;
    const std::int64_t rank = adapter.how.rank;
    shadow::Dims down = adapter.sizes, up{adapter.sizes[0], rank};
    down[0] = rank;
    for (int i = 2; i < adapter.sizes.rank(); ++i) up.push_back(1);
    adapter.own.push_back(&weights.adapter(down, dtype));
    adapter.own.push_back(&weights.adapter(up, dtype));
    adapter.own.back()->starts_at_zero = true;
}

}  // namespace vram::nn::adapter
