// What convolutions take beside their tensors: which rule is whose, what it comes to, and what readers of a trace make
// of it. The table of docs/scratch.md is written here when VRAM_REWRITE is set, and compared otherwise.
#include "vram/device/scratch.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "vram/device/usage.hpp"

using namespace vram;
using namespace vram::device;
using shadow::Convolution;

namespace {

/// The 256 → 256 convolution of a VAE's decoder at full size, one picture of 1024 pixels, bf16.
Convolution plain(Dtype dtype = Dtype::bf16) {
    Convolution call;
    call.dtype = dtype;
    call.channels_in = call.channels_out = 256;
    call.input = call.output = {1, 1024, 1024};
    call.kernel = {1, 3, 3};
    return call;
}

Convolution video(Dtype dtype = Dtype::bf16) {  // Qwen-Image's VAE: three frames, two of them padding
    Convolution call = plain(dtype);
    call.spatial = 3;
    call.channels_in = call.channels_out = 96;
    call.input = {3, 1026, 1026};
    call.kernel = {3, 3, 3};
    return call;
}

Library on(std::int32_t sm, std::int32_t torch_minor = 13, std::int32_t cudnn = 0) {
    return {sm, 2, torch_minor, cudnn};
}

std::string id_of(const Convolution& call, const Library& library = {}) {
    return std::string(scratch_of(call, library).rule->id);
}

constexpr Bytes picture = 256 * MiB * 2;  // 256 channels at 1024 x 1024 of two bytes
constexpr Bytes filter = Bytes{256} * 256 * 9 * 2;

}  // namespace

TEST_CASE("scratch of a plain convolution: input, output and filter of two bytes; input and filter of four") {
    const ScratchRange half = scratch_of(plain(), {});
    CHECK(half.low == picture + filter);
    CHECK(half.mid == 2 * picture + filter);
    CHECK(half.high == 2 * picture + filter + 2 * MiB);
    const ScratchRange single = scratch_of(plain(Dtype::f32), {});
    CHECK(single.low == 0);
    CHECK(single.mid == 2 * (picture + filter));
    CHECK(single.high == 2 * (2 * picture + filter));
    Convolution batch = plain();
    batch.batch = 4;
    CHECK(scratch_of(batch, {}).mid == 4 * picture + filter);
    CHECK(scratch_of(batch, {}).high == 8 * picture + filter + 2 * MiB);
}

TEST_CASE("scratch: each condition of the table moves a call to another line") {
    const auto with = [](Convolution call, auto&& change) {
        change(call);
        return call;
    };
    CHECK(id_of(plain()) == "halves");
    CHECK(id_of(plain(Dtype::f16)) == "halves");
    CHECK(id_of(plain(Dtype::f32)) == "fp32");
    CHECK(id_of(with(plain(Dtype::f32), [](Convolution& c) { c.channels_in = 512; })) == "fp32, 512 channels and more");
    CHECK(id_of(with(plain(), [](Convolution& c) { c.batch = 3; })) == "halves");
    CHECK(id_of(with(plain(), [](Convolution& c) { c.batch = 4; })) == "halves, batch 4 and more");
    CHECK(id_of(plain(Dtype::f16), on(75)) == "halves before sm80");
    CHECK(id_of(plain(), on(75)) == "bf16 before sm80");
    CHECK(id_of(with(plain(), [](Convolution& c) { c.channels_last = true; })) == "channels_last");
    CHECK(id_of(with(plain(), [](Convolution& c) { c.kernel = {1, 1, 1}; })) == "1x1");
    CHECK(id_of(with(plain(), [](Convolution& c) { c.groups = 256; })) == "groups");
    CHECK(id_of(with(plain(), [](Convolution& c) { c.pass = Convolution::Pass::data_gradient; })) == "backward");
    CHECK(id_of(with(plain(), [](Convolution& c) { c.pass = Convolution::Pass::weight_gradient; })) == "backward");
    CHECK(id_of(video()) == "halves");
}

TEST_CASE("scratch: where PyTorch leaves cuDNN it is the column buffer of one sample, and no range") {
    // pytorch issue 177406: torch 2.9.1 asks for 96 x 27 x 1024^2 x 2 bytes in Qwen-Image's VAE; 2.8 does not.
    const ScratchRange columns = scratch_of(video(), on(89, 9));
    CHECK(columns.mid == Bytes{96} * 27 * 1024 * 1024 * 2);
    CHECK(columns.low == columns.mid);
    CHECK(columns.high == columns.mid);
    Convolution four = video();
    four.batch = 4;
    CHECK(scratch_of(four, on(89, 9)).mid == columns.mid);
    for (const std::int32_t torch_minor : {8, 11, 13}) CHECK(id_of(video(), on(89, torch_minor)) == "halves");
    CHECK(id_of(video(), on(89, 10)) == id_of(video(), on(89, 9)));  // its wheel has the same cuDNN
    CHECK(id_of(video(), on(89, 9, 91501)) == "halves");             // another cuDNN than the wheel's
    CHECK(id_of(video(Dtype::f32), on(89, 9)) == "fp32");
    CHECK(id_of(plain(), on(89, 9)) == "halves");
    Convolution last = video();
    last.channels_last = true;
    CHECK(id_of(last, on(89, 9)) == "channels_last");
    Convolution point = video();
    point.kernel = {1, 1, 1};
    CHECK(id_of(point, on(89, 9)) == "1x1");

    // Omost issue 21: an RTX 2070 with a VAE in bf16 asks for 256 x 9 x 1024^2 x 2 bytes.
    CHECK(scratch_of(plain(), on(75)).mid == Bytes{256} * 9 * 1024 * 1024 * 2);

    Convolution large = plain(Dtype::f16);  // 2^31 elements a sample
    large.input = large.output = {1, 4096, 2048};
    CHECK(id_of(large, on(89, 6)) == "large sample before cuDNN 9.3");
    CHECK(id_of(large, on(89, 7)) == "halves");
    large.input = {1, 4096, 2047};
    large.output = {1, 4096, 2047};
    CHECK(id_of(large, on(89, 6)) == "halves");
}

TEST_CASE("scratch: the data gradient's column buffer is its forward's") {
    Convolution forward = video(), back = video();
    back.pass = Convolution::Pass::data_gradient;
    forward.channels_in = back.channels_out = 32;
    back.input = forward.output;
    back.output = forward.input;
    CHECK(back.column_bytes() == forward.column_bytes());
    CHECK(back.input_bytes() == forward.output_bytes());
    CHECK(back.filter_bytes() == forward.filter_bytes());
}

TEST_CASE("scratch: every call has a rule, and low <= mid <= high") {
    std::set<std::string> met;
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::f64})
        for (const std::int32_t sm : {70, 75, 80, 86, 89, 90, 100, 120})
            for (const std::int32_t torch_minor : {1, 6, 9, 13})
                for (const bool last : {false, true})
                    for (const std::int64_t batch : {1, 3, 4, 16})
                        for (const std::int64_t channels : {4, 256, 512})
                            for (const std::int64_t kernel : {1, 3})
                                for (const std::int64_t groups : {1, 4})
                                    for (const int pass : {0, 1, 2})
                                        for (const std::int64_t side : {8, 1024, 4096})
                                            for (const int spatial : {1, 2, 3}) {
                                                Convolution call;
                                                call.pass = static_cast<Convolution::Pass>(pass);
                                                call.dtype = dtype;
                                                call.channels_last = last;
                                                call.spatial = spatial;
                                                call.batch = batch;
                                                call.groups = groups;
                                                call.channels_in = call.channels_out = channels;
                                                call.input = call.output = {spatial == 3 ? 3 : 1, side, side};
                                                call.kernel = {spatial == 3 ? kernel : 1, kernel, kernel};
                                                const ScratchRange range = scratch_of(call, on(sm, torch_minor));
                                                REQUIRE(range.rule != nullptr);
                                                REQUIRE(range.low >= 0);
                                                REQUIRE(range.low <= range.mid);
                                                REQUIRE(range.mid <= range.high);
                                                met.insert(std::string(range.rule->id));
                                            }
    CHECK(met.size() == scratch_rules().size());  // no line is hidden behind others
}

TEST_CASE("scratch: sizes without end stay within 63 bits") {
    Convolution call = plain();
    call.batch = std::int64_t{1} << 40;
    call.input = call.output = {1, std::int64_t{1} << 30, std::int64_t{1} << 30};
    const ScratchRange range = scratch_of(call, on(75));
    CHECK(range.mid >= unlimited);
    CHECK(scratch_of(call, {}).high >= range.mid);
}

TEST_CASE("cuDNN by torch: what its wheel asks for") {
    CHECK(cudnn_of(2, 1) == 8902);
    CHECK(cudnn_of(2, 6) == 90100);
    CHECK(cudnn_of(2, 7) == 90501);
    CHECK(cudnn_of(2, 8) == 91002);
    CHECK(cudnn_of(2, 10) == 91002);
    CHECK(cudnn_of(2, 11) == 91900);
    CHECK(cudnn_of(2, 14) == 92000);
    CHECK(cudnn_of(3, 0) == 92000);
}

TEST_CASE("scratch of a trace: allocated where the convolution stands, within no tensor; a range at the peak") {
    shadow::Trace trace;
    trace.tags = {{"vae", shadow::Category::activations}, {"vae", shadow::Category::workspace}};
    trace.convolutions = {plain(), plain()};
    trace.convolutions[1].channels_last = true;
    const auto add = [&](shadow::EventKind kind, Bytes bytes, std::uint16_t tag) {
        trace.events.push_back({bytes, trace.slots, tag, kind, 0});
        return trace.slots++;
    };
    const auto free = [&](shadow::Slot slot) { trace.events.push_back({0, slot, 0, shadow::EventKind::free, 0}); };
    trace.marks.push_back({shadow::MarkKind::phase_begin, "call"});
    trace.events.push_back({0, 0, 0, shadow::EventKind::mark, 0});
    add(shadow::EventKind::alloc, picture, 0);
    add(shadow::EventKind::alloc, picture, 0);
    free(add(shadow::EventKind::convolution, 0, 1));
    free(add(shadow::EventKind::convolution, 1, 1));

    const Usage middle = replay(trace, {});
    CHECK(middle.tensors_peak == 2 * picture);
    CHECK(sum(trace).tensors_peak == 2 * picture);
    // The allocator leaves up to 1 MiB of a block as it is.
    const auto block = [](Bytes bytes) { return round_up(bytes, 2 * MiB); };
    CHECK(middle.allocated_peak == 2 * picture + block(2 * picture + filter));
    CHECK(middle.allocated_peak_event == 3);
    const auto with = [&](const Library& library, Estimate estimate) {
        return replay(trace, {}, unlimited, Between::keep, {library, estimate}).allocated_peak;
    };
    CHECK(with({}, Estimate::low) == 2 * picture + block(picture + filter));
    CHECK(with({}, Estimate::high) == 2 * picture + block(2 * picture + filter + 2 * MiB));
    CHECK(with(on(75), Estimate::mid) == 2 * picture + scratch_of(plain(), on(75)).mid);

    const Snapshot moment = snapshot_at_peak(trace, *middle.phase("call"));
    REQUIRE(moment.scratch.size() == 1);
    CHECK(moment.scratch[0] ==
          ScratchBytes{"vae", 2 * picture + filter, picture + filter, 2 * picture + filter + 2 * MiB});
    CHECK(moment.workspace == 2 * picture + filter);

    // channels_last takes nothing at its least: then there is no block at all.
    trace.events.erase(trace.events.begin() + 3, trace.events.begin() + 5);
    const Usage least = replay(trace, {}, unlimited, Between::keep, {{}, Estimate::low});
    CHECK(least.allocated_peak == 2 * picture);
}

// ---- the page
namespace {

std::string terms(const ScratchTerms& terms) {
    std::string out;
    const auto add = [&](std::int32_t times, const char* word) {
        if (times == 0) return;
        out += (out.empty() ? "" : " + ") + (times == 1 ? "" : std::to_string(times) + " ") + word;
    };
    add(terms.input, "input");
    add(terms.output, "output");
    add(terms.filter, "filter");
    add(terms.columns, "columns");
    if (terms.more > 0) out += " + " + std::to_string(terms.more / MiB) + " MiB";
    return out.empty() ? "0" : out;
}

std::string page() {
    std::string out =
        "# Scratch of convolutions\n\n"
        "What a convolution's kernel takes from torch's allocator beside its tensors, while the call lasts: cuDNN's "
        "workspace, or the column\n"
        "buffer where PyTorch does not call cuDNN. It counts in `allocated` and `reserved`, never in `tensors`. The "
        "table is\n"
        "[scratch.cpp](../libvram/src/device/scratch.cpp); this page is written from it by "
        "`tests/unit/device/scratch_test.cpp`.\n\n"
        "The first line that fits a call decides. Sizes are those of the tensors that the kernel sees (what a model "
        "pads by hand is in its\n"
        "input); of a data gradient the input is the gradient that comes in. `columns` is C_in x kernel x places of "
        "the output, of one sample.\n"
        "The middle is replayed; the ends make `peak.allocated_low` to `allocated_high`, `reserved_low` to "
        "`reserved_high` and\n"
        "`device_low` to `device_high`. No end is below or above the middle. On whose word: PyTorch's *source* "
        "allocates it; public\n"
        "measurements met it ([vae-peaks.md](vae-peaks.md)); *assumed*: nobody published a number of bytes.\n\n"
        "| call | low | middle | high | on whose word | |\n|---|---|---|---|---|---|\n";
    for (const ScratchRule& rule : scratch_rules())
        out += "| " + std::string(rule.id) + " | " + terms(rule.low) + " | " + terms(rule.mid) + " | " +
               terms(rule.high) + " | " + std::string(to_text(rule.evidence)) + " | " + std::string(rule.source) +
               " |\n";
    out +=
        "\ncuDNN's version is `environment.cudnn`, or else the one that torch's wheel for Linux on PyPI asks for, "
        "as\n`torch.backends.cudnn.version()` counts: ";
    std::int32_t last = 0;
    for (std::int32_t minor = 1; minor <= 14; ++minor) {
        const std::int32_t version = cudnn_of(2, minor);
        if (version == last) continue;
        out +=
            (last == 0 ? "" : ", ") + std::string("torch 2.") + std::to_string(minor) + " " + std::to_string(version);
        last = version;
    }
    out +=
        " (each until the next). torch 2.10's asks for\n9.10.2, so its 16-bit 3-D convolutions leave cuDNN as those of "
        "2.9 do.\n\n"
        "## What is not known\n\n"
        "- Which fp32 convolutions copy their input beside the largest: replays where all do reserve 19 to 37 % too "
        "much in decode.\n"
        "- From batch 4 on: at batch 4 and 8 FLUX's decode peaked where the 256 to 128 convolution at full size copies "
        "its output, too (the\n"
        "  high end), at batch 16 where none does (the middle).\n"
        "- `torch.backends.cudnn.benchmark`: the first call of a shape tries engines with far larger workspaces. Not "
        "modelled.\n"
        "- ROCm, Blackwell's kernels, deterministic algorithms. [tools/measure_gpu.py](../tools/README.md) measures a "
        "card's own.\n\n"
        "## All other scratch\n\n"
        "has a formula in PyTorch's source, and stands beside its op: attention's accumulators "
        "(`shadow/ops_attention.cpp`), copies of what is\n"
        "not contiguous (`ops_norm.cpp`, `ops_conv.cpp`), index sorts (`ops_misc.cpp`), cuBLAS's workspaces "
        "(`device_profiles/`).\n";
    return out;
}

}  // namespace

TEST_CASE("docs/scratch.md is the table") {
    const std::string path = std::string(VRAM_SOURCE_DIR) + "/docs/scratch.md";
    const std::string text = page();
    if (std::getenv("VRAM_REWRITE") != nullptr) std::ofstream(path) << text;
    std::stringstream written;
    written << std::ifstream(path).rdbuf();
    CHECK(written.str() == text);
}
