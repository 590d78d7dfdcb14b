#include <algorithm>
#include <array>

#include "trainers/ai_toolkit/reading.hpp"

namespace vram::trainers::ai_toolkit {
namespace {

/// "lora", or what is refused.
std::string read_type(Section& network) {
    const std::string type = lower(network.value("type") != nullptr ? network.fields.text("type", "lora") : "lora");
    constexpr std::array<std::string_view, 8> others{"locon", "lycoris",  "lorm", "lokr",
                                                     "dora",  "fullrank", "loha", "lierla"};
    if (std::find(others.begin(), others.end(), type) != others.end())
        network.refuse("type", "of the networks only lora is");
    else if (type != "lora" && network.reading.modelled)
        network.fields.complain("type", Problem::bad_value, "network.type must be lora, not " + type,
                                nearest(type, std::array<std::string_view, 4>{"lora", "locon", "lokr", "lorm"}));
    return type;
}

}  // namespace

void read_network(Section& process, Config& config) {
    if (process.value("network") == nullptr) return;
    config.fine_tune = false;
    Section network = process.section("network", SectionId::network);
    NetworkConfig& out = config.network;
    const std::string type = read_type(network);
    // `rank` wins over `linear`; null is none.
    const bool by_rank = network.value("rank") != nullptr, by_linear = network.value("linear") != nullptr;
    if (by_rank)
        out.rank = network.fields.integer("rank", {.min = 1, .max = most_rank}, out.rank);
    else if (by_linear && type != "lokr")
        out.rank = network.fields.integer("linear", {.min = 1, .max = most_rank}, out.rank);
    out.transformer_only = network.flag("transformer_only", true);
    Section kwargs = network.section("network_kwargs", SectionId::network_kwargs);
    out.names = {kwargs.parts("only_if_contains"), kwargs.parts("ignore_if_contains")};
    kwargs.finish();
    network.finish();
}

}  // namespace vram::trainers::ai_toolkit
