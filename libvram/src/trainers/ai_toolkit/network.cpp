#include "trainers/ai_toolkit/network.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "nn/adapter/toolkit.hpp"
#include "shadow/run.hpp"

namespace vram::trainers::ai_toolkit {
namespace {

using Kind = nn::LayerFacts::Kind;

/// A module's two names: `clean_name` has dots; in `lora_name` something stands for them.
struct Names {
    Names(std::string_view name, const ModuleTree& modules)
        : clean(std::string(modules.prefix) + "." + std::string(name)) {
        for (const char c : clean)
            lora += c == '.' ? (modules.dot == '$' ? "$$" : std::string(1, modules.dot)) : std::string(1, c);
    }
    [[nodiscard]] bool in_clean(const std::string& word) const { return clean.find(word) != std::string::npos; }
    [[nodiscard]] bool in_either(const std::string& word) const {
        return in_clean(word) || lora.find(word) != std::string::npos;
    }
    std::string clean, lora;
};

template <class Words, class Holds>
bool any_of(const Words& words, const Holds& holds) {
    return std::any_of(words.begin(), words.end(), [&](const auto& word) { return holds(std::string(word)); });
}

/// Whether some module of the classes that are looked into is this one or holds it.
bool is_inside(const Names& names, const job::AdapterLayers& layers, const ModuleTree& modules) {
    if (modules.roots.empty()) return true;
    return std::any_of(modules.roots.begin(), modules.roots.end(), [&](const ModuleTree::Root& root) {
        return std::find(layers.classes.begin(), layers.classes.end(), root.class_name) != layers.classes.end() &&
               names.in_clean(std::string(root.part));
    });
}

const nn::AdapterStyle* style_of(job::AdapterKind kind) {
    switch (kind) {
        case job::AdapterKind::lora: return &nn::adapter::toolkit;
        case job::AdapterKind::dora: return &nn::adapter::toolkit_dora;
        case job::AdapterKind::lokr: return &nn::adapter::toolkit_lokr;
        case job::AdapterKind::full_rank: return &nn::adapter::toolkit_full_rank;
    }
    return nullptr;
}

/// The rank of a layer; 0: it is left out.
std::int64_t rank_of(const nn::LayerFacts& layer, const Names& names, const job::Lora& lora) {
    if (!lora.layers.ranks.empty()) {
        const auto found = lora.layers.ranks.find(names.lora);
        return found == lora.layers.ranks.end() ? 0 : found->second;
    }
    const bool point = layer.kind == Kind::linear || (layer.sizes[2] == 1 && layer.sizes[3] == 1);
    return point ? lora.rank : lora.layers.conv_rank;
}

nn::Adaptation adaptation_of(const nn::LayerFacts& layer, const job::Lora& lora, const ModuleTree& modules) {
    const Names names(layer.name, modules);
    const auto in_clean = [&](const std::string& word) { return names.in_clean(word); };
    const auto in_either = [&](const std::string& word) { return names.in_either(word); };
    const bool blocks_only = lora.targets.front() == "blocks" && !modules.block_names.empty();
    const bool is_full = any_of(lora.layers.full, in_either) || (lora.layers.all && layer.kind == Kind::other);
    if (!is_inside(names, lora.layers, modules) || any_of(lora.names.ignore, in_clean)) return {};
    if (static_cast<double>(layer.parameters) < lora.layers.fewest_parameters) return {};
    if (blocks_only && !any_of(modules.block_names, in_clean)) return {};
    if (!is_full && layer.kind == Kind::other) return {};
    if (!lora.names.only.empty() && !any_of(lora.names.only, in_either)) return {};
    if (is_full) return {.style = &nn::adapter::toolkit_full};
    const std::int64_t rank = rank_of(layer, names, lora);
    if (rank == 0) return {};
    // DoRAModule.__init__ raises NotImplementedError.
    if (lora.kind == job::AdapterKind::dora && layer.kind == Kind::conv2d)
        throw shadow::Refused("ai-toolkit's dora takes no convolution, and " + std::string(layer.name) + " is one",
                              "config.process[0].network.type");
    return {.style = style_of(lora.kind),
            .rank = rank,
            .factor = lora.factor,
            .dropout = lora.dropout,
            .rank_dropout = lora.rank_dropout};
}

}  // namespace

std::function<nn::Adaptation(const nn::LayerFacts&)> adapts(const job::Lora& lora, const ModuleTree& modules) {
    return [lora, modules](const nn::LayerFacts& layer) { return adaptation_of(layer, lora, modules); };
}

std::function<bool(std::string_view)> trains(const job::NameParts& parts, const ModuleTree& modules) {
    return [parts, prefix = std::string(modules.tuned_prefix), untuned = modules.untuned](std::string_view name) {
        if (std::any_of(untuned.begin(), untuned.end(), [&](std::string_view one) { return name.starts_with(one); }))
            return false;
        const std::string key = prefix + "." + std::string(name);
        const auto in_key = [&](const std::string& word) { return key.find(word) != std::string::npos; };
        if (any_of(parts.ignore, in_key)) return false;
        return parts.only.empty() || any_of(parts.only, in_key);
    };
}

}  // namespace vram::trainers::ai_toolkit
