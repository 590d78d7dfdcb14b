#include "shadow/memo.hpp"

#include <algorithm>

namespace vram::shadow {

/// A tensor of a call, said without a storage: which storage it looks at, and how.
struct Memo::Look {
    std::int32_t storage = -1;   // an index whose meaning the holder says; -1: host memory
    LayoutRef layout = nullptr;  // null: undefined
    bool view = false, requires_grad = false, shared = false;
};

Tensor Memo::look_at(const Look& look, const std::vector<StorageRef>& storages) const {
    if (look.layout == nullptr) return {};
    Tensor tensor(look.storage < 0 ? StorageRef(run_.host_) : storages[static_cast<std::size_t>(look.storage)],
                  look.layout);
    if (look.view) tensor.set_view();
    if (look.shared) tensor.set_shared();
    return tensor;
}

/// Numbers storages in the order in which they are met.
class Memo::Groups {
  public:
    std::int32_t of(Storage* storage) {
        if (storage->slot < 0) return -1;
        for (std::size_t i = 0; i < met_.size(); ++i)
            if (met_[i] == storage) return static_cast<std::int32_t>(i);
        met_.push_back(storage);
        return static_cast<std::int32_t>(met_.size() - 1);
    }
    [[nodiscard]] std::span<Storage* const> met() const noexcept { return {met_.begin(), met_.size()}; }

  private:
    Small<Storage*, 12> met_;
};

Memo::Look Memo::look_of(const Tensor& tensor, Groups& groups) {
    if (!tensor.defined()) return {};
    return {groups.of(tensor.storage()), tensor.layout(), tensor.is_view(), tensor.requires_grad(), tensor.is_shared()};
}

void Memo::add(Key& key, const Look& look) {
    key.push_back(look.storage);
    key.push_back(static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(look.layout)));
    key.push_back((look.view ? 1 : 0) + (look.requires_grad ? 2 : 0) + (look.shared ? 4 : 0));
}

/// What a recorded stretch of a trace does. Slots of the recording: below `first` they stand for storages from outside,
/// from there on they are born in the stretch. A step is done before the event at `at` is copied.
struct Memo::Slice {
    enum class Step : std::uint8_t {
        birth,  // of a slot that outlives the stretch: `index` among the survivors
        drop,   // of what came from outside: `index` among the outsiders
        die,    // of a survivor of this very stretch that something outside already took over: never emitted
        retag,  // of an outsider
    };
    struct Action {
        std::size_t at = 0;
        Step step = Step::birth;
        std::int32_t index = 0;
        Event event;
        Stretch before;  // the events since the action before it
    };
    std::vector<Event> events;  // of slots that live and die inside, counted from 0
    std::vector<Action> actions;
    Stretch after;   // the events that no action follows
    Slot slots = 0;  // born inside
    std::int32_t survivors = 0;
    AttentionCalls calls;
};

/// The backward of a call, for one pattern of incoming gradients.
struct Memo::Backward {
    Key key;
    std::unique_ptr<Slice> slice;
    std::vector<Look> buffers;                            // one an edge: what lies in the node's buffer afterwards
    std::vector<std::pair<std::size_t, Look>> gradients;  // of trainable parameters, by index
};

/// The recorded call itself, stopped after its forward: its graph, until a backward is recorded from it. Slots and
/// storages are those of the recording.
struct Memo::RecordedForward {
    Tensors roots;               // of the outputs that require grad: nodes without storages
    std::vector<NodeRef> sinks;  // by edge
    Slot first = 0, end = 0;     // what forward gave birth to
    std::vector<std::int32_t> survivor_of;
    const std::vector<Parameter*>* trainable = nullptr;
};

/// A call as it was recorded.
struct Macro {
    using Look = Memo::Look;

    // What the call is handed: storages by group, tags and layouts; which inputs share an edge.
    std::vector<Look> inputs;
    std::vector<Bytes> group_bytes;
    std::vector<std::uint16_t> group_tags;
    std::vector<std::int32_t> input_edges;  // input → edge, or -1
    std::int32_t edges = 0;
    bool has_node = false;
    Run::Autocast autocast;
    std::uint16_t tag = 0;

    std::unique_ptr<Memo::Slice> slice;
    std::vector<Look> outputs;                        // storage: group, or groups + survivor
    std::vector<std::int32_t> held;                   // by the graph: groups, or groups + survivor
    std::vector<std::pair<std::size_t, Look>> casts;  // autocast's cache: trainable parameter → cast

    std::unique_ptr<Memo::RecordedForward> forward;  // until a backward is recorded from it

    // Of the latest call; equal calls may stand in for each other.
    Callee function;
    const std::vector<Parameter*>* trainable = nullptr;
    std::vector<std::unique_ptr<Memo::Backward>> backwards;
};

/// Where calls are recorded.
class Memo::Capture : public Aside {
  public:
    using Aside::Aside;

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
            if (event.kind == EventKind::alloc) size = round_up(event.bytes, 512);
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
        if ((event.kind == EventKind::alloc || event.kind == EventKind::scratch) && !inside) {
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
    add_up(slice);
}

}  // namespace

Memo::Memo(Run& run) : run_(run) {}
Memo::~Memo() = default;

std::size_t Memo::KeyHash::operator()(const Key& key) const noexcept {
    std::uint64_t h = 1469598103934665603ULL;
    for (std::int64_t item : key) h = ((h << 5 | h >> 59) ^ static_cast<std::uint64_t>(item)) * 0x9E3779B97F4A7C15ULL;
    return static_cast<std::size_t>(h);
}

void Memo::append(const Slice& slice, const Stretch& stretch, Slot offset) {
    if (stretch.count == 0) return;
    auto& events = run_.trace.events;
    if (events.size() + stretch.count > Run::event_limit)
        throw TraceTooLong("the job needs more events than a run may hold");
    run_.trace.stretches.push_back(stretch);
    run_.trace.stretches.back().first = events.size();
    const Event* const recorded = slice.events.data() + stretch.first;
    events.insert(events.end(), recorded, recorded + stretch.count);
    for (Event& event : std::span(events).last(stretch.count)) event.slot += offset;
}

/// Copies a slice into the trace. `storages` gets its survivors; `drop` lets an outsider go.
struct Memo::Played {
    template <class Drop, class Outsider>
    static void play(Memo& memo, const Slice& slice, const Drop& drop, const Outsider& outsider,
                     std::vector<StorageRef>& storages) {
        Run& run = memo.run_;
        const Slot base = run.trace.slots;
        run.trace.slots += slice.slots;
        const std::size_t first = storages.size();
        storages.resize(first + static_cast<std::size_t>(slice.survivors));
        for (const Slice::Action& action : slice.actions) {
            memo.append(slice, action.before, base);
            const auto index = static_cast<std::size_t>(action.index);
            switch (action.step) {
                case Slice::Step::birth:
                    storages[first + index] = run.adopt(action.event, action.event.slot + base);
                    break;
                case Slice::Step::drop: drop(action.index); break;
                case Slice::Step::retag: run.retag(*outsider(action.index), action.event.tag); break;
                case Slice::Step::die: run.retag(*storages[first + index], action.event.tag); break;
            }
        }
        memo.append(slice, slice.after, base);
        run.attention_calls += slice.calls;
    }
};

namespace {

/// The nodes of the outputs that require grad, as tensors that hold nothing else.
Tensors roots_of(const Tensors& outputs) {
    Tensors roots;
    for (const Tensor& output : outputs) {
        if (!output.defined() || !output.requires_grad()) continue;
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

std::unique_ptr<Macro> Memo::record_forward(const CallSpec& spec, const Tensors& args, const Callee& function) {
    auto macro = std::make_unique<Macro>();
    Groups groups;
    std::vector<std::pair<const Node*, int>> edges;
    for (const Tensor& arg : args) {
        macro->inputs.push_back(look_of(arg, groups));
        std::int32_t edge = -1;
        if (arg.defined() && arg.requires_grad()) {
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
    const auto place = [&](const Storage* storage) -> std::int32_t {
        if (storage->slot < 0) return -1;
        if (storage->slot < first) return static_cast<std::int32_t>(storage->slot);
        return group_count + survivor_of[static_cast<std::size_t>(storage->slot - first)];
    };
    const auto look = [&](const Tensor& tensor) {
        return tensor.defined() ? Look{place(tensor.storage()), tensor.layout(), tensor.is_view(),
                                       tensor.requires_grad(), tensor.is_shared()}
                                : Look{};
    };
    for (const Tensor& output : outputs) {
        macro->outputs.push_back(look(output));
        macro->has_node = macro->has_node || (output.defined() && output.requires_grad());
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

Tensors Memo::forward(const CallSpec& spec, Tensors& args, const Callee& function) {
    Key key;
    key.reserve(7 + 6 * args.size());
    for (const std::int64_t mode :
         {std::int64_t{spec.block}, std::int64_t{spec.variant}, std::int64_t{run_.grad_enabled()},
          std::int64_t{run_.autocast().enabled}, static_cast<std::int64_t>(run_.autocast().dtype),
          std::int64_t{run_.activation_tag}, std::int64_t{run_.in_backward}})
        key.push_back(mode);
    Groups groups;
    for (std::size_t own = 0; own < args.size(); ++own) {
        const Tensor& arg = args[own];
        const Look look = look_of(arg, groups);
        add(key, look);
        if (look.layout == nullptr) continue;
        key.push_back(arg.storage()->tag);
        key.push_back(arg.storage()->bytes);
        // Inputs that are one output of one node share an edge.
        std::int64_t same = -1;
        for (std::size_t i = 0; i < own && arg.node(); ++i)
            if (args[i].node() == arg.node() && args[i].output_number() == arg.output_number())
                same = static_cast<std::int64_t>(i);
        key.push_back(same);
    }
    auto found = macros_.find(key);
    // A recording may make others, so it is entered only once it is done.
    if (found == macros_.end()) found = macros_.emplace(std::move(key), record_forward(spec, args, function)).first;
    Macro& macro = *found->second;
    macro.function = function;
    macro.trainable = spec.trainable;

    const std::span<Storage* const> outsiders = groups.met();
    NodeRef node;
    if (macro.has_node) {
        node = run_.new_node(Op::custom, nullptr);
        node->macro = &macro;
        node->trainable = spec.trainable;
        std::int32_t edges = 0;
        for (std::size_t i = 0; i < args.size(); ++i)
            if (macro.input_edges[i] == edges) {
                node->edges.push_back({args[i].node(), args[i].output_number()});
                ++edges;
            }
    }
    std::vector<StorageRef> storages;
    storages.reserve(outsiders.size() + static_cast<std::size_t>(macro.slice->survivors));
    for (Storage* storage : outsiders) storages.emplace_back(storage);
    // What the call took over goes when it let go of it.
    const auto drop = [&](std::int32_t group) {
        for (std::size_t i = 0; i < args.size(); ++i)
            if (macro.inputs[i].storage == group) args[i] = Tensor();
        storages[static_cast<std::size_t>(group)].reset();
    };
    Played::play(
        *this, *macro.slice, drop, [&](std::int32_t group) { return outsiders[static_cast<std::size_t>(group)]; },
        storages);
    if (node) {
        node->held.reserve(macro.held.size());
        for (std::int32_t held : macro.held) node->held.push_back(storages[static_cast<std::size_t>(held)]);
    }
    for (const auto& [index, cast] : macro.casts)
        run_.autocast_cache.put((*spec.trainable)[index]->value.storage(), look_at(cast, storages));
    Tensors outputs;
    for (const Look& look : macro.outputs) {
        Tensor output = look_at(look, storages);
        if (look.requires_grad) Run::attach(output, node);
        outputs.push_back(std::move(output));
    }
    return outputs;
}

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

void Memo::backward(Node& node, Tensors grads) {
    Macro& macro = *node.macro;
    // The buffers of the nodes behind take part: a gradient that already lies there is added to.
    Groups groups;
    Key key;
    key.reserve(3 + 6 * (grads.size() + node.edges.size()) + (node.trainable == nullptr ? 0 : node.trainable->size()));
    for (const std::int64_t mode : {std::int64_t{run_.activation_tag}, std::int64_t{run_.autocast().enabled},
                                    static_cast<std::int64_t>(run_.autocast().dtype)})
        key.push_back(mode);
    Looks incoming, waiting;
    Small<std::int32_t, 12> holders;  // by group: how many of our own tensors look at it
    const auto take = [&](const Tensor& tensor, Looks& into) {
        into.push_back(look_of(tensor, groups));
        add(key, into.back());
        if (const std::int32_t group = into.back().storage; group >= 0) {
            holders.resize(groups.met().size());
            ++holders[static_cast<std::size_t>(group)];
        }
    };
    for (const Tensor& grad : grads) take(grad, incoming);
    Tensors buffered;
    for (Edge& edge : node.edges) {
        Tensor held;
        if (edge.node && static_cast<std::size_t>(edge.input) < edge.node->buffer.size())
            held = std::move(edge.node->buffer[static_cast<std::size_t>(edge.input)]);
        take(held, waiting);
        buffered.push_back(std::move(held));
    }
    Small<std::uint8_t, 12> shared;
    for (std::size_t i = 0; i < groups.met().size(); ++i) {
        // Whoever else holds it keeps it from being added to in place.
        shared.push_back(groups.met()[i]->refs > holders[i] ? 1 : 0);
        key.push_back(shared.back());
        key.push_back(groups.met()[i]->tag);
        key.push_back(groups.met()[i]->bytes);
    }
    if (node.trainable != nullptr)
        for (const Parameter* parameter : *node.trainable) key.push_back(parameter->grad.defined());

    Backward* found = nullptr;
    for (const auto& candidate : macro.backwards)
        if (candidate->key == key) found = candidate.get();
    if (found == nullptr) {
        macro.backwards.push_back(record_backward(node, key, incoming, waiting, groups.met(), shared));
        found = macro.backwards.back().get();
    }
    const Backward& backward = *found;

    // Outsiders: what the graph holds, then the gradients' storages. Letting a gradient go drops every tensor of ours
    // on it.
    const std::size_t held_count = node.held.size();
    std::vector<StorageRef> storages = std::move(node.held);
    storages.reserve(held_count + groups.met().size() + static_cast<std::size_t>(backward.slice->survivors));
    for (Storage* storage : groups.met()) storages.emplace_back(storage);
    grads.clear();
    buffered.clear();
    Played::play(
        *this, *backward.slice, [&](std::int32_t outsider) { storages[static_cast<std::size_t>(outsider)].reset(); },
        [&](std::int32_t outsider) { return storages[static_cast<std::size_t>(outsider)].get(); }, storages);
    for (std::size_t i = 0; i < node.edges.size(); ++i) {
        const Edge& edge = node.edges[i];
        if (!edge.node || backward.buffers[i].layout == nullptr) continue;
        const std::size_t outputs = std::max<std::size_t>(edge.node->outputs.size(), 1);
        if (edge.node->buffer.size() < outputs) edge.node->buffer.resize(outputs);
        edge.node->buffer[static_cast<std::size_t>(edge.input)] = look_at(backward.buffers[i], storages);
    }
    for (const auto& [index, look] : backward.gradients) (*node.trainable)[index]->grad = look_at(look, storages);
    storages.resize(held_count);
    node.held = std::move(storages);
}

void Memo::drop_graphs() {
    for (Macro* macro : with_graph_) macro->forward.reset();
    with_graph_.clear();
}

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
        return {place, tensor.layout(), tensor.is_view(), false, tensor.is_shared()};
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

Tensors call(Run& run, const CallSpec& spec, Tensors args, const Callee& function) {
    if (spec.gemms) run.gemm();
    // Inside a checkpointed call, saved tensors belong to its frame: nothing of that is copied.
    if (run.memo() == nullptr || spec.block < 0 || !run.hooks.empty()) return function(args);
    return run.memo()->forward(spec, args, function);
}

std::int32_t spec_id(Run& run, std::string_view class_name, const std::vector<std::int64_t>& facts) {
    std::vector<std::int64_t> key(facts);
    for (char c : class_name) key.push_back(c);
    const auto [at, fresh] = run.specs.emplace(std::move(key), static_cast<std::int32_t>(run.specs.size()));
    static_cast<void>(fresh);
    return at->second;
}

}  // namespace vram::shadow
