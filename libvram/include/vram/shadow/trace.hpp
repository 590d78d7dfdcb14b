#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "vram/base/bytes.hpp"
#include "vram/base/dtype.hpp"

namespace vram::shadow {

/// Names one allocation of a trace; counts from 0 in order of birth and is never used twice.
using Slot = std::int32_t;

/// What a block belongs to in a breakdown. `component` is open, `category` the closed list of the report.
enum class Category : std::uint8_t {
    weights,
    adapter,
    gradients,
    optimizer_state,
    activations,
    checkpoints,
    inputs,
    latents_and_embeddings,
    ema,
    model_cache,
    workspace,
    rounding,
    unallocated,
    context,
    libraries
};
[[nodiscard]] const char* to_text(Category category);

struct Tag {
    std::string component;  // "transformer", "text_encoder_2", "vae", "adapter", …
    Category category = Category::activations;
    bool operator==(const Tag&) const = default;
};

enum class EventKind : std::uint8_t {
    alloc,    // a tensor's storage: slot, bytes as requested (> 0), tag
    scratch,  // what a kernel or a library takes from the allocator beside its tensors: slot, bytes, tag; freed like a
              // storage
    convolution,  // the same of a convolution, whose size the card and its libraries decide: slot, tag; `bytes` is an
                  // index into Trace::convolutions (vram/device/scratch.hpp)
    free,         // slot
    retag,        // slot, tag: an activation becomes a gradient, a block's input a checkpoint
    mark          // slot is an index into Trace::marks
};

/// 16 bytes. Between two allocations the order of frees carries no meaning.
struct Event {
    Bytes bytes = 0;
    Slot slot = 0;
    std::uint16_t tag = 0;
    EventKind kind = EventKind::alloc;
    std::uint8_t op = 0;  // who asked (shadow::Op), for `explain` and for comparison with PyTorch
    bool operator==(const Event&) const = default;
};

/// A call of a convolution, as far as the scratch of its kernel depends on it. Sizes are those of the tensors that the
/// kernel sees: what a model pads by hand is in `input`.
struct Convolution {
    /// `weight_gradient` is the call that makes the weight's gradient; of `data_gradient`, which makes the input's,
    /// `input` is the gradient that comes in and `output` the one that goes out.
    enum class Pass : std::uint8_t { forward, data_gradient, weight_gradient };
    Pass pass = Pass::forward;
    Dtype dtype = Dtype::bf16;
    bool channels_last = false;  // the memory format that cudnn_conv_suggest_memory_format gives
    std::int32_t spatial = 2;    // dimensions of space and time: 1, 2, 3
    std::int64_t batch = 1, groups = 1;
    std::int64_t channels_in = 0, channels_out = 0;                                // of `input` and `output`
    std::array<std::int64_t, 3> input{1, 1, 1}, output{1, 1, 1}, kernel{1, 1, 1};  // the last are width

    [[nodiscard]] Bytes input_bytes() const;  ///< at most 2^60, as the others
    [[nodiscard]] Bytes output_bytes() const;
    [[nodiscard]] Bytes filter_bytes() const;
    /// The buffer into which im2col and vol2col write one sample of one group: C_in · kernel · places of the output. Of
    /// the backward's calls it is that of their forward.
    [[nodiscard]] Bytes column_bytes() const;
    [[nodiscard]] std::int64_t largest_sample() const;  ///< elements of one sample's input or output
    [[nodiscard]] bool pointwise() const { return kernel == std::array<std::int64_t, 3>{1, 1, 1}; }
    auto operator<=>(const Convolution&) const = default;
};

enum class MarkKind : std::uint8_t { phase_begin, phase_end, stage_begin, stage_end, empty_cache };

struct Mark {
    MarkKind kind = MarkKind::phase_begin;
    std::string name;  // "step 1", "forward"; empty for empty_cache
    bool operator==(const Mark&) const = default;
};

/// What a run of events comes to, all of whose slots are born and freed within one copied call: a reader of the sum
/// takes it in one step. `net` and `peak` are bytes of tensors, rounded to 512, from where the stretch begins.
struct Stretch {
    std::size_t first = 0, count = 0;  // in Trace::events, without marks
    Bytes net = 0, peak = 0;           // peak: the highest that the sum stands after one of its events
    std::size_t peak_at = 0;           // the first event that reaches it, from `first`
};

/// What a shadow run leaves: everything that was allocated and freed, in order, on one stream. Devices read it;
/// tests may write one by hand. Invariants: a slot is allocated once, freed at most once and after its allocation;
/// phases contain stages; both nest properly.
struct Trace {
    std::vector<Event> events;
    std::vector<Tag> tags;
    std::vector<Mark> marks;
    Slot slots = 0;                         // slots used so far: 0 … slots-1
    std::vector<Convolution> convolutions;  // apart from each other, in the order of their first call
    std::vector<Stretch> stretches;         // in order, apart from each other; says nothing that the events do not
    bool operator==(const Trace& other) const {
        return events == other.events && tags == other.tags && marks == other.marks && slots == other.slots &&
               convolutions == other.convolutions;
    }
};

}  // namespace vram::shadow
