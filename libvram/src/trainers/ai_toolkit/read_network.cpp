#include <algorithm>
#include <array>

#include "base/text.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/reading.hpp"
#include "trainers/truthy.hpp"

namespace vram::trainers::ai_toolkit {
namespace {

using job::AdapterKind;

/// In the trainer's words, and why it stops on those that it cannot train.
struct Type {
    std::string_view name;
    AdapterKind kind = AdapterKind::lora;
    std::string_view stops{};
};
constexpr std::array<Type, 7> types{{
    {"lora"},
    {"lokr", AdapterKind::lokr},
    {"dora", AdapterKind::dora},
    {"fullrank", AdapterKind::full_rank},
    {"locon", AdapterKind::lora,
     "the network of LyCORIS has no network_type, which the trainer asks it for when it saves"},
    {"lycoris", AdapterKind::lora,
     "the network of LyCORIS has no network_type, which the trainer asks it for when it saves"},
    {"lorm", AdapterKind::lora, "the trainer's lorm_forward returns nothing, on which the first step stops"},
}};

AdapterKind read_type(Section& network) {
    const std::string said = lower(network.value("type") != nullptr ? network.fields.text("type", "lora") : "lora");
    const auto type = std::find_if(types.begin(), types.end(), [&](const Type& one) { return one.name == said; });
    if (type != types.end() && type->stops.empty()) return type->kind;
    if (!network.reading.modelled) return AdapterKind::lora;
    if (type != types.end()) {
        network.fields.complain("type", Problem::conflict,
                                "network.type cannot be " + said + ": " + std::string(type->stops));
        return AdapterKind::lora;
    }
    const std::string near = nearest(said, std::array<std::string_view, 4>{"lora", "lokr", "dora", "fullrank"});
    network.fields.complain("type", Problem::bad_value,
                            "network.type must be lora, lokr, dora or fullrank, not " + said +
                                ", of which the trainer makes a plain lora without a word",
                            near);
    return AdapterKind::lora;
}

/// A rank that is said, or `fallback`; 0, and false, stand for none.
std::int64_t rank_under(Section& network, std::string_view key, std::int64_t min, std::int64_t fallback) {
    return network.value(key) == nullptr ? fallback
                                         : network.fields.integer(key, {.min = min, .max = most_rank}, fallback);
}

void read_ranks(Section& network, NetworkConfig& out) {
    const bool is_lokr = out.kind == AdapterKind::lokr;
    out.factor = network.value("lokr_factor") == nullptr
                     ? -1
                     : network.fields.integer("lokr_factor", {.min = -1, .max = most_rank}, -1);
    if (out.factor == 0)
        network.fields.complain("lokr_factor", Problem::out_of_range,
                                "network.lokr_factor must be -1, which lets the trainer choose, or at least 1", "-1");
    const bool full = network.flag("lokr_full_rank", true);
    // `rank` wins over `linear`; null is none.
    const bool by_rank = network.value("rank") != nullptr;
    const std::int64_t linear = is_lokr && full ? 4 : rank_under(network, "linear", 1, 4);
    out.rank = is_lokr && full ? no_rank : by_rank ? rank_under(network, "rank", 1, 4) : linear;
    out.layers.conv_rank = is_lokr && full ? no_rank : rank_under(network, "conv", 0, 0);
}

/// A chance: null and 0 are none.
bool read_chance(Section& section, std::string_view key) {
    return section.value(key) != nullptr && section.fields.number(key, {.min = 0, .max = 1}, 0) > 0;
}

/// modules_dim: ranks by the trainer's names.
void read_module_ranks(Section& kwargs, NetworkConfig& out) {
    const io::Node* node = kwargs.value("modules_dim");
    if (node == nullptr) return;
    if (kwargs.value("modules_alpha") == nullptr) {
        kwargs.fields.complain("modules_dim", Problem::conflict,
                               "the trainer takes network_kwargs.modules_dim only with modules_alpha beside it");
        return;
    }
    const io::Map* map = node->map();
    if (map == nullptr) {
        kwargs.fields.complain("modules_dim", Problem::wrong_type, "network_kwargs.modules_dim must be a map");
        return;
    }
    for (const auto& [name, span, value] : *map) {
        const std::int64_t* rank = value.integer();
        if (rank != nullptr && *rank >= 0 && *rank <= most_rank)
            out.layers.ranks[name] = *rank;
        else
            kwargs.reading.complain_at(value, kwargs.fields.path("modules_dim") + "." + name, Problem::bad_value,
                                       "a rank in network_kwargs.modules_dim must be a whole number from 0 to 65536");
    }
}

void read_kwargs(Section& network, const Architecture& architecture, const Config& config, NetworkConfig& out) {
    Section kwargs = network.section("network_kwargs", SectionId::network_kwargs);
    out.names = {kwargs.parts("only_if_contains"), kwargs.parts("ignore_if_contains")};
    out.layers.full = kwargs.parts("full_if_contains");
    out.layers.fewest_parameters =
        kwargs.value("parameter_threshold") == nullptr ? 0 : kwargs.fields.number("parameter_threshold", {.min = 0}, 0);
    out.rank_dropout = read_chance(kwargs, "rank_dropout");
    if (read_chance(kwargs, "module_dropout") && out.kind != AdapterKind::lokr && kwargs.reading.modelled)
        kwargs.fields.complain("module_dropout", Problem::conflict,
                               "on network_kwargs.module_dropout the trainer stops as soon as it drops a module");
    if (const io::Node* node = kwargs.value("full_train_in_out"); node != nullptr && truthy(*node))
        kwargs.refuse("full_train_in_out", "it trains the first and the last layer of a UNet");
    read_module_ranks(kwargs, out);
    const bool is_unet = !architecture.modules.roots.empty();
    out.layers.classes = {"Transformer2DModel"};
    // A second list is added where convolutions have a rank.
    if (out.layers.conv_rank != 0 || !out.layers.ranks.empty() || kwargs.value("conv_block_dims") != nullptr)
        out.layers.classes.insert(out.layers.classes.end(), {"ResnetBlock2D", "Downsample2D", "Upsample2D"});
    for (const std::string_view key : {"target_lin_modules", "target_conv_modules"})
        if (is_unet && kwargs.value(key) != nullptr) kwargs.refuse(key, "it looks into modules of other classes");
    if (out.layers.full.empty() || config.model.quantize == job::Quantization::none) {
        kwargs.finish();
        return;
    }
    kwargs.refuse("full_if_contains", "over a quantised layer its weight is taken apart for each call");
    kwargs.finish();
}

}  // namespace

void read_network(Section& process, Config& config) {
    if (process.value("network") == nullptr) return;
    config.fine_tune = false;
    Section network = process.section("network", SectionId::network);
    NetworkConfig& out = config.network;
    out.kind = read_type(network);
    read_ranks(network, out);
    out.dropout = read_chance(network, "dropout") && out.kind != AdapterKind::lokr;  // which only warns
    out.layers.all = network.flag("all_layers", false);
    out.transformer_only = network.flag("transformer_only", true);
    const Architecture* known = architecture_named(config.model.arch);
    read_kwargs(network, known != nullptr ? *known : *architectures().front(), config, out);
    network.finish();
}

}  // namespace vram::trainers::ai_toolkit
