#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainers/ai_toolkit/slider.hpp"
#include "vram/base/diagnostic.hpp"
#include "vram/base/dtype.hpp"
#include "vram/base/expected.hpp"
#include "vram/job/job.hpp"

namespace vram::io {
struct Document;
}

namespace vram::trainers::ai_toolkit {

// What an ai-toolkit config says, read as the trainer reads it: its defaults, its older spellings, Python's idea of
// what is true. Source: toolkit/config_modules.py and jobs/process/BaseSDTrainProcess.py of ai-toolkit 0.12.26
// (27a03a91, 2026-08-21).

struct NetworkConfig {
    job::AdapterKind kind = job::AdapterKind::lora;
    std::int64_t rank = 4;
    bool transformer_only = true;  // only modules of the transformer blocks
    job::NameParts names;          // network_kwargs: only_if_contains, ignore_if_contains
    std::int64_t factor = -1;      // lokr_factor
    bool dropout = false, rank_dropout = false;
    job::AdapterLayers layers;
    bool operator==(const NetworkConfig&) const = default;
};

/// A picture that is predicted at `sigmas` noise levels at once.
struct ValidationItem {
    std::string image_path;
    std::int64_t resolution = 512, sigmas = 4;
    bool operator==(const ValidationItem&) const = default;
};

struct TrainConfig {
    Dtype dtype = Dtype::f32;  // of the whole model, the VAE and the text encoders
    std::int64_t batch_size = 1;
    std::int64_t gradient_accumulation = 1;
    bool gradient_checkpointing = true;
    job::Optimizer optimizer = job::AdamW{};
    bool ema = false;
    std::int64_t switch_boundary_every = 1;  // of models of several stages
    job::Objective objective;                // but for what datasets say: masks, prior_reg
    std::vector<ValidationItem> validation;
    bool unload_text_encoder = false, cache_text_embeddings = false;
    bool train_text_encoder = false;
    bool disable_sampling = false, skip_first_sample = false;
    std::string noise_scheduler = "ddpm";
    bool operator==(const TrainConfig&) const = default;
};

struct ModelConfig {
    std::string name_or_path;
    std::string arch;  // without what follows a colon, as written or as the older flags say
    job::Quantization quantize = job::Quantization::none;     // qtype, if `quantize` asks for it
    job::Quantization quantize_te = job::Quantization::none;  // the text encoder's, as the architecture chooses it
    bool quantize_said = false;             // true even where nothing is quantised: the adapter is never merged
    job::NameParts quantized;               // quantize_kwargs: include, exclude
    std::string accuracy_recovery_adapter;  // a file, or owner/repository/file; empty: none
    std::string assistant_lora_path;        // a file, or owner/repository/file; empty: none
    bool low_vram = false;
    bool layer_offloading = false;                     // whatever the architecture makes of it
    double offloaded = 0, offloaded_text_encoder = 0;  // shares of the layers; 0: no memory manager is attached
    job::NameParts names;                              // of a full fine-tune: only_if_contains, ignore_if_contains
    bool use_text_encoder_1 = true, use_text_encoder_2 = true;  // whether they train where text encoders do
    std::map<std::string, std::string> options;  // of model_kwargs those that the architecture looks at, as spelled
    bool operator==(const ModelConfig&) const = default;
};

/// Where something is said, for complaints about it.
struct SaidAt {
    Place place;
    std::string key;  // "config.process[0].datasets[0].resolution"
    bool operator==(const SaidAt&) const = default;
};

/// One dataset at one resolution: a list of resolutions makes one of these for each.
struct DatasetConfig {
    SaidAt folder_at, resolution_at;
    std::string folder;
    std::int64_t resolution = 512;
    std::int64_t batch_size = 1;
    double scale = 1;
    bool square_crop = false;
    bool cache_latents = false;  // in memory or on disk
    bool loads_pixels = false;   // the pixels come along beside cached latents
    std::int64_t num_frames = 1;
    bool auto_frame_count = false;  // each clip is of its own length
    bool do_i2v = false;            // videos are continued from their first frame
    bool do_audio = false;          // their sound is trained, too
    std::int64_t fps = 24;          // pictures a second, where sound asks for it
    bool masks = false, prior_reg = false;
    std::vector<std::string> controls{};  // folders of control images, of each of which an item has one
    bool small_controls = false;          // those are scaled to 512 x 512
    bool inpaints = false;  // an item has a picture that says by its alpha channel what is to be painted anew
    bool operator==(const DatasetConfig&) const = default;
};

struct SampleItem {
    std::int64_t width = 512, height = 512, steps = 20;
    double guidance_scale = 7;
    double network_multiplier = 1;
    std::int64_t frames = 1;
    std::vector<std::string> controls{};  // paths of control images
    bool do_cfg_norm = false;
    bool operator==(const SampleItem&) const = default;
};

struct SampleConfig {
    std::int64_t sample_every = 100;  // 0: only the baseline and the end
    std::string sampler = "ddpm";
    std::vector<SampleItem> samples;
    bool operator==(const SampleConfig&) const = default;
};

struct Config {
    bool fine_tune = true;  // no network: the model itself is trained
    NetworkConfig network;
    TrainConfig train;
    ModelConfig model;
    std::vector<DatasetConfig> datasets;  // none that yields what another does
    SampleConfig sample;
    std::vector<SampleItem> first_sample;  // rendered once before the baseline, where the file asks for it
    std::optional<Slider> slider;          // of concept_slider; none: the loss is SDTrainer's
    bool operator==(const Config&) const = default;
};

/// Whether this is a config of ai-toolkit, of whatever job type: `job` and `config.process`.
[[nodiscard]] bool recognises(const io::Document& document);

/// Reads the job's one training process. All complaints come at once; what is no reason to stop goes to `notes`.
///
/// Unknown keys are warnings, as the trainer ignores them, but for a near miss of a key that moves memory, which is an
/// error. Options that are understood and not modelled are `unsupported`: the verdict is then cannot_say. A null is no
/// key at the level of the process (its get_conf says so) and the value None inside a section.
[[nodiscard]] expected<Config> read_config(const io::Document& document, Diagnostics& notes);

}  // namespace vram::trainers::ai_toolkit
