#include "models/normalization.hpp"

namespace vram::models {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Tensor;
using nn::Tensors;

Tensor modulate(Tensor x, const Tensor& scale, const Tensor& shift) {
    const Tensor product = mul(std::move(x), add_scalar(scale));
    return add(product, shift);
}

Tensor scale_and_shift(const Tensor& x, const Tensor& scale, const Tensor& shift) {
    Tensor out = mul(x, add_scalar(unsqueeze(scale, 1)));
    return add(std::move(out), unsqueeze(shift, 1));
}

AdaLayerNormZero::AdaLayerNormZero(const nn::Builder& builder, std::int64_t size, Norm norm_type, bool bias)
    : norm_type_(norm_type), linear(builder.linear("linear", size, 6 * size, bias)) {
    if (norm_type == Norm::layer_norm)
        norm = builder.layer_norm("norm", size, false);
    else
        fp32_norm = Fp32LayerNorm(builder, "norm", size, false);
}

Tensors AdaLayerNormZero::operator()(Tensor x_in, Tensor emb_in) const {
    const Tensor held_x = std::move(x_in), held_emb = std::move(emb_in);
    Tensor emb = linear(silu(held_emb));
    const Tensors parts = chunk(emb, 6, 1);  // shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp
    Tensor x = norm_type_ == Norm::layer_norm ? norm(held_x) : fp32_norm(held_x);
    x = mul(std::move(x), add_scalar(unsqueeze(parts[1], 1)));
    x = add(std::move(x), unsqueeze(parts[0], 1));
    return {x, parts[2], parts[3], parts[4], parts[5]};
}

Sd35AdaLayerNormZeroX::Sd35AdaLayerNormZeroX(const nn::Builder& builder, std::int64_t size)
    : linear(builder.linear("linear", size, 9 * size)), norm(builder.layer_norm("norm", size, false)) {}

Tensors Sd35AdaLayerNormZeroX::operator()(Tensor hidden_states_in, Tensor emb_in) const {
    const Tensor held = std::move(hidden_states_in), held_emb = std::move(emb_in);
    Tensor emb = linear(silu(held_emb));
    // shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp, shift_msa2, scale_msa2, gate_msa2
    const Tensors parts = chunk(emb, 9, 1);
    const Tensor norm_hidden_states = norm(held);
    Tensor hidden_states = mul(norm_hidden_states, add_scalar(unsqueeze(parts[1], 1)));
    hidden_states = add(std::move(hidden_states), unsqueeze(parts[0], 1));
    Tensor norm_hidden_states2 = mul(norm_hidden_states, add_scalar(unsqueeze(parts[7], 1)));
    norm_hidden_states2 = add(std::move(norm_hidden_states2), unsqueeze(parts[6], 1));
    return {hidden_states, parts[2], parts[3], parts[4], parts[5], norm_hidden_states2, parts[8]};
}

AdaLayerNormZeroSingle::AdaLayerNormZeroSingle(const nn::Builder& builder, std::int64_t size)
    : linear(builder.linear("linear", size, 3 * size)), norm(builder.layer_norm("norm", size, false)) {}

Tensors AdaLayerNormZeroSingle::operator()(Tensor x_in, Tensor emb_in) const {
    const Tensor held_x = std::move(x_in), held_emb = std::move(emb_in);
    Tensor emb = linear(silu(held_emb));
    const Tensors parts = chunk(emb, 3, 1);  // shift_msa, scale_msa, gate_msa
    Tensor x = norm(held_x);
    x = mul(std::move(x), add_scalar(unsqueeze(parts[1], 1)));
    x = add(std::move(x), unsqueeze(parts[0], 1));
    return {x, parts[2]};
}

AdaLayerNormContinuous::AdaLayerNormContinuous(const nn::Builder& builder, std::int64_t size, std::int64_t conditioning,
                                               bool bias)
    : linear(builder.linear("linear", conditioning, 2 * size, bias)), norm(builder.layer_norm("norm", size, false)) {}

Tensor AdaLayerNormContinuous::operator()(Tensor x_in, Tensor conditioning_embedding) const {
    const Tensor held = std::move(x_in), conditioning = std::move(conditioning_embedding);
    // convert back to the original dtype in case `conditioning_embedding` is upcasted to float32
    Tensor emb = to(silu(conditioning), held.dtype());
    emb = linear(std::move(emb));
    const Tensors parts = chunk(emb, 2, 1);  // scale, shift
    Tensor x = norm(held);
    x = mul(std::move(x), unsqueeze(add_scalar(parts[0]), 1));
    x = add(std::move(x), unsqueeze(parts[1], 1));
    return x;
}

PlainRmsNorm::PlainRmsNorm(const nn::Builder& builder, std::int64_t size, bool with_bias)
    : weight(&builder.parameter("weight", {size})), bias(with_bias ? &builder.parameter("bias", {size}) : nullptr) {}

Tensor PlainRmsNorm::operator()(Tensor hidden_states_in) const {
    const Tensor held = std::move(hidden_states_in);
    Tensor hidden_states = held;
    const Tensor variance = mean(pow_scalar(to_float(hidden_states)), -1, true);
    hidden_states = mul(hidden_states, rsqrt(add_scalar(variance)));
    if (weight == nullptr) return to(hidden_states, held.dtype());
    // convert into half-precision if necessary
    if (size_of(weight->value.dtype()) == 2) hidden_states = to(hidden_states, weight->value.dtype());
    hidden_states = mul(hidden_states, weight->value);
    if (bias != nullptr) hidden_states = add(hidden_states, bias->value);
    return hidden_states;
}

AdaLayerNormSingle::AdaLayerNormSingle(const nn::Builder& builder, std::int64_t size, std::int64_t vectors)
    : emb(builder["emb"], size), linear(builder.linear("linear", size, vectors * size)) {}

Tensors AdaLayerNormSingle::operator()(Tensor timestep_in, Dtype hidden_dtype) const {
    const Tensor timestep = std::move(timestep_in);
    const Tensor embedded_timestep = emb(timestep, hidden_dtype);
    const Tensor modulation = linear(silu(embedded_timestep));
    return {modulation, embedded_timestep};
}

Fp32LayerNorm::Fp32LayerNorm(const nn::Builder& builder, std::string_view name, std::int64_t size, bool affine)
    : norm(builder.layer_norm(name, size, affine)) {}

Tensor Fp32LayerNorm::operator()(Tensor inputs_in) const {
    const Tensor inputs = std::move(inputs_in);
    Tensor wide = to_float(inputs), weight, bias;
    if (norm.weight != nullptr) {
        weight = to_float(norm.weight->value);
        bias = to_float(norm.bias->value);
    }
    Tensor out = layer_norm(std::move(wide), std::move(weight), std::move(bias));
    return to(std::move(out), inputs.dtype());
}

}  // namespace vram::models
