#include <stdexcept>

#include "shadow/ops.hpp"

// Source: aten/src/ATen/native/transformers/attention.cpp (choice, preprocessing), cuda/attention.cu and
// cuda/attention_backward.cu (what the kernels return), cuda/flash_attn/flash_api.cpp and mem_eff_attention (scratch);
// cudnn/MHA.cpp and cudnn-frontend's scaled_dot_product_flash_attention.h.
namespace vram::shadow {
namespace {

enum class Backend : std::uint8_t { flash, efficient, math, cudnn };

/// can_use_cudnn_attention (cuda/sdp_utils.cpp) of the versions 9 of cuDNN, without dropout.
bool takes_cudnn(const Run& run, const Tensor& q, const Tensor& k, const Tensor& v) {
    constexpr std::int64_t most = 65535;  // of batch and heads
    const auto head = [](const Tensor& x) { return x.size(-1) <= 128 && x.size(-1) % 8 == 0; };
    return (q.dtype() == Dtype::f16 || q.dtype() == Dtype::bf16) && run.kernels.sm >= 80 && q.size(2) > 0 &&
           k.size(2) > 1 && q.size(0) <= most && q.size(1) <= most && head(q) && head(v);
}

Backend choose(const Run& run, const Tensor& q, const Tensor& k, const Tensor& v, bool mask, SdpaPriority priority) {
    using Attention = Kernels::Attention;
    const Kernels& kernels = run.kernels;
    const bool half = q.dtype() == Dtype::f16 || q.dtype() == Dtype::bf16;
    const std::int64_t head = q.size(-1);
    const bool same_head = head == v.size(-1);
    // sm86, sm89 and sm12x have too little shared memory for flash's backward of head sizes 193 to 224 (sdp_utils.cpp).
    const bool small_sm = kernels.sm == 86 || kernels.sm == 89 || kernels.sm / 10 == 12;
    const bool needs_grad = run.grad_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad());
    // Neither takes a sequence without tokens (sdp_utils_cpp.h, check_nonzero_sequence_lengths_dense).
    const bool tokens = q.size(2) > 0 && k.size(2) > 0;
    const bool flash = tokens && half && !mask && kernels.sm >= 80 && head <= 256 && same_head &&
                       !(needs_grad && small_sm && head > 192 && head <= 224);
    // Only flash takes fewer heads of keys and values than of queries.
    const bool efficient = tokens && (half || q.dtype() == Dtype::f32) &&
                           (q.dtype() != Dtype::bf16 || kernels.sm >= 80) && q.size(1) == k.size(1);
    // The context allows all kernels, whatever the process has switched off.
    const bool cudnn_first = priority == SdpaPriority::cudnn;
    if (cudnn_first && takes_cudnn(run, q, k, v)) return Backend::cudnn;
    switch (cudnn_first ? Attention::automatic : kernels.attention) {
        case Attention::automatic:
            if (flash) return Backend::flash;
            return efficient ? Backend::efficient : Backend::math;
        case Attention::flash:
            if (!flash) throw NoKernel("flash attention cannot serve a call of this model on this card");
            return Backend::flash;
        case Attention::efficient:
            if (!efficient) throw NoKernel("efficient attention cannot serve a call of this model on this card");
            return Backend::efficient;
        case Attention::math: break;
    }
    return Backend::math;
}

// ---- flash: q, k, v, out, lse, two small tensors of random state
void flash_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor q = run.unpack(node.saved[0]);
    const Tensor k = run.unpack(node.saved[1]);
    const Tensor v = run.unpack(node.saved[2]);
    const Tensor attention = run.unpack(node.saved[3]);
    const Tensor lse = run.unpack(node.saved[4]);
    const Tensor seed = run.unpack(node.saved[5]);
    const Tensor offset = run.unpack(node.saved[6]);
    // [B, T, H, D] views of gradient and output that are not contiguous are copied first.
    const auto copy = [&](const Tensor& x) {
        return transpose(x.detach(), 1, 2).contiguous()
                   ? StorageRef()
                   : run.scratch(checked_mul(x.numel(), size_of(x.dtype())), Op::contiguous_copy);
    };
    const StorageRef copy_grad = copy(grads[0]), copy_out = copy(attention);
    const auto like = [&](const Tensor& x) {
        const Tensor wide = transpose(x.detach(), 1, 2);
        // transposed inside the kernel, so no view as autograd sees it
        const Tensor made = run.empty_like(wide, Op::flash_attention_backward);
        return Tensor(made.storage_ref(), transpose(made, 1, 2).layout());
    };
    Tensor grad_q = like(q), grad_k = like(k), grad_v = like(v);
    const std::int64_t batch = q.size(0), heads = q.size(1), tokens = q.size(2), head = q.size(3);
    const std::int64_t rows = round_up(tokens, 128), wide_head = round_up(head, head > 128 ? 64 : 32);
    const StorageRef softmax_d = run.scratch(checked_mul(4 * batch * heads, rows), Op::attention_workspace);
    const StorageRef dq_accum =
        run.scratch(checked_mul(checked_mul(4 * batch * heads, rows), wide_head), Op::attention_workspace);
    // Fewer key heads than query heads: dk and dv are made for every head first.
    const bool grouped = k.size(1) != heads;
    const Bytes expanded = checked_mul(checked_mul(batch * k.size(2), heads * head), size_of(k.dtype()));
    const StorageRef dk = grouped ? run.scratch(expanded, Op::attention_workspace) : StorageRef();
    const StorageRef dv = grouped ? run.scratch(expanded, Op::attention_workspace) : StorageRef();
    if (node.needs(0)) out[0] = std::move(grad_q);
    if (node.needs(1)) out[1] = std::move(grad_k);
    if (node.needs(2)) out[2] = std::move(grad_v);
}

Tensor flash(Tensor& q, Tensor& k, Tensor& v) {
    Run& run = q.run();
    ++run.attention_calls.flash;
    NodeRef node = run.record(Op::flash_attention, flash_backward, {&q, &k, &v});
    if (node) {
        run.save(*node, q);
        run.save(*node, k);
        run.save(*node, v);
    }
    Tensor wide = run.empty_like(transpose(q.detach(), 1, 2), Op::flash_attention);
    Tensor out = transpose(std::move(wide), 1, 2);
    const Tensor lse = run.empty({q.size(0), q.size(1), q.size(2)}, Dtype::f32, Op::flash_attention);
    const Tensor seed = run.empty({2}, Dtype::i64, Op::flash_attention);
    const Tensor offset = run.empty({}, Dtype::i64, Op::flash_attention);
    if (node) {
        run.save(*node, out);
        run.save(*node, lse);
        run.save(*node, seed);
        run.save(*node, offset);
    }
    Run::attach(out, node);
    return out;
}

// ---- memory-efficient: q, k, v, bias, out, lse padded to 32 rows, random state
void efficient_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor q = run.unpack(node.saved[0]);
    const Tensor k = run.unpack(node.saved[1]);
    const Tensor v = run.unpack(node.saved[2]);
    const Tensor bias = run.unpack(node.saved[3]);
    const Tensor attention = run.unpack(node.saved[4]);
    const Tensor lse = run.unpack(node.saved[5]);
    const Tensor seed = run.unpack(node.saved[6]);
    const Tensor offset = run.unpack(node.saved[7]);
    const Tensor wide_grad = transpose(grads[0], 1, 2);
    const StorageRef copy =
        wide_grad.contiguous()
            ? StorageRef()
            : run.scratch(checked_mul(wide_grad.numel(), size_of(wide_grad.dtype())), Op::contiguous_copy);
    const auto like = [&](const Tensor& x) {
        const Tensor wide =
            run.empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x.dtype(), Op::efficient_attention_backward);
        return Tensor(wide.storage_ref(), transpose(wide, 1, 2).layout());
    };
    Tensor grad_q = like(q), grad_k = like(k), grad_v = like(v);
    const StorageRef delta = run.scratch(checked_mul(4 * q.size(0) * q.size(1), q.size(2)), Op::attention_workspace);
    if (node.needs(0)) out[0] = std::move(grad_q);
    if (node.needs(1)) out[1] = std::move(grad_k);
    if (node.needs(2)) out[2] = std::move(grad_v);
}

Tensor efficient(Tensor& q, Tensor& k, Tensor& v, Tensor& mask) {
    Run& run = q.run();
    ++run.attention_calls.efficient;
    // An additive mask in the query's dtype; its last dimension is padded to 8 elements where strides are not aligned,
    // then sliced and expanded to [B, H, T, Tk].
    Tensor bias;
    if (mask.defined()) {
        bias = mask.dtype() == Dtype::boolean ? run.empty_like(mask, q.dtype(), Op::where) : mask;
        if (bias.size(-1) % 8 != 0) {
            const std::int64_t keys = bias.size(-1);
            bias = pad(std::move(bias), {0, 8 - keys % 8});
            bias = slice(std::move(bias), -1, 0, keys);
        }
        bias = expand(std::move(bias), {q.size(0), q.size(1), q.size(2), k.size(2)});
    }
    NodeRef node = run.record(Op::efficient_attention, efficient_backward, {&q, &k, &v});
    if (node) {
        run.save(*node, q);
        run.save(*node, k);
        run.save(*node, v);
        run.save_if(bias.defined(), *node, bias);
    }
    Tensor wide = run.empty({q.size(0), q.size(2), q.size(1), v.size(3)}, q.dtype(), Op::efficient_attention);
    Tensor out = transpose(std::move(wide), 1, 2);
    const std::int64_t rows = node ? round_up(q.size(2), 32) : 0;
    const Tensor lse = run.empty({q.size(0), q.size(1), rows}, Dtype::f32, Op::efficient_attention);
    const Tensor seed = run.empty({}, Dtype::i64, Op::efficient_attention);
    const Tensor offset = run.empty({}, Dtype::i64, Op::efficient_attention);
    // An fp32 accumulator beside an output whose head size exceeds the kernel's registers.
    const StorageRef accumulator =
        v.size(3) > 128 && q.dtype() != Dtype::f32
            ? run.scratch(checked_mul(4 * q.size(0) * q.size(1), checked_mul(q.size(2), v.size(3))),
                          Op::attention_workspace)
            : StorageRef();
    if (node) {
        run.save(*node, out);
        run.save(*node, lse);
        run.save(*node, seed);
        run.save(*node, offset);
    }
    Run::attach(out, node);
    return out;
}

// ---- cuDNN: q, k, v, bias, out, lse, random state. Fewer heads of keys and values than of queries are taken as they
// are. The plan's workspace in forward is cuDNN's own secret, in backward the sums and gradients that the frontend
// names.
void cudnn_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor q = run.unpack(node.saved[0]);
    const Tensor k = run.unpack(node.saved[1]);
    const Tensor v = run.unpack(node.saved[2]);
    const Tensor bias = run.unpack(node.saved[3]);
    const Tensor attention = run.unpack(node.saved[4]);
    const Tensor lse = run.unpack(node.saved[5]);
    const Tensor seed = run.unpack(node.saved[6]);
    const Tensor offset = run.unpack(node.saved[7]);
    Tensor grad_q = run.empty_like(q, Op::cudnn_attention_backward);
    Tensor grad_k = run.empty_like(k, Op::cudnn_attention_backward);
    Tensor grad_v = run.empty_like(v, Op::cudnn_attention_backward);
    const Tensor& grad = grads[0];
    const StorageRef copy = grad.layout()->strides[grad.rank() - 1] == 1
                                ? StorageRef()
                                : run.scratch(checked_mul(grad.numel(), size_of(grad.dtype())), Op::contiguous_copy);
    // softmax_sum [B, H, T, 1] and dQ_accum [B, H, T, D], fp32
    const std::int64_t rows = checked_mul(q.size(0) * q.size(1), q.size(2));
    const StorageRef workspace = run.scratch(checked_mul(4 * rows, 1 + q.size(3)), Op::attention_workspace);
    if (node.needs(0)) out[0] = std::move(grad_q);
    if (node.needs(1)) out[1] = std::move(grad_k);
    if (node.needs(2)) out[2] = std::move(grad_v);
}

Tensor cudnn(Tensor& q, Tensor& k, Tensor& v, const Tensor& mask) {
    Run& run = q.run();
    ++run.attention_calls.cudnn;
    // An additive mask in the query's dtype, neither padded nor expanded.
    const Tensor bias =
        mask.defined() && mask.dtype() == Dtype::boolean ? run.empty_like(mask, q.dtype(), Op::where) : mask;
    NodeRef node = run.record(Op::cudnn_attention, cudnn_backward, {&q, &k, &v});
    if (node) {
        run.save(*node, q);
        run.save(*node, k);
        run.save(*node, v);
        run.save_if(bias.defined(), *node, bias);
    }
    // In the query's layout.
    Tensor out = q.size(3) == v.size(3)
                     ? run.empty_like(q, Op::cudnn_attention)
                     : run.empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.dtype(), Op::cudnn_attention);
    const Tensor lse =
        node ? run.empty({q.size(0), q.size(1), q.size(2), 1}, Dtype::f32, Op::cudnn_attention) : Tensor();
    const Tensor seed = run.empty({}, Dtype::i64, Op::cudnn_attention);
    const Tensor offset = run.empty({}, Dtype::i64, Op::cudnn_attention);
    if (node) {
        run.save(*node, out);
        run.save(*node, lse);
        run.save(*node, seed);
        run.save(*node, offset);
    }
    Run::attach(out, node);
    return out;
}

// ---- math: everything is a visible tensor. _scaled_dot_product_attention_math scales both operands by sqrt(scale).
// Causal order becomes a mask, and heads of keys and values are repeated to those of queries.
Tensor math(Tensor& q, Tensor& k, Tensor& v, Tensor& mask, bool causal) {
    Run& run = q.run();
    ++run.attention_calls.math;
    const Dtype dtype = q.dtype();
    const bool half = dtype == Dtype::f16 || dtype == Dtype::bf16;
    Tensor query = half ? to_float(q) : q, key = half ? to_float(k) : k, value = half ? to_float(v) : v;
    query = mul_scalar(std::move(query));
    Tensor bias = mask;
    if (causal) {
        Tensor ones = run.empty({q.size(2), k.size(2)}, Dtype::boolean, Op::ones);
        Tensor lower = run.empty_like(ones, Op::ones);  // tril
        ones = Tensor();
        bias = where_scalars(lower, query.dtype());
    } else if (mask.defined() && mask.dtype() == Dtype::boolean) {
        bias = where_scalars(mask, query.dtype());
    }
    if (q.size(1) != k.size(1)) {
        key = repeat_interleave(std::move(key), q.size(1) / k.size(1), 1);
        value = repeat_interleave(std::move(value), q.size(1) / v.size(1), 1);
    }
    const Tensor held_query = query, held_key = key;  // names there, until the op returns
    key = mul_scalar(transpose(std::move(key), -2, -1));
    Tensor scores = matmul(std::move(query), std::move(key));
    if (bias.defined()) add_(scores, bias);
    scores = softmax(std::move(scores));
    Tensor out = matmul(std::move(scores), std::move(value));
    return half ? to(std::move(out), dtype) : out;
}

// Without tokens: nothing, plus a zero that depends on all three. As recorded, torch 2.13.
Tensor of_nothing(const Tensor& q, const Tensor& k, const Tensor& v) {
    Run& run = q.run();
    ++run.attention_calls.math;
    const Tensor zeros = run.empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.dtype(), Op::zeros);
    const Tensor of_q = sum_all(q), of_k = sum_all(k), of_v = sum_all(v);
    const Tensor two = add(of_q, of_k), three = add(two, of_v);
    return add(zeros, mul_scalar(three));
}

}  // namespace

Tensor scaled_dot_product_attention(Arg q_in, Tensor k_in, Tensor v_in, Tensor mask_in, bool causal,
                                    SdpaPriority priority) {
    const Tensor held_q = std::move(q_in), held_k = std::move(k_in), held_v = std::move(v_in),
                 held_mask = std::move(mask_in);
    Tensor mask = held_mask;
    if (mask.defined() && mask.dtype() != Dtype::boolean) mask = autocast_lower(held_mask);
    Tensor v = autocast_lower(held_v), k = autocast_lower(held_k), q = autocast_lower(held_q);
    Run& run = q.run();
    const std::int64_t head = q.size(-1);
    switch (choose(run, q, k, v, mask.defined(), priority)) {
        case Backend::flash:
            if (head % 8 != 0) {  // pad_last_dim
                q = pad(std::move(q), {0, 8 - head % 8});
                k = pad(std::move(k), {0, 8 - head % 8});
                v = pad(std::move(v), {0, 8 - head % 8});
                Tensor out = flash(q, k, v);
                return slice(std::move(out), -1, 0, head);
            }
            return flash(q, k, v);
        case Backend::efficient: return efficient(q, k, v, mask);
        case Backend::cudnn: return cudnn(q, k, v, mask);
        case Backend::math: return q.numel() > 0 && k.numel() > 0 ? math(q, k, v, mask, causal) : of_nothing(q, k, v);
    }
    throw std::logic_error("attention: no such backend");
}

}  // namespace vram::shadow
