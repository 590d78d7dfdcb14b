// networks/lora.py and networks/lora_flux.py, create_network (48d368fa): what their kwargs do. Both take any key, and
// pass over what they do not know.
#include <algorithm>
#include <array>

#include "trainers/sd_scripts/reading.hpp"

namespace vram::trainers::sd_scripts {
namespace {

struct NetworkKey {
    std::string_view name;
    std::string_view why{};      // not modelled: what it does
    std::string_view nothing{};  // the value that does nothing
};

constexpr std::string_view ranks = "layers get ranks of their own", groups = "parameters are stepped in other groups";

constexpr NetworkKey of_lora[] = {
    {"conv_dim"},
    {"conv_alpha"},
    {"rank_dropout"},
    {"module_dropout"},
    {"dropout"},
    {"block_dims", ranks},
    {"block_alphas"},  // of block_dims
    {"conv_block_dims"},
    {"conv_block_alphas"},
    {"down_lr_weight", groups},
    {"mid_lr_weight", groups},
    {"up_lr_weight", groups},
    {"block_lr_zero_threshold"},
    {"loraplus_lr_ratio", groups},
    {"loraplus_unet_lr_ratio", groups},
    {"loraplus_text_encoder_lr_ratio", groups},
};
constexpr NetworkKey of_flux[] = {
    {"conv_dim"},  // FLUX.1 has no convolutions
    {"conv_alpha"},
    {"rank_dropout"},
    {"module_dropout"},
    {"dropout"},
    {"verbose"},
    {"img_attn_dim", ranks},
    {"txt_attn_dim", ranks},
    {"img_mlp_dim", ranks},
    {"txt_mlp_dim", ranks},
    {"img_mod_dim", ranks},
    {"txt_mod_dim", ranks},
    {"single_dim", ranks},
    {"single_mod_dim", ranks},
    {"in_dims", "the layers before the blocks get adapters, too"},
    {"train_blocks", "only some blocks get adapters", "all"},
    {"train_double_block_indices", "only some blocks get adapters", "all"},
    {"train_single_block_indices", "only some blocks get adapters", "all"},
    {"train_t5xxl", "T5-XXL gets adapters, too", "False"},
    {"split_qkv"},
    {"ggpo_beta", "weights are perturbed by noise"},
    {"ggpo_sigma", "weights are perturbed by noise"},
    {"network_reg_dims", ranks},
    {"network_reg_lrs", groups},
    {"loraplus_lr_ratio", groups},
    {"loraplus_unet_lr_ratio", groups},
    {"loraplus_text_encoder_lr_ratio", groups},
};

constexpr std::string_view prefix = "network_args.";

/// The adapter's argument `name`, a probability; nothing: it is not said.
std::optional<double> probability_at(Reading& reading, std::string_view name) {
    return reading.probability(std::string(prefix) + std::string(name));
}

}  // namespace

void read_network_args(Reading& reading) {
    Arguments& out = reading.config.arguments;
    const bool is_flux = out.script == &flux;
    const std::span<const NetworkKey> known = is_flux ? std::span<const NetworkKey>(of_flux) : of_lora;
    for (const Argument& said : reading.config.said.all()) {
        if (!said.name.starts_with(prefix)) continue;
        const std::string name = said.name.substr(prefix.size()), value = said.value.spelled();
        const auto key = std::find_if(known.begin(), known.end(), [&](const NetworkKey& k) { return k.name == name; });
        if (key == known.end()) {
            std::vector<std::string_view> names;
            for (const NetworkKey& one : known) names.push_back(one.name);
            reading.notes.push_back(
                {Severity::warning, Problem::unknown_key, said.at.place, said.at.key, name, nearest(name, names),
                 "the network knows no argument " + (name.empty() ? "without a name" : name) + ", and ignores it"});
        } else if (!key->why.empty() && value != key->nothing) {
            reading.complaints.push_back({Severity::error, Problem::unsupported, said.at.place, said.at.key,
                                          name + "=" + value, std::string(key->nothing),
                                          "network_args " + name + " is not modelled: " + std::string(key->why)});
        } else if (name == "split_qkv" && value == "True") {
            reading.complaints.push_back(
                {Severity::error, Problem::conflict, said.at.place, said.at.key, name + "=" + value, "False",
                 "the trainer stops at the first step: split_qkv takes three sides apart as one "
                 "(networks/lora_flux.py, get_qkv_mlp_split_dims)"});
        }
    }
    if (!is_flux) {
        out.conv_dim = reading.integer("network_args.conv_dim", {0, most_rank}).value_or(0);
        (void)reading.number("network_args.conv_alpha");
    }
    out.rank_dropout = probability_at(reading, "rank_dropout").value_or(0) != 0;
    if (probability_at(reading, "module_dropout").value_or(0) != 0)
        reading.complain("network_args.module_dropout", Problem::unsupported,
                         "module_dropout is played as a step in which no module is dropped, which needs the most", {},
                         Severity::note);
}

}  // namespace vram::trainers::sd_scripts
