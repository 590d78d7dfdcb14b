// How a memo records: a call is played once on stand-ins, aside from the run's own trace, and what its events did to
// whatever came from outside is written down.
#include <algorithm>
#include <stdexcept>

#include "base/blocks.hpp"
#include "shadow/recording.hpp"

namespace vram::shadow {

/// Where calls are recorded.
class Memo::Capture : public Aside {
  public:
    explicit Capture(Run& run) : Aside(run, Into::recording) {}

    /// Stand-ins for the storages from outside.
    std::vector<StorageRef> outsiders(const std::vector<Bytes>& bytes, const std::vector<std::uint16_t>& tags) {
        std::vector<StorageRef> out;
        for (std::size_t i = 0; i < bytes.size(); ++i) {
            run_.activation_tag = tags[i];
            out.push_back(run_.allocate(bytes[i], Op::none));
        }
        return out;
    }
    /// Modes of the call's forward.
    void enter_forward(const Macro& macro, bool grad) {
        run_.activation_tag = macro.tag;
        run_.in_backward = false;
        run_.grad_enabled_ = grad;
        run_.autocast_ = macro.autocast;
        run_.autocast_depth_ = macro.autocast.enabled ? 1 : 0;
    }
    void enter_backward() {
        run_.activation_tag = tag_;
        run_.in_backward = true;
        run_.grad_enabled_ = false;
        run_.autocast_ = autocast_;
        run_.autocast_depth_ = autocast_depth_;
        run_.autocast_cache.clear();
    }
    /// Goes on where a recorded forward stopped.
    void resume(Slot end) { run_.trace.slots = end; }
};

namespace {

/// What the events between the slice's actions come to.
template <class Slice>
void add_up(Slice& slice) {
    std::vector<Bytes> sizes(static_cast<std::size_t>(slice.slots));
    const auto stretch = [&](std::size_t first, std::size_t end) {
        Stretch out{first, end - first, 0, 0, 0};
        for (std::size_t i = first; i < end; ++i) {
            const Event& event = slice.events[i];
            Bytes& size = sizes[static_cast<std::size_t>(event.slot)];
            if (event.kind == EventKind::alloc) size = in_blocks(event.bytes);
            if (event.kind == EventKind::alloc) out.net += size;
            if (event.kind == EventKind::free) out.net -= size;
            if (i != first && out.net <= out.peak) continue;
            out.peak = out.net;
            out.peak_at = i - first;
        }
        return out;
    };
    std::size_t at = 0;
    for (typename Slice::Action& action : slice.actions) {
        action.before = stretch(at, action.at);
        at = action.at;
    }
    slice.after = stretch(at, slice.events.size());
}

/// Splits recorded events into what is copied and what is done. `outsider` maps a slot below `first` to its index among
/// the outsiders.
template <class Slice, class Outsider>
void cut(Slice& slice, std::span<const Event> events, Slot first, Slot end, const Outsider& outsider,
         std::vector<std::int32_t>& survivor_of) {
    using Step = typename Slice::Step;
    std::vector<bool> dies(static_cast<std::size_t>(end - first), false);
    for (const Event& event : events)
        if (event.kind == EventKind::free && event.slot >= first)
            dies[static_cast<std::size_t>(event.slot - first)] = true;
    survivor_of.assign(static_cast<std::size_t>(end - first), -1);
    slice.slots = end - first;
    slice.events.reserve(events.size());
    for (Event event : events) {
        if (event.kind == EventKind::mark) continue;
        if (event.slot < first) {
            slice.actions.push_back({slice.events.size(),
                                     event.kind == EventKind::free ? Step::drop : Step::retag,
                                     outsider(event.slot),
                                     event,
                                     {}});
            continue;
        }
        event.slot -= first;
        const bool inside = dies[static_cast<std::size_t>(event.slot)];
        const bool born =
            event.kind == EventKind::alloc || event.kind == EventKind::scratch || event.kind == EventKind::convolution;
        if (born && !inside) {
            survivor_of[static_cast<std::size_t>(event.slot)] = slice.survivors;
            slice.actions.push_back({slice.events.size(), Step::birth, slice.survivors++, event, {}});
            continue;
        }
        if (event.kind == EventKind::retag && !inside) {
            slice.actions.push_back(
                {slice.events.size(), Step::die, survivor_of[static_cast<std::size_t>(event.slot)], event, {}});
            continue;
        }
        slice.events.push_back(event);
    }
}

}  // namespace

namespace {

/// The nodes of the outputs that require grad, as tensors that hold nothing else.
Tensors roots_of(const Tensors& outputs) {
    Tensors roots;
    for (const Tensor& output : outputs) {
        if (!output.defined() || !output.node()) continue;
        Tensor root;
        root.set_node(output.node(), output.output_number());
        roots.push_back(std::move(root));
    }
    return roots;
}

std::vector<NodeRef> sinks_of(const Macro& macro, const Tensors& inputs) {
    std::vector<NodeRef> sinks(static_cast<std::size_t>(macro.edges));
    for (std::size_t i = 0; i < inputs.size(); ++i)
        if (macro.input_edges[i] >= 0) sinks[static_cast<std::size_t>(macro.input_edges[i])] = inputs[i].node();
    return sinks;
}

}  // namespace

Tensors Memo::stand_ins(const Macro& macro, const std::vector<StorageRef>& outsiders) const {
    std::vector<NodeRef> sinks(static_cast<std::size_t>(macro.edges));
    Tensors inputs;
    for (std::size_t i = 0; i < macro.inputs.size(); ++i) {
        Tensor input = look_at(macro.inputs[i], outsiders);
        if (const std::int32_t edge = macro.input_edges[i]; edge >= 0) {
            NodeRef& sink = sinks[static_cast<std::size_t>(edge)];
            if (!sink) {
                sink = run_.new_node(Op::none, nullptr);
                sink->sink = edge;
                sink->outputs.push_back(input.layout());
            }
            input.set_node(sink, 0);
        }
        inputs.push_back(std::move(input));
    }
    return inputs;
}

std::unique_ptr<Macro> Memo::record_forward(const CallSpec& spec, const Tensors& args, const Callee& function) {
    auto macro = std::make_unique<Macro>();
    Groups groups;
    std::vector<std::pair<const Node*, int>> edges;
    for (const Tensor& arg : args) {
        macro->inputs.push_back(look_of(arg, groups));
        std::int32_t edge = -1;
        if (arg.defined() && arg.node()) {
            const std::pair<const Node*, int> target{arg.node().get(), arg.output_number()};
            const auto found = std::find(edges.begin(), edges.end(), target);
            edge = static_cast<std::int32_t>(found - edges.begin());
            if (found == edges.end()) edges.push_back(target);
        }
        macro->input_edges.push_back(edge);
    }
    macro->edges = static_cast<std::int32_t>(edges.size());
    for (const Storage* storage : groups.met()) {
        macro->group_bytes.push_back(storage->bytes);
        macro->group_tags.push_back(storage->tag);
    }
    macro->autocast = run_.autocast();
    macro->tag = run_.activation_tag;
    macro->slice = std::make_unique<Slice>();
    const bool grad = run_.grad_enabled();
    const auto group_count = static_cast<std::int32_t>(groups.met().size());

    Capture capture(run_);
    std::vector<StorageRef> outsiders = capture.outsiders(macro->group_bytes, macro->group_tags);
    capture.enter_forward(*macro, grad);
    Tensors inputs = stand_ins(*macro, outsiders);
    outsiders.clear();
    auto forward = std::make_unique<RecordedForward>();
    forward->sinks = sinks_of(*macro, inputs);
    const Slot first = run_.trace.slots;
    const std::size_t begin = run_.trace.events.size();
    Tensors outputs = function(inputs);
    const std::size_t end = run_.trace.events.size();
    const std::vector<Event> events(run_.trace.events.begin() + static_cast<std::ptrdiff_t>(begin),
                                    run_.trace.events.begin() + static_cast<std::ptrdiff_t>(end));
    macro->slice->calls = run_.attention_calls;
    std::vector<std::int32_t> survivor_of;
    cut(
        *macro->slice, events, first, run_.trace.slots, [](Slot slot) { return static_cast<std::int32_t>(slot); },
        survivor_of);
    add_up(*macro->slice);
    const auto place = [&](const Storage* storage) -> std::int32_t {
        if (storage->slot < 0) return -1;
        if (storage->slot < first) return static_cast<std::int32_t>(storage->slot);
        return group_count + survivor_of[static_cast<std::size_t>(storage->slot - first)];
    };
    const auto look = [&](const Tensor& tensor) {
        if (!tensor.defined()) return Look{};
        return Look{place(tensor.storage()),          tensor.layout(),    tensor.is_view(),
                    static_cast<bool>(tensor.node()), tensor.is_shared(), tensor.is_cut_off()};
    };
    for (const Tensor& output : outputs) {
        macro->outputs.push_back(look(output));
        macro->has_node = macro->has_node || (output.defined() && output.node());
    }
    for (const auto& [storage, cast] : run_.autocast_cache.casts()) {
        std::size_t index = 0;
        while (spec.trainable != nullptr && index < spec.trainable->size() &&
               (*spec.trainable)[index]->value.storage() != storage)
            ++index;
        if (spec.trainable != nullptr && index < spec.trainable->size()) macro->casts.push_back({index, look(cast)});
    }

    // What the graph alone keeps alive.
    forward->roots = roots_of(outputs);
    forward->trainable = spec.trainable;
    outputs.clear();
    inputs.clear();
    run_.autocast_cache.clear();
    std::vector<bool> alive(static_cast<std::size_t>(group_count + macro->slice->survivors), true);
    for (const Event& event : run_.trace.events) {
        if (event.kind != EventKind::free) continue;
        if (event.slot < first) {
            alive[static_cast<std::size_t>(event.slot)] = false;
        } else if (const std::int32_t survivor = survivor_of[static_cast<std::size_t>(event.slot - first)];
                   survivor >= 0) {
            alive[static_cast<std::size_t>(group_count + survivor)] = false;
        }
    }
    for (std::size_t i = 0; i < alive.size(); ++i)
        if (alive[i]) macro->held.push_back(static_cast<std::int32_t>(i));
    if (macro->has_node) {
        forward->first = first;
        forward->end = run_.trace.slots;
        forward->survivor_of = std::move(survivor_of);
        macro->forward = std::move(forward);
        with_graph_.push_back(macro.get());
    }
    return macro;
}

namespace {
/// Gradients of parameters, set aside while a backward is recorded.
class GradientsAside {
  public:
    explicit GradientsAside(const std::vector<Parameter*>* parameters) : parameters_(parameters) {
        if (parameters == nullptr) return;
        for (Parameter* parameter : *parameters) aside_.push_back(parameter->grad);
    }
    ~GradientsAside() {
        for (std::size_t i = 0; i < aside_.size(); ++i) (*parameters_)[i]->grad = std::move(aside_[i]);
    }
    GradientsAside(const GradientsAside&) = delete;
    GradientsAside& operator=(const GradientsAside&) = delete;

  private:
    const std::vector<Parameter*>* parameters_;
    std::vector<Tensor> aside_;
};
}  // namespace

/// Plays the call's forward again, for one more recording of its backward.
std::unique_ptr<Memo::RecordedForward> Memo::play_forward(const Macro& macro, Capture& capture) {
    auto forward = std::make_unique<RecordedForward>();
    std::vector<StorageRef> outsiders = capture.outsiders(macro.group_bytes, macro.group_tags);
    capture.enter_forward(macro, true);
    Tensors inputs = stand_ins(macro, outsiders);
    outsiders.clear();
    forward->sinks = sinks_of(macro, inputs);
    forward->first = run_.trace.slots;
    const auto begin = static_cast<std::ptrdiff_t>(run_.trace.events.size());
    Tensors outputs = macro.function(inputs);
    forward->end = run_.trace.slots;
    // Survivors, numbered as the recorded forward numbered them.
    Slice again;
    const std::vector<Event> events(run_.trace.events.begin() + begin, run_.trace.events.end());
    cut(
        again, events, forward->first, forward->end, [](Slot slot) { return static_cast<std::int32_t>(slot); },
        forward->survivor_of);
    forward->roots = roots_of(outputs);
    forward->trainable = macro.trainable;
    run_.autocast_cache.clear();
    return forward;
}

std::unique_ptr<Memo::Backward> Memo::record_backward(const Node& node, Key key, const Looks& incoming,
                                                      const Looks& waiting, std::span<Storage* const> gradient_storages,
                                                      const Small<std::uint8_t, 12>& shared) {
    Macro& macro = *node.macro;
    auto backward = std::make_unique<Backward>();
    backward->key = std::move(key);
    backward->slice = std::make_unique<Slice>();
    const std::vector<Parameter*>* trainable = macro.forward ? macro.forward->trainable : macro.trainable;
    std::vector<bool> has_gradient;
    for (std::size_t i = 0; trainable != nullptr && i < trainable->size(); ++i)
        has_gradient.push_back((*node.trainable)[i]->grad.defined());
    const GradientsAside aside(trainable);
    // A gradient that exists is added to in place: any defined tensor stands for it.
    for (std::size_t i = 0; i < has_gradient.size(); ++i)
        (*trainable)[i]->grad = has_gradient[i] ? run_.on_cpu({1}, Dtype::f32) : Tensor();

    std::vector<Bytes> bytes;
    std::vector<std::uint16_t> tags;
    for (const Storage* storage : gradient_storages) {
        bytes.push_back(storage->bytes);
        tags.push_back(storage->tag);
    }
    Capture capture(run_);
    const std::unique_ptr<Memo::RecordedForward> forward =
        macro.forward ? std::move(macro.forward) : play_forward(macro, capture);
    capture.resume(forward->end);
    const auto group_count = static_cast<std::int32_t>(macro.group_bytes.size());
    const std::vector<NodeRef>& sinks = forward->sinks;
    const Slot first_forward = forward->first, end_forward = forward->end;

    std::vector<StorageRef> gradients = capture.outsiders(bytes, tags);
    std::vector<StorageRef> others;  // somebody else's hold
    for (std::size_t i = 0; i < gradients.size(); ++i)
        if (shared[i] != 0) others.push_back(gradients[i]);
    Tensors grads, buffers;
    for (const Look& look : incoming) grads.push_back(look_at(look, gradients));
    for (std::size_t i = 0; i < waiting.size(); ++i)
        if (waiting[i].layout != nullptr) sinks[i]->buffer.push_back(look_at(waiting[i], gradients));
    gradients.clear();

    capture.enter_backward();
    run_.attention_calls = {};
    const Slot first = run_.trace.slots;
    const std::size_t begin = run_.trace.events.size();
    run_.backward(std::span<const Tensor>(forward->roots.begin(), forward->roots.size()), std::move(grads));
    const std::vector<Event> events(run_.trace.events.begin() + static_cast<std::ptrdiff_t>(begin),
                                    run_.trace.events.end());
    backward->slice->calls = run_.attention_calls;

    const auto held_count = static_cast<std::int32_t>(macro.held.size());
    const auto outsider = [&](Slot slot) -> std::int32_t {
        if (slot >= end_forward) return held_count + static_cast<std::int32_t>(slot - end_forward);
        const std::int32_t place =
            slot < first_forward ? static_cast<std::int32_t>(slot)
                                 : group_count + forward->survivor_of[static_cast<std::size_t>(slot - first_forward)];
        const auto found = std::find(macro.held.begin(), macro.held.end(), place);
        if (found == macro.held.end()) throw std::logic_error("memo: backward lets go of what the call did not keep");
        return static_cast<std::int32_t>(found - macro.held.begin());
    };
    std::vector<std::int32_t> born;
    cut(*backward->slice, events, first, run_.trace.slots, outsider, born);
    add_up(*backward->slice);
    const auto gradient_count = static_cast<std::int32_t>(gradient_storages.size());
    const auto look = [&](const Tensor& tensor) -> Look {
        if (!tensor.defined()) return {};
        const Slot slot = tensor.storage()->slot;
        std::int32_t place = -1;
        if (slot >= first) {
            place = held_count + gradient_count + born[static_cast<std::size_t>(slot - first)];
        } else if (slot >= 0) {
            place = outsider(slot);
        }
        return {place, tensor.layout(), tensor.is_view(), false, tensor.is_shared(), tensor.is_cut_off()};
    };
    for (const NodeRef& sink : sinks) {
        backward->buffers.push_back(sink->buffer.empty() ? Look{} : look(sink->buffer[0]));
        sink->buffer.clear();
    }
    for (std::size_t i = 0; i < has_gradient.size(); ++i) {
        const Tensor& grad = (*trainable)[i]->grad;
        if (grad.defined() && grad.storage()->slot >= 0) backward->gradients.push_back({i, look(grad)});
    }
    // Everything of the recording dies while its trace is still in place.
    for (std::size_t i = 0; i < has_gradient.size(); ++i) (*trainable)[i]->grad = Tensor();
    return backward;
}

}  // namespace vram::shadow
