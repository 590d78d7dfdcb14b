#include "vram/device/scratch.hpp"

#include <algorithm>
#include <array>

namespace vram::device {
namespace {

using shadow::Convolution;
using Types = ScratchRule::Types;
using Layout = ScratchRule::Layout;
using Shape = ScratchRule::Shape;
using Pass = ScratchRule::Pass;

constexpr std::int64_t no_end = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t int_limit = (std::int64_t{1} << 31) - 1;

// ---- sums of the table, in the order: input, output, filter, columns, bytes more
constexpr ScratchTerms nothing{};
constexpr ScratchTerms filter_alone{0, 0, 1, 0, 0};
constexpr ScratchTerms in{1, 0, 1, 0, 0};
constexpr ScratchTerms in_out{1, 1, 1, 0, 0};
constexpr ScratchTerms in_out_and_more{1, 1, 1, 0, 2 * MiB};
constexpr ScratchTerms tensors_alone{1, 1, 0, 0, 0};
constexpr ScratchTerms twice{2, 2, 0, 0, 0};
constexpr ScratchTerms twice_and_filter{2, 2, 1, 0, 0};
constexpr ScratchTerms columns{0, 0, 0, 1, 0};

/// A rule about one thing after the other.
class Line {
  public:
    explicit constexpr Line(std::string_view id) { rule_.id = id; }
    [[nodiscard]] constexpr Line sm(std::int64_t from, std::int64_t to = no_end) const {
        return with(&ScratchRule::sm, {from, to});
    }
    [[nodiscard]] constexpr Line torch_minor(std::int64_t from) const {
        return with(&ScratchRule::torch_minor, {from, no_end});
    }
    [[nodiscard]] constexpr Line cudnn(std::int64_t from, std::int64_t below) const {
        return with(&ScratchRule::cudnn, {from, below - 1});
    }
    [[nodiscard]] constexpr Line three_dimensions() const { return with(&ScratchRule::spatial, {3, 3}); }
    [[nodiscard]] constexpr Line batch(std::int64_t from) const { return with(&ScratchRule::batch, {from, no_end}); }
    [[nodiscard]] constexpr Line channels_in(std::int64_t from) const {
        return with(&ScratchRule::channels_in, {from, no_end});
    }
    [[nodiscard]] constexpr Line sample(std::int64_t from) const { return with(&ScratchRule::sample, {from, no_end}); }
    [[nodiscard]] constexpr Line types(Types types) const { return with(&ScratchRule::types, types); }
    [[nodiscard]] constexpr Line layout(Layout layout) const { return with(&ScratchRule::layout, layout); }
    [[nodiscard]] constexpr Line shape(Shape shape) const { return with(&ScratchRule::shape, shape); }
    [[nodiscard]] constexpr Line pass(Pass pass) const { return with(&ScratchRule::pass, pass); }
    [[nodiscard]] constexpr Line not_pointwise() const { return with(&ScratchRule::pointwise, false); }
    [[nodiscard]] constexpr ScratchRule takes(const ScratchTerms& low, const ScratchTerms& mid,
                                              const ScratchTerms& high, Evidence evidence,
                                              std::string_view source) const {
        ScratchRule out = rule_;
        out.low = low;
        out.mid = mid;
        out.high = high;
        out.evidence = evidence;
        out.source = source;
        return out;
    }

  private:
    template <class T>
    [[nodiscard]] constexpr Line with(T ScratchRule::*member, T value) const {
        Line out = *this;
        out.rule_.*member = value;
        return out;
    }
    ScratchRule rule_;
};

// The first line that fits decides. Where PyTorch leaves cuDNN comes first: its column buffer is in the source.
constexpr std::array rules{
    Line("large sample before cuDNN 9.3")
        .sample(int_limit + 1)
        .cudnn(0, 90300)
        .takes(columns, columns, columns, Evidence::source,
               "native/Convolution.cpp: needs_64bit_indexing_no_split leaves cuDNN before 9.3 (pytorch PR 134890)"),
    Line("bf16 before sm80")
        .types(Types::bf16)
        .sm(0, 79)
        .takes(columns, columns, columns, Evidence::source,
               "native/Convolution.cpp: supportsBFloat16ConvolutionWithCuDNNv8 (pytorch PR 81139)"),
    Line("3-D halves, torch 2.9 and later with cuDNN 9.8 to 9.14")
        .types(Types::half)
        .layout(Layout::contiguous)
        .three_dimensions()
        .not_pointwise()
        .torch_minor(9)
        .cudnn(90800, 91500)
        .takes(columns, columns, columns, Evidence::source,
               "native/Convolution.cpp, use_cudnn (pytorch PR 163581); Qwen-Image's VAE in torch 2.9.1, issue 177406"),
    Line("channels_last")
        .layout(Layout::channels_last)
        .takes(nothing, filter_alone, tensors_alone, Evidence::assumed,
               "nothing is transposed for NHWC kernels (LightX2V issue 860); no public number of bytes"),
    Line("groups, fp32")
        .shape(Shape::grouped)
        .types(Types::f32)
        .takes(nothing, in, in_out, Evidence::assumed, "as a plain forward; no public number of bytes"),
    Line("groups, batch 4 and more")
        .shape(Shape::grouped)
        .batch(4)
        .takes(nothing, in, in_out_and_more, Evidence::assumed, "as a plain forward; no public number of bytes"),
    Line("groups")
        .shape(Shape::grouped)
        .takes(nothing, in_out, in_out_and_more, Evidence::assumed, "as a plain forward; no public number of bytes"),
    Line("backward, fp32")
        .pass(Pass::backward)
        .types(Types::f32)
        .takes(nothing, in, twice_and_filter, Evidence::assumed, "as a forward; no public number of bytes"),
    Line("backward, batch 4 and more")
        .pass(Pass::backward)
        .batch(4)
        .takes(nothing, in, twice_and_filter, Evidence::assumed, "as a forward; no public number of bytes"),
    Line("backward")
        .pass(Pass::backward)
        .takes(nothing, in_out, twice_and_filter, Evidence::assumed, "as a forward; no public number of bytes"),
    Line("1x1, fp32")
        .shape(Shape::pointwise)
        .types(Types::f32)
        .takes(nothing, in, in_out, Evidence::assumed, "as a plain forward; no public number of bytes"),
    Line("1x1, batch 4 and more")
        .shape(Shape::pointwise)
        .batch(4)
        .takes(nothing, in, in_out_and_more, Evidence::assumed, "as a plain forward; no public number of bytes"),
    Line("1x1")
        .shape(Shape::pointwise)
        .takes(
            nothing, in_out, in_out_and_more, Evidence::measured,
            "by reserved memory alone: with it Qwen-Image's VAE is met within 2 % at ten sizes, without it 9 % short "
            "at three of them (InvokeAI PR 9305)"),
    Line("fp32, 512 channels and more")
        .types(Types::f32)
        .channels_in(512)
        .takes(nothing, in, twice_and_filter, Evidence::measured,
               "as fp32; high: FLUX AE's encode asks 4x its input + 9 MiB at a quarter of the size (InvokeAI PR 8414)"),
    Line("fp32")
        .types(Types::f32)
        .takes(nothing, in, in_out, Evidence::measured,
               "KL and FLUX AE decode, KL encode on an RTX 4090 (InvokeAI PR 8414); pytorch issue 128947 on an A100. "
               "Which convolutions beside the largest copy is not known, nor other architectures"),
    Line("halves, batch 4 and more")
        .batch(4)
        .sm(80)
        .takes(in, in, in_out_and_more, Evidence::measured,
               "FLUX decode at batch 4, 8, 16 on an H100 (README of sayakpaul/diffusers-torchao)"),
    Line("halves before sm80")
        .sm(0, 79)
        .takes(in, in_out, twice, Evidence::assumed, "as from sm80 on; no public number of bytes"),
    Line("halves").takes(in, in_out, in_out_and_more, Evidence::measured,
                         "55 peaks of VAEs on RTX 4090 and H100 within 0.2 % (InvokeAI PR 8414, 9305); "
                         "pytorch issues 95024, 123533"),
};

// What torch's wheel for Linux on PyPI asks for, by minor version of torch 2. Source: Requires-Dist of torch 2.1.0 to
// 2.13.0. Wheels of other indices may carry another one.
struct Wheel {
    std::int32_t torch_minor, cudnn;
};
constexpr Wheel wheels[] = {{1, 8902}, {4, 90100}, {7, 90501}, {8, 91002}, {11, 91900}, {12, 92000}};

bool of_type(Types types, Dtype dtype) {
    switch (types) {
        case Types::any: return true;
        case Types::half: return dtype == Dtype::f16 || dtype == Dtype::bf16;
        case Types::f16: return dtype == Dtype::f16;
        case Types::bf16: return dtype == Dtype::bf16;
        case Types::f32: return size_of(dtype) > 2;
    }
    return false;
}

bool of_pass(Pass wanted, Convolution::Pass pass) {
    switch (wanted) {
        case Pass::any: return true;
        case Pass::forward: return pass == Convolution::Pass::forward;
        case Pass::backward: return pass != Convolution::Pass::forward;
    }
    return false;
}

}  // namespace

std::int32_t cudnn_of(std::int32_t torch_major, std::int32_t torch_minor) {
    if (torch_major < 2) return wheels[0].cudnn;
    const auto* const after = std::find_if(std::begin(wheels), std::end(wheels),
                                           [&](const Wheel& wheel) { return wheel.torch_minor > torch_minor; });
    return torch_major > 2 || after == std::end(wheels) ? std::prev(std::end(wheels))->cudnn
           : after == std::begin(wheels)                ? after->cudnn
                                                        : std::prev(after)->cudnn;
}

std::string_view to_text(Evidence evidence) {
    switch (evidence) {
        case Evidence::source: return "source";
        case Evidence::measured: return "measured";
        case Evidence::assumed: return "assumed";
    }
    return "?";
}

Bytes ScratchTerms::of(const Convolution& call) const {
    Bytes bytes = more;
    if (input > 0) bytes += input * call.input_bytes();
    if (output > 0) bytes += output * call.output_bytes();
    if (filter > 0) bytes += filter * call.filter_bytes();
    if (columns > 0) bytes += columns * call.column_bytes();
    return bytes;
}

bool ScratchRule::fits(const Convolution& call, const Library& library) const {
    const std::int32_t version = library.cudnn > 0 ? library.cudnn : cudnn_of(library.torch_major, library.torch_minor);
    const Shape kind = call.groups != 1 ? Shape::grouped : call.pointwise() ? Shape::pointwise : Shape::any;
    return sm.has(library.sm) && torch_minor.has(library.torch_minor) && cudnn.has(version) &&
           spatial.has(call.spatial) && batch.has(call.batch) && channels_in.has(call.channels_in) &&
           sample.has(call.largest_sample()) && of_type(types, call.dtype) &&
           (layout == Layout::any || (layout == Layout::channels_last) == call.channels_last) &&
           (shape == Shape::any || shape == kind) && (pointwise || !call.pointwise()) && of_pass(pass, call.pass);
}

std::span<const ScratchRule> scratch_rules() { return rules; }

ScratchRange scratch_of(const Convolution& call, const Library& library) {
    const auto* const rule =
        std::find_if(rules.begin(), rules.end(), [&](const ScratchRule& line) { return line.fits(call, library); });
    // The last line is about every call. A filter may outweigh the tensors of another sum.
    ScratchRange out;
    out.rule = &*rule;
    out.mid = rule->mid.of(call);
    out.low = std::min(rule->low.of(call), out.mid);
    out.high = std::max(rule->high.of(call), out.mid);
    return out;
}

std::vector<Bytes> Scratch::sizes(const shadow::Trace& trace) const {
    std::vector<Bytes> out;
    out.reserve(trace.convolutions.size());
    for (const Convolution& call : trace.convolutions) out.push_back(scratch_of(call, library).at(estimate));
    return out;
}

}  // namespace vram::device
