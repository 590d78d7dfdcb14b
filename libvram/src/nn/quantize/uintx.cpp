#include "nn/quantize/uintx.hpp"

#include <bit>

#include "nn/quantize/steps.hpp"

namespace vram::nn::quantize {
namespace {

constexpr std::int64_t group_size = 64;
enum : std::size_t { packed, scale, zero_point };

// can_quantize
bool takes(const Quantizer& quantizer, std::int64_t in, std::int64_t) {
    return quantizer.bits != 8 && in % group_size == 0;
}

/// Bytes of the shard of `k` bits, 8 / k values each.
std::int64_t shard_bytes(std::int64_t numel, std::int64_t k) { return (numel * k + 7) / 8; }

std::int64_t packed_bytes(std::int64_t numel, std::int64_t bits) {
    std::int64_t total = 0;
    for (const std::int64_t k : {4, 2, 1})
        if ((bits & k) != 0) total = checked_add(total, shard_bytes(numel, k));
    return total;
}

std::int64_t numel_of(const QuantizedLayer& layer) { return checked_mul(layer.out(), layer.in()); }
bool one_shard(std::int64_t bits) { return std::has_single_bit(static_cast<std::uint64_t>(bits)); }

void build(Weights& weights, QuantizedLayer& layer) {
    const Dims groups{layer.out(), layer.in() / group_size};
    store(weights, layer, {packed_bytes(numel_of(layer), layer.quantizer->bits)}, Dtype::u8);
    store(weights, layer, groups, weights.rules().dtype);  // a byte view of them
    store(weights, layer, groups, Dtype::u8);
}

// pack_uintx
void pack(Weights& weights, QuantizedLayer& layer, const Tensor& codes) {
    const std::int64_t bits = layer.quantizer->bits;
    const auto pack_shard = [&](std::int64_t k, Tensor out) {
        for (std::int64_t j = 1; j < 8 / k; ++j) const Tensor shifted = made_like(out);
        return out;
    };
    if (one_shard(bits)) {
        weights.to_gpu(*layer.stored[packed]);
        const Tensor shard = pack_shard(bits, layer[packed]);
        return;
    }
    Tensors shards;
    for (const std::int64_t k : {4, 2, 1}) {
        if ((bits & k) == 0) continue;
        Tensor values = made_like(codes);  // flat >> offset
        values = made_like(codes);         // & mask
        shards.push_back(pack_shard(k, made(layer, {shard_bytes(numel_of(layer), k)}, Dtype::u8)));
    }
    weights.to_gpu(*layer.stored[packed]);  // cat
}

// _quantize_impl
void convert(Weights& weights, QuantizedLayer& layer) {
    const Tensor weight = std::move(layer.full);
    layer.full = Tensor();
    const Dims groups{layer.out(), layer.in() / group_size};
    const Dtype dtype = weight.dtype();
    const auto per_group = [&] { return made(layer, groups, dtype); };
    const Tensor min_val = per_group();
    const Tensor max_val = per_group();
    Tensor min_val_neg, max_val_pos, zeros = per_group();
    min_val_neg = per_group();
    zeros = Tensor();
    zeros = per_group();
    max_val_pos = per_group();
    zeros = Tensor();
    {
        Tensor range = per_group();
        range = per_group();                   // / (qmax - qmin)
        weights.to_gpu(*layer.stored[scale]);  // clamp
    }
    Tensor zeros_at = per_group();  // min_val_neg / scale
    zeros_at = per_group();         // round
    zeros_at = per_group();         // qmin -
    {
        const Tensor clamped = per_group();
        zeros_at = made(layer, groups, Dtype::i32);
    }
    Tensor q;
    {
        Tensor inverse = per_group();  // reciprocal
        inverse = per_group();         // * 1.0
        q = made_like(weight);
    }
    q = made_like(weight);  // round
    q = made_like(weight);  // + zero_point
    q = made_like(weight);  // clamp
    q = made_like(weight, Dtype::u8);
    pack(weights, layer, q);
    weights.to_gpu(*layer.stored[zero_point]);
}

// unpack_uintx: a shard's values are added into those of the first.
Tensor unpacked(const QuantizedLayer& layer) {
    Tensor q, values;
    for (const std::int64_t k : {4, 2, 1}) {
        if ((layer.quantizer->bits & k) == 0) continue;
        values = made(layer, {numel_of(layer)}, Dtype::u8);
        if (!q.defined()) q = values;
    }
    return q;
}

// _dequantize_native
Tensor dequantized(const QuantizedLayer& layer) {
    const Tensor q = unpacked(layer);
    const Tensor dq = made(layer, layer.weight, layer.dtype());
    const Tensor zeros = made_like(layer[scale]);
    return dq;
}

// OstrisLinear.weight: by way of fp32.
Tensor dequantize_weight(const QuantizedLayer& layer) {
    Tensor weight = dequantized(layer);
    weight = made_like(weight, Dtype::f32);
    return weight.dtype() == layer.dtype() ? weight : made_like(weight, layer.dtype());
}

Tensor forward(const QuantizedLayer& layer, Tensor x) {
    Tensor weight = dequantized(layer);
    if (weight.dtype() != x.dtype()) weight = made_like(weight, x.dtype());
    return shadow::linear(std::move(x), std::move(weight), layer.bias_value());
}

constexpr Quantizer uintx(std::string_view id, std::int64_t bits) {
    Quantizer out;
    out.id = id;
    out.bits = bits;
    out.takes = takes;
    out.build_buffers = build;
    out.forward = forward;
    out.dequantize = dequantize_weight;
    out.weight_is_property = true;
    out.convert = convert;
    return out;
}

}  // namespace

const Quantizer toolkit_uint2 = uintx("toolkit_uint2", 2);
const Quantizer toolkit_uint3 = uintx("toolkit_uint3", 3);
const Quantizer toolkit_uint4 = uintx("toolkit_uint4", 4);
const Quantizer toolkit_uint5 = uintx("toolkit_uint5", 5);
const Quantizer toolkit_uint6 = uintx("toolkit_uint6", 6);
const Quantizer toolkit_uint7 = uintx("toolkit_uint7", 7);
const Quantizer toolkit_uint8 = uintx("toolkit_uint8", 8);

}  // namespace vram::nn::quantize
