// torch's autograd engine, one device thread: torch/csrc/autograd/engine.cpp (evaluate_function, validate_outputs),
// input_buffer.cpp (accumulate), functions/accumulate_grad.h.
#include <algorithm>
#include <array>
#include <queue>
#include <span>
#include <vector>

#include "shadow/memo.hpp"
#include "shadow/ops.hpp"
#include "shadow/provenance.hpp"
#include "shadow/run.hpp"

namespace vram::shadow {

class Engine {
  public:
    explicit Engine(Run& run) : run_(run) {}

    void start(std::span<const Tensor> outputs, Tensors grads) {
        const bool before = run_.in_backward;
        run_.in_backward = true;
        const NoGrad no_grad(run_);
        for (std::size_t i = 0; i < outputs.size(); ++i)
            if (outputs[i].node() && grads[i].defined()) reach(outputs[i].node());
        count_dependencies();
        for (std::size_t i = 0; i < outputs.size(); ++i) {
            if (!outputs[i].node() || !grads[i].defined()) continue;
            Node& node = *outputs[i].node();
            add(node, outputs[i].output_number(), std::move(grads[i]));
            if (node.dependencies == 0 && !queued(node)) queue(node);
        }
        grads.clear();
        while (!ready_.empty()) {
            const NodeRef node = ready_.top().node;
            ready_.pop();
            evaluate(*node);
        }
        for (const NodeRef& node : all_) {
            node->reached = false;
            node->dependencies = 0;
            if (node->sink < 0) node->buffer.clear();  // a recording reads what reached its sinks
        }
        run_.in_backward = before;
    }

  private:
    /// InputBuffer::add: in place into the gradient that came first, if nobody else holds it.
    void add(Node& node, std::int32_t input, Tensor grad) {
        if (node.buffer.size() < std::max<std::size_t>(node.outputs.size(), 1))
            node.buffer.resize(std::max<std::size_t>(node.outputs.size(), 1));
        Tensor& held = node.buffer[static_cast<std::size_t>(input)];
        if (!held.defined()) {
            held = std::move(grad);
            return;
        }
        if (held.layout()->dense && held.storage()->refs == 1 && !held.is_view()) return;  // held.add_(grad)
        const std::array<LayoutRef, 2> both{held.layout(), grad.layout()};
        held = run_.empty(run_.layouts.elementwise(both, held.dtype()), Op::accumulate);
    }

    struct Ready {
        std::uint64_t sequence;
        NodeRef node;
        bool operator<(const Ready& other) const { return sequence < other.sequence; }
    };

    void reach(const NodeRef& root) {
        if (root->reached) return;
        root->reached = true;
        all_.push_back(root);
    }
    void count_dependencies() {
        for (std::size_t i = 0; i < all_.size(); ++i) {
            const NodeRef node = all_[i];
            for (const Edge& edge : node->edges) {
                if (!edge.node) continue;
                ++edge.node->dependencies;
                reach(edge.node);
            }
        }
    }
    static bool queued(const Node& node) { return node.dependencies < 0; }
    void queue(Node& node) {
        if (node.sink >= 0) return;
        node.dependencies = -1;
        ready_.push({node.sequence, NodeRef(&node)});
    }

    void evaluate(Node& node) {
        if (node.leaf != nullptr) {
            if (node.buffer.empty()) return;  // none of those that led here had a gradient for it
            Tensor grad = std::move(node.buffer[0]);
            node.buffer.clear();
            if (grad.defined()) accumulate(*node.leaf, std::move(grad));
            return;
        }
        Tensors grads;
        for (Tensor& grad : node.buffer) grads.push_back(std::move(grad));
        node.buffer.clear();
        const OriginScope origin(run_, node.origin);
        Tensors out;
        out.resize(node.edges.size());
        bool any = false;
        for (const Tensor& grad : grads) any = any || grad.defined();
        if (node.macro != nullptr) {
            if (any) run_.memo()->backward(node, std::move(grads));
            node.held.clear();  // what outputs without a gradient have kept goes, too
        } else {
            if (any && wanted(node)) node.backward(run_, node, grads, out);
            validate(node, out);
            grads.clear();
            node.saved.clear();
        }
        mark_shared(out);
        for (std::size_t i = 0; i < node.edges.size(); ++i) {
            const Edge& edge = node.edges[i];
            if (!edge.node) continue;
            if (out[i].defined()) add(*edge.node, edge.input, std::move(out[i]));
            if (--edge.node->dependencies == 0) queue(*edge.node);
        }
    }

    /// Whether some input wants its gradient; none does of an op over nothing but what is cut off.
    static bool wanted(const Node& node) {
        return node.edges.empty() ||
               std::any_of(node.edges.begin(), node.edges.end(), [](const Edge& edge) { return bool(edge.node); });
    }

    /// A formula that hands one tensor to several inputs: whichever leaf it reaches first may not take it over.
    static void mark_shared(Tensors& out) {
        for (std::size_t i = 1; i < out.size(); ++i)
            for (std::size_t j = 0; j < i; ++j) {
                if (!out[i].defined() || !out[j].defined()) continue;
                if (out[i].storage() != out[j].storage() || out[i].layout() != out[j].layout()) continue;
                out[i].set_shared();
                out[j].set_shared();
            }
    }

    /// Each gradient gets the shape and dtype of the tensor it belongs to.
    void validate(const Node& node, Tensors& out) {
        for (std::size_t i = 0; i < node.edges.size(); ++i) {
            const Edge& edge = node.edges[i];
            Tensor& grad = out[i];
            if (!edge.node || !grad.defined()) continue;
            const LayoutRef wanted = edge.node->outputs[static_cast<std::size_t>(edge.input)];
            if (!(grad.sizes() == wanted->sizes)) grad = sum_to(std::move(grad), wanted->sizes);
            if (grad.dtype() != wanted->dtype) grad = to(std::move(grad), wanted->dtype);
        }
    }

    void accumulate(Parameter& parameter, Tensor grad) {
        take_over(parameter, grad);
        if (parameter.post_accumulate_grad != nullptr)
            (*parameter.post_accumulate_grad)();  // AccumulateGrad::apply holds new_grad
    }

    void take_over(Parameter& parameter, Tensor& new_grad) {
        if (parameter.grad.defined()) return;  // variable_grad += new_grad, in place
        if (new_grad.storage()->slot < 0) {    // of a parameter in host memory
            parameter.grad = new_grad;
            return;
        }
        const LayoutRef own = parameter.value.layout();
        const bool layout_fits =
            own->dense ? own->strides == new_grad.layout()->strides || (own->contiguous && new_grad.contiguous())
                       : new_grad.contiguous();
        // Taken over where nobody else holds this very tensor; it may well be a view of what others look at, too.
        // Source: torch/csrc/autograd/functions/accumulate_grad.h, accumulateGrad.
        const bool held = new_grad.storage()->refs > 1 && (!new_grad.is_view() || new_grad.is_shared());
        parameter.grad = held || !layout_fits
                             ? run_.empty(own->dense ? own : run_.layouts.contiguous(own->sizes, own->dtype), Op::clone)
                             : new_grad;
        run_.retag(*parameter.grad.storage(),
                   run_.tag(run_.trace.tags[parameter.value.storage()->tag].component, Category::gradients));
    }

    Run& run_;
    std::vector<NodeRef> all_;
    std::priority_queue<Ready> ready_;
};

void Run::backward(const Tensor& loss) {
    // torch.autograd.backward makes the first gradient, ones_like(loss), and holds it until the engine is done.
    in_backward = true;
    gemm();  // the engine's thread has a cuBLAS handle of its own; opened here, so that a copied call never opens it
    in_backward = false;
    const Tensor ones = empty_like(loss, Op::ones);
    Tensors grads;
    grads.push_back(ones);
    backward(std::span<const Tensor>(&loss, 1), std::move(grads));
    drop_recordings();
}

void Run::drop_recordings() {
    if (memo_ == nullptr) return;
    const Aside aside(*this, Into::recording);
    memo_->drop_graphs();
}

void Run::backward(std::span<const Tensor> outputs, Tensors grads) {
    if (outputs.size() != grads.size()) throw std::logic_error("one gradient an output");
    Engine(*this).start(outputs, std::move(grads));
}

}  // namespace vram::shadow
