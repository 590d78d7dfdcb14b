#pragma once

#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shadow/node.hpp"
#include "shadow/op.hpp"
#include "shadow/pool.hpp"
#include "shadow/tensor.hpp"
#include "vram/shadow/trace.hpp"

namespace vram::shadow {

/// What PyTorch's kernels would be on the card that is asked about. Until a card is chosen: sm89.
struct Kernels {
    int sm = 89;  // compute capability x 10
    enum class Attention : std::uint8_t { automatic, flash, efficient, math } attention = Attention::automatic;
    Bytes cublas_workspace = 8519680;  // CublasHandlePool.cpp: :4096:2:16:8; 32 MiB on sm90
    bool scratch = true;               // false: tensors only, as a recording of fake tensors sees it
    bool operator==(const Kernels&) const = default;
};

struct AttentionCalls {
    std::int64_t flash = 0, efficient = 0, cudnn = 0, math = 0;
    bool operator==(const AttentionCalls&) const = default;
    AttentionCalls& operator+=(const AttentionCalls& other) noexcept {
        flash += other.flash;
        efficient += other.efficient;
        cudnn += other.cudnn;
        math += other.math;
        return *this;
    }
};

class Memo;
class Provenance;

/// Autocast's casts of fp32 leaves that require grad, by the leaf's storage. They are dropped in the order in which
/// they came, so that a trace does not depend on addresses.
class CastCache {
  public:
    [[nodiscard]] const Tensor* find(const Storage* leaf) const {
        const auto found = index_.find(leaf);
        return found == index_.end() ? nullptr : &casts_[found->second].second;
    }
    void put(const Storage* leaf, Tensor cast) {
        if (index_.emplace(leaf, casts_.size()).second) casts_.emplace_back(leaf, std::move(cast));
    }
    void clear() {
        for (auto& [leaf, cast] : casts_) cast = Tensor();
        casts_.clear();
        index_.clear();
    }
    [[nodiscard]] const std::vector<std::pair<const Storage*, Tensor>>& casts() const noexcept { return casts_; }

  private:
    std::vector<std::pair<const Storage*, Tensor>> casts_;
    std::unordered_map<const Storage*, std::size_t> index_;
};

/// Owns everything that one shadow run makes: storages, nodes, layouts, grad mode, autocast, checkpoint frames, the
/// trace. One thread a run; runs share nothing. Errors: Overflow when a size leaves 63 bits, TraceTooLong beyond
/// `event_limit`; NoKernel and Refused where torch would refuse a call.
class Run {
  public:
    explicit Run(Kernels kernels = {}, bool memo = true);
    ~Run();
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

    // ---- tensors
    // `file` and `line` are the caller's, for the provenance.
    [[nodiscard]] Tensor empty(LayoutRef layout, Op op, const char* file = __builtin_FILE(),
                               int line = __builtin_LINE());
    [[nodiscard]] Tensor empty(const Dims& sizes, Dtype dtype, Op op = Op::empty, const char* file = __builtin_FILE(),
                               int line = __builtin_LINE());
    /// empty_like(preserve_format), in another dtype if one is given.
    [[nodiscard]] Tensor empty_like(const Tensor& tensor, Op op, const char* file = __builtin_FILE(),
                                    int line = __builtin_LINE());
    [[nodiscard]] Tensor empty_like(const Tensor& tensor, Dtype dtype, Op op, const char* file = __builtin_FILE(),
                                    int line = __builtin_LINE());
    /// A tensor that lives in host memory: no events, size zero.
    [[nodiscard]] Tensor on_cpu(LayoutRef layout);
    [[nodiscard]] Tensor on_cpu(const Dims& sizes, Dtype dtype);
    /// Another view of a storage, maybe as elements of another dtype. One that is made under no_grad of what requires
    /// grad is cut off; but torch's view metadata hold its base, and so the base's history, for as long as the view
    /// lives, or what saves it: kept with the storage. Source: torch/csrc/autograd/VariableTypeUtils.h, as_view.
    [[nodiscard]] Tensor view_of(const Tensor& tensor, const Dims& sizes, const Dims& strides);
    [[nodiscard]] Tensor view_of(const Tensor& tensor, const Dims& sizes, const Dims& strides, Dtype dtype);
    [[nodiscard]] StorageRef allocate(Bytes bytes, Op op, EventKind kind = EventKind::alloc);
    /// Scratch that a kernel takes now and gives back when the returned reference goes. Nothing if `kernels.scratch` is
    /// off.
    [[nodiscard]] StorageRef scratch(Bytes bytes, Op op);
    /// The same of a convolution, whose size a device says.
    [[nodiscard]] StorageRef scratch(const Convolution& call);
    void retag(Storage& storage, std::uint16_t tag);
    /// A storage for an allocation that was copied from a recording, under this slot; the event is written now.
    [[nodiscard]] StorageRef adopt(Event event, Slot slot);

    /// Live bytes of tensors, each storage rounded to 512; scratch is not counted.
    [[nodiscard]] Bytes live() const noexcept { return live_; }

    // ---- tags and marks
    [[nodiscard]] std::uint16_t tag(std::string_view component, Category category);
    void mark(MarkKind kind, std::string name = {});

    // ---- tape
    [[nodiscard]] NodeRef new_node(Op who, Backward formula);
    /// A node for an op over these inputs if any of them requires grad and grad mode is on; else null.
    [[nodiscard]] NodeRef record(Op who, Backward formula, std::initializer_list<const Tensor*> inputs);
    [[nodiscard]] NodeRef record(Op who, Backward formula, std::span<const Tensor> inputs);
    /// Keeps `tensor` for the node's backward, through the saved-tensor hooks that are active.
    void save(Node& node, const Tensor& tensor);
    void save_nothing(Node& node) { node.saved.push_back(Saved{}); }
    /// The one or the other, so that backward finds what it wants in its place.
    void save_if(bool wanted, Node& node, const Tensor& tensor) { wanted ? save(node, tensor) : save_nothing(node); }
    [[nodiscard]] Tensor unpack(Saved& saved);
    /// Makes `output` the node's next output.
    static void attach(Tensor& output, const NodeRef& node);
    void make_leaf(Parameter& parameter);
    /// Lets go of what the memo keeps for backwards that did not come; see Memo::drop_graphs.
    void drop_recordings();
    /// torch's engine: from one loss, or from given gradients of given outputs.
    void backward(const Tensor& loss);
    void backward(std::span<const Tensor> outputs, Tensors grads);
    void free_node(Node* node) noexcept;
    void free_storage(Storage* storage) noexcept;

    // ---- modes
    struct Autocast {
        bool enabled = false;
        Dtype dtype = Dtype::bf16;
        bool operator==(const Autocast&) const = default;
    };
    [[nodiscard]] const Autocast& autocast() const noexcept { return autocast_; }
    [[nodiscard]] bool grad_enabled() const noexcept { return grad_enabled_; }

    Kernels kernels;
    Trace trace;
    LayoutTable layouts;
    AttentionCalls attention_calls;
    std::uint16_t activation_tag = 0;  // what op outputs are tagged with
    bool in_backward = false;
    std::int32_t module_modes =
        0;  // what modules do in another way from now on: calls are alike only within one of these
    bool accumulates_with_hooks =
        false;  // some parameter has a post_accumulate_grad: what backward does changes by step

    /// Cast caches, cuBLAS handles and hooks; the scopes below and the ops use them.
    CastCache autocast_cache;
    bool cublas_forward = false, cublas_backward = false;  // the handle's workspace exists on that thread
    struct Hook {
        Frame* frame = nullptr;
        bool recompute = false;
    };
    std::vector<Hook> hooks;
    std::map<std::vector<std::int64_t>, std::int32_t> specs;  // of blocks, see spec_id
    std::map<Convolution, Bytes> convolutions;                // their index in the trace
    std::map<std::string, Tensor>
        constants;  // what a Python module keeps on the GPU for the process, by a name of ours

    Provenance* provenance = nullptr;  // where what is born comes from is noted there; null: nowhere

    [[nodiscard]] Memo* memo() noexcept { return memo_.get(); }
    /// The first GEMM of a thread opens its cuBLAS workspace, which then stays.
    void gemm();

    /// More events than this make no answer in time; a job that needs them is refused.
    static constexpr std::size_t event_limit = 80'000'000;

  private:
    friend class Aside;
    friend class NoGrad;
    friend class EnableGrad;
    friend class AutocastScope;
    friend class Memo;
    friend class Engine;
    void push(Event event);
    /// For the component whose activations are made now.
    [[nodiscard]] StorageRef workspace(Bytes bytes, Op who, EventKind kind);

    // In this order: what nodes hold goes back into what stands above them.
    Pool<Storage, 256> storages_;
    std::vector<Node*> dying_;
    Pool<Node, 64> nodes_;
    bool reaping_ = false;
    Storage* host_ = nullptr;
    Bytes live_ = 0;
    Into into_ = Into::run;
    std::int64_t born_aside_ = 0;  // of storages that an Aside has seen made, those that live
    bool strayed_ = false;         // a storage died in another trace than its own
    std::uint64_t sequence_ = 0;
    bool grad_enabled_ = true;
    Autocast autocast_;
    int autocast_depth_ = 0;
    std::unique_ptr<Memo> memo_;
    std::vector<StorageRef> workspaces_;
    bool closing_ = false;
};

/// A kernel was asked for that cannot serve the call, as torch would say: "No available kernel".
struct NoKernel : std::runtime_error {
    using std::runtime_error::runtime_error;
};
/// A call that torch refuses: for its sizes, or for what was done to a tensor since. `key` is of the job and decides
/// it, where one does.
struct Refused : std::runtime_error {
    explicit Refused(const std::string& text, std::string key_in = {})
        : std::runtime_error(text), key(std::move(key_in)) {}
    std::string key;
};
/// A trace that would exceed Run::event_limit.
struct TraceTooLong : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// Plays that leave no trace: while it lives, the run writes into an empty trace of its own, counts from 0, and starts
/// with no casts, no hooks and no calls counted; then all is as before. What is made meanwhile must be gone by then,
/// and what was there before must be there still: else the run's own trace lacks a birth or a death. Errors:
/// logic_error at its end, unless another exception is on its way; what a memo writes down may stay.
class Aside {
  public:
    explicit Aside(Run& run, Into into = Into::aside);
    ~Aside() noexcept(false);
    Aside(const Aside&) = delete;
    Aside& operator=(const Aside&) = delete;

  protected:
    Run& run_;
    const std::uint16_t tag_;
    const Run::Autocast autocast_;
    const int autocast_depth_;

  private:
    Trace trace_;
    Bytes live_;
    AttentionCalls calls_;
    CastCache casts_;
    std::vector<Run::Hook> hooks_;
    bool in_backward_, grad_enabled_;
    Into into_;
    std::int64_t born_aside_;
    bool strayed_;
    int exceptions_;
};

/// torch.no_grad() for a scope.
class NoGrad {
  public:
    explicit NoGrad(Run& run) : run_(run), before_(run.grad_enabled_) { run.grad_enabled_ = false; }
    ~NoGrad() { run_.grad_enabled_ = before_; }
    NoGrad(const NoGrad&) = delete;
    NoGrad& operator=(const NoGrad&) = delete;

  private:
    Run& run_;
    bool before_;
};

/// torch.enable_grad() for a scope.
class EnableGrad {
  public:
    explicit EnableGrad(Run& run) : run_(run), before_(run.grad_enabled_) { run.grad_enabled_ = true; }
    ~EnableGrad() { run_.grad_enabled_ = before_; }
    EnableGrad(const EnableGrad&) = delete;
    EnableGrad& operator=(const EnableGrad&) = delete;

  private:
    Run& run_;
    bool before_;
};

/// torch.autocast("cuda", dtype, enabled) for a scope; leaving the outermost one drops the cache of casts.
class AutocastScope {
  public:
    AutocastScope(Run& run, Run::Autocast autocast) : run_(run), before_(run.autocast_) {
        run.autocast_ = autocast;
        ++run.autocast_depth_;
    }
    ~AutocastScope() {
        run_.autocast_ = before_;
        if (--run_.autocast_depth_ == 0) run_.autocast_cache.clear();
    }
    AutocastScope(const AutocastScope&) = delete;
    AutocastScope& operator=(const AutocastScope&) = delete;

  private:
    Run& run_;
    Run::Autocast before_;
};

/// Op outputs of this scope belong to the component.
class ComponentScope {
  public:
    ComponentScope(Run& run, std::string_view component, Category category = Category::activations)
        : run_(run), before_(run.activation_tag) {
        run.activation_tag = run.tag(component, category);
    }
    ~ComponentScope() { run_.activation_tag = before_; }
    ComponentScope(const ComponentScope&) = delete;
    ComponentScope& operator=(const ComponentScope&) = delete;

  private:
    Run& run_;
    std::uint16_t before_;
};

/// A phase, and a stage inside it: marks in the trace.
class PhaseScope {
  public:
    PhaseScope(Run& run, std::string name) : run_(run), name_(std::move(name)) {
        run_.mark(MarkKind::phase_begin, name_);
    }
    ~PhaseScope() { run_.mark(MarkKind::phase_end, name_); }
    PhaseScope(const PhaseScope&) = delete;
    PhaseScope& operator=(const PhaseScope&) = delete;

  private:
    Run& run_;
    std::string name_;
};
class StageScope {
  public:
    StageScope(Run& run, std::string name) : run_(run), name_(std::move(name)) {
        run_.mark(MarkKind::stage_begin, name_);
    }
    ~StageScope() { run_.mark(MarkKind::stage_end, name_); }
    StageScope(const StageScope&) = delete;
    StageScope& operator=(const StageScope&) = delete;

  private:
    Run& run_;
    std::string name_;
};

}  // namespace vram::shadow
