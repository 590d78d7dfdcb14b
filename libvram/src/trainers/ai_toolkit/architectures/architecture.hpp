#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "vram/job/job.hpp"

namespace vram::profile {
class Catalogue;
struct ModelProfile;
}  // namespace vram::profile
namespace vram::shadow {
class Run;
}

namespace vram::trainers::ai_toolkit {

class Pipeline;

/// How LoRASpecialNetwork finds its way in a model (toolkit/lora_special.py, create_modules).
struct ModuleTree {
    std::string_view prefix = "transformer";  // of every name
    char dot = '$';                           // what stands for a dot in lora_name: "$$" in PEFT's format, else "_"
    /// get_transformer_block_names, or what lora_special.py knows of the class: transformer_only asks for one of them
    /// in a name, and quantize_model sends these lists' entries through the GPU one by one. Empty: nothing is asked.
    std::span<const std::string_view> block_names{};
    /// Where a UNet has modules of a class: names that hold `part`. Empty: the model is one root.
    struct Root {
        std::string_view class_name, part;
    };
    std::span<const Root> roots{};
    std::string_view tuned_prefix = "transformer";  // of parameters' names in a full fine-tune
    std::span<const std::string_view> untuned{};    // with which names begin that it leaves: DO_NOT_TRAIN_WEIGHTS
};

/// What `train_text_encoder` takes of a text encoder.
struct TrainedText {
    /// LoRASpecialNetwork looks into its modules of some class; false: of those it has none.
    bool is_adapted = false;
    ModuleTree modules{};
    /// Without a network: whether the keymap that prepare_optimizer_params asks has its parameters (toolkit/keymaps),
    /// but for those whose names hold one of `untuned`.
    bool is_tuned = false;
    std::span<const std::string_view> untuned{};
};
/// TEXT_ENCODER_TARGET_REPLACE_MODULE (toolkit/lora_special.py), and where a CLIPTextModel has them.
inline constexpr std::string_view clip_classes[] = {"CLIPAttention", "CLIPMLP"};
inline constexpr ModuleTree::Root clip_roots[] = {{clip_classes[0], ".self_attn."}, {clip_classes[1], ".mlp."}};
/// Of a CLIPTextModel; `prefix` with the module text_model in it, which our names lack.
constexpr TrainedText trained_clip(std::string_view prefix, char dot) {
    return {.is_adapted = true, .modules = {.prefix = prefix, .dot = dot, .roots = clip_roots}};
}

/// Which models load_model gives a memory manager (toolkit/memory_management/manager.py, MemoryManager.attach).
struct Offloading {
    bool attaches = false;            // to the denoiser, and to the text encoder
    bool text_encoder_first = false;  // to this before it is quantised, not behind it
    /// Layers of the denoiser that stand in a module which module.to(device) moves as a whole, for its class is called
    /// a norm, or load_model names it: as fnmatch takes them.
    std::span<const std::string_view> moved{};
    /// Parameters of the denoiser, and of the text encoder, that stand in no layer and in no module that is moved: they
    /// stay where the manager finds them, on the host.
    std::span<const std::string_view> left{}, left_of_text_encoder{};
    /// It holds parameters of its own, which nothing moves any more: where the manager finds them on the host, after
    /// low_vram or quantize, the trainer stops.
    bool leaves_parameters = false;
};

/// `assistant_lora_path` where load_model looks at it by load_training_adapter: a LoRA that keeps a distilled model
/// from breaking down is merged into the weights while it loads, and taken off again while samples are drawn.
struct Assistant {
    bool merges = false;
    std::string_view rank_at{};  // how the name of the tensor ends whose first dimension is the rank
    bool blocks_only = false;    // its network takes linears in a module of such a name alone; else every linear
    struct Published {
        std::string_view file;  // part of its name
        std::int64_t rank = 0;
    };
    std::span<const Published> published{};  // whose rank is known without the file
};

/// What the trainer calls an architecture: a file in this folder and a line in architectures.def. What a config may say
/// of it stands here; how it loads, encodes, predicts and samples is its Pipeline.
struct Architecture {
    std::span<const std::string_view> names;  // of `model.arch`, before any colon
    std::string_view title;                   // in complaints: "FLUX"
    std::string_view models;                  // those that are played: "FLUX.1 and Flex.1"
    std::string_view vae{};                   // profile ids
    std::span<const std::string_view> text_encoders{};
    /// What their config names with this in front is deleted before they reach the GPU: "vision_". Empty: nothing is.
    std::string_view deleted_from_text_encoders{};
    std::int64_t text_tokens = 0;  // that prompts are padded to; where they are trimmed, what a caption is taken for
    std::int64_t most_text_tokens = 0;  // where they are trimmed; else 0
    std::int64_t bucket_step = 0;       // get_bucket_divisibility: both sides of a bucket are multiples
    std::int64_t divisible_by = 1;      // what the net can take
    std::int64_t sample_step = 0;       // both sides of a sample are floored to multiples; 0: divisible_by
    std::int64_t frame_step = 0;        // videos are of n · step + 1 frames; 0: images alone
    bool trains_audio = false;          // videos may bring their sound along
    bool drops_frames = false;          // frames beyond n · step + 1 are loaded, and the VAE passes over them
    std::int64_t most_references = 0;   // control images beside an item
    /// An item's control image stands in its noisy latents' channels, not beside them in a prediction.
    bool controls_in_latents = false;
    bool needs_pixels = false;            // its steps look at the pixels, with the VAE where these are
    bool samples_need_reference = false;  // a sample without a control image is an error
    std::int64_t fewest_references = 0;   // without them the trainer stops
    bool controls_need_pixels = false;    // a control image is fitted to the pixels, which cached latents come without
    bool prompts_need_controls = false;   // a prompt without a control image is an error
    /// The class's attributes of these names: prompts are encoded with their control images; those come as large as
    /// they lie on the disk, else cropped to their item's bucket.
    bool encode_control_in_text_embeddings = false, use_raw_control_images = false;
    /// Its forward wants what condition_noisy_latents adds, which a prediction without the adapter comes before.
    bool wants_conditioned_latents = false;
    std::string_view unplayed_guidance{};       // why do_cfg is not played; empty: it is
    std::string_view unplayed_text_training{};  // why train_text_encoder is not
    std::string_view denoiser = "transformer";  // in reports
    /// Families of the denoiser and the VAE where the trainer brings classes of its own; they read the profiles'
    /// configs.
    std::string_view own_denoiser{}, own_vae{};
    /// Of names in an accuracy recovery adapter, where they hold more than `modules.prefix`.
    std::string_view recovery_prefix{};
    bool takes_quantize_kwargs = false;        // its denoiser is quantised by quantize(**quantize_kwargs)
    bool quantizes_blocks = false;             // by quantize_model, which alone looks at an accuracy recovery adapter
    std::int64_t quantized_text_encoders = 1;  // of its last ones, those that are quantised where any is
    bool text_encoder_by_qtype = false;  // its text encoder is quantised as `qtype` says, and `qtype_te` is not asked
    /// quantize(exclude=): of names in the denoiser, as fnmatch takes them.
    std::span<const std::string_view> quantization_exclude{};
    Assistant assistant{};
    std::span<const std::string_view> options{};  // of model.model_kwargs those that it looks at
    /// Whether load_model looks at `quantize` at all, and whether the text encoder is quantised by it, not by
    /// `quantize_te`.
    bool quantizes = true, text_encoder_by_quantize = false;
    bool any_scheduler = false;   // noise_scheduler and sampler may be any of get_sampler's; else flow matching alone
    std::int64_t most_items = 0;  // in a batch; 0: any number
    std::int64_t most_items_of_kept_text = 0;  // where text embeddings are cached, or the encoders unloaded
    /// Why samples fail in the trainer where text embeddings are cached; empty: they do not.
    std::string_view cached_samples_fail{};
    /// Why a step fails without gradient checkpointing; empty: it does not.
    std::string_view fails_without_checkpointing{};
    std::string_view fails_with{};  // why the trainer itself cannot run it, and the way out; empty: it can

    ModuleTree modules{};
    std::span<const TrainedText> trained_text{};  // of the first text encoders; nothing of further ones trains
    /// Whether its text encoders are played with a backward of their own. Under gradient checkpointing they have one
    /// wherever train_text_encoder is said, even where nothing of them trains: transformers makes the embeddings ask
    /// for gradients.
    bool text_encoders_have_backward = false;
    Offloading offloading{};

    /// The frames that a sample of so many is of; null: floored to n · frame_step + 1.
    std::int64_t (*sample_frames)(std::int64_t frames, bool low_vram) = nullptr;
    /// Why the trainer refuses these options of model_kwargs; null or empty: it takes them.
    std::string_view (*refuses)(const std::map<std::string, std::string>& options) = nullptr;
    /// What the net is handed of a raw control image of this size beside an item of that size; null: the item's own.
    job::PictureSize (*reference_size)(const job::PictureSize& image, const job::PictureSize& item) = nullptr;
    /// Whether this recipe plays the model.
    bool (*plays)(const profile::ModelProfile& profile) = nullptr;
    /// The profile that a repository or path without a profile is taken for by its name, in lower case; empty: the name
    /// says nothing.
    std::string_view (*taken_for)(std::string_view arch, std::string_view name) = nullptr;
    std::unique_ptr<Pipeline> (*make)(const job::Job& job, const profile::Catalogue& catalogue,
                                      shadow::Run& run) = nullptr;
};

#define VRAM_ARCHITECTURE(name)             \
    namespace name {                        \
    extern const Architecture architecture; \
    }
#include "trainers/ai_toolkit/architectures/architectures.def"
#undef VRAM_ARCHITECTURE

[[nodiscard]] std::span<const Architecture* const> architectures();
/// Null where none has this name, or plays this model.
[[nodiscard]] const Architecture* architecture_named(std::string_view arch);
[[nodiscard]] const Architecture* architecture_of(const profile::ModelProfile& profile);

}  // namespace vram::trainers::ai_toolkit
