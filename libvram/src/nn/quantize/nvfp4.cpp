#include "nn/quantize/nvfp4.hpp"

#include "nn/quantize/steps.hpp"

namespace vram::nn::quantize {
namespace {

constexpr std::int64_t block = 16;
enum : std::size_t { packed, scales, pts };

bool takes(const Quantizer&, std::int64_t in, std::int64_t) { return in % block == 0; }

void build(Weights& weights, QuantizedLayer& layer) {
    store(weights, layer, {layer.out(), layer.in() / 2}, Dtype::u8);
    store(weights, layer, {layer.out(), layer.in() / block}, Dtype::f8);
    store(weights, layer, {1}, Dtype::f32);
}

/// _edges_cache: seven edges, for the process.
void edges(Run& run) {
    Tensor& kept = run.constants["nvfp4 edges"];
    if (!kept.defined()) kept = made(run, {7}, Dtype::f32);
}

// _optimal_nvfp4_scales
Tensor optimal_scales(const Tensor& xb, const Tensor& base) {
    Run& run = xb.run();
    edges(run);
    const Tensor vals = made(run, {8}, Dtype::f32);
    Tensor best_s = made_like(base, Dtype::f8), best_e;
    Tensor s8, denom, safe, z, recon, e, better;
    for (int i = 0; i < 9; ++i) {
        {
            const Tensor scaled = made_like(base);
            s8 = made_like(base, Dtype::f8);
        }
        {
            const Tensor wide = made_like(base);
            denom = made_like(base);
        }
        {
            const Tensor positive = made_like(base, Dtype::boolean);
            const Tensor ones = made_like(base);
            safe = made_like(base);
        }
        {
            const Tensor divided = made_like(xb);
            z = made_like(xb);
        }
        Tensor product;
        {
            Tensor looked_up;
            {
                Tensor index;
                {
                    const Tensor absolute = made_like(xb);
                    index = made_like(xb, Dtype::i64);
                }
                looked_up = made_like(xb);
            }
            const Tensor sign = made_like(xb);
            product = made_like(xb);
        }
        recon = made_like(xb);
        product = Tensor();
        {
            const Tensor error = made_like(xb);
            e = made_like(base);
        }
        if (!best_e.defined()) {
            best_s = s8;
            best_e = e;
        } else {
            better = made_like(base, Dtype::boolean);
            best_s = made_like(best_s);
            best_e = made_like(best_e);
        }
    }
    return best_s;
}

void convert(Weights& weights, QuantizedLayer& layer) {
    const Tensor weight = std::move(layer.full);
    layer.full = Tensor();
    const Tensor weight_fp32 = shadow::to_float(weight);
    const Nvfp4 made_of = quantize_nvfp4(weight_fp32, true);
    weights.put(*layer.stored[packed], made_of.packed);
    weights.put(*layer.stored[scales], made_of.scales);
    weights.to_gpu(*layer.stored[pts]);
}

// OstrisLinear.weight: by way of fp32.
Tensor dequantize_weight(const QuantizedLayer& layer) {
    const Tensor weight = made(layer, layer.weight, Dtype::f32);
    return weight.dtype() == layer.dtype() ? weight : made_like(weight, layer.dtype());
}

Tensor forward(const QuantizedLayer& layer, Tensor x) {
    Tensor weight = made(layer, layer.weight, x.dtype());
    return shadow::linear(std::move(x), std::move(weight), layer.bias_value());
}

constexpr Quantizer nvfp4() {
    Quantizer out;
    out.id = "toolkit_nvfp4";
    out.bits = 4;
    out.takes = takes;
    out.build_buffers = build;
    out.forward = forward;
    out.dequantize = dequantize_weight;
    out.weight_is_property = true;
    out.convert = convert;
    return out;
}

}  // namespace

Nvfp4 quantize_nvfp4(const Tensor& x, bool optimize_scales) {
    Run& run = x.run();
    const std::int64_t rows = x.size(0), columns = x.size(1);
    const Tensor xf = shadow::to_float(x);
    Nvfp4 out;
    {
        Tensor largest;
        {
            const Tensor absolute = made_like(xf);
            largest = made(run, {}, Dtype::f32);
        }
        largest = made(run, {}, Dtype::f32);  // / (6 * 448)
        const Tensor positive = made(run, {}, Dtype::boolean);
        const Tensor ones = made(run, {}, Dtype::f32);
        out.pts = made(run, {}, Dtype::f32);
    }
    Tensor base;
    {
        Tensor largest;
        {
            const Tensor absolute = made_like(xf);
            largest = made(run, {rows, columns / block}, Dtype::f32);
        }
        const Tensor unit = made(run, {}, Dtype::f32);
        base = made_like(largest);
    }
    out.scales = optimize_scales ? optimal_scales(xf, base) : made_like(base, Dtype::f8);
    Tensor denom;
    {
        const Tensor wide = made_like(base);
        denom = made_like(base);
    }
    Tensor z;
    {
        Tensor divided;
        {
            Tensor safe;
            {
                const Tensor positive = made_like(base, Dtype::boolean);
                const Tensor ones = made_like(base);
                safe = made_like(base);
            }
            divided = made_like(xf);
        }
        z = made_like(xf);
    }
    edges(run);
    Tensor mag;
    {
        Tensor index;
        {
            const Tensor absolute = made_like(xf);
            index = made_like(xf, Dtype::i64);
        }
        mag = made_like(xf, Dtype::u8);
    }
    Tensor codes;
    {
        Tensor sign = made_like(xf, Dtype::boolean);
        sign = made_like(xf, Dtype::u8);
        sign = made_like(xf, Dtype::u8);  // << 3
        codes = made_like(xf, Dtype::u8);
    }
    const Tensor shifted = made(run, {rows, columns / 2}, Dtype::u8);
    out.packed = made_like(shifted);
    return out;
}

const Quantizer toolkit_nvfp4 = nvfp4();

}  // namespace vram::nn::quantize
