#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainers/sd_scripts/namespace.hpp"
#include "trainers/sd_scripts/script.hpp"
#include "vram/base/diagnostic.hpp"
#include "vram/base/dtype.hpp"
#include "vram/job/optimizer.hpp"

namespace vram::trainers::sd_scripts {

/// What changes captions from epoch to epoch where it is above 0, so that what they are encoded to cannot be kept.
inline constexpr std::array<std::string_view, 4> caption_changes{"shuffle_caption", "caption_dropout_rate",
                                                                 "caption_tag_dropout_rate", "token_warmup_step"};

/// What a folder of pictures may say for itself, a dataset for its folders, and the command line for all.
struct PictureSettings {
    bool color_aug = false, random_crop = false;
    std::array<double, caption_changes.size()> changes{};  // caption_changes, in their order
    bool operator==(const PictureSettings&) const = default;
};

/// How pictures are put into batches: what a dataset may say for itself, and the command line for all.
struct DatasetSettings {
    std::int64_t width = 0, height = 0;  // `resolution`; 0: it is not said
    std::int64_t batch_size = 1;
    bool enable_bucket = false, bucket_no_upscale = false;
    std::int64_t min_bucket_reso = 256, max_bucket_reso = 1024, bucket_reso_steps = 64;
    PictureSettings pictures;
    bool operator==(const DatasetSettings&) const = default;
};

/// The nearest of the lengths that max_token_length may have: one, two or three pieces of 75 tokens.
[[nodiscard]] std::int64_t nearest_length(std::int64_t tokens);

/// What the UNet attends with, as replace_unet_modules is told; see models/sd_scripts_unet.hpp.
enum class Attention : std::uint8_t { plain, mem_eff, xformers, sdpa };

/// The arguments of sd-scripts that move memory, by argparse's names and with setup_parser()'s defaults.
struct Arguments {
    const Script* script = nullptr;
    std::string pretrained_model_name_or_path;
    Dtype weight_dtype = Dtype::f32;  // mixed_precision
    bool mixed_precision = false;     // it is not "no"
    bool full_fp16 = false, full_bf16 = false, fp8_base = false, fp8_base_unet = false;
    bool lowram = false, highvram = false, no_half_vae = false;
    Attention attention = Attention::plain;

    std::int64_t network_dim = 4, conv_dim = 0;
    double network_alpha = 1;
    bool network_dropout = false, rank_dropout = false;
    bool network_train_unet_only = false;

    job::Optimizer optimizer = job::AdamW{};
    double max_grad_norm = 1;
    bool gradient_checkpointing = false;
    std::int64_t gradient_accumulation_steps = 1;

    std::int64_t max_token_length = 75;
    std::optional<std::int64_t> clip_skip, t5xxl_max_token_length;
    bool apply_t5_attn_mask = false;
    std::map<std::string, std::string> noise_and_loss;  // arguments that make a tensor as large as the latents

    DatasetSettings dataset;
    std::string train_data_dir, reg_data_dir, dataset_config;
    std::int64_t dataset_repeats = 1;  // of folders in dataset_config that say nothing
    bool cache_latents = false, cache_latents_to_disk = false, cache_text_encoder_outputs = false;
    std::int64_t vae_batch_size = 1;
    std::optional<std::int64_t> text_encoder_batch_size;

    bool sample_at_first = false, samples_while_training = false;
    std::string sample_prompts, sample_sampler = "ddim";
    bool prompts_in_place = false;  // `sample_prompts` are the prompts, as in the GUI's field, and no file of them
    bool operator==(const Arguments&) const = default;
};

/// Whose file it is.
enum class Source : std::uint8_t {
    gui,          // kohya_ss's JSON
    config_file,  // TOML for --config_file
    job,          // a job file, which says nothing under the trainer's names
};

/// A file as it was read.
struct Config {
    Source source = Source::job;
    Namespace said;
    std::string section;  // of a config file: where a new argument goes, "training."; empty: the root
    Arguments arguments;

    /// Where an argument is said, or would be.
    [[nodiscard]] SaidAt at(const io::Document& document, std::string_view argument) const;
    /// As complaints call it: the key where it is said, and beside a key that says more than one argument its own name.
    [[nodiscard]] std::string called(const io::Document& document, std::string_view argument) const;
};

/// Whether this is a file of the kohya_ss GUI, of whatever tab, or one for --config_file of a script of sd-scripts.
[[nodiscard]] bool recognises(const io::Document& document);

/// Reads the file: every complaint goes to `complaints`, what is no reason to stop to `notes`. Nothing where it does
/// not get so far as to a script that is played, after a complaint.
///
/// Of the GUI, that is how kohya_gui/lora_gui.py turns its fields into arguments, those that a file lacks with what a
/// fresh GUI shows: see docs/sd-scripts.md. Keys that nobody knows are warnings: the GUI and argparse keep silent
/// about them. What is understood and not modelled is `unsupported`. `script` says which script it is for in the
/// file's place.
[[nodiscard]] std::optional<Config> read_config(const io::Document& document, const Script* script,
                                                Diagnostics& complaints, Diagnostics& notes);

}  // namespace vram::trainers::sd_scripts
