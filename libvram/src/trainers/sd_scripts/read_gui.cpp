// kohya_gui/lora_gui.py (45088f04): open_configuration, which fills what a file lacks with what the GUI shows, and
// train_model, which hands the fields on as a file for --config_file. kohya_gui/common_gui.py, update_my_data: older
// spellings.
#include <algorithm>
#include <array>
#include <utility>
#include <variant>
#include <vector>

#include "trainers/sd_scripts/gui.hpp"
#include "trainers/sd_scripts/keys.hpp"
#include "trainers/sd_scripts/reading.hpp"
#include "trainers/truthy.hpp"

namespace vram::trainers::sd_scripts {
namespace {

using io::Node;

/// What a fresh GUI shows.
using Fresh = std::variant<std::monostate, bool, std::int64_t, double, std::string_view>;

struct Field {
    std::string_view gui, argument;
    Fresh fresh{};
};

/// Fields that become one argument, whichever model it is.
constexpr Field handed_on[] = {
    {"pretrained_model_name_or_path", "pretrained_model_name_or_path"},
    {"bucket_no_upscale", "bucket_no_upscale", true},
    {"bucket_reso_steps", "bucket_reso_steps", std::int64_t{64}},
    {"cache_latents", "cache_latents", true},
    {"cache_latents_to_disk", "cache_latents_to_disk"},
    {"caption_dropout_rate", "caption_dropout_rate"},
    {"clip_skip", "clip_skip", std::int64_t{1}},
    {"color_aug", "color_aug"},
    {"dataset_config", "dataset_config"},
    {"debiased_estimation_loss", "debiased_estimation_loss"},
    {"dim_from_weights", "dim_from_weights"},
    {"enable_bucket", "enable_bucket", true},
    {"fp8_base", "fp8_base"},
    {"full_bf16", "full_bf16"},
    {"full_fp16", "full_fp16"},
    {"gradient_accumulation_steps", "gradient_accumulation_steps", std::int64_t{1}},
    {"gradient_checkpointing", "gradient_checkpointing"},
    {"highvram", "highvram"},
    {"ip_noise_gamma", "ip_noise_gamma"},
    {"loss_type", "loss_type", "l2"},
    {"masked_loss", "masked_loss"},
    {"max_bucket_reso", "max_bucket_reso", std::int64_t{2048}},
    {"max_grad_norm", "max_grad_norm", 1.0},
    {"max_resolution", "resolution", "512,512"},
    {"mem_eff_attn", "mem_eff_attn"},
    {"min_bucket_reso", "min_bucket_reso", std::int64_t{256}},
    {"mixed_precision", "mixed_precision", "fp16"},
    {"network_alpha", "network_alpha", std::int64_t{1}},
    {"network_dim", "network_dim", std::int64_t{8}},
    {"network_dropout", "network_dropout"},
    {"random_crop", "random_crop"},
    {"reg_data_dir", "reg_data_dir"},
    {"sample_every_n_epochs", "sample_every_n_epochs"},
    {"sample_every_n_steps", "sample_every_n_steps"},
    {"sample_prompts", "sample_prompts"},
    {"sample_sampler", "sample_sampler", "euler_a"},
    {"scale_v_pred_loss_like_noise_pred", "scale_v_pred_loss_like_noise_pred"},
    {"scale_weight_norms", "scale_weight_norms"},
    {"shuffle_caption", "shuffle_caption"},
    {"train_batch_size", "train_batch_size", std::int64_t{1}},
    {"train_data_dir", "train_data_dir"},
    {"v2", "v2"},
    {"v_parameterization", "v_parameterization"},
    {"v_pred_like_loss", "v_pred_like_loss"},
    {"vae", "vae"},
    {"vae_batch_size", "vae_batch_size"},
    {"weighted_captions", "weighted_captions"},
};
constexpr Field of_sdxl[] = {
    {"max_token_length", "max_token_length", std::int64_t{75}},
    {"sdxl_cache_text_encoder_outputs", "cache_text_encoder_outputs"},
    {"sdxl_no_half_vae", "no_half_vae"},
};
constexpr Field of_sd[] = {{"max_token_length", "max_token_length", std::int64_t{75}}};
constexpr Field of_flux[] = {
    {"flux1_cache_text_encoder_outputs", "cache_text_encoder_outputs"},
    {"flux1_cache_text_encoder_outputs_to_disk", "cache_text_encoder_outputs_to_disk"},
    {"model_type", "model_type"},
    {"ae", "ae"},
    {"clip_l", "clip_l"},
    {"t5xxl", "t5xxl"},
    {"model_prediction_type", "model_prediction_type", "sigma_scaled"},
    {"split_mode", "split_mode"},
    {"t5xxl_max_token_length", "t5xxl_max_token_length", std::int64_t{512}},
    {"apply_t5_attn_mask", "apply_t5_attn_mask"},
    {"cpu_offload_checkpointing", "cpu_offload_checkpointing"},
    {"blocks_to_swap", "blocks_to_swap"},
    {"fp8_base_unet", "fp8_base_unet"},
};
/// Fields that the GUI looks at itself.
constexpr Field looked_at[] = {{"LoRA_type", "", "Standard"},         {"learning_rate", "", 1e-4},
                               {"noise_offset_type", "", "Original"}, {"optimizer", "", "AdamW"},
                               {"text_encoder_lr", "", 1e-4},         {"unet_lr", "", 1e-4},
                               {"xformers", "", "xformers"}};
/// What noise_offset_type lets through.
constexpr Field of_original[] = {{"noise_offset", "noise_offset"}, {"adaptive_noise_scale", "adaptive_noise_scale"}};
constexpr Field of_multires[] = {{"multires_noise_iterations", "multires_noise_iterations"}};

/// Fields that become network_args of the LoRA_types "Standard" and "Kohya LoCon", where Python takes them as true.
constexpr std::string_view lora_args[] = {
    "down_lr_weight",  "mid_lr_weight",     "up_lr_weight", "block_lr_zero_threshold", "block_dims", "block_alphas",
    "conv_block_dims", "conv_block_alphas", "rank_dropout", "module_dropout"};
/// And of "Flux1". train_blocks is none of them without split_mode, which is not modelled.
constexpr std::string_view flux_args[] = {"img_attn_dim",
                                          "img_mlp_dim",
                                          "img_mod_dim",
                                          "single_dim",
                                          "txt_attn_dim",
                                          "txt_mlp_dim",
                                          "txt_mod_dim",
                                          "single_mod_dim",
                                          "in_dims",
                                          "train_double_block_indices",
                                          "train_single_block_indices",
                                          "split_qkv",
                                          "train_t5xxl",
                                          "rank_dropout",
                                          "module_dropout"};
constexpr std::string_view loraplus_args[] = {"loraplus_lr_ratio", "loraplus_unet_lr_ratio",
                                              "loraplus_text_encoder_lr_ratio"};

/// Kinds of networks that are not played, and their module.
constexpr std::array<std::pair<std::string_view, std::string_view>, 18> other_types{{
    {"LyCORIS/BOFT", "lycoris.kohya"},
    {"LyCORIS/Diag-OFT", "lycoris.kohya"},
    {"LyCORIS/DyLoRA", "lycoris.kohya"},
    {"LyCORIS/GLoRA", "lycoris.kohya"},
    {"LyCORIS/iA3", "lycoris.kohya"},
    {"LyCORIS/LoCon", "lycoris.kohya"},
    {"LoCon", "lycoris.kohya"},
    {"LyCORIS/LoHa", "lycoris.kohya"},
    {"LyCORIS/LoKr", "lycoris.kohya"},
    {"LyCORIS/Native Fine-Tuning", "lycoris.kohya"},
    {"Flux1 OFT", "networks.oft_flux"},
    {"LoRA-FA", "networks.lora_fa"},
    {"Kohya DyLoRA", "networks.dylora"},
    {"Kohya LoHa", "networks.loha"},
    {"Kohya LoKr", "networks.lokr"},
    {"HunyuanImage-2.1", "networks.lora_hunyuan_image"},
    {"Anima", "networks.lora_anima"},
    {"Lumina", "networks.lora_lumina"},
}};
constexpr std::array<std::string_view, 3> played_types{"Standard", "Kohya LoCon", "Flux1"};

constexpr std::array<std::pair<std::string_view, std::string_view>, 4> other_models{{
    {"sd3_checkbox", "sd3_train_network.py trains Stable Diffusion 3"},
    {"hunyuan_image_checkbox", "hunyuan_image_train_network.py trains HunyuanImage"},
    {"anima_checkbox", "anima_train_network.py trains Anima"},
    {"lumina_checkbox", "lumina_train_network.py trains Lumina"},
}};

Node fresh_node(const Fresh& fresh) {
    if (const bool* flag = std::get_if<bool>(&fresh)) return Node{*flag};
    if (const std::int64_t* whole = std::get_if<std::int64_t>(&fresh)) return Node{*whole};
    if (const double* number = std::get_if<double>(&fresh)) return Node{*number};
    if (const std::string_view* text = std::get_if<std::string_view>(&fresh)) return Node{std::string(*text)};
    return Node{};
}

class Gui {
  public:
    explicit Gui(Reading& reading) : reading_(reading), root_(reading.document.root) {}

    const Script* read(const Script* said) {
        if (root_.find("LoRA_type") == nullptr) {
            refuse_other_tab();
            return nullptr;
        }
        const std::string type = field("LoRA_type", "Standard").spelled();
        const Script* script = said != nullptr ? said : script_of_boxes();
        if (!is_played(type) || script == nullptr) return nullptr;
        const bool is_flux = script == &flux;
        if (is_flux != (type == "Flux1"))
            complain("LoRA_type", Problem::conflict,
                     is_flux ? "the GUI starts nothing: with flux1_checkbox LoRA_type must be Flux1"
                             : "the trainer fails: networks.lora_flux is for FLUX.1, and this is " +
                                   std::string(script->title),
                     is_flux ? "Flux1" : "Standard");
        put_all(handed_on);
        if (script == &sdxl) put_all(of_sdxl);
        if (is_flux) put_all(of_flux);
        if (!is_flux && script != &sdxl) put_all(of_sd);
        if (field("noise_offset_type", "Original").spelled() == "Multires")
            put_all(of_multires);
        else
            put_all(of_original);
        optimizer();
        attention();
        network(type, is_flux);
        learning_rates();
        several_cards();
        if (truthy(field("train_inpainting")) && !is_flux)
            complain(
                "train_inpainting", Problem::unsupported,
                "train_inpainting is not modelled: its model takes a mask and the masked picture beside the latents");
        for (const Field& one : looked_at) tell_null(one);
        if (const Node* sides = root_.find("max_resolution"); sides != nullptr && !reading_.said("resolution"))
            reading_.config.said.set({"resolution", *sides, at("max_resolution"), true});  // of a complaint the place
        additional_parameters(*script);
        dropped_zeros();
        reading_.check_types();
        unknown_fields(*script);
        return script;
    }

  private:
    [[nodiscard]] Node field(std::string_view gui, const Fresh& fresh = {}) const {
        const Node* said = root_.find(gui);
        return said == nullptr || said->is(io::Kind::null) ? fresh_node(fresh) : *said;
    }
    [[nodiscard]] SaidAt at(std::string_view gui) const {
        const Node* said = root_.find(gui);
        return {said != nullptr ? reading_.document.place_of(*said) : Place{reading_.document.file_name, 0, 0},
                std::string(gui)};
    }
    void complain(std::string_view gui, Problem problem, std::string text, std::string nearest = {},
                  Severity severity = Severity::error) {
        SaidAt said = at(gui);
        Diagnostics& to = severity == Severity::error ? reading_.complaints : reading_.notes;
        to.push_back({severity, problem, std::move(said.place), std::move(said.key), field(gui).spelled(),
                      std::move(nearest), std::move(text)});
    }

    /// Sets an argument, unless the GUI leaves it out: `value not in ["", False, None]`, where 0 is False, too.
    void put(std::string_view argument, std::string_view gui, Node value) {
        const Key* key = argument_key(argument);
        if (const std::string* text = value.text(); text != nullptr && key != nullptr) {
            if (key->takes == Takes::integer || key->takes == Takes::number)
                if (const std::optional<double> number = number_of(*text); number && *number == 0) return;
        }
        if (!value.is(io::Kind::list) && !truthy(value)) return;
        reading_.config.said.set({std::string(argument), std::move(value), at(gui), true});
    }
    template <std::size_t n>
    void put_all(const Field (&fields)[n]) {
        for (const Field& one : fields) {
            put(one.argument, one.gui, field(one.gui, one.fresh));
            tell_null(one);
        }
    }
    void tell_null(const Field& one) {
        const Node* said = root_.find(one.gui);
        if (said == nullptr || !said->is(io::Kind::null) || std::holds_alternative<std::monostate>(one.fresh)) return;
        complain(one.gui, Problem::wrong_type,
                 std::string(one.gui) + " is null, at which the GUI keeps what it shows: " +
                     fresh_node(one.fresh).spelled() + " in a fresh one",
                 {}, Severity::warning);
    }
    /// Written into a text, as Python writes it.
    void put_network_arg(std::string_view gui, Node value) {
        if (const bool* flag = value.boolean(); flag != nullptr && *flag) value = Node{std::string("True")};
        if (truthy(value))
            reading_.config.said.set({"network_args." + std::string(gui), std::move(value), at(gui), true});
    }

    /// Files of the other tabs, by fields that they alone have.
    void refuse_other_tab() {
        constexpr std::array<std::pair<std::string_view, std::string_view>, 6> marks{{
            {"num_vectors_per_token", "an embedding (textual inversion)"},
            {"token_string", "an embedding (textual inversion)"},
            {"caption_metadata_filename", "a whole model (the tab Finetune)"},
            {"train_dir", "a whole model (the tab Finetune)"},
            {"full_path", "a whole model (the tab Finetune)"},
            {"max_resolution", "a whole model (the tab Dreambooth)"},
        }};
        for (const auto& [mark, what] : marks) {
            if (root_.find(mark) == nullptr) continue;
            complain(mark, Problem::unsupported,
                     "this file of the kohya_ss GUI trains " + std::string(what) +
                         ", which is not modelled: of sd-scripts LoRA is (the tab LoRA, whose files have LoRA_type)");
            return;
        }
    }

    [[nodiscard]] bool is_played(const std::string& type) {
        if (std::find(played_types.begin(), played_types.end(), type) != played_types.end()) return true;
        for (const auto& [name, module] : other_types)
            if (type == name) {
                complain("LoRA_type", Problem::unsupported,
                         "LoRA_type " + type + " (" + std::string(module) +
                             ") is not modelled: Standard, Kohya LoCon and Flux1 are");
                return false;
            }
        std::vector<std::string_view> names(played_types.begin(), played_types.end());
        for (const auto& [name, module] : other_types) names.push_back(name);
        complain("LoRA_type", Problem::bad_value, "the GUI knows no LoRA_type " + type, nearest(type, names));
        return false;
    }

    /// Which script the GUI starts; it asks in this order.
    const Script* script_of_boxes() {
        several_boxes();
        if (truthy(field("sdxl"))) return &sdxl;
        if (truthy(field("flux1_checkbox"))) return &flux;
        for (const auto& [box, what] : other_models)
            if (truthy(field(box))) {
                complain(box, Problem::unsupported, std::string(what) + ", which is not modelled with sd-scripts");
                return nullptr;
            }
        return truthy(field("v2")) ? &sd2 : &sd1;
    }

    void several_boxes() {
        std::vector<std::string_view> on;
        for (const std::string_view box : {"sdxl", "flux1_checkbox"})
            if (truthy(field(box))) on.push_back(box);
        for (const auto& [box, what] : other_models)
            if (truthy(field(box))) on.push_back(box);
        if (on.size() > 1)
            complain(
                on[1], Problem::conflict,
                std::string(on[1]) + " counts for nothing beside " + std::string(on[0]) + ", which the GUI asks first",
                "false", Severity::warning);
    }

    void optimizer() {
        const bool in_8_bits = truthy(field("use_8bit_adam"));
        // update_my_data says one where a file does not.
        put("optimizer_type", "optimizer", field("optimizer", in_8_bits ? "AdamW8bit" : "AdamW"));
        const Node args = field("optimizer_args");
        if (const std::string* text = args.text()) {
            std::string words = *text;
            words.erase(std::remove(words.begin(), words.end(), '"'), words.end());
            io::List list;
            for (std::string& word : split(words)) list.push_back(Node{std::move(word)});
            if (!list.empty()) put("optimizer_args", "optimizer_args", Node{std::move(list)});
        } else if (args.is(io::Kind::list)) {
            put("optimizer_args", "optimizer_args", args);
        }
    }

    void attention() {
        const Node said = field("xformers", "xformers");
        std::string word = said.spelled();
        if (const bool* flag = said.boolean()) word = *flag ? "xformers" : "none";
        constexpr std::array<std::string_view, 3> words{"xformers", "sdpa", "none"};
        if (word == "xformers" || word == "sdpa")
            put(word, "xformers", Node{true});
        else if (word != "none" && !word.empty())
            complain("xformers", Problem::bad_value,
                     "xformers must be xformers, sdpa or none; the GUI takes " + word + " for none",
                     nearest(word, words), Severity::warning);
    }

    void network(const std::string& type, bool is_flux) {
        put("network_module", "LoRA_type", Node{std::string(is_flux ? flux.network_module : sd1.network_module)});
        // Of "Kohya LoCon" conv_dim is handed on, a 0 that does nothing, too.
        if (type == "Kohya LoCon") {
            put_network_arg("conv_dim", field("conv_dim", std::int64_t{1}));
            put_network_arg("conv_alpha", field("conv_alpha", std::int64_t{1}));
        }
        if (is_flux)
            for (const std::string_view name : flux_args) put_network_arg(name, field(name));
        else
            for (const std::string_view name : lora_args) put_network_arg(name, field(name));
        if (is_flux && truthy(field("train_lora_ggpo"))) put_network_arg("ggpo_sigma", field("ggpo_sigma", 0.03));
        for (const std::string_view name : loraplus_args) {
            Node value = field(name);
            const std::optional<double> number = value.text() != nullptr ? number_of(*value.text()) : std::nullopt;
            if (!number || *number != 0) put_network_arg(name, std::move(value));
        }
    }

    /// Nothing after a complaint.
    [[nodiscard]] std::optional<double> rate(std::string_view gui, double fresh) {
        const Node said = field(gui, fresh);
        if (const std::int64_t* whole = said.integer()) return static_cast<double>(*whole);
        if (const double* number = said.number()) return *number;
        if (said.text() != nullptr && said.text()->empty()) return 0;
        const std::optional<double> number = said.text() != nullptr ? number_of(*said.text()) : std::nullopt;
        if (!number) complain(gui, Problem::wrong_type, std::string(gui) + " must be a number, not " + said.spelled());
        return number;
    }
    /// resolve_network_train_flags
    void learning_rates() {
        const std::optional<double> all = rate("learning_rate", 1e-4), unet = rate("unet_lr", 1e-4);
        const std::optional<double> text_encoder = rate("text_encoder_lr", 1e-4);
        if (!all || !unet || !text_encoder) return;
        if (text_encoder == 0 && unet == 0 && all == 0)
            complain("learning_rate", Problem::conflict, "the GUI starts nothing: every learning rate is 0");
        if (text_encoder == 0 && unet != 0) put("network_train_unet_only", "text_encoder_lr", Node{true});
        if (text_encoder != 0 && unet == 0) put("network_train_text_encoder_only", "unet_lr", Node{true});
        if (text_encoder == 0 && rate("t5xxl_lr", 0).value_or(0) > 0)
            complain("t5xxl_lr", Problem::conflict,
                     "the GUI starts nothing: a learning rate of T5-XXL wants a text_encoder_lr above 0");
    }

    void several_cards() {
        for (const std::string_view gui : {"num_processes", "num_machines"}) {
            const Node value = field(gui);
            const std::optional<std::int64_t> count =
                value.integer() != nullptr ? *value.integer() : integer_of(value.spelled());
            if (count && *count > 1)
                complain(gui, Problem::unsupported, std::string(gui) + " is not modelled: several cards train at once",
                         "1");
        }
        if (truthy(field("multi_gpu")))
            complain("multi_gpu", Problem::unsupported, "multi_gpu is not modelled: several cards train at once",
                     "false");
    }

    void additional_parameters(const Script& script) {
        const Node said = field(free_text);
        if (said.is(io::Kind::list) || said.is(io::Kind::map)) {
            complain(free_text, Problem::wrong_type, std::string(free_text) + " must be a text, not " + said.spelled());
            return;
        }
        std::string words = said.is(io::Kind::null) ? "" : said.spelled();
        words.erase(std::remove(words.begin(), words.end(), '"'), words.end());
        read_command_line(reading_, script, split(words), at(free_text));
        if (reading_.flag("output_config"))
            reading_.complain("output_config", Problem::conflict,
                              "the trainer stops: output_config writes the settings down, and trains nothing");
        if (reading_.said("config_file"))
            reading_.refuse("config_file", "the GUI hands on a file of its own, whose place another one takes");
    }

    /// What a user may have meant by 0, and the trainer never sees.
    void dropped_zeros() {
        constexpr std::array<std::pair<std::string_view, std::string_view>, 3> zeros{{
            {"max_grad_norm", "1.0, and gradients are clipped"},
            {"network_dim", "4"},
            {"network_alpha", "1"},
        }};
        for (const auto& [gui, otherwise] : zeros) {
            const Node* said = root_.find(gui);
            if (said == nullptr || reading_.said(gui)) continue;
            const std::optional<double> number =
                said->text() != nullptr ? number_of(*said->text()) : number_of(said->spelled());
            if (number != 0.0) continue;
            complain(
                gui, Problem::conflict,
                "the GUI hands no " + std::string(gui) + " of 0 to the trainer, which takes " + std::string(otherwise),
                {}, Severity::warning);
        }
    }

    void unknown_fields(const Script& script) {
        const auto moves = [&](std::string_view field) {
            const std::span<const Key> keys = argument_keys();
            return std::any_of(keys.begin(), keys.end(), [&](const Key& key) {
                return moves_memory(key.name) && gui_field(key.name, &script) == field;
            });
        };
        const io::Map* map = root_.map();
        if (map == nullptr) return;
        const std::span<const std::string_view> known = gui_fields();
        for (const io::Member& member : *map) {
            if (member.key == "vramest" || std::find(known.begin(), known.end(), member.key) != known.end()) continue;
            std::string near = nearest(member.key, known);
            const Severity severity = !near.empty() && moves(near) ? Severity::error : Severity::warning;
            Diagnostics& to = severity == Severity::error ? reading_.complaints : reading_.notes;
            to.push_back({severity, Problem::unknown_key, reading_.document.place_of(member.key_span), member.key,
                          member.value.spelled(), std::move(near),
                          "the GUI has no field " + member.key + ", and ignores it"});
        }
    }

    Reading& reading_;
    const Node& root_;
};

}  // namespace

const Script* read_gui(Reading& reading, const Script* script) { return Gui(reading).read(script); }

std::string gui_field(std::string_view argument, const Script* script) {
    if (script == &sdxl)
        for (const Field& field : of_sdxl)
            if (field.argument == argument) return std::string(field.gui);
    if (script == &flux)
        for (const Field& field : of_flux)
            if (field.argument == argument) return std::string(field.gui);
    for (const Field& field : handed_on)
        if (field.argument == argument) return std::string(field.gui);
    if (argument == "optimizer_type") return "optimizer";
    if (argument == "network_module") return "LoRA_type";
    if (argument == "network_train_unet_only") return "text_encoder_lr";
    if (argument == "sdpa") return "xformers";
    return std::string(argument);
}

bool is_gui_file(const io::Document& document) {
    const io::Node& root = document.root;
    if (root.map() == nullptr || root.find("job") != nullptr) return false;
    std::int64_t met = 0;
    for (const std::string_view name : {"max_resolution", "train_batch_size", "lr_scheduler", "mixed_precision",
                                        "save_precision", "caption_extension", "clip_skip", "optimizer", "network_dim"})
        met += root.find(name) != nullptr ? 1 : 0;
    const io::Node* type = root.find("LoRA_type");
    return (type != nullptr && type->text() != nullptr) || (root.find("max_resolution") != nullptr && met > 2);
}

}  // namespace vram::trainers::sd_scripts
