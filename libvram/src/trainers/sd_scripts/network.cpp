#include "trainers/sd_scripts/network.hpp"

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "nn/adapter/sd_scripts.hpp"

namespace vram::trainers::sd_scripts {
namespace {

using Kind = nn::LayerFacts::Kind;

bool holds(std::string_view name, std::initializer_list<std::string_view> parts) {
    return std::any_of(parts.begin(), parts.end(),
                       [&](std::string_view part) { return name.find(part) != std::string_view::npos; });
}

bool is_point(const nn::LayerFacts& layer) {
    return layer.kind == Kind::linear || (layer.sizes[2] == 1 && layer.sizes[3] == 1);
}

nn::Adaptation adaptation(const job::Lora& lora, std::int64_t rank) {
    if (rank == 0) return {};
    return {
        .style = &nn::adapter::sd_scripts, .rank = rank, .dropout = lora.dropout, .rank_dropout = lora.rank_dropout};
}

/// What lies in the blocks but in no block's Transformer2DModel lies in a resnet or a sampler. The names are those of
/// SdxlUNet2DConditionModel and of UNet2DConditionModel.
bool is_in_block(std::string_view name) {
    if (name.starts_with("input_blocks.0.")) return false;  // the first convolution
    return holds(name,
                 {"input_blocks.", "middle_block.", "output_blocks.", "down_blocks.", "mid_block.", "up_blocks."});
}

}  // namespace

Adapts unet_network(const job::Lora& lora) {
    return [lora](const nn::LayerFacts& layer) -> nn::Adaptation {
        if (layer.kind == Kind::other || !is_in_block(layer.name)) return {};
        const bool in_transformer = holds(layer.name, {"transformer_blocks.", ".proj_in", ".proj_out"});
        if (!in_transformer && lora.layers.conv_rank == 0) return {};
        return adaptation(lora, is_point(layer) ? lora.rank : lora.layers.conv_rank);
    };
}

Adapts clip_network(const job::Lora& lora) {
    return [lora](const nn::LayerFacts& layer) -> nn::Adaptation {
        if (layer.kind != Kind::linear || !holds(layer.name, {"self_attn.", "mlp."})) return {};
        return adaptation(lora, lora.rank);
    };
}

Adapts flux_network(const job::Lora& lora) {
    return [lora](const nn::LayerFacts& layer) -> nn::Adaptation {
        if (layer.kind != Kind::linear || !holds(layer.name, {"double_blocks.", "single_blocks."})) return {};
        return adaptation(lora, lora.rank);
    };
}

}  // namespace vram::trainers::sd_scripts
