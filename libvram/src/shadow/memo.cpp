#include "shadow/memo.hpp"

#include <algorithm>

#include "shadow/ops.hpp"
#include "shadow/provenance.hpp"
#include "shadow/recording.hpp"

namespace vram::shadow {

Memo::Memo(Run& run) : run_(run) {}
Memo::~Memo() = default;

namespace {
std::uint64_t hash_of(const std::vector<std::int64_t>& key) noexcept {
    std::uint64_t h = 1469598103934665603ULL;
    for (std::int64_t item : key) h = ((h << 5 | h >> 59) ^ static_cast<std::uint64_t>(item)) * 0x9E3779B97F4A7C15ULL;
    return h;
}
}  // namespace

std::size_t Memo::KeyHash::operator()(const Key& key) const noexcept { return static_cast<std::size_t>(hash_of(key)); }

Tensor Memo::look_at(const Look& look, const std::vector<StorageRef>& storages) const {
    if (look.layout == nullptr) return {};
    Tensor tensor(look.storage < 0 ? StorageRef(run_.host_) : storages[static_cast<std::size_t>(look.storage)],
                  look.layout);
    if (look.view) tensor.set_view();
    if (look.shared) tensor.set_shared();
    if (look.cut_off) tensor.set_cut_off();
    return tensor;
}

Memo::Look Memo::look_of(const Tensor& tensor, Groups& groups) {
    if (!tensor.defined()) return {};
    return {groups.of(tensor.storage()),      tensor.layout(),    tensor.is_view(),
            static_cast<bool>(tensor.node()), tensor.is_shared(), tensor.is_cut_off()};
}

void Memo::add(Key& key, const Look& look) {
    key.push_back(look.storage);
    key.push_back(static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(look.layout)));
    key.push_back((look.view ? 1 : 0) + (look.has_history ? 2 : 0) + (look.shared ? 4 : 0) + (look.cut_off ? 8 : 0));
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

Tensors Memo::forward(const CallSpec& spec, Tensors& args, const Callee& function) {
    Key key;
    key.reserve(9 + 6 * args.size());
    for (const std::int64_t mode :
         {std::int64_t{spec.block}, std::int64_t{spec.variant}, std::int64_t{run_.grad_enabled()},
          std::int64_t{run_.autocast().enabled}, static_cast<std::int64_t>(run_.autocast().dtype),
          std::int64_t{run_.activation_tag}, std::int64_t{run_.in_backward}, std::int64_t{run_.module_modes}})
        key.push_back(mode);
    // Autocast leaves alone what is in host memory.
    const bool has_own = spec.trainable != nullptr && !spec.trainable->empty();
    key.push_back(has_own && spec.trainable->front()->value.storage()->slot < 0 ? 1 : 0);
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
        if (look.has_history) Run::attach(output, node);
        outputs.push_back(std::move(output));
    }
    return outputs;
}

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

Tensors call(Run& run, const CallSpec& spec, Tensors args, const Callee& function) {
    if (spec.gemms) run.gemm();
    const Called called(run, spec.trainable);
    // Inside a checkpointed call, saved tensors belong to its frame: nothing of that is copied. Neither is a call whose
    // backward goes on in hooks of its parameters.
    if (run.memo() == nullptr || spec.block < 0 || !run.hooks.empty()) return function(args);
    if (run.accumulates_with_hooks && run.grad_enabled()) return function(args);
    // An argument whose cast autocast keeps beyond the call.
    const auto is_cached = [](const Tensor& arg) { return arg.defined() && autocast_keeps(arg); };
    // Or weights whose casts it keeps from an earlier call.
    const bool was_cast = spec.trainable != nullptr && !spec.trainable->empty() &&
                          run.autocast_cache.find(spec.trainable->front()->value.storage()) != nullptr;
    if (run.autocast().enabled && (was_cast || std::any_of(args.begin(), args.end(), is_cached))) return function(args);
    return run.memo()->forward(spec, args, function);
}

std::int32_t spec_id(Run& run, std::string_view class_name, const std::vector<std::int64_t>& facts) {
    // The hash stands in front: what differs does so in the first number, and long keys are compared but once.
    std::vector<std::int64_t> key;
    key.reserve(1 + facts.size() + class_name.size());
    key.push_back(static_cast<std::int64_t>(hash_of(facts)));
    key.insert(key.end(), facts.begin(), facts.end());
    key.insert(key.end(), class_name.begin(), class_name.end());
    const auto [at, fresh] = run.specs.try_emplace(std::move(key), static_cast<std::int32_t>(run.specs.size()));
    static_cast<void>(fresh);
    return at->second;
}

}  // namespace vram::shadow
