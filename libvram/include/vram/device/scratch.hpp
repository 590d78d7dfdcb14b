#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "vram/base/bytes.hpp"
#include "vram/base/dtype.hpp"
#include "vram/shadow/trace.hpp"

/// What a convolution's kernel takes from torch's allocator beside its tensors: a table of rules, each a range with its
/// source. The one place where that is said; docs/scratch.md is written from it.
namespace vram::device {

/// What runs the kernels.
struct Library {
    std::int32_t sm = 89;  // compute capability x 10
    std::int32_t torch_major = 2, torch_minor = 13;
    std::int32_t cudnn = 0;  // as cudnnGetVersion says it, 91002; 0: cudnn_of(torch)
    bool operator==(const Library&) const = default;
};

/// The cuDNN that torch's wheel for Linux on PyPI asks for, as cudnnGetVersion says it: 91002 is 9.10.2. Of a torch
/// that is newer than the list, the list's last.
[[nodiscard]] std::int32_t cudnn_of(std::int32_t torch_major, std::int32_t torch_minor);

/// Which end of a range is meant.
enum class Estimate : std::uint8_t { low, mid, high };

/// Bytes as a sum over the tensors of a call: how many times its input, its output, its filter, and the column buffer
/// of one of its samples; and bytes that do not depend on it.
struct ScratchTerms {
    std::int32_t input = 0, output = 0, filter = 0, columns = 0;
    Bytes more = 0;
    [[nodiscard]] Bytes of(const shadow::Convolution& call) const;  ///< at most 2^63 - 1
    bool operator==(const ScratchTerms&) const = default;
};

/// How far a rule was seen to hold.
enum class Evidence : std::uint8_t {
    source,    // PyTorch's own code allocates it
    measured,  // public measurements meet it
    assumed    // by analogy with a measured rule
};
[[nodiscard]] std::string_view to_text(Evidence evidence);

/// A line of the table: which calls it is about (all conditions hold; what is not said holds for all), and what they
/// take. The first line that fits a call decides.
struct ScratchRule {
    std::string_view id;

    struct Range {
        std::int64_t from = 0, to = std::numeric_limits<std::int64_t>::max();  // both included
        [[nodiscard]] constexpr bool has(std::int64_t value) const { return from <= value && value <= to; }
    };
    enum class Types : std::uint8_t { any, half, f16, bf16, f32 };  // half: fp16 or bf16
    enum class Layout : std::uint8_t { any, contiguous, channels_last };
    enum class Shape : std::uint8_t { any, pointwise, grouped };  // pointwise: 1x1, of one group
    enum class Pass : std::uint8_t { any, forward, backward };
    Range sm, torch_minor, cudnn, spatial, batch, channels_in, sample;  // sample: elements of one, the larger side's
    Types types = Types::any;
    Layout layout = Layout::any;
    Shape shape = Shape::any;
    bool pointwise = true;  // false: not for kernels of one element
    Pass pass = Pass::any;

    ScratchTerms low, mid, high;
    Evidence evidence = Evidence::assumed;
    std::string_view source;

    [[nodiscard]] bool fits(const shadow::Convolution& call, const Library& library) const;
};

[[nodiscard]] std::span<const ScratchRule> scratch_rules();

struct ScratchRange {
    Bytes low = 0, mid = 0, high = 0;   // low <= mid <= high
    const ScratchRule* rule = nullptr;  // of the table
    [[nodiscard]] Bytes at(Estimate estimate) const {
        return estimate == Estimate::low ? low : estimate == Estimate::mid ? mid : high;
    }
};

/// What the call takes, after its output exists and until it returns.
[[nodiscard]] ScratchRange scratch_of(const shadow::Convolution& call, const Library& library);

/// How a reader of a trace fills in what the trace leaves to the card.
struct Scratch {
    Library library;
    Estimate estimate = Estimate::mid;
    /// By index of Trace::convolutions; 0: takes nothing.
    [[nodiscard]] std::vector<Bytes> sizes(const shadow::Trace& trace) const;
};

}  // namespace vram::device
