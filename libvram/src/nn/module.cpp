#include "nn/module.hpp"

#include <algorithm>

#include "nn/memory_manager.hpp"
#include "shadow/checkpoint.hpp"
#include "shadow/memo.hpp"
#include "shadow/provenance.hpp"

namespace vram::nn {
namespace {
Tensor value_of(const Parameter* parameter) { return parameter == nullptr ? Tensor() : parameter->value; }

void name_adapter(Run& run, const Adapter& adapter, const std::string& layer) {
    if (shadow::Provenance* const provenance = run.provenance)
        for (const Parameter* parameter : adapter.own) provenance->name_parameter(parameter, layer);
}
}  // namespace

Tensor Layer::base(Tensor x) const { return with(std::move(x), value_of(weight), value_of(bias)); }
Tensor Layer::operator()(shadow::Arg x) const {
    if (adapter != nullptr && weights->adapters_active()) return adapter->how.style->forward(*this, std::move(x));
    return base(std::move(x));
}
Tensor Layer::down(Tensor x, Tensor matrix) const { return with(std::move(x), std::move(matrix), {}); }
Tensor Layer::up(Tensor x, Tensor matrix) const { return with(std::move(x), std::move(matrix), {}); }
Tensor Layer::full_weight() const {
    if (quantized == nullptr) return weight->value.detach();
    const shadow::NoGrad no_grad(weights->run());
    return quantized->quantizer->dequantize(*quantized);
}

Tensor Linear::base(Tensor x) const {
    if (inner) return (*inner)(std::move(x));
    if (manager != nullptr) return manager->linear(*this, std::move(x));
    if (multiplies_weight) return with(std::move(x), full_weight(), value_of(bias));
    if (quantized != nullptr) return quantized->quantizer->forward(*quantized, std::move(x));
    return Layer::base(std::move(x));
}
Tensor Linear::with(Tensor x, Tensor own_weight, Tensor own_bias) const {
    return shadow::linear(std::move(x), std::move(own_weight), std::move(own_bias));
}

Tensor LayerNorm::with(Tensor x, Tensor own_weight, Tensor own_bias) const {
    return shadow::layer_norm(std::move(x), std::move(own_weight), std::move(own_bias));
}
Tensor RmsNorm::with(Tensor x, Tensor own_weight, Tensor) const {
    return shadow::rms_norm(std::move(x), std::move(own_weight));
}
Tensor GroupNorm::with(Tensor x, Tensor own_weight, Tensor own_bias) const {
    return shadow::group_norm(std::move(x), groups, std::move(own_weight), std::move(own_bias));
}

Tensor Conv::base(Tensor x) const {
    if (manager != nullptr) return manager->convolution(*this, std::move(x));
    if (quantized != nullptr) return quantized->quantizer->convolve(*quantized, std::move(x), how);
    return Layer::base(std::move(x));
}
Tensor Conv::with(Tensor x, Tensor own_weight, Tensor own_bias) const {
    return shadow::conv(std::move(x), std::move(own_weight), std::move(own_bias), how);
}
// Conv2d(in, rank, kernel, stride, padding) and Conv2d(rank, out, 1): neither has groups, or a dilation.
Tensor Conv::down(Tensor x, Tensor matrix) const {
    shadow::Conv plain = how;
    for (int i = 0; i < plain.dilation.rank(); ++i) plain.dilation[i] = 1;
    plain.groups = 1;
    return shadow::conv(std::move(x), std::move(matrix), {}, plain);
}
Tensor Conv::up(Tensor x, Tensor matrix) const {
    return shadow::conv(std::move(x), std::move(matrix), {}, {{1, 1}, {0, 0}, {1, 1}, 1});
}
Tensor Embedding::with(Tensor ids, Tensor own_weight, Tensor) const {
    return shadow::embedding(std::move(own_weight), std::move(ids));
}

Tensors Caller::operator()(const Block& block, Tensors args) const {
    // The memo may play the call again when backward comes, so the function holds nothing but the block.
    Run* run = &run_;
    const shadow::CallSpec spec{block.spec, static_cast<std::int32_t>(checkpointing_), &block.trainable, block.gemms};
    switch (checkpointing_) {
        case Checkpointing::none: break;
        case Checkpointing::non_reentrant:
            return shadow::call(run_, spec, std::move(args), [run, &block](const Tensors& inputs) {
                return shadow::checkpoint(
                    *run, [&block](const Tensors& again) { return block.forward(again); }, inputs);
            });
        case Checkpointing::reentrant:
            return shadow::call(run_, spec, std::move(args), [run, &block](const Tensors& inputs) {
                return shadow::checkpoint_reentrant(
                    *run, [&block](const Tensors& again) { return block.forward(again); }, inputs);
            });
    }
    return shadow::call(run_, spec, std::move(args), [&block](Tensors& inputs) { return block.take(inputs); });
}

Builder Builder::operator[](std::string_view name) const {
    Builder child = *this;
    child.prefix_ = qualified(name);
    return child;
}
Builder Builder::operator[](std::int64_t index) const { return (*this)[std::to_string(index)]; }

std::string Builder::qualified(std::string_view name) const {
    if (prefix_.empty()) return std::string(name);
    std::string out;
    out.reserve(prefix_.size() + 1 + name.size());
    out += prefix_;
    if (!name.empty()) out += '.';
    out += name;
    return out;
}

void Builder::note(std::initializer_list<std::int64_t> facts) const {
    if (record_) record_->spec.insert(record_->spec.end(), facts);
}
void Builder::note(const Parameter& parameter) const {
    if (!record_) return;
    note({static_cast<std::int64_t>(parameter.value.dtype()), parameter.value.requires_grad(), parameter.value.rank()});
    for (std::int64_t size : parameter.value.sizes()) record_->spec.push_back(size);
    if (parameter.value.requires_grad()) record_->trainable.push_back(const_cast<Parameter*>(&parameter));
}

Dtype Builder::dtype_of(std::string_view name) const {
    const Rules& rules = weights_.rules();
    if (rules.keep_in_fp32.empty()) return rules.dtype;
    const std::string full = qualified(name);
    const bool kept = std::any_of(rules.keep_in_fp32.begin(), rules.keep_in_fp32.end(),
                                  [&](const std::string& part) { return full.find(part) != std::string::npos; });
    return kept ? Dtype::f32 : rules.dtype;
}

void Builder::tell(std::string_view name, std::string_view leaf, const Parameter& parameter) const {
    shadow::Provenance* const provenance = run().provenance;
    if (!weights_.on_birth && provenance == nullptr) return;
    const std::string full = leaf.empty() ? qualified(name) : (*this)[name].qualified(leaf);
    if (weights_.on_birth) weights_.on_birth(full, parameter);
    if (provenance != nullptr) provenance->name_parameter(&parameter, full);
}

Parameter& Builder::make(std::string_view name, std::string_view leaf, const Dims& sizes) const {
    Parameter& parameter = weights_.base(sizes, dtype_of(name));
    const Rules& rules = weights_.rules();
    if (rules.train_base && rules.trains &&
        !rules.trains(leaf.empty() ? qualified(name) : (*this)[name].qualified(leaf)))
        parameter.value = parameter.value.detach();
    note(parameter);
    tell(name, leaf, parameter);
    if (rules.quantizer != nullptr || rules.manager != nullptr) name_last(qualified(name));
    return parameter;
}

void Builder::name_last(std::string_view full) const {
    weights_.names.resize(weights_.all_base().size(), std::string(full));
}

Parameter& Builder::parameter(std::string_view name, const Dims& sizes) const {
    Parameter& parameter = make(name, {}, sizes);
    const MemoryManager* manager = weights_.rules().manager;
    if (manager != nullptr && manager->leaves(qualified(name))) weights_.managed.push_back(&parameter);
    return parameter;
}

Parameter& Builder::buffer(std::string_view name, const Dims& sizes, Dtype dtype) const {
    const Rules& rules = weights_.rules();
    Parameter& buffer =
        weights_.base(sizes, is_floating(dtype) && rules.keep_in_fp32.empty() ? rules.dtype : dtype, true);
    note(buffer);
    tell(name, {}, buffer);
    if (rules.quantizer != nullptr || rules.manager != nullptr) name_last(qualified(name));
    return buffer;
}

void Builder::adapt(Layer& layer, std::string_view name, LayerFacts::Kind kind, const Dims& sizes) const {
    layer.weights = &weights_;
    const Rules& rules = weights_.rules();
    if (!rules.adapts) return;
    const std::string full = qualified(name);
    std::int64_t parameters = 1;
    for (const std::int64_t size : sizes) parameters = checked_mul(parameters, size);
    if (layer.bias != nullptr) parameters = checked_add(parameters, layer.bias->value.numel());
    const Adaptation how = rules.adapts({full, kind, sizes, parameters});
    if (how.style == nullptr) return;
    layer.adapter = &put_beside(weights_, layer, how, sizes);
    name_adapter(run(), *layer.adapter, full);
    ++weights_.adapted_modules;
}

const Adapter& Builder::put_beside(Weights& owner, const Layer& layer, const Adaptation& how, const Dims& sizes) const {
    Adapter& adapter = owner.adapters.emplace_back();
    adapter.how = how;
    adapter.sizes = sizes;
    adapter.weight = layer.weight;
    adapter.bias = layer.bias;
    how.style->build(owner, adapter);
    std::uint64_t style = 0;  // which wraps around
    for (const char letter : how.style->id) style = style * 131 + static_cast<unsigned char>(letter);
    note({2, static_cast<std::int64_t>(style), how.rank, how.factor, how.dropout, how.rank_dropout});
    for (const Parameter* parameter : adapter.own) note(*parameter);
    return adapter;
}

Linear Builder::linear(std::string_view name, std::int64_t in, std::int64_t out, bool bias) const {
    const Rules& rules = weights_.rules();
    Linear linear;
    linear.weights = &weights_;
    linear.in = in;
    linear.out = out;
    note({1, in, out, bias});
    const bool named = rules.quantizer != nullptr || rules.manager != nullptr || rules.inner != nullptr;
    const std::string full = named ? qualified(name) : std::string();
    linear.quantized = quantized(full, {out, in});
    if (linear.quantized == nullptr) linear.weight = &make(name, "weight", {out, in});
    if (bias) linear.bias = &make(name, "bias", {out});
    if (linear.quantized != nullptr) finish_quantized(linear.bias);
    manage(linear, {full, LayerFacts::Kind::linear, {out, in}});
    put_inside(linear, full);
    adapt(linear, name, LayerFacts::Kind::linear, {out, in});
    return linear;
}

Linear Builder::tied_linear(std::string_view name, const Embedding& embedding) const {
    const Dims sizes = embedding.weight->value.sizes();
    Linear linear;
    linear.weights = &weights_;
    linear.in = sizes[1];
    linear.out = sizes[0];
    note({1, linear.in, linear.out, 0});
    const std::string full = qualified(name);
    linear.quantized = quantized(full, sizes);
    if (linear.quantized == nullptr) {
        linear.weight = embedding.weight;
    } else {
        weights_.quantized.back().tied = embedding.weight;
        finish_quantized(nullptr);
        weights_.replaced_parameters -= checked_mul(linear.in, linear.out);  // counted with the embedding
    }
    manage(linear, {full, LayerFacts::Kind::linear, sizes}, true);
    return linear;
}

void Builder::manage(Layer& layer, const LayerFacts& facts, bool tied) const {
    using Taken = MemoryManager::Taken;
    MemoryManager* manager = weights_.rules().manager;
    if (manager == nullptr) return;
    const Taken taken = manager->takes(facts);
    if (taken == Taken::no) return;
    layer.manager = manager;
    // An embedding is moved, and with it a weight that is the embedding's, too, as the manager finds it.
    const bool is_embedding = tied && (layer.quantized == nullptr || manager->before_quantize);
    if (taken == Taken::moved || is_embedding) return;
    for (Parameter* parameter : {layer.weight, layer.bias})
        if (parameter != nullptr) weights_.managed.push_back(parameter);
    if (layer.quantized == nullptr) return;
    weights_.managed.insert(weights_.managed.end(), layer.quantized->stored.begin(), layer.quantized->stored.end());
}

void Builder::put_inside(Linear& linear, const std::string& full) const {
    Weights* inner = weights_.rules().inner;
    if (inner == nullptr) return;
    const LayerFacts facts{full, LayerFacts::Kind::linear, {linear.out, linear.in}, checked_mul(linear.out, linear.in)};
    const Adaptation how = inner->rules().adapts(facts);
    if (how.style == nullptr) return;
    Linear own = linear;
    own.weights = inner;
    own.multiplies_weight = own.quantized != nullptr && own.quantized->quantizer->weight_is_property;
    own.adapter = &put_beside(*inner, own, how, facts.sizes);
    name_adapter(run(), *own.adapter, full);
    // MemoryManager.attach of the adapter's module (manager.py): both of its linears, whatever share is offloaded.
    if (own.manager != nullptr)
        inner->managed.insert(inner->managed.end(), own.adapter->own.begin(), own.adapter->own.begin() + 2);
    if (own.quantized != nullptr && own.quantized->quantizer->replaces_module) return;
    linear.inner = std::make_shared<const Linear>(std::move(own));
}

const QuantizedLayer* Builder::quantized(const std::string& full, const Dims& weight) const {
    const Quantizer* quantizer = weights_.rules().quantizer;
    if (quantizer == nullptr || (weights_.rules().quantizes && !weights_.rules().quantizes(full))) return nullptr;
    if (weight.rank() != 2 && quantizer->convolve == nullptr) return nullptr;
    QuantizedLayer layer;
    layer.name = full;
    layer.quantizer = quantizer;
    layer.weight = weight;
    layer.weights = &weights_;
    layer.place = weights_.all_base().size();
    if (quantizer->takes != nullptr && !quantizer->takes(*quantizer, layer.in(), layer.out())) return nullptr;
    if (quantizer->build != nullptr) quantizer->build(weights_, layer);
    name_last(full);
    return &weights_.quantized.emplace_back(std::move(layer));
}

void Builder::finish_quantized(Parameter* bias) const {
    QuantizedLayer& layer = weights_.quantized.back();
    layer.bias = bias;
    if (layer.quantizer->build_buffers != nullptr) layer.quantizer->build_buffers(weights_, layer);
    name_last(layer.name);
    weights_.replaced_parameters = checked_add(weights_.replaced_parameters, checked_mul(layer.in(), layer.out()));
    shadow::Provenance* const provenance = run().provenance;
    for (const Parameter* parameter : layer.stored) {
        if (provenance != nullptr) provenance->name_parameter(parameter, layer.name);
        if (!parameter->buffer) weights_.replaced_parameters -= parameter->value.numel();
        note(*parameter);
    }
}

LayerNorm Builder::layer_norm(std::string_view name, std::int64_t size, bool affine, bool bias) const {
    note({3, affine, bias});
    LayerNorm norm;
    if (affine) norm.weight = &make(name, "weight", {size});
    if (affine && bias) norm.bias = &make(name, "bias", {size});
    if (affine) adapt(norm, name, LayerFacts::Kind::other, {size});
    return norm;
}

RmsNorm Builder::rms_norm(std::string_view name, std::int64_t size, bool affine) const {
    note({4, affine});
    RmsNorm norm;
    if (!affine) return norm;
    norm.weight = &make(name, "weight", {size});
    adapt(norm, name, LayerFacts::Kind::other, {size});
    return norm;
}

GroupNorm Builder::group_norm(std::string_view name, std::int64_t groups, std::int64_t channels) const {
    note({5, groups});
    GroupNorm norm;
    norm.groups = groups;
    norm.weight = &make(name, "weight", {channels});
    norm.bias = &make(name, "bias", {channels});
    adapt(norm, name, LayerFacts::Kind::other, {channels});
    return norm;
}

Conv Builder::conv(std::string_view name, std::int64_t in, std::int64_t out, const Dims& kernel, const Dims& stride,
                   const Dims& padding, bool bias) const {
    note({6, bias});
    for (const Dims* dims : {&stride, &padding})
        for (std::int64_t item : *dims) note({item});
    Conv conv;
    Dims sizes{out, in};
    Dims ones;
    for (std::int64_t side : kernel) {
        sizes.push_back(side);
        ones.push_back(1);
    }
    const Rules& rules = weights_.rules();
    const std::string full = rules.quantizer != nullptr || rules.manager != nullptr ? qualified(name) : std::string();
    conv.weights = &weights_;
    if (sizes.rank() == 4) conv.quantized = quantized(full, sizes);  // nn.Conv2d alone has a quantised class
    if (conv.quantized == nullptr) conv.weight = &make(name, "weight", sizes);
    if (bias) conv.bias = &make(name, "bias", {out});
    if (conv.quantized != nullptr) finish_quantized(conv.bias);
    if (sizes.rank() == 4) manage(conv, {full, LayerFacts::Kind::conv2d, sizes});
    conv.how = {stride, padding, ones, 1};
    adapt(conv, name, kernel.rank() == 2 ? LayerFacts::Kind::conv2d : LayerFacts::Kind::other, sizes);
    return conv;
}

Conv Builder::conv2d(std::string_view name, std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                     std::int64_t padding, bool bias) const {
    return conv(name, in, out, {kernel, kernel}, {stride, stride}, {padding, padding}, bias);
}

Embedding Builder::embedding(std::string_view name, std::int64_t count, std::int64_t size) const {
    note({7});
    Embedding embedding;
    embedding.weight = &make(name, "weight", {count, size});
    adapt(embedding, name, LayerFacts::Kind::other, {count, size});
    return embedding;
}

BlockBuilder Builder::block(Block&) const {
    BlockBuilder own(*this);
    own.record_ = std::make_shared<Record>();
    own.record_->spec.reserve(256);  // a transformer's block; what is larger grows
    return own;
}

void Builder::finish(Block& block, std::string_view class_name, std::initializer_list<std::int64_t> facts) const {
    note(facts);
    // What a memory manager holds after a call, another call lets go: no two calls are alike.
    if (weights_.rules().manager == nullptr) block.spec = shadow::spec_id(run(), class_name, record_->spec);
    block.trainable = std::move(record_->trainable);
    if (shadow::Provenance* const provenance = run().provenance)
        provenance->name_block(&block.trainable, prefix_, class_name);
}

}  // namespace vram::nn
