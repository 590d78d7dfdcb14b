#include "shadow/checkpoint.hpp"

#include <deque>

#include "shadow/provenance.hpp"

namespace vram::shadow {

void add_ref(Frame* frame) noexcept { ++frame->refs; }
void release(Frame* frame) noexcept {
    if (--frame->refs == 0) delete frame;
}

Saved& Saved::operator=(Saved&& other) noexcept {
    std::swap(storage, other.storage);
    std::swap(layout, other.layout);
    std::swap(frame, other.frame);
    std::swap(index, other.index);
    return *this;
}

Saved::~Saved() {
    if (!frame) return;
    Frame::Holder& holder = frame->holders[static_cast<std::size_t>(index)];
    holder.alive = false;
    holder.value = Tensor();
}

namespace {
class HookScope {
  public:
    HookScope(Run& run, Run::Hook hook) : run_(run) { run.hooks.push_back(hook); }
    ~HookScope() { run_.hooks.pop_back(); }
    HookScope(const HookScope&) = delete;
    HookScope& operator=(const HookScope&) = delete;

  private:
    Run& run_;
};

/// What the saved-tensor hooks that are active make of a tensor.
Saved pack(Run& run, const Tensor& tensor) {
    Saved saved;
    saved.layout = tensor.layout();
    if (run.hooks.empty()) {
        saved.storage = tensor.storage_ref();
        return saved;
    }
    Frame& frame = *run.hooks.back().frame;
    if (!run.hooks.back().recompute) {
        saved.frame = Ref<Frame>(&frame);
        saved.index = static_cast<std::int32_t>(frame.holders.size());
        frame.holders.emplace_back();
        return saved;
    }
    saved.storage = tensor.storage_ref();
    const auto index = static_cast<std::size_t>(frame.counter++);
    if (index < frame.holders.size() && frame.holders[index].alive) frame.holders[index].value = tensor.detach();
    if (index + 1 >= frame.holders.size()) throw StopRecomputation{};
    return saved;
}

Tensors inputs_of(Run& run, Frame& frame) {
    if (frame.saved_args.empty()) return frame.args;
    Tensors inputs;
    for (Frame::Argument& argument : frame.saved_args) {
        Tensor input = run.unpack(argument.value);
        if (argument.node) input.set_node(argument.node, argument.output);
        if (argument.cut_off) input.set_cut_off();
        inputs.push_back(std::move(input));
    }
    return inputs;
}

void recompute(Run& run, Frame& frame) {
    const Tensors inputs = inputs_of(run, frame);
    frame.recomputed = true;
    // The preserved context re-enters autocast: outside of any other, its cache starts and ends empty.
    const AutocastScope autocast(run, frame.autocast);
    const HookScope hook(run, {&frame, true});
    const EnableGrad grad(run);
    const ForwardScope forward(run);
    const bool in_backward = run.in_backward;
    try {
        const Tensors outputs = frame.function(inputs);
    } catch (const StopRecomputation&) {
    }
    run.in_backward = in_backward;
}
}  // namespace

Tensors checkpoint(Run& run, std::function<Tensors(const Tensors&)> function, Tensors args) {
    if (!run.grad_enabled()) return function(args);
    Ref<Frame> frame(new Frame);
    frame->run = &run;
    frame->function = std::move(function);
    frame->autocast = run.autocast();
    if (!run.hooks.empty()) {  // save_inputs, before the call's own hooks
        for (const Tensor& arg : args)
            frame->saved_args.push_back({arg.defined() ? pack(run, arg) : Saved{},
                                         arg.defined() ? arg.node() : NodeRef(), arg.output_number(),
                                         arg.is_cut_off()});
        const HookScope hook(run, {frame.get(), false});
        return frame->function(args);
    }
    frame->args = std::move(args);
    const std::uint16_t kept = run.tag(run.trace.tags[run.activation_tag].component, Category::checkpoints);
    for (const Tensor& arg : frame->args)
        if (arg.defined() && arg.requires_grad() && arg.storage()->tag == run.activation_tag)
            run.retag(*arg.storage(), kept);
    const HookScope hook(run, {frame.get(), false});
    return frame->function(frame->args);
}

namespace {
void reentrant_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Frame& frame = *node.frame;
    // detach_variable: leaves that require grad as the arguments do.
    std::deque<Parameter> detached_inputs(node.saved.size());
    Tensors inputs;
    for (std::size_t i = 0; i < node.saved.size(); ++i) {
        Parameter& input = detached_inputs[i];
        input.value = run.unpack(node.saved[i]);
        if (input.value.defined() && node.needs(i)) run.make_leaf(input);
        inputs.push_back(input.value);
    }
    Tensors outputs;
    {
        const EnableGrad grad(run);
        const AutocastScope autocast(run, frame.autocast);
        const ForwardScope forward(run);
        outputs = frame.function(inputs);
    }
    Tensors outputs_with_grad, args_with_grad;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
        if (!outputs[i].node()) continue;
        outputs_with_grad.push_back(outputs[i]);
        args_with_grad.push_back(grads[i]);
    }
    run.backward(std::span<const Tensor>(outputs_with_grad.begin(), outputs_with_grad.size()),
                 std::move(args_with_grad));
    for (std::size_t i = 0; i < detached_inputs.size(); ++i) out[i] = std::move(detached_inputs[i].grad);
}
}  // namespace

Tensors checkpoint_reentrant(Run& run, std::function<Tensors(const Tensors&)> function, Tensors args) {
    Ref<Frame> frame(new Frame);
    frame->run = &run;
    frame->function = std::move(function);
    frame->autocast = run.autocast();
    const NodeRef node = run.record(Op::custom, reentrant_backward, std::span<const Tensor>(args.begin(), args.size()));
    if (node) {
        node->frame = frame;
        const std::uint16_t kept = run.tag(run.trace.tags[run.activation_tag].component, Category::checkpoints);
        for (const Tensor& arg : args) {
            run.save_if(arg.defined(), *node, arg);
            if (arg.defined() && arg.requires_grad() && arg.storage()->tag == run.activation_tag)
                run.retag(*arg.storage(), kept);
        }
    }
    Tensors outputs;
    {
        const NoGrad no_grad(run);
        outputs = frame->function(args);
    }
    for (Tensor& output : outputs) Run::attach(output, node);
    return outputs;
}

namespace {
// AccumulateGrad takes the gradient over as it comes.
void activation_leaf_backward(Run&, Node& node, Tensors& grads, Tensors&) {
    if (grads[0].defined()) node.held.push_back(grads[0].storage_ref());
}
}  // namespace

void requires_grad_(Tensor& x) {
    Run& run = x.run();
    if (x.requires_grad() || !run.grad_enabled()) return;
    Parameter origin;  // no gradient ever gets there
    run.make_leaf(origin);
    const NodeRef node = run.record(Op::custom, activation_leaf_backward, {&origin.value});
    node->held.push_back(x.storage_ref());
    Run::attach(x, node);
}

void Run::save(Node& node, const Tensor& tensor) { node.saved.push_back(pack(*this, tensor)); }

Tensor Run::unpack(Saved& saved) {
    if (!saved.defined()) return {};
    if (!saved.frame) return {saved.storage, saved.layout};
    if (!saved.frame->recomputed) recompute(*this, *saved.frame);
    return std::move(saved.frame->holders[static_cast<std::size_t>(saved.index)].value);
}

}  // namespace vram::shadow
