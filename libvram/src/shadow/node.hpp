#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "shadow/op.hpp"
#include "shadow/small.hpp"
#include "shadow/tensor.hpp"

namespace vram::shadow {

struct Frame;
struct Parameter;
struct Macro;
struct Node;

void add_ref(Frame* frame) noexcept;
void release(Frame* frame) noexcept;

/// What a node keeps for backward: a storage and how it is looked at, never the tensor (so an output that is saved
/// makes no cycle); or, under gradient checkpointing, the place in a frame where a recomputation will put it.
struct Saved {
    StorageRef storage;
    LayoutRef layout = nullptr;  // null: nothing was saved
    Ref<Frame> frame;
    std::int32_t index = 0;

    Saved() = default;
    Saved(Saved&&) noexcept = default;
    Saved& operator=(Saved&& other) noexcept;
    ~Saved();
    [[nodiscard]] bool defined() const noexcept { return layout != nullptr; }
};

struct Edge {
    NodeRef node;  // null: no gradient wanted
    std::int32_t input = 0;
};

using Tensors = Small<Tensor, 4>;
using Backward = void (*)(Run&, Node&, Tensors& grads, Tensors& out);

/// Where what is done comes from, as the run's provenance counts blocks and lines; -1: not known.
struct Origin {
    std::int32_t block = -1, line = -1;
    bool operator==(const Origin&) const = default;
};

/// A step of the tape. `backward` turns the gradients of its outputs into those of its inputs, one per edge; the engine
/// brings each to the shape and dtype of the input (sum_to, cast), as torch's validate_outputs does.
struct Node {
    Run* run = nullptr;
    std::int32_t refs = 0;
    Op op = Op::none;
    std::uint64_t sequence = 0;  // accumulation into a leaf has the highest: it runs as soon as it can
    Backward backward = nullptr;
    Small<Edge, 4> edges;
    Small<Saved, 2> saved;
    Small<LayoutRef, 1> outputs;  // of what forward returned
    Small<LayoutRef, 2> meta;     // layouts that backward needs without the tensor
    std::array<std::int64_t, 4> numbers{};
    Parameter* leaf = nullptr;     // of an accumulation node
    std::int32_t sink = -1;        // inside a memo's capture: gradients for this input of the call leave here
    Macro* macro = nullptr;        // a call that the memo copied
    std::vector<StorageRef> held;  // what such a call keeps for its backward
    const std::vector<Parameter*>* trainable = nullptr;  // of its block
    Ref<Frame> frame;  // of a reentrant checkpoint: the call that backward plays again
    Origin origin;     // what made it

    // The engine's own, meaningful during one backward.
    std::int32_t dependencies = 0;
    bool reached = false;
    Small<Tensor, 1> buffer;

    [[nodiscard]] bool needs(std::size_t edge) const { return static_cast<bool>(edges[edge].node); }
};

/// A leaf that modules own: a weight, an adapter's matrix, a buffer. `grad` is what backward accumulates.
struct Parameter {
    Tensor value;  // carries an accumulation node if it requires grad
    Tensor grad;
    bool buffer = false;          // of the module: not counted as a parameter, never trained
    bool starts_at_zero = false;  // an adapter's second matrix
    bool stays_on_host = false;   // a memory manager brings it for each call: module.to(device) leaves it
    /// register_post_accumulate_grad_hook; whoever registers it owns it. Few have one, and there are many parameters.
    const std::function<void()>* post_accumulate_grad = nullptr;
};

}  // namespace vram::shadow
