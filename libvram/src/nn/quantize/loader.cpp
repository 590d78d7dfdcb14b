#include "nn/quantize/loader.hpp"

#include <charconv>
#include <map>
#include <set>

#include "shadow/memo.hpp"
#include "shadow/provenance.hpp"

namespace vram::nn::quantize {
namespace {

using shadow::Op;
using shadow::Parameter;

/// Op outputs of this scope are the model's weights.
class WeightScope {
  public:
    explicit WeightScope(Weights& weights) : scope_(weights.run(), weights.component(), shadow::Category::weights) {}

  private:
    shadow::ComponentScope scope_;
};

/// The weight that stands there in full is this layer's.
void note_full(const QuantizedLayer& layer) {
    if (layer.tied != nullptr && layer.full.defined() && layer.full.storage() == layer.tied->value.storage()) return;
    shadow::Provenance* const provenance = layer.run().provenance;
    if (provenance != nullptr && layer.full.defined()) provenance->put(layer.full.storage()->slot, layer.name);
}

}  // namespace

void Loader::load(std::size_t first, std::size_t last, const std::vector<QuantizedLayer*>& in_full) {
    const WeightScope scope(weights_);
    std::deque<Parameter>& all = weights_.all_base();
    std::set<const Parameter*> stored;
    for (const QuantizedLayer* layer : in_full) stored.insert(layer->stored.begin(), layer->stored.end());
    auto layer = in_full.begin();
    while (layer != in_full.end() && (*layer)->place < first) ++layer;
    for (std::size_t i = first; i < last; ++i) {
        if (layer != in_full.end() && (*layer)->place == i) {
            if (!(*layer)->stays_on_host())
                (*layer)->full = (*layer)->tied != nullptr
                                     ? (*layer)->tied->value.detach()
                                     : weights_.run().empty((*layer)->weight, (*layer)->dtype(), Op::parameter);
            note_full(**layer);
            ++layer;
        }
        if (!stored.contains(&all[i]) && !all[i].stays_on_host) weights_.to_gpu(all[i]);
    }
}

void Loader::load() {
    load(0, weights_.all_base().size(), layers());
    on_gpu_ = true;
}

void Loader::convert(const std::vector<QuantizedLayer*>& layers) {
    const WeightScope scope(weights_);
    const shadow::NoGrad no_grad(weights_.run());
    for (QuantizedLayer* layer : layers) {
        if (layer->quantizer->prepare != nullptr) layer->quantizer->prepare(weights_, *layer);
        note_full(*layer);
    }
    for (QuantizedLayer* layer : layers) layer->quantizer->convert(weights_, *layer);
}

std::vector<QuantizedLayer*> Loader::layers() {
    std::vector<QuantizedLayer*> out;
    for (QuantizedLayer& layer : weights_.quantized) out.push_back(&layer);
    return out;
}

void Loader::quantize() {
    std::vector<QuantizedLayer*> here = layers();
    std::erase_if(here, [](const QuantizedLayer* layer) { return layer->stays_on_host(); });
    convert(here);
}

bool Loader::quantize_each() {
    if (!on_gpu_) return false;
    for (QuantizedLayer& layer : weights_.quantized) convert({&layer});
    return true;
}

void Loader::quantize_model(const std::vector<std::string>& block_lists) {
    const std::vector<QuantizedLayer*> others = quantize_blocks(block_lists);
    if (on_gpu_) convert(others);  // else they stand on the CPU, where nothing of it is seen
}

void Loader::quantize_blocks_first(const std::vector<std::string>& block_lists) {
    const std::vector<QuantizedLayer*> others = quantize_blocks(block_lists);
    load(0, weights_.all_base().size(), others);
    on_gpu_ = true;
    convert(others);
}

std::vector<QuantizedLayer*> Loader::quantize_blocks(const std::vector<std::string>& block_lists) {
    struct Block {
        std::size_t first = 0, last = 0;
        std::vector<QuantizedLayer*> layers;
    };
    // A block's parameters lie side by side: modules are built in the order of their names in the tree.
    std::vector<std::map<std::int64_t, Block>> lists(block_lists.size());
    const auto block_of = [&](const std::string& name) -> Block* {
        for (std::size_t i = 0; i < block_lists.size(); ++i) {
            const std::string& list = block_lists[i];
            if (name.size() <= list.size() + 1 || name.compare(0, list.size(), list) != 0 || name[list.size()] != '.')
                continue;
            std::int64_t index = 0;
            if (std::from_chars(name.data() + list.size() + 1, name.data() + name.size(), index).ec == std::errc())
                return &lists[i][index];
        }
        return nullptr;
    };
    for (std::size_t i = 0; i < weights_.names.size(); ++i) {
        Block* block = block_of(weights_.names[i]);
        if (block == nullptr) continue;
        if (block->last == 0) block->first = i;
        block->last = i + 1;
    }
    std::vector<QuantizedLayer*> others;
    for (QuantizedLayer& layer : weights_.quantized) {
        Block* block = block_of(layer.name);
        (block != nullptr ? block->layers : others).push_back(&layer);
    }
    for (const std::map<std::int64_t, Block>& list : lists)
        for (const auto& [index, block] : list) {
            if (!on_gpu_) load(block.first, block.last, block.layers);
            convert(block.layers);
            for (std::size_t i = block.first; i < block.last; ++i) weights_.to_cpu(weights_.all_base()[i]);
        }
    return others;
}

void Loader::constants() {
    const WeightScope scope(weights_);
    for (const QuantizedLayer& layer : weights_.quantized)
        if (layer.quantizer->constants != nullptr) layer.quantizer->constants(layer);
}

}  // namespace vram::nn::quantize
