#include "models/sd_scripts_attention.hpp"

#include <algorithm>
#include <utility>

#include "shadow/ops.hpp"

namespace vram::models::sd_scripts {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward

constexpr std::int64_t q_bucket_size = 512, k_bucket_size = 1024;

/// [B, H, rows, last]
Dims block(const Tensor& of, std::int64_t rows, std::int64_t last) { return {of.size(0), of.size(1), rows, last}; }

/// A part of q, k, v or of a gradient, which lies among other heads': einsum makes it contiguous.
Tensor copied(const Tensor& of, std::int64_t rows) {
    return of.run().empty(block(of, rows, of.size(3)), of.dtype(), Op::contiguous_copy);
}

/// einsum over two parts that are copied first.
Tensor product_of_copies(const Tensor& a, std::int64_t a_rows, const Tensor& b, std::int64_t b_rows,
                         const Dims& sizes) {
    const Tensor left = copied(a, a_rows);
    const Tensor right = copied(b, b_rows);
    return a.run().empty(sizes, a.dtype(), Op::bmm);
}
/// einsum of scores, and of a part that is copied.
Tensor product_with_copy(const Tensor& b, std::int64_t rows, const Dims& sizes) {
    const Tensor right = copied(b, rows);
    return b.run().empty(sizes, b.dtype(), Op::bmm);
}

/// Rows and columns of one bucket after the other.
template <class Visit>
void visit_buckets(const Tensor& q, const Tensor& k, const Visit& visit) {
    for (std::int64_t i = 0; i < q.size(2); i += q_bucket_size)
        for (std::int64_t j = 0; j < k.size(2); j += k_bucket_size)
            visit(std::min(q_bucket_size, q.size(2) - i), std::min(k_bucket_size, k.size(2) - j));
}

/// The names of the forward's loop, which live from one bucket to the next.
class Forward {
  public:
    Forward(const Tensor& q, const Tensor& k, const Tensor& v) : q_(q), k_(k), v_(v), run_(q.run()) {}

    void operator()(std::int64_t rows, std::int64_t columns) {
        const Dims scores = block(q_, rows, columns), row = block(q_, rows, 1);
        assign(attn_weights, scaled(product_of_copies(q_, rows, k_, columns, scores)));
        assign(block_row_maxes, run_.empty(row, q_.dtype(), Op::clamp));  // amax
        assign(exp_weights, exp(attn_weights));
        {
            const Tensor sums = run_.empty(row, exp_weights.dtype(), Op::sum);
            assign(block_row_sums, clamp(sums));
        }
        assign(new_row_maxes, run_.empty(row, q_.dtype(), Op::clamp));  // maximum
        {
            const Tensor weights = autocast_lower(exp_weights);
            assign(exp_values, product_with_copy(v_, columns, block(q_, rows, q_.size(3))));
        }
        assign(exp_row_max_diff, difference(row));
        assign(exp_block_row_max_diff, difference(row));
        {
            Tensor before = run_.empty(row, exp_weights.dtype(), Op::mul);
            Tensor now = run_.empty(row, exp_weights.dtype(), Op::mul);
            assign(new_row_sums, add(std::move(before), std::move(now)));
        }
        {
            Tensor share = run_.empty(row, exp_weights.dtype(), Op::div);
            share = mul(std::move(share), exp_row_max_diff);
        }
        Tensor share = run_.empty(row, exp_weights.dtype(), Op::div);
        share = mul(std::move(share), exp_values);
    }

  private:
    static void assign(Tensor& name, Tensor value) { name = std::move(value); }
    [[nodiscard]] static Tensor scaled(Tensor product) { return mul_scalar(std::move(product)); }
    /// torch.exp of two rows' difference.
    [[nodiscard]] Tensor difference(const Dims& row) {
        Tensor between = run_.empty(row, q_.dtype(), Op::sub);
        return exp(std::move(between));
    }

    const Tensor &q_, &k_, &v_;
    Run& run_;
    Tensor attn_weights, block_row_maxes, exp_weights, block_row_sums, new_row_maxes, exp_values, exp_row_max_diff,
        exp_block_row_max_diff, new_row_sums;
};

/// The same of the backward's.
class Backward {
  public:
    Backward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& grad)
        : q_(q), k_(k), v_(v), do_(grad), run_(q.run()) {}

    void operator()(std::int64_t rows, std::int64_t columns) {
        const Dims scores = block(q_, rows, columns), row = block(q_, rows, 1);
        const Dims of_row = block(q_, rows, q_.size(3)), of_column = block(k_, columns, k_.size(3));
        assign(attn_weights, mul_scalar(product_of_copies(q_, rows, k_, columns, scores)));
        {
            Tensor shifted = run_.empty(scores, attn_weights.dtype(), Op::sub);
            assign(exp_attn_weights, exp(std::move(shifted)));
        }
        assign(p, run_.empty(scores, exp_attn_weights.dtype(), Op::div));
        assign(dv_chunk, product_with_copy(do_, rows, of_column));
        assign(dp, product_of_copies(do_, rows, v_, columns, scores));
        {
            const Tensor products = run_.empty(of_row, do_.dtype(), Op::mul);
            assign(D, run_.empty(row, do_.dtype(), Op::sum));
        }
        {
            Tensor scaled = mul_scalar(p);
            Tensor between = run_.empty(scores, dp.dtype(), Op::sub);
            assign(ds, mul(std::move(scaled), std::move(between)));
        }
        assign(dq_chunk, product_with_copy(k_, columns, of_row));
        assign(dk_chunk, product_with_copy(q_, rows, of_column));
    }

  private:
    static void assign(Tensor& name, Tensor value) { name = std::move(value); }

    const Tensor &q_, &k_, &v_, &do_;
    Run& run_;
    Tensor attn_weights, exp_attn_weights, p, dv_chunk, dp, D, ds, dq_chunk, dk_chunk;
};

void backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor q = run.unpack(node.saved[0]);
    const Tensor k = run.unpack(node.saved[1]);
    const Tensor v = run.unpack(node.saved[2]);
    const Tensor o = run.unpack(node.saved[3]);
    const Tensor l = run.unpack(node.saved[4]);
    const Tensor m = run.unpack(node.saved[5]);
    out[0] = run.empty_like(q, Op::zeros);
    out[1] = run.empty_like(k, Op::zeros);
    out[2] = run.empty_like(v, Op::zeros);
    Backward buckets(q, k, v, grads[0]);
    visit_buckets(q, k, [&](std::int64_t rows, std::int64_t columns) { buckets(rows, columns); });
}

// batch1.bmm(batch2) * alpha: the factor is a tensor more, each time.
void baddbmm_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor query = run.unpack(node.saved[0]);
    const Tensor key = run.unpack(node.saved[1]);
    const auto scaled = [&](const Tensor& like) {
        const Tensor product = run.empty(like.sizes(), grads[0].dtype(), Op::bmm);
        return mul_scalar(product);
    };
    if (node.needs(0)) out[0] = scaled(query);
    if (node.needs(1)) out[1] = scaled(key);
}

/// torch.baddbmm(torch.empty(…), query, key.transpose(-1, -2), beta=0, alpha=scale)
Tensor scores(const Tensor& query_in, const Tensor& key_in) {
    Run& run = query_in.run();
    const Dims sizes{query_in.size(0), query_in.size(1), key_in.size(1)};
    const Tensor unread = run.empty(sizes, query_in.dtype(), Op::empty);
    const Tensor key = autocast_lower(key_in);
    const Tensor query = autocast_lower(query_in);
    const Tensor unread_cast = autocast_lower(unread);
    const NodeRef node = run.record(Op::custom, baddbmm_backward, {&query, &key});
    if (node) {
        run.save(*node, query);
        run.save(*node, key);
    }
    Tensor out = run.empty(sizes, query.dtype(), Op::bmm);
    Run::attach(out, node);
    return out;
}

}  // namespace

nn::Tensor plain_attention(nn::Tensor query_in, nn::Tensor key_in, nn::Tensor value_in, std::int64_t heads) {
    const Tensor query = std::move(query_in), key = std::move(key_in), value = std::move(value_in);
    const Tensor attention_scores = scores(query, key);
    Tensor attention_probs = softmax(attention_scores);
    attention_probs = to(attention_probs, value.dtype());
    Tensor hidden_states = matmul(attention_probs, value);
    // reshape_batch_dim_to_heads
    const std::int64_t batch = hidden_states.size(0) / heads, rows = hidden_states.size(1), dim = hidden_states.size(2);
    Tensor apart = permute(view(hidden_states, {batch, heads, rows, dim}), {0, 2, 1, 3});
    hidden_states = reshape(std::move(apart), {batch, rows, heads * dim});
    return hidden_states;
}

nn::Tensor mem_eff_attention(nn::Tensor q_in, nn::Tensor k_in, nn::Tensor v_in) {
    const Tensor q = std::move(q_in), k = std::move(k_in), v = std::move(v_in);
    Run& run = q.run();
    const NodeRef node = run.record(Op::custom, backward, {&q, &k, &v});
    Tensor o, all_row_sums, all_row_maxes;
    {
        const NoGrad no_grad(run);
        o = run.empty_like(q, Op::zeros);
        all_row_sums = run.empty(block(q, q.size(2), 1), q.dtype(), Op::zeros);
        all_row_maxes = run.empty(block(q, q.size(2), 1), q.dtype(), Op::full);
        Forward buckets(q, k, v);
        visit_buckets(q, k, [&](std::int64_t rows, std::int64_t columns) { buckets(rows, columns); });
    }
    if (node) {
        for (const Tensor* kept : {&q, &k, &v}) run.save(*node, *kept);
        for (const Tensor* made : {&o, &all_row_sums, &all_row_maxes}) run.save(*node, *made);
    }
    Run::attach(o, node);
    return o;
}

}  // namespace vram::models::sd_scripts
