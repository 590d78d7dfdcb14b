#include "models/masking.hpp"

namespace vram::models {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Tensor;

Tensor sdpa_mask(const Tensor& attention_mask, bool causal) {
    Run& run = attention_mask.run();
    const std::int64_t batch = attention_mask.size(0), tokens = attention_mask.size(1);
    const Tensor padding_mask = to(attention_mask, Dtype::boolean);
    const Tensor batch_arange = arange(run, batch, Dtype::i64);
    const Tensor head_arange = arange(run, 1, Dtype::i64);
    const Tensor q_arange = add_scalar(arange(run, tokens, Dtype::i64));
    const Tensor kv_arange = add_scalar(arange(run, tokens, Dtype::i64));
    // and_masks of the pattern and the padding
    Tensor result = run.empty({}, Dtype::boolean, Op::ones);
    {
        // kv_idx <= q_idx, or q_idx >= 0
        const Tensor pattern = run.empty({1, 1, tokens, causal ? tokens : 1}, Dtype::boolean, Op::compare);
        result = run.empty(pattern.sizes(), Dtype::boolean, Op::bitwise);
    }
    {
        const Tensor padding = run.empty({batch, 1, 1, tokens}, Dtype::boolean, Op::index);
        result = run.empty({batch, 1, tokens, tokens}, Dtype::boolean, Op::bitwise);
    }
    return result;
}

}  // namespace vram::models
