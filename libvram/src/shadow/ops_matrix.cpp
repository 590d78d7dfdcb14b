#include <stdexcept>
#include <utility>

#include "shadow/ops.hpp"

namespace vram::shadow {
namespace {

// addmm / mm over rows: edges are {bias, x, weight}. addmm makes mat1's gradient first, mm that of mat2: in the
// alphabetical order of their arguments' names (see ops_elementwise.cpp).
void linear_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const std::int64_t out_features = node.outputs[0]->sizes[node.outputs[0]->rank() - 1];
    Tensor grad = reshape(std::move(grads[0]), {-1, out_features});
    grads.clear();
    const Tensor x = run.unpack(node.saved[0]);
    const Tensor weight = run.unpack(node.saved[1]);
    run.gemm();
    const bool addmm = node.numbers[0] != 0;
    // F.linear multiplies by weight.t(), whose node turns the gradient back: a view, so that the gradients of two calls
    // are not summed in place (input_buffer.cpp, can_accumulate_inplace).
    const auto weight_gradient = [&] {
        if (!node.needs(2)) return;
        out[2] = run.empty({out_features, x.size(-1)}, grad.dtype(), Op::mm);
        out[2].set_view();
    };
    if (!addmm) weight_gradient();
    if (node.needs(1)) {
        // A column-major mat1 gets a column-major gradient. Source: FunctionsManual.cpp, mm_mat1_backward.
        const Dims& sizes = node.meta[1]->sizes;
        const Dims& strides = node.meta[1]->strides;
        const bool column_major = strides[0] == 1 && strides[1] == sizes[0];
        Tensor rows = column_major ? transpose(run.empty({weight.size(1), grad.size(0)}, grad.dtype(), Op::mm), 0, 1)
                                   : run.empty({grad.size(0), weight.size(1)}, grad.dtype(), Op::mm);
        out[1] = node.meta[0]->rank() == 2 ? std::move(rows) : view(std::move(rows), node.meta[0]->sizes);
    }
    if (addmm) weight_gradient();
    if (node.needs(0)) out[0] = grad;
    grads.push_back(std::move(grad));
}

// bmm over a weight that was expanded to the batch, for an x whose rows do not fold into one matrix.
bool folds(const Tensor& x, const Tensor& weight) {
    if (weight.requires_grad() && x.run().grad_enabled()) return true;
    const Dims& sizes = x.sizes();
    const Dims& strides = x.layout()->strides;
    for (int i = 0; i < x.rank() - 2; ++i)
        if (strides[i] != strides[i + 1] * sizes[i + 1]) return false;
    return true;
}

void bmm_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor other = run.unpack(node.saved[0]);  // b, for a's gradient
    const Tensor self = run.unpack(node.saved[1]);
    run.gemm();
    const Tensor& grad = grads[0];
    if (node.needs(1)) out[1] = run.empty({grad.size(0), self.size(2), grad.size(2)}, grad.dtype(), Op::bmm);
    if (node.needs(0)) out[0] = run.empty({grad.size(0), grad.size(1), other.size(1)}, grad.dtype(), Op::bmm);
}

// a [B, M, K] x b [B, K, N]
Tensor bmm(Tensor a_in, Tensor b_in) {
    Tensor a = std::move(a_in), b = std::move(b_in);
    Run& run = a.run();
    NodeRef node = run.record(Op::bmm, bmm_backward, {&a, &b});
    if (node) {
        run.save_if(node->needs(0), *node, b);
        run.save_if(node->needs(1), *node, a);
    }
    run.gemm();
    Tensor out = run.empty({a.size(0), a.size(1), b.size(2)}, a.dtype(), Op::bmm);
    Run::attach(out, node);
    return out;
}

void mm_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor mat2 = run.unpack(node.saved[0]);
    const Tensor self = run.unpack(node.saved[1]);
    run.gemm();
    const Tensor& grad = grads[0];
    if (node.needs(1)) out[1] = run.empty({self.size(1), grad.size(1)}, grad.dtype(), Op::mm);
    if (node.needs(0)) out[0] = run.empty({grad.size(0), mat2.size(0)}, grad.dtype(), Op::mm);
}

}  // namespace

Tensor mm(Arg a_in, Tensor b_in) {
    const Tensor a = std::move(a_in), b = std::move(b_in);
    Run& run = a.run();
    const NodeRef node = run.record(Op::mm, mm_backward, {&a, &b});
    if (node) {
        run.save_if(node->needs(0), *node, b);
        run.save_if(node->needs(1), *node, a);
    }
    run.gemm();
    Tensor out = run.empty({a.size(0), b.size(1)}, a.dtype(), Op::mm);
    Run::attach(out, node);
    return out;
}

Tensor linear(Arg x_in, Tensor weight_in, Tensor bias_in) {
    const Tensor held_x = std::move(x_in), held_weight = std::move(weight_in), held_bias = std::move(bias_in);
    Tensor bias = autocast_lower(held_bias);  // the last argument first, see autocast_lower
    Tensor weight = autocast_lower(held_weight);
    Tensor x = autocast_lower(held_x);
    const Tensor held_cast = x, held_weight_cast = weight,
                 held_bias_cast = bias;  // autocast's wrapper holds them until F.linear returns
    Run& run = x.run();
    if (x.size(-1) != weight.size(1)) throw std::logic_error("linear: the input's last dimension is not in_features");
    Dims sizes = x.sizes();
    sizes[x.rank() - 1] = weight.size(0);
    const bool flat = x.rank() <= 2 || (bias.defined() && x.contiguous());
    if (!flat && !folds(x, weight)) {
        // matmul as bmm: [B, M, K] x the expanded weight.
        if (x.rank() != 3) x = reshape(std::move(x), {-1, x.size(-2), x.size(-1)});
        Tensor wide = expand(transpose(std::move(weight), 0, 1), {x.size(0), -1, -1});
        Tensor out = bmm(std::move(x), std::move(wide));
        out = view(std::move(out), sizes);
        return bias.defined() ? add(std::move(out), std::move(bias)) : out;
    }
    Tensor bias_after;
    if (!flat && bias.defined()) bias_after = std::exchange(bias, Tensor());
    // A copy where the rows do not lie one after the other; its history is part of the input's.
    Tensor rows = x.rank() == 2 ? x : reshape(x, {-1, x.size(-1)});
    const bool copied = rows.storage() != x.storage();
    const Tensor& source = copied ? rows : x;
    NodeRef node = run.record(Op::addmm, linear_backward, {&bias, &source, &weight});
    if (node) {
        node->numbers[0] = bias.defined();
        node->meta.push_back(source.layout()->rank() == 1 ? rows.layout() : source.layout());
        node->meta.push_back(rows.layout());
        run.save_if(node->needs(2), *node, rows);
        run.save_if(node->needs(1), *node, weight);
    }
    run.gemm();
    Tensor out = run.empty(sizes, x.dtype(), bias.defined() ? Op::addmm : Op::mm);
    Run::attach(out, node);
    if (!bias_after.defined()) return out;
    rows = Tensor();  // matmul has returned
    return add(std::move(out), std::move(bias_after));
}

Tensor matmul(Arg a_in, Tensor b_in) {
    const Tensor held_a = std::move(a_in), held_b = std::move(b_in);
    Tensor b = autocast_lower(held_b);
    Tensor a = autocast_lower(held_a);
    const Tensor held_a_cast = a, held_b_cast = b;  // autocast's wrapper holds them until torch.matmul returns
    if (a.rank() < 2 || b.rank() < 2) throw std::logic_error("matmul: of vectors");
    if (b.rank() == 2) return linear(std::move(a), transpose(std::move(b), 0, 1), {});
    // Batches that broadcast are expanded, then folded into one dimension: copies where strides do not allow a view.
    Dims batch_a, batch_b;
    for (int i = 0; i < a.rank() - 2; ++i) batch_a.push_back(a.size(i));
    for (int i = 0; i < b.rank() - 2; ++i) batch_b.push_back(b.size(i));
    const Dims batch = broadcast(batch_a, batch_b);
    Dims wide_a = batch, wide_b = batch, sizes = batch;
    wide_a.push_back(a.size(-2));
    wide_a.push_back(a.size(-1));
    wide_b.push_back(b.size(-2));
    wide_b.push_back(b.size(-1));
    sizes.push_back(a.size(-2));
    sizes.push_back(b.size(-1));
    const std::int64_t rows = a.size(-2), inner = a.size(-1), columns = b.size(-1);
    a = expand(std::move(a), wide_a);
    a = reshape(std::move(a), {-1, rows, inner});
    b = expand(std::move(b), wide_b);
    b = reshape(std::move(b), {-1, inner, columns});
    return view(bmm(std::move(a), std::move(b)), sizes);
}

Tensor outer(Arg a_in, Tensor b_in) {
    Tensor a = std::move(a_in), b = std::move(b_in);
    Tensor column = unsqueeze(std::move(a), 1);
    return mul(std::move(column), std::move(b));
}

}  // namespace vram::shadow
