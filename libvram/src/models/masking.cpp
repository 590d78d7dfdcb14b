#include "models/masking.hpp"

namespace vram::models {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Dims;
using nn::Tensor;

namespace {

enum class Pattern : std::uint8_t { bidirectional, causal, sliding };

// q_idx >= 0; kv_idx <= q_idx; and with a window, and_masks of kv_idx > q_idx - window and that.
Tensor pattern_mask(Run& run, Pattern pattern, const Tensor& q_idx) {
    const std::int64_t tokens = q_idx.size(0);
    const Dims square{1, 1, tokens, tokens};
    switch (pattern) {
        case Pattern::bidirectional: return run.empty({1, 1, tokens, 1}, Dtype::boolean, Op::compare);
        case Pattern::causal: return run.empty(square, Dtype::boolean, Op::compare);
        case Pattern::sliding: break;
    }
    Tensor result = run.empty({}, Dtype::boolean, Op::ones);
    {
        Tensor first = add_scalar(q_idx);
        const Tensor inside = run.empty(square, Dtype::boolean, Op::compare);
        first = Tensor();
        result = run.empty(square, Dtype::boolean, Op::bitwise);
    }
    {
        const Tensor causal = run.empty(square, Dtype::boolean, Op::compare);
        result = run.empty(square, Dtype::boolean, Op::bitwise);
    }
    return result;
}

// sdpa_mask: padding_mask [B, T] bool or undefined
Tensor broadcast_mask(Run& run, const Tensor& padding_mask, std::int64_t batch, std::int64_t tokens, Pattern pattern) {
    const Tensor batch_arange = arange(run, batch, Dtype::i64);
    const Tensor head_arange = arange(run, 1, Dtype::i64);
    const Tensor q_arange = add_scalar(arange(run, tokens, Dtype::i64));
    const Tensor kv_arange = add_scalar(arange(run, tokens, Dtype::i64));
    if (!padding_mask.defined()) {
        Tensor attention_mask = pattern_mask(run, pattern, q_arange);
        return expand(std::move(attention_mask), {batch, -1, tokens, tokens});
    }
    // and_masks of the pattern and the padding
    Tensor result = run.empty({}, Dtype::boolean, Op::ones);
    {
        const Tensor mask = pattern_mask(run, pattern, q_arange);
        result = run.empty(mask.sizes(), Dtype::boolean, Op::bitwise);
    }
    {
        const Tensor mask = run.empty({batch, 1, 1, tokens}, Dtype::boolean, Op::index);
        result = run.empty({batch, 1, tokens, tokens}, Dtype::boolean, Op::bitwise);
    }
    return result;
}

// find_packed_sequence_indices: positions that count up are one sequence, so it answers None.
void look_for_packed_sequences(const Tensor& position_ids, std::int64_t batch) {
    Run& run = position_ids.run();
    const std::int64_t tokens = position_ids.size(1);
    const Tensor first_dummy_value = run.empty({batch, 1}, Dtype::i64, Op::sub);
    Tensor joined = run.empty({batch, tokens + 1}, Dtype::i64, Op::cat);
    const Tensor position_diff = run.empty({batch, tokens}, Dtype::i64, Op::sub);
    joined = Tensor();
    Tensor differs = compare_scalar(position_diff);
    const Tensor packed_sequence_mask = run.empty({batch, tokens}, Dtype::i64, Op::cumsum);
    differs = Tensor();
    Tensor last = run.empty({batch}, Dtype::boolean, Op::compare);
    last = run.empty({}, Dtype::boolean, Op::any);
}

}  // namespace

Tensor sdpa_mask(const Tensor& attention_mask, bool causal) {
    Run& run = attention_mask.run();
    const Tensor padding_mask = to(attention_mask, Dtype::boolean);
    return broadcast_mask(run, padding_mask, attention_mask.size(0), attention_mask.size(1),
                          causal ? Pattern::causal : Pattern::bidirectional);
}

Tensor causal_mask(const Tensor& inputs_embeds, const Tensor& attention_mask, const Tensor& position_ids,
                   const CausalMask& how) {
    Run& run = inputs_embeds.run();
    const std::int64_t batch = inputs_embeds.size(0), tokens = inputs_embeds.size(1);
    Tensor padding_mask;
    if (attention_mask.defined()) padding_mask = to(attention_mask, Dtype::boolean);
    if (!attention_mask.defined() && position_ids.defined() && !how.cache)
        look_for_packed_sequences(position_ids, batch);
    const bool within_window = how.sliding_window == 0 || tokens < how.sliding_window;
    if (!how.eager && !padding_mask.defined() && within_window) return {};
    Tensor mask =
        broadcast_mask(run, padding_mask, batch, tokens, how.sliding_window > 0 ? Pattern::sliding : Pattern::causal);
    if (!how.eager) return mask;
    const Tensor zero = run.empty({}, inputs_embeds.dtype(), Op::zeros);
    const Tensor lowest = run.empty({}, inputs_embeds.dtype(), Op::where);
    return where(std::move(mask), zero, lowest);
}

}  // namespace vram::models
