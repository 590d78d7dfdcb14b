// What the trainer's own checks make of the arguments: library/train_util.py, verify_training_args,
// prepare_dataset_args; library/sdxl_train_util.py, verify_sdxl_training_args; train_network.py, train;
// assert_extra_args of each trainer (48d368fa).
#include "trainers/sd_scripts/arguments.hpp"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "trainers/sd_scripts/config_file.hpp"
#include "trainers/sd_scripts/gui.hpp"
#include "trainers/sd_scripts/keys.hpp"
#include "trainers/sd_scripts/reading.hpp"
#include "trainers/truthy.hpp"

namespace vram::trainers::sd_scripts {
namespace {

class Reader {
  public:
    explicit Reader(Reading& reading) : reading_(reading), out_(reading.config.arguments) {}

    void read() {
        unsupported();
        out_.pretrained_model_name_or_path = reading_.text("pretrained_model_name_or_path");
        precision();
        attention();
        network();
        training();
        learning_rates();
        text();
        noise_and_loss();
        dataset();
        samples();
    }

  private:
    [[nodiscard]] bool is_flux() const { return out_.script == &flux; }
    void conflict(std::string_view name, const std::string& why, std::string nearest = {}) {
        reading_.complain(name, Problem::conflict, "the trainer stops: " + why, std::move(nearest));
    }
    /// As the file calls it.
    [[nodiscard]] std::string key(std::string_view name) const {
        return reading_.config.called(reading_.document, name);
    }

    void unsupported() {
        for (const Argument& said : reading_.config.said.all()) {
            const Key* known = argument_key(said.name);
            if (known == nullptr || known->why.empty()) continue;
            const std::optional<double> number =
                said.converted && said.value.text() != nullptr ? number_of(*said.value.text()) : std::nullopt;
            if (truthy(said.value) && (!number || *number != 0)) reading_.refuse(said.name, known->why);
        }
        if (!is_flux() && reading_.flag("weighted_captions"))
            reading_.refuse("weighted_captions", "each caption is as long as its weights make it");
        // FluxTokenizeStrategy has no tokenize_with_weights; cached captions are not asked for it.
        if (is_flux() && reading_.flag("weighted_captions") &&
            !(cached_text() && reading_.flag("network_train_unet_only")))
            conflict("weighted_captions", "it knows no weights in captions of FLUX.1");
        if (is_flux() && reading_.integer("blocks_to_swap").value_or(0) > 0)
            reading_.refuse("blocks_to_swap", "blocks wait in host memory, and come for each call");
        if (is_flux() && reading_.text("model_type", "flux") != "flux")
            reading_.complain("model_type", Problem::unsupported,
                              "model_type " + reading_.text("model_type") + " is not modelled with sd-scripts", "flux");
    }

    void precision() {
        const std::string word = reading_.text("mixed_precision", "no");
        constexpr std::array<std::string_view, 3> words{"no", "fp16", "bf16"};
        out_.mixed_precision = word != "no";
        if (word == "fp16")
            out_.weight_dtype = Dtype::f16;
        else if (word == "bf16")
            out_.weight_dtype = Dtype::bf16;
        else if (word == "fp8")
            reading_.refuse("mixed_precision", "accelerate's fp8 replaces the layers by a library's own");
        else if (word != "no")
            reading_.complain("mixed_precision", Problem::bad_value,
                              key("mixed_precision") + " must be no, fp16 or bf16, not " + word, nearest(word, words));
        out_.full_fp16 = reading_.flag("full_fp16");
        out_.full_bf16 = reading_.flag("full_bf16");
        const bool is_known = std::find(words.begin(), words.end(), word) != words.end();
        if (is_known && out_.full_fp16 && word != "fp16")
            conflict("full_fp16", "full_fp16 wants mixed_precision fp16, not " + word);
        else if (is_known && !out_.full_fp16 && out_.full_bf16 && word != "bf16")
            conflict("full_bf16", "full_bf16 wants mixed_precision bf16, not " + word);
        if (out_.full_fp16) out_.full_bf16 = false;  // it is asked first
        out_.fp8_base_unet = reading_.flag("fp8_base_unet");
        out_.fp8_base = reading_.flag("fp8_base") || out_.fp8_base_unet;
        const std::string fp8 = out_.fp8_base_unet ? "fp8_base_unet" : "fp8_base";
        if (out_.fp8_base && word == "no")
            conflict(fp8, fp8 + " wants mixed_precision fp16 or bf16");
        else if (out_.fp8_base && is_flux() && !cached_text())
            reading_.refuse(fp8, "without cache_text_encoder_outputs text encoders in 8 bits run in each step");
        if (is_flux() && reading_.flag("apply_t5_attn_mask") && !cached_text())
            reading_.refuse("apply_t5_attn_mask", "without cache_text_encoder_outputs T5 is masked in each step, too");
        if (out_.fp8_base && !is_flux())
            reading_.refuse(fp8, "of " + std::string(out_.script->title) + ", a U-Net in 8 bits was not recorded");
        out_.no_half_vae = reading_.flag("no_half_vae");
        out_.lowram = reading_.flag("lowram");
        out_.highvram = reading_.flag("highvram");
    }

    [[nodiscard]] bool cached_text() {
        return reading_.flag("cache_text_encoder_outputs") || reading_.flag("cache_text_encoder_outputs_to_disk");
    }

    /// replace_unet_modules asks in this order; FLUX.1 always calls scaled_dot_product_attention.
    void attention() {
        if (is_flux())
            out_.attention = Attention::sdpa;
        else if (reading_.flag("mem_eff_attn"))
            out_.attention = Attention::mem_eff;
        else if (reading_.flag("xformers"))
            out_.attention = Attention::xformers;
        else if (reading_.flag("sdpa"))
            out_.attention = Attention::sdpa;
    }

    void network() {
        const std::string module = reading_.text("network_module");
        if (module != out_.script->network_module && (module == "networks.lora" || module == "networks.lora_flux"))
            conflict("network_module", module + " does not fit " + std::string(out_.script->title),
                     std::string(out_.script->network_module));
        else if (module != out_.script->network_module)
            reading_.complain("network_module", Problem::unsupported,
                              "network_module " + module + " is not modelled: networks.lora and networks.lora_flux are",
                              std::string(out_.script->network_module));
        out_.network_dim = reading_.integer("network_dim", {1, most_rank}).value_or(4);
        out_.network_alpha = reading_.number("network_alpha").value_or(1);
        out_.network_dropout = reading_.probability("network_dropout").value_or(0) != 0;
        out_.network_train_unet_only = reading_.flag("network_train_unet_only");
        read_network_args(reading_);
    }

    void training() {
        out_.optimizer = read_optimizer(reading_);
        out_.max_grad_norm = reading_.number("max_grad_norm").value_or(1);
        out_.gradient_checkpointing = reading_.flag("gradient_checkpointing");
        out_.gradient_accumulation_steps = reading_.integer("gradient_accumulation_steps", {1, most_items}).value_or(1);
        if (!reading_.said("max_train_epochs")) (void)reading_.integer("max_train_steps", {1});
        (void)reading_.integer("max_train_epochs", {1});
    }

    /// LoRANetwork.prepare_optimizer_params passes over what learns at 0: it has gradients, which nobody clears, and no
    /// state. The GUI's own fields never say so (resolve_network_train_flags).
    void learning_rates() {
        const auto is_zero = [&](std::string_view name) { return reading_.said(name) && reading_.number(name) == 0.0; };
        const bool all = reading_.config.source != Source::gui && is_zero("learning_rate");
        const bool unet = is_zero("unet_lr") || (all && !reading_.said("unet_lr"));
        bool text = all && !reading_.said("text_encoder_lr");
        for (const std::string& rate : reading_.list("text_encoder_lr")) text = text || number_of(rate) == 0.0;
        text = text && !out_.network_train_unet_only;
        const std::string_view unet_at = is_zero("unet_lr") ? "unet_lr" : "learning_rate";
        const std::string why = "what learns at 0 is left out of the optimizer, and not of the graph";
        if (unet && (text || out_.network_train_unet_only))
            conflict(unet_at, "everything learns at 0, and the optimizer gets no parameters");
        else if (unet)
            reading_.refuse(unet_at, why);
        else if (text)
            reading_.refuse("text_encoder_lr", why + "; network_train_unet_only leaves the text encoders out of both");
    }

    void text() {
        if (is_flux()) {
            out_.t5xxl_max_token_length = reading_.integer("t5xxl_max_token_length", {1, most_tokens});
            out_.apply_t5_attn_mask = reading_.flag("apply_t5_attn_mask");
        } else {
            out_.max_token_length = reading_.integer("max_token_length").value_or(75);
            if (const std::int64_t nearest = nearest_length(out_.max_token_length); out_.max_token_length != nearest) {
                reading_.complain(
                    "max_token_length", Problem::bad_value,
                    key("max_token_length") + " must be 75, 150 or 225, not " + std::to_string(out_.max_token_length),
                    std::to_string(nearest));
                out_.max_token_length = 75;
            }
            if (out_.script->most_clip_skip != 0)
                out_.clip_skip = reading_.integer("clip_skip", {1, out_.script->most_clip_skip});
        }
        if (out_.script == &sdxl && reading_.flag("v2"))
            conflict("v2", "v2 is for Stable Diffusion 2, and this is SDXL");
        if (out_.script != &sdxl && !is_flux()) return;
        const bool on_disk = reading_.flag("cache_text_encoder_outputs_to_disk");
        out_.cache_text_encoder_outputs = reading_.flag("cache_text_encoder_outputs") || on_disk;
        out_.text_encoder_batch_size = reading_.integer("text_encoder_batch_size", {1, most_items});
        if (out_.script == &sdxl && out_.cache_text_encoder_outputs && !out_.network_train_unet_only)
            conflict(
                reading_.flag("cache_text_encoder_outputs") ? "cache_text_encoder_outputs"
                                                            : "cache_text_encoder_outputs_to_disk",
                "the text encoders' LoRA cannot be trained on cached outputs; " +
                    (reading_.config.source == Source::gui ? std::string("text_encoder_lr 0 leaves them out")
                                                           : std::string("network_train_unet_only leaves them out")));
    }

    void noise_and_loss() {
        // LoRANetwork of lora_flux.py has it, too.
        if (reading_.number("scale_weight_norms").value_or(0) != 0)
            out_.noise_and_loss["scale_weight_norms"] = reading_.text("scale_weight_norms");
        if (reading_.number("ip_noise_gamma").value_or(0) != 0)
            reading_.refuse("ip_noise_gamma", "noise of its own is added to the latents'");
        if (!is_flux())
            for (const std::string_view name : {"noise_offset", "adaptive_noise_scale", "multires_noise_iterations"})
                if (reading_.number(name).value_or(0) != 0)
                    out_.noise_and_loss[std::string(name)] = reading_.text(name);
        const std::string loss = reading_.text("loss_type", "l2");
        constexpr std::array<std::string_view, 4> losses{"l2", "l1", "huber", "smooth_l1"};
        if (std::find(losses.begin(), losses.end(), loss) == losses.end())
            reading_.complain("loss_type", Problem::bad_value, "the trainer knows no loss_type " + loss,
                              nearest(loss, losses));
        else if (loss != "l2")
            reading_.refuse("loss_type", "of its losses l2 is");
        const bool v = reading_.flag("v_parameterization");
        if (v && !is_flux()) out_.noise_and_loss["v_parameterization"] = "true";
        const std::string predicts = reading_.text("model_prediction_type", "sigma_scaled");
        constexpr std::array<std::string_view, 3> predictions{"raw", "additive", "sigma_scaled"};
        if (is_flux() && std::find(predictions.begin(), predictions.end(), predicts) == predictions.end())
            reading_.complain("model_prediction_type", Problem::bad_value,
                              "the trainer knows no model_prediction_type " + predicts, nearest(predicts, predictions));
        else if (is_flux() && predicts != "sigma_scaled")
            out_.noise_and_loss["model_prediction_type"] = predicts;
        if (reading_.said("adaptive_noise_scale") && !reading_.said("noise_offset"))
            conflict("adaptive_noise_scale", "adaptive_noise_scale wants noise_offset");
        if (reading_.flag("scale_v_pred_loss_like_noise_pred") && !v)
            conflict("scale_v_pred_loss_like_noise_pred", "scale_v_pred_loss_like_noise_pred wants v_parameterization");
        if (reading_.number("v_pred_like_loss").value_or(0) != 0 && v)
            conflict("v_pred_like_loss", "v_pred_like_loss does not go with v_parameterization");
    }

    void dataset() {
        DatasetSettings& all = out_.dataset;
        out_.train_data_dir = reading_.text("train_data_dir");
        out_.reg_data_dir = reading_.text("reg_data_dir");
        out_.dataset_config = reading_.text("dataset_config");
        out_.dataset_repeats = reading_.integer("dataset_repeats", {1, most_repeats}).value_or(1);
        if (reading_.said("in_json") && out_.dataset_config.empty())
            reading_.refuse("in_json", "which sizes there are stands in the metadata");
        resolution(all);
        all.batch_size = reading_.integer("train_batch_size", {1, most_items}).value_or(1);
        all.enable_bucket = reading_.flag("enable_bucket");
        all.bucket_no_upscale = reading_.flag("bucket_no_upscale");
        all.min_bucket_reso = reading_.integer("min_bucket_reso", {1, most_side}).value_or(256);
        all.max_bucket_reso = reading_.integer("max_bucket_reso", {1, most_side}).value_or(1024);
        all.bucket_reso_steps = reading_.integer("bucket_reso_steps", {1, most_side}).value_or(64);
        all.pictures.color_aug = reading_.flag("color_aug");
        all.pictures.random_crop = reading_.flag("random_crop");
        all.pictures.changes[0] = reading_.flag(caption_changes[0]) ? 1 : 0;
        for (std::size_t i = 1; i < caption_changes.size(); ++i)
            all.pictures.changes[i] = reading_.number(caption_changes[i]).value_or(0);
        out_.cache_latents_to_disk = reading_.flag("cache_latents_to_disk");
        out_.cache_latents = reading_.flag("cache_latents") || out_.cache_latents_to_disk;
        out_.vae_batch_size = reading_.integer("vae_batch_size", {1, most_items}).value_or(1);
    }

    void resolution(DatasetSettings& all) {
        const Argument* said = reading_.config.said.find("resolution");
        if (said != nullptr && said->value.is(io::Kind::null)) return;  // it was of another type
        if (said == nullptr) {
            if (out_.dataset_config.empty())
                reading_.complain("resolution", Problem::missing_key, key("resolution") + " is missing");
            return;
        }
        const auto sides = resolution_of(said->value.spelled());
        if (said->value.text() == nullptr)
            reading_.complain("resolution", Problem::wrong_type,
                              said->at.key + " must be a text, as \"1024,1024\", not " + said->value.spelled(),
                              said->value.integer() != nullptr ? "\"" + said->value.spelled() + "\"" : "");
        else if (!sides)
            reading_.complain("resolution", Problem::bad_value,
                              said->at.key + " must be a side, or a width and a height, not " + said->value.spelled(),
                              "1024,1024");
        else if (sides->first < 64 || sides->second < 64 || sides->first > most_side || sides->second > most_side)
            reading_.complain("resolution", Problem::out_of_range,
                              said->at.key + ": each side must be from 64 to " + std::to_string(most_side));
        else
            std::tie(all.width, all.height) = *sides;
    }

    void samples() {
        // verify_training_args takes what is not above 0 for None.
        out_.sample_at_first = reading_.flag("sample_at_first");
        out_.samples_while_training = reading_.integer("sample_every_n_steps").value_or(0) > 0 ||
                                      reading_.integer("sample_every_n_epochs").value_or(0) > 0;
        out_.sample_sampler = reading_.text("sample_sampler", "ddim");
        out_.sample_prompts = reading_.text("sample_prompts");
        const Argument* prompts = reading_.config.said.find("sample_prompts");
        out_.prompts_in_place =
            reading_.config.source == Source::gui && (prompts == nullptr || prompts->at.key == "sample_prompts");
    }

    Reading& reading_;
    Arguments& out_;
};

}  // namespace

std::int64_t nearest_length(std::int64_t tokens) { return tokens < 113 ? 75 : tokens < 188 ? 150 : 225; }

SaidAt Config::at(const io::Document& document, std::string_view argument) const {
    if (const Argument* found = said.find(argument)) return found->at;
    const Place place{document.file_name, 0, 0};
    if (source == Source::gui) return {place, gui_field(argument, arguments.script)};
    return {place, section + std::string(argument)};
}

std::string Config::called(const io::Document& document, std::string_view argument) const {
    const std::string key = at(document, argument).key;
    if (key == free_text) return "--" + std::string(argument) + " in " + key;
    constexpr std::string_view of_network = "network_args.";
    if (!argument.starts_with(of_network) || key == argument.substr(of_network.size())) return key;
    return std::string(argument.substr(of_network.size())) + " in " + key;
}

bool recognises(const io::Document& document) { return is_gui_file(document) || is_config_file(document); }

std::optional<Config> read_config(const io::Document& document, const Script* script, Diagnostics& complaints,
                                  Diagnostics& notes) {
    Config config;
    config.source = is_gui_file(document) ? Source::gui : Source::config_file;
    for (const Diagnostic& doubled : document.complaints)
        (doubled.severity == Severity::error ? complaints : notes).push_back(doubled);
    Reading reading(document, config, complaints, notes);
    config.arguments.script =
        config.source == Source::gui ? read_gui(reading, script) : read_config_file(reading, script);
    if (config.arguments.script == nullptr) return std::nullopt;
    Reader(reading).read();
    return config;
}

}  // namespace vram::trainers::sd_scripts
