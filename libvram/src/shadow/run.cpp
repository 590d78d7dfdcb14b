#include "shadow/run.hpp"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#include "base/blocks.hpp"
#include "shadow/memo.hpp"
#include "shadow/provenance.hpp"

namespace vram::shadow {

void free(Storage* storage) noexcept { storage->run->free_storage(storage); }
void add_ref(Node* node) noexcept { ++node->refs; }
void release(Node* node) noexcept {
    if (--node->refs == 0) node->run->free_node(node);
}

Run::Run(Kernels kernels_in, bool memo) : kernels(kernels_in) {
    activation_tag = tag("", Category::activations);
    trace.events.reserve(std::size_t{1} << 19);  // 8 MiB of addresses; pages that stay empty cost nothing
    if (memo) memo_ = std::make_unique<Memo>(*this);
    host_ = storages_.take();
    host_->run = this;
    host_->refs = 1;  // lives as long as the run
}

Run::~Run() {
    closing_ = true;
    autocast_cache.clear();
    constants.clear();
    workspaces_.clear();
    memo_.reset();
}

Aside::Aside(Run& run, Into into)
    : run_(run),
      tag_(run.activation_tag),
      autocast_(run.autocast_),
      autocast_depth_(run.autocast_depth_),
      live_(run.live_),
      calls_(run.attention_calls),
      casts_(std::move(run.autocast_cache)),
      hooks_(std::move(run.hooks)),
      in_backward_(run.in_backward),
      grad_enabled_(run.grad_enabled_),
      into_(std::exchange(run.into_, into)),
      born_aside_(std::exchange(run.born_aside_, 0)),
      strayed_(std::exchange(run.strayed_, false)),
      exceptions_(std::uncaught_exceptions()) {
    std::swap(trace_.events, run.trace.events);
    std::swap(trace_.stretches, run.trace.stretches);
    trace_.slots = std::exchange(run.trace.slots, 0);
    run.live_ = 0;
    run.attention_calls = {};
    run.autocast_cache = {};
    run.hooks.clear();
    if (run.provenance != nullptr) ++run.provenance->depth_;
}

Aside::~Aside() noexcept(false) {
    if (run_.provenance != nullptr) --run_.provenance->depth_;
    run_.autocast_cache = std::move(casts_);
    std::swap(trace_.events, run_.trace.events);
    std::swap(trace_.stretches, run_.trace.stretches);
    run_.trace.slots = trace_.slots;
    run_.live_ = live_;
    run_.attention_calls = calls_;
    run_.hooks = std::move(hooks_);
    run_.activation_tag = tag_;
    run_.in_backward = in_backward_;
    run_.grad_enabled_ = grad_enabled_;
    run_.autocast_ = autocast_;
    run_.autocast_depth_ = autocast_depth_;
    run_.into_ = into_;
    const std::int64_t outlive = std::exchange(run_.born_aside_, born_aside_);
    const bool strayed = std::exchange(run_.strayed_, strayed_);
    if (std::uncaught_exceptions() > exceptions_) return;
    if (strayed) throw std::logic_error("a tensor died aside from the trace in which it was made");
    if (outlive != 0) throw std::logic_error("a tensor outlives the aside in which it was made");
}

void Run::push(Event event) {
    if (closing_) return;
    // The mark of a scope's end comes from a destructor, maybe while this very exception is on its way.
    if (event.kind != EventKind::mark && trace.events.size() >= event_limit)
        throw TraceTooLong("the job needs more events than a run may hold");
    if (provenance != nullptr && into_ == Into::run) provenance->note(trace.events.size(), in_backward);
    trace.events.push_back(event);
}

StorageRef Run::allocate(Bytes bytes, Op who, EventKind kind) {
    if (bytes == 0 && kind != EventKind::convolution) return StorageRef(host_);
    Storage* storage = storages_.take();
    *storage = Storage{};
    storage->run = this;
    storage->bytes = bytes;
    storage->slot = trace.slots++;
    storage->tag = activation_tag;
    storage->scratch = kind != EventKind::alloc;
    storage->into = into_;
    if (into_ == Into::aside) ++born_aside_;
    if (!storage->scratch) live_ = checked_add(live_, in_blocks(bytes));
    StorageRef reference(storage);
    push({bytes, storage->slot, storage->tag, kind, static_cast<std::uint8_t>(who)});
    return reference;
}

StorageRef Run::adopt(Event event, Slot slot) {
    const Slot next = trace.slots;
    trace.slots = slot;
    const std::uint16_t before = activation_tag;
    activation_tag = event.tag;
    StorageRef out = allocate(event.bytes, static_cast<Op>(event.op), event.kind);
    activation_tag = before;
    trace.slots = next;
    return out;
}

StorageRef Run::scratch(Bytes bytes, Op who) {
    if (!kernels.scratch || bytes <= 0) return {};
    return workspace(bytes, who, EventKind::scratch);
}

StorageRef Run::scratch(const Convolution& call) {
    if (!kernels.scratch) return {};
    const auto [found, fresh] = convolutions.emplace(call, static_cast<Bytes>(trace.convolutions.size()));
    if (fresh) trace.convolutions.push_back(call);
    return workspace(found->second, Op::conv_workspace, EventKind::convolution);
}

StorageRef Run::workspace(Bytes bytes, Op who, EventKind kind) {
    const std::uint16_t before = activation_tag;
    activation_tag = tag(trace.tags[before].component, Category::workspace);
    StorageRef out = allocate(bytes, who, kind);
    activation_tag = before;
    return out;
}

void Run::free_storage(Storage* storage) noexcept {
    if (storage->slot < 0) return;  // the host's, which never dies
    if (!storage->scratch) live_ -= in_blocks(storage->bytes);
    strayed_ = strayed_ || storage->into != into_;
    if (into_ == Into::aside) --born_aside_;
    if (!closing_) trace.events.push_back({0, storage->slot, storage->tag, EventKind::free, 0});
    Node* const base = std::exchange(storage->base, nullptr);
    storages_.give_back(storage);
    if (base != nullptr && !closing_) release(base);
}

void Run::retag(Storage& storage, std::uint16_t to) {
    if (storage.slot < 0 || storage.tag == to) return;
    storage.tag = to;
    push({0, storage.slot, to, EventKind::retag, 0});
}

void Run::gemm() {
    bool& open = in_backward ? cublas_backward : cublas_forward;
    if (open || !kernels.scratch) return;
    open = true;
    const std::uint16_t before = activation_tag;
    activation_tag = tag("cublas", Category::workspace);
    workspaces_.push_back(allocate(kernels.cublas_workspace, Op::cublas_workspace, EventKind::scratch));
    activation_tag = before;
}

Tensor Run::empty(LayoutRef layout, Op who, const char* file, int line) {
    if (provenance != nullptr) provenance->called(file, line);
    return {allocate(layout->bytes, who), layout};
}
Tensor Run::empty(const Dims& sizes, Dtype dtype, Op who, const char* file, int line) {
    return empty(layouts.contiguous(sizes, dtype), who, file, line);
}
Tensor Run::empty_like(const Tensor& tensor, Op who, const char* file, int line) {
    return empty_like(tensor, tensor.dtype(), who, file, line);
}
Tensor Run::empty_like(const Tensor& tensor, Dtype dtype, Op who, const char* file, int line) {
    return empty(layouts.like(tensor.layout(), dtype), who, file, line);
}
Tensor Run::on_cpu(LayoutRef layout) { return {StorageRef(host_), layout}; }
Tensor Run::on_cpu(const Dims& sizes, Dtype dtype) { return on_cpu(layouts.contiguous(sizes, dtype)); }
namespace {
// Not a leaf's, whose tensor is its module's; and not of a node that saves its own output, which would hold itself.
bool may_hold(const Storage& storage, const Node* history) {
    if (history == nullptr || history->leaf != nullptr) return false;
    return std::none_of(history->saved.begin(), history->saved.end(),
                        [&](const Saved& saved) { return saved.storage.get() == &storage; });
}
}  // namespace

Tensor Run::view_of(const Tensor& tensor, const Dims& sizes, const Dims& strides) {
    return view_of(tensor, sizes, strides, tensor.dtype());
}
Tensor Run::view_of(const Tensor& tensor, const Dims& sizes, const Dims& strides, Dtype dtype) {
    Tensor view(tensor.storage_ref(), layouts.intern(sizes, strides, dtype));
    view.set_view();
    if (grad_enabled_ || !tensor.requires_grad()) return view;
    view.set_cut_off();
    Storage& storage = *tensor.storage();
    if (storage.base == nullptr && storage.slot >= 0 && may_hold(storage, tensor.node().get())) {
        storage.base = tensor.node().get();
        add_ref(storage.base);
    }
    return view;
}

std::uint16_t Run::tag(std::string_view component, Category category) {
    // A run has a few dozen.
    for (std::size_t i = 0; i < trace.tags.size(); ++i)
        if (trace.tags[i].category == category && trace.tags[i].component == component)
            return static_cast<std::uint16_t>(i);
    trace.tags.push_back(Tag{std::string(component), category});
    return static_cast<std::uint16_t>(trace.tags.size() - 1);
}

void Run::mark(MarkKind kind, std::string name) {
    trace.marks.push_back(Mark{kind, std::move(name)});
    push({0, static_cast<Slot>(trace.marks.size() - 1), 0, EventKind::mark, 0});
}

NodeRef Run::new_node(Op who, Backward formula) {
    Node* node = nodes_.take();
    node->run = this;
    node->op = who;
    node->backward = formula;
    node->sequence = sequence_++;
    if (provenance != nullptr) node->origin = provenance->origin();
    return NodeRef(node);
}

NodeRef Run::record(Op who, Backward formula, std::initializer_list<const Tensor*> inputs) {
    if (!grad_enabled_) return {};
    bool any = false;
    for (const Tensor* input : inputs) any = any || input->requires_grad();
    if (!any) return {};
    NodeRef node = new_node(who, formula);
    for (const Tensor* input : inputs) node->edges.push_back({input->node(), input->output_number()});
    return node;
}

NodeRef Run::record(Op who, Backward formula, std::span<const Tensor> inputs) {
    if (!grad_enabled_) return {};
    bool any = false;
    for (const Tensor& input : inputs) any = any || input.requires_grad();
    if (!any) return {};
    NodeRef node = new_node(who, formula);
    for (const Tensor& input : inputs) node->edges.push_back({input.node(), input.output_number()});
    return node;
}

void Run::attach(Tensor& output, const NodeRef& node) {
    if (!node) return;
    output.set_node(node, static_cast<int>(node->outputs.size()));
    node->outputs.push_back(output.layout());
}

void Run::make_leaf(Parameter& parameter) {
    NodeRef node = new_node(Op::accumulate_grad, nullptr);
    node->sequence = UINT64_MAX;
    node->leaf = &parameter;
    attach(parameter.value, node);
}

void Run::free_node(Node* node) noexcept {
    // A long chain must not recurse: nodes that die while others are taken apart wait for their turn.
    dying_.push_back(node);
    if (reaping_) return;
    reaping_ = true;
    while (!dying_.empty()) {
        Node* next = dying_.back();
        dying_.pop_back();
        next->edges.clear();
        next->saved.clear();
        next->outputs.clear();
        next->meta.clear();
        next->numbers = {};
        next->leaf = nullptr;
        next->sink = -1;
        next->macro = nullptr;
        next->held.clear();
        next->trainable = nullptr;
        next->frame.reset();
        next->buffer.clear();
        next->dependencies = 0;
        next->reached = false;
        nodes_.give_back(next);
    }
    reaping_ = false;
}

}  // namespace vram::shadow
