// Peaks that others measured on a GPU, beside ours. The table of docs/vae-peaks.md is written by this test when the
// environment variable VRAM_REWRITE is set, and compared with it otherwise.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "models/model.hpp"
#include "shadow/ops.hpp"
#include "shadow/run.hpp"
#include "vram/device/usage.hpp"
#include "vram/profile/catalogue.hpp"

using namespace vram;

namespace {

struct Measured {
    const char* operation;
    Dtype dtype;
    std::int64_t side;
    double allocated, reserved;  // above what was there before a warmed-up call
    std::int64_t height = 0;     // 0: as wide as high
};

// SDXL's AutoencoderKL on an RTX 4090, weights and input left out, empty cache and a warm-up before each run.
// Source: InvokeAI commit 7785061e7d (2025-08, PR #8414), vae_benchmarks/VAE_BENCHMARK_REPORT.md.
constexpr Measured rows[] = {
    {"decode", Dtype::f16, 512, 610.06, 1088},    {"decode", Dtype::f16, 768, 1370.13, 2402},
    {"decode", Dtype::f16, 1024, 2434.22, 4274},  {"decode", Dtype::f16, 1536, 5474.51, 9574},
    {"decode", Dtype::f16, 2048, 9730.90, 16994}, {"decode", Dtype::f32, 512, 962.36, 1532},
    {"decode", Dtype::f32, 768, 2162.50, 3222},   {"decode", Dtype::f32, 1024, 3842.70, 5686},
    {"decode", Dtype::f32, 1536, 8643.26, 12158}, {"decode", Dtype::f32, 2048, 15364.05, 20536},
    {"encode", Dtype::f16, 512, 384.28, 534},     {"encode", Dtype::f16, 768, 864.28, 1194},
    {"encode", Dtype::f16, 1024, 1536.28, 2118},  {"encode", Dtype::f32, 512, 640.51, 784},
    {"encode", Dtype::f32, 768, 1440.56, 1744},   {"encode", Dtype::f32, 1024, 2560.51, 3108},
};
// AutoencoderKL of SD 1.5 is the same class with the same config, measured to the same bytes.

// Qwen-Image's VAE on an RTX 4090, torch 2.7.1+cu128, GiB; `allocated` has the weights inside, `reserved` is the
// growth. Source: InvokeAI PR #9305, its table of calibration.
constexpr Measured qwen_rows[] = {
    {"decode", Dtype::f16, 512, 1.274, 1.311},        {"decode", Dtype::f16, 768, 2.563, 2.992},
    {"decode", Dtype::f16, 1024, 4.369, 5.254},       {"decode", Dtype::f16, 1280, 6.693, 8.188},
    {"decode", Dtype::f16, 1536, 9.532, 11.736},      {"decode", Dtype::f16, 1792, 12.884, 15.949},
    {"decode", Dtype::f16, 2048, 16.754, 20.799},     {"encode", Dtype::f16, 512, 0.900, 0.711},
    {"encode", Dtype::f16, 768, 1.724, 1.594},        {"encode", Dtype::f16, 1024, 2.879, 2.848},
    {"encode", Dtype::f16, 1280, 4.364, 4.459},       {"encode", Dtype::f16, 1536, 6.179, 6.396},
    {"decode", Dtype::f16, 832, 4.331, 5.211, 1248},  {"decode", Dtype::f16, 1088, 8.468, 10.408, 1920},
    {"decode", Dtype::f16, 1536, 6.434, 7.857, 1024}, {"encode", Dtype::f16, 832, 2.854, 2.824, 1248},
    {"encode", Dtype::f16, 1088, 5.498, 5.672, 1920}, {"encode", Dtype::f16, 1536, 4.199, 4.281, 1024},
};

// FLUX.1's autoencoder in its authors' code, in fp16 and in bf16 alike, as above. Same source.
constexpr Measured bfl_rows[] = {
    {"decode", Dtype::f16, 512, 546.12, 1068},     {"decode", Dtype::f16, 768, 1226.28, 2376},
    {"decode", Dtype::f16, 1024, 2178.50, 4260},   {"decode", Dtype::f16, 1536, 4900.00, 9538},
    {"decode", Dtype::f16, 2048, 8708.00, 16932},  {"decode", Dtype::bf16, 512, 546.12, 1068},
    {"decode", Dtype::bf16, 768, 1226.28, 2376},   {"decode", Dtype::bf16, 1024, 2178.50, 4260},
    {"decode", Dtype::bf16, 1536, 4900.00, 9538},  {"decode", Dtype::bf16, 2048, 8708.00, 16932},
    {"decode", Dtype::f32, 512, 898.25, 1422},     {"decode", Dtype::f32, 768, 2018.56, 3126},
    {"decode", Dtype::f32, 1024, 3587.00, 5520},   {"decode", Dtype::f32, 1536, 8067.38, 11806},
    {"decode", Dtype::f32, 2048, 14341.13, 19904}, {"encode", Dtype::f16, 512, 384.28, 452},
    {"encode", Dtype::f16, 768, 864.28, 1014},     {"encode", Dtype::f16, 1024, 1536.28, 1798},
    {"encode", Dtype::f16, 1536, 3456.28, 4050},   {"encode", Dtype::f16, 2048, 6144.28, 7198},
    {"encode", Dtype::bf16, 512, 384.28, 452},     {"encode", Dtype::bf16, 768, 864.28, 1014},
    {"encode", Dtype::bf16, 1024, 1536.28, 1798},  {"encode", Dtype::bf16, 1536, 3456.28, 4050},
    {"encode", Dtype::bf16, 2048, 6144.28, 7198},  {"encode", Dtype::f32, 512, 794, 850},
    {"encode", Dtype::f32, 768, 1774, 1892},       {"encode", Dtype::f32, 1024, 3146, 3350},
    {"encode", Dtype::f32, 1536, 7066, 7520},      {"encode", Dtype::f32, 2048, 12554, 15410},
};

struct Peak {
    Bytes allocated, reserved;  // above what was there before the call
    Bytes before;               // allocated by then: weights and input
};

/// Peaks of `call` after a warm-up, above what is there before it. `load` brings weights and inputs.
Peak peak_of(shadow::Run& run, const std::function<void()>& load, const std::function<void()>& call,
             device::Estimate estimate = device::Estimate::mid) {
    const shadow::NoGrad no_grad(run);
    {
        const shadow::PhaseScope scope(run, "load");
        load();
    }
    {
        const shadow::PhaseScope scope(run, "warm-up");
        call();
    }
    run.mark(shadow::MarkKind::empty_cache);
    { const shadow::PhaseScope scope(run, "start"); }  // its peaks: what torch holds before the call
    {
        const shadow::PhaseScope scope(run, "call");
        call();
    }
    const device::Usage usage = device::replay(run.trace, {}, device::unlimited, device::Between::keep, {{}, estimate});
    const device::PhaseUsage& start = *usage.phase("start");
    const device::PhaseUsage& measured = *usage.phase("call");
    return {measured.allocated_peak - start.allocated_peak, measured.reserved_peak - start.reserved_peak,
            start.allocated_peak};
}

/// Mirrors AutoEncoder as InvokeAI has it (invokeai/backend/flux/modules/autoencoder.py, from black-forest-labs/flux),
/// which differs from diffusers' class in what lives: an encoder keeps every state, a decoder nothing of a level's
/// input.
class BflAutoEncoder {
  public:
    BflAutoEncoder(shadow::Run& run, Dtype dtype) : run_(run), dtype_(dtype) {}
    /// The weights that calls have asked for, in their order.
    [[nodiscard]] std::vector<shadow::Dims> sizes() const {
        std::vector<shadow::Dims> out;
        for (const shadow::Tensor& made : weights_) out.push_back(made.sizes());
        return out;
    }
    void load(const std::vector<shadow::Dims>& all) {
        for (const shadow::Dims& one : all) weights_.push_back(run_.empty(one, dtype_));
    }
    /// Calls take the same weights again, from the first one on; one that is not there yet is made.
    void restart() { next_ = 0; }

    [[nodiscard]] shadow::Tensor decode(const shadow::Tensor& argument) {
        shadow::Tensor z = shadow::div_scalar(argument);
        z = shadow::add_scalar(z);
        shadow::Tensor h = conv(z, 512, 3);
        h = mid(h);
        for (int level = 3; level >= 0; --level) {
            for (int block = 0; block < 3; ++block) h = resnet(h, widths[static_cast<std::size_t>(level)]);
            if (level > 0) h = upsample(h);
        }
        h = norm(h);
        h = shadow::silu(h);
        h = conv(h, 3, 3);
        return h;
    }

    [[nodiscard]] shadow::Tensor encode(const shadow::Tensor& x) {
        std::vector<shadow::Tensor> hs{conv(x, 128, 3)};
        for (int level = 0; level < 4; ++level) {
            for (int block = 0; block < 2; ++block) {
                shadow::Tensor h = resnet(hs.back(), widths[static_cast<std::size_t>(level)]);
                hs.push_back(std::move(h));
            }
            if (level < 3) {
                shadow::Tensor h = downsample(hs.back());
                hs.push_back(std::move(h));
            }
        }
        shadow::Tensor h = hs.back();
        h = mid(h);
        h = norm(h);
        h = shadow::silu(h);
        h = conv(h, 32, 3);
        return h;
    }

  private:
    static constexpr std::array<std::int64_t, 4> widths{128, 256, 512, 512};

    [[nodiscard]] shadow::Tensor weight(const shadow::Dims& sizes) {
        if (next_ == weights_.size()) weights_.push_back(run_.empty(sizes, dtype_));
        return weights_[next_++];
    }
    [[nodiscard]] shadow::Tensor conv(const shadow::Tensor& x, std::int64_t out, std::int64_t kernel,
                                      std::int64_t stride = 1) {
        const std::int64_t padding = stride == 1 ? kernel / 2 : 0;
        const shadow::Tensor filter = weight({out, x.size(1), kernel, kernel});
        const shadow::Tensor bias = weight({out});
        return shadow::conv(x, filter, bias, {{stride, stride}, {padding, padding}, {1, 1}});
    }
    [[nodiscard]] shadow::Tensor norm(const shadow::Tensor& x) {
        const shadow::Tensor scale = weight({x.size(1)});
        const shadow::Tensor shift = weight({x.size(1)});
        return shadow::group_norm(x, 32, scale, shift);
    }
    [[nodiscard]] shadow::Tensor resnet(const shadow::Tensor& argument, std::int64_t out) {
        const shadow::Tensor held = argument;
        shadow::Tensor x = argument;
        shadow::Tensor h = x;
        h = norm(h);
        h = shadow::silu(h);
        h = conv(h, out, 3);
        h = norm(h);
        h = shadow::silu(h);
        h = conv(h, out, 3);
        if (x.size(1) != out) x = conv(x, out, 1);
        return shadow::add(x, h);
    }
    [[nodiscard]] shadow::Tensor attention(const shadow::Tensor& argument) {
        shadow::Tensor h = argument;
        h = norm(h);
        const std::int64_t batch = h.size(0), channels = h.size(1), height = h.size(2), width = h.size(3);
        std::array<shadow::Tensor, 3> qkv;
        for (shadow::Tensor& part : qkv) part = conv(h, channels, 1);
        for (shadow::Tensor& part : qkv) {
            part = shadow::transpose(shadow::view(part, {batch, 1, channels, height * width}), 2, 3);
            part = shadow::contiguous(part);
        }
        h = shadow::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2]);
        return shadow::view(shadow::transpose(h, 2, 3), {batch, channels, height, width});
    }
    [[nodiscard]] shadow::Tensor attend(const shadow::Tensor& x) {
        const shadow::Tensor attended = attention(x);
        const shadow::Tensor out = conv(attended, x.size(1), 1);
        return shadow::add(x, out);
    }
    [[nodiscard]] shadow::Tensor mid(const shadow::Tensor& argument) {
        shadow::Tensor h = argument;
        h = resnet(h, 512);
        h = attend(h);
        h = resnet(h, 512);
        return h;
    }
    [[nodiscard]] shadow::Tensor upsample(const shadow::Tensor& argument) {
        const shadow::Tensor held = argument;
        shadow::Tensor x = shadow::upsample_nearest(held, 2);
        x = conv(x, x.size(1), 3);
        return x;
    }
    [[nodiscard]] shadow::Tensor downsample(const shadow::Tensor& argument) {
        const shadow::Tensor held = argument;
        shadow::Tensor x = shadow::pad(held, {0, 1, 0, 1});
        x = conv(x, x.size(1), 3, 2);
        return x;
    }

    shadow::Run& run_;
    Dtype dtype_;
    std::vector<shadow::Tensor> weights_;
    std::size_t next_ = 0;
};

Peak predicted_of_bfl(const Measured& row, device::Estimate estimate = device::Estimate::mid) {
    const bool decodes = row.operation == std::string("decode");
    const std::int64_t side = decodes ? row.side / 8 : row.side;
    const shadow::Dims shape{1, decodes ? 16 : 3, side, side};
    const auto play = [&](BflAutoEncoder& model, const shadow::Tensor& input) {
        model.restart();
        const shadow::Tensor out = decodes ? model.decode(input) : model.encode(input);
    };
    shadow::Run first;
    BflAutoEncoder asked(first, row.dtype);
    play(asked, first.empty(shape, row.dtype));

    shadow::Run run;
    BflAutoEncoder model(run, row.dtype);
    shadow::Tensor input;
    const auto load = [&] {
        model.load(asked.sizes());
        input = run.empty(shape, row.dtype);
    };
    return peak_of(
        run, load, [&] { play(model, input); }, estimate);
}

Peak predicted(const profile::Catalogue& catalogue, const char* id, const Measured& row,
               device::Estimate estimate = device::Estimate::mid) {
    const profile::ModelProfile& profile = catalogue.model_of(id);
    shadow::Run run;
    nn::Rules rules;
    rules.dtype = row.dtype;
    nn::Weights weights(run, "vae", rules);
    const auto model = models::build(weights, profile);
    models::Request request;
    request.width = row.side;
    request.height = row.height > 0 ? row.height : row.side;
    request.dtype = row.dtype;
    request.operation = row.operation == std::string("decode") ? models::Request::Operation::decode
                                                               : models::Request::Operation::encode;
    models::Tensors inputs;
    const auto load = [&] {
        weights.to_gpu();
        for (const models::Value& value : model->inputs(request)) inputs.push_back(run.empty(value.shape, value.dtype));
    };
    const auto call = [&] { const models::Tensors outputs = model->forward(inputs, request); };
    return peak_of(run, load, call, estimate);
}

/// `format` writes a row's texts, then measured and predicted bytes in its unit, each pair with how far they are apart.
std::string line(const char* format, const Measured& row, double allocated, double reserved) {
    std::array<char, 200> text{};
    const std::string side =
        std::to_string(row.side) + (row.height > 0 ? " x " + std::to_string(row.height) : std::string());
    std::snprintf(text.data(), text.size(), format, row.operation, std::string(to_text(row.dtype)).c_str(),
                  side.c_str(), row.allocated, allocated, 100 * (allocated / row.allocated - 1), row.reserved, reserved,
                  100 * (reserved / row.reserved - 1));
    return text.data();
}

constexpr const char* head =
    "| call | dtype | side | allocated | predicted | | reserved | predicted | "
    "|\n|---|---|---|---|---|---|---|---|---|\n";

}  // namespace

TEST_CASE(
    "VAEs' measured peaks: allocated within 0.2 %, reserved of fp16 decode within 8 %, at 512 pixels not Qwen's") {
    const auto catalogue = profile::Catalogue::built_in();
    std::string table =
        "# VAE peaks: measured and predicted\n\n"
        "SDXL's AutoencoderKL, one picture, RTX 4090, MiB above what was allocated before a warmed-up call (weights "
        "and input left out).\n"
        "Measured: InvokeAI commit 7785061e7d (2025-08, PR #8414). Predicted: the shadow run with convolution scratch, "
        "replayed through\n"
        "the native caching allocator. Written by the test `tests/recordings/vae_peaks_test.cpp`.\n\n"
        "The fp32 rows of `reserved` and those of encode are shown as they are: which fp32 convolutions copy their "
        "input is not known (the one at\n"
        "the peak does), and the state of the measured allocator after its warm-up is not stated.\n\n";
    table += head;
    for (const Measured& row : rows) {
        CAPTURE(row.operation);
        CAPTURE(row.side);
        const Peak ours = predicted(catalogue, "vae_sd_4ch", row);
        const double allocated = static_cast<double>(ours.allocated) / static_cast<double>(MiB);
        const double reserved = static_cast<double>(ours.reserved) / static_cast<double>(MiB);
        CHECK(std::abs(allocated / row.allocated - 1) < 0.002);
        if (row.operation == std::string("decode") && row.dtype == Dtype::f16)
            CHECK(std::abs(reserved / row.reserved - 1) < 0.08);
        table += line("| %s | %s | %s | %.2f | %.2f | %+.2f %% | %.0f | %.0f | %+.1f %% |\n", row, allocated, reserved);
    }
    table +=
        "\nQwen-Image's VAE, one picture, RTX 4090, torch 2.7.1, GiB; `allocated` with weights and input, `reserved` "
        "above what was there before.\nMeasured: InvokeAI PR #9305.\n\n";
    table += head;
    for (const Measured& row : qwen_rows) {
        CAPTURE(row.operation);
        CAPTURE(row.side);
        const Peak ours = predicted(catalogue, "vae_qwenimage", row);
        const double allocated = static_cast<double>(ours.allocated + ours.before) / static_cast<double>(GiB);
        const double reserved = static_cast<double>(ours.reserved) / static_cast<double>(GiB);
        CHECK(std::abs(allocated / row.allocated - 1) < 0.001);
        table += line("| %s | %s | %s | %.3f | %.3f | %+.2f %% | %.3f | %.3f | %+.1f %% |\n", row, allocated, reserved);
    }
    table +=
        "\nFLUX.1's autoencoder in its authors' code (an encoder that keeps every state), one picture, RTX 4090, MiB, "
        "as\n"
        "SDXL's above. In fp32 encode a 512 to 512 convolution at a quarter of the size asks four times its input: the "
        "high\nend of its rule, in the last column.\n\n"
        "| call | dtype | side | allocated | predicted | | reserved | predicted | | allocated, high |\n"
        "|---|---|---|---|---|---|---|---|---|---|\n";
    for (const Measured& row : bfl_rows) {
        CAPTURE(row.operation);
        CAPTURE(row.side);
        CAPTURE(to_text(row.dtype));
        const Peak ours = predicted_of_bfl(row), most = predicted_of_bfl(row, device::Estimate::high);
        const double allocated = static_cast<double>(ours.allocated) / static_cast<double>(MiB);
        const double reserved = static_cast<double>(ours.reserved) / static_cast<double>(MiB);
        const double high = static_cast<double>(most.allocated) / static_cast<double>(MiB);
        const bool open = row.operation == std::string("encode") && row.dtype == Dtype::f32;
        if (open)
            CHECK(allocated <= row.allocated);
        else
            CHECK(std::abs(allocated / row.allocated - 1) < 0.002);
        CHECK(high >= row.allocated * 0.998);
        std::string text =
            line("| %s | %s | %s | %.2f | %.2f | %+.2f %% | %.0f | %.0f | %+.1f %% |", row, allocated, reserved);
        std::array<char, 40> last{};
        std::snprintf(last.data(), last.size(), " %.2f |\n", high);
        table += text + last.data();
    }
    const std::string path = std::string(VRAM_SOURCE_DIR) + "/docs/vae-peaks.md";
    if (std::getenv("VRAM_REWRITE") != nullptr) std::ofstream(path) << table;
    std::stringstream written;
    written << std::ifstream(path).rdbuf();
    CHECK(written.str() == table);
}
