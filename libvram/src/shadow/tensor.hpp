#pragma once

#include <cstdint>
#include <utility>

#include "shadow/layout.hpp"
#include "vram/shadow/trace.hpp"

namespace vram::shadow {

class Run;
struct Node;

/// Into which trace events go: the run's own, one that is thrown away (Aside), or one that a memo writes down, whose
/// graphs die in another such.
enum class Into : std::uint8_t { run, aside, recording };

/// One allocation of a run. It writes its free into the trace when the last tensor or saved value lets go of it.
struct Storage {
    Run* run = nullptr;
    Bytes bytes = 0;
    Slot slot = -1;  // -1: on the CPU, or empty; no events
    std::int32_t refs = 0;
    std::uint16_t tag = 0;
    bool scratch = false;   // a kernel's or a library's, no tensor's
    Into into = Into::run;  // where it was born, and has to die
    Node* base = nullptr;   // counted; lives as long as the storage does: see Run::view_of
};

void free(Storage* storage) noexcept;
inline void add_ref(Storage* storage) noexcept { ++storage->refs; }
inline void release(Storage* storage) noexcept {
    if (--storage->refs == 0) free(storage);
}
void add_ref(Node* node) noexcept;
void release(Node* node) noexcept;

/// A counted reference; plain counts, as one run belongs to one thread.
template <class T>
class Ref {
  public:
    Ref() = default;
    explicit Ref(T* target) noexcept : target_(target) {
        if (target_) add_ref(target_);
    }
    Ref(const Ref& other) noexcept : Ref(other.target_) {}
    Ref(Ref&& other) noexcept : target_(std::exchange(other.target_, nullptr)) {}
    Ref& operator=(Ref other) noexcept {
        std::swap(target_, other.target_);
        return *this;
    }
    ~Ref() {
        if (target_) release(target_);
    }
    [[nodiscard]] T* get() const noexcept { return target_; }
    T* operator->() const noexcept { return target_; }
    T& operator*() const noexcept { return *target_; }
    explicit operator bool() const noexcept { return target_ != nullptr; }
    bool operator==(const Ref& other) const noexcept { return target_ == other.target_; }
    void reset() noexcept { *this = Ref(); }

  private:
    T* target_ = nullptr;
};

using StorageRef = Ref<Storage>;
using NodeRef = Ref<Node>;

/// A tensor without data: a storage, a layout, and the tape node that made it. Copies share the storage, as Python
/// names do.
///
/// Lifetimes are the answer, so they follow Python: a name lives until it is rebound or its scope ends, and an op holds
/// its arguments until it returns. Ops therefore take tensors by value; a temporary handed to an op dies when the op
/// returns.
class Tensor {
  public:
    Tensor() = default;
    Tensor(StorageRef storage, LayoutRef layout) : storage_(std::move(storage)), layout_(layout) {}

    [[nodiscard]] bool defined() const noexcept { return layout_ != nullptr; }
    [[nodiscard]] int rank() const noexcept { return layout_->rank(); }
    /// Size of a dimension; negative counts from the end, as in torch.
    [[nodiscard]] std::int64_t size(int dim) const { return layout_->sizes[dim < 0 ? dim + rank() : dim]; }
    [[nodiscard]] const Dims& sizes() const noexcept { return layout_->sizes; }
    [[nodiscard]] Dtype dtype() const noexcept { return layout_->dtype; }
    [[nodiscard]] LayoutRef layout() const noexcept { return layout_; }
    [[nodiscard]] std::int64_t numel() const noexcept { return layout_->numel; }
    [[nodiscard]] bool contiguous() const noexcept { return layout_->contiguous; }
    [[nodiscard]] Run& run() const noexcept { return *storage_->run; }
    [[nodiscard]] Storage* storage() const noexcept { return storage_.get(); }
    [[nodiscard]] const StorageRef& storage_ref() const noexcept { return storage_; }

    [[nodiscard]] bool requires_grad() const noexcept { return node_ || cut_off_; }
    [[nodiscard]] const NodeRef& node() const noexcept { return node_; }
    [[nodiscard]] int output_number() const noexcept { return output_; }
    void set_node(NodeRef node, int output) noexcept {
        node_ = std::move(node);
        output_ = output;
    }
    /// The same storage and layout without history.
    [[nodiscard]] Tensor detach() const { return {storage_, layout_}; }
    /// Whether a view op made it: then torch's view metadata holds the base too, and nobody may add into it in place.
    [[nodiscard]] bool is_view() const noexcept { return view_; }
    void set_view() noexcept { view_ = true; }
    /// A gradient that went several ways as one and the same tensor, not as views of one storage.
    [[nodiscard]] bool is_shared() const noexcept { return shared_; }
    void set_shared() noexcept { shared_ = true; }
    /// A view that was made under no_grad of what requires grad: so does it, without a history. Ops over it are
    /// recorded and save what they would, and no gradient is wanted for it. Source: torch/csrc/autograd/variable.h,
    /// DifferentiableViewMeta::requires_grad.
    [[nodiscard]] bool is_cut_off() const noexcept { return cut_off_; }
    void set_cut_off() noexcept { cut_off_ = true; }

  private:
    StorageRef storage_;
    LayoutRef layout_ = nullptr;
    NodeRef node_;
    int output_ = 0;
    bool view_ = false, shared_ = false, cut_off_ = false;
};

}  // namespace vram::shadow
