#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "vram/base/bytes.hpp"
#include "vram/base/diagnostic.hpp"
#include "vram/base/dtype.hpp"
#include "vram/job/optimizer.hpp"
#include "vram/job/quantization.hpp"
#include "vram/profile/model_profile.hpp"

namespace vram::job {

using PictureSize = std::array<std::int64_t, 2>;  // width, height

/// One batch that the dataset yields: every item of it has this size, and as many pictures beside it.
struct Batch {
    std::int64_t width = 0, height = 0, frames = 1, count = 1;
    std::vector<PictureSize> references{};  // control images of an item, as the trainer hands them on
    bool first_frame = false;               // videos that are continued from their first frame
    bool audio = false;                     // their sound is trained, too
    std::int64_t fps = 24;                  // pictures a second, where the sound asks for it
    bool operator==(const Batch&) const = default;
};

// ---- what is trained
/// Modules by parts of their qualified names: those that hold one of `only`, if there are any, and none of `ignore`.
struct NameParts {
    std::vector<std::string> only, ignore;
    bool operator==(const NameParts&) const = default;
};
struct FullFinetune {
    NameParts names;
    std::string said_at;  // the file's key that says so, for complaints; empty: nothing is left out
    bool operator==(const FullFinetune&) const = default;
};
/// What stands beside a layer: two matrices, these and a magnitude, a product of Kronecker's, a matrix of full rank.
enum class AdapterKind : std::uint8_t { lora, dora, lokr, full_rank };
/// Layers that an adapter takes in another way than the rest.
struct AdapterLayers {
    std::int64_t conv_rank = 0;  // of convolutions whose kernel is larger than a point; 0: these are left as they are
    std::vector<std::string> classes;           // a UNet's modules of these classes are looked into
    std::vector<std::string> full;              // parts of names: trained in full, as a difference
    bool all = false;                           // norms, embeddings and the like in full
    double fewest_parameters = 0;               // of a layer; smaller ones are left out
    std::map<std::string, std::int64_t> ranks;  // by the trainer's name of a module; if there are any, no others
    bool operator==(const AdapterLayers&) const = default;
};
/// Adapters. Whose code wraps the layers (nn/adapter) is the trainer's.
struct Lora {
    std::int64_t rank = 0;
    double alpha = 0;
    Dtype dtype = Dtype::bf16;
    /// Which modules: "attention", "blocks", "all" (job-file.md §1), or regular expressions on qualified names.
    std::vector<std::string> targets;
    NameParts names;      // what a trainer leaves of the targets
    std::string said_at;  // the file's key that says so, for complaints: "train.targets"
    AdapterKind kind = AdapterKind::lora;
    std::int64_t factor = -1;  // of LoKr: how a weight's sides are split; -1: as near to the square root as can be
    bool dropout = false, rank_dropout = false;
    AdapterLayers layers{};
    bool operator==(const Lora&) const = default;
};
using Method = std::variant<FullFinetune, Lora>;

struct Autocast {
    bool enabled = false;
    Dtype dtype = Dtype::bf16;
    bool operator==(const Autocast&) const = default;
};

/// What a trainer's loss takes beside one prediction of the batch.
struct Objective {
    /// A second prompt, whose prediction the adapter is to leave as it was: predicted once without adapter and
    /// gradients, and once more with both.
    enum class Preservation : std::uint8_t { none, class_prompt, blank_prompt } preservation = Preservation::none;
    bool prior_target = false;              // the prediction without the adapter is the target
    bool prior_divergence = false;          // it is what to get away from
    bool classifier_free_guidance = false;  // the blank prompt beside the caption, in one call of twice the size
    bool guidance_loss = false;             // the blank prompt once more, without gradients
    bool masks = false;                     // a picture of each item weighs the loss
    bool inverted_mask_prior = false;       // where the mask is dark the prediction without the adapter is the target
    bool operator==(const Objective&) const = default;
};

/// Text encoders that a trainer trains beside the denoiser, by adapters or in full as the method says.
struct TextEncoderTraining {
    bool trains = false;  // prompts are encoded in every step, with gradients
    /// Whether the first and the second of them are taken, where a trainer asks.
    std::array<bool, 2> takes{true, true};
    bool operator==(const TextEncoderTraining&) const = default;
};

/// What a trainer predicts now and then to see how far it is.
struct Validation {
    std::vector<Batch> batches;  // `count` noise levels of one picture; empty: none
    bool operator==(const Validation&) const = default;
};

/// A training loop.
struct Training {
    Method method;
    Optimizer optimizer;
    bool gradient_checkpointing = false;
    std::int64_t gradient_accumulation = 1;
    Autocast autocast;
    bool ema = false;
    std::int64_t switch_boundary_every = 1;  // batches that a model of several stages trains one before the next
    Objective objective;
    TextEncoderTraining text_encoders{};
    Validation validation;
    std::vector<Batch> batches;     // what the dataset yields; never empty. The heaviest comes wherever it comes
    std::string noise_scheduler{};  // as the trainer calls it, where it has more than one
    bool operator==(const Training&) const = default;
};

/// One call of a model or of a component, under no_grad.
struct Call {
    enum class Operation : std::uint8_t { forward, encode, decode } operation = Operation::forward;
    Batch batch;
    bool tiling = false, slicing = false, attention_mask = false, all_hidden_states = false, use_cache = false;
    bool operator==(const Call&) const = default;
};

/// Nothing is played: what the model's files hold is all that is known of it, and `why` says why.
struct WeightsOnly {
    Diagnostic why;
    bool operator==(const WeightsOnly&) const = default;
};

/// How much of the model's files has one type, as their headers say.
struct StoredWeights {
    std::string type;  // as the format writes it: "BF16", "Q4_K"
    std::int64_t parameters = 0;
    Bytes bytes = 0;
    bool operator==(const StoredWeights&) const = default;
};

/// What a trainer renders to look at.
struct Sampling {
    bool baseline = false;      // before the first step
    bool periodic = false;      // while training
    std::vector<Batch> images;  // distinct sizes; empty: never samples
    /// Of each of these how many of all samples are rendered once the last one of its size is.
    std::vector<std::int64_t> rendered{};
    double guidance = 1;
    std::int64_t steps = 0;
    bool merges_adapter = false;  // while rendering the adapter is added into the weights
    std::string sampler{};        // as the trainer calls it, where it has more than one
    bool operator==(const Sampling&) const = default;
};

/// A LoRA beside every quantised layer of the denoiser, which never trains and always runs: ai-toolkit's accuracy
/// recovery adapters.
struct Recovery {
    std::string file;  // as the job says it; empty: none
    std::int64_t rank = 0;
    std::vector<std::string> only{};  // a layer is one of them if its name holds a part; empty: the blocks' linears
    bool operator==(const Recovery&) const = default;
};

/// A LoRA that is merged into the denoiser's weights while these load, and taken off again while samples are drawn:
/// ai-toolkit's assistant LoRA.
struct Assistant {
    std::string file;  // as the job says it; empty: none
    std::int64_t rank = 0;
    std::vector<std::string>
        filled{};  // a layer that its file has weights for is named here; empty: the blocks' linears
    bool operator==(const Assistant&) const = default;
};

/// Where the parts of a pipeline are during a trainer's run, beside the denoiser.
struct Pipeline {
    std::string architecture;  // the trainer's own name for it, where models of one shape run in several ways
    std::string vae;           // profile ids; empty: none
    std::vector<std::string> text_encoders;
    Dtype vae_dtype = Dtype::bf16, text_encoder_dtype = Dtype::bf16;
    Quantization text_encoder_quantization = Quantization::none;
    bool cache_latents = false;  // encoded before training; the VAE then leaves the GPU
    bool loads_pixels = false;   // the pixels come along all the same
    bool cache_text = false;     // encoded before training; the text encoders are freed
    bool unload_text = false;    // the text encoders are parked on the CPU while training
    bool low_vram = false;
    /// Shares of the layers that live in host memory and come for each call (ai-toolkit's layer_offloading); 0: none.
    double offloaded = 0, offloaded_text_encoder = 0;
    NameParts quantized{};  // which of the denoiser's layers, as fnmatch takes their names; none: all
    Recovery recovery{};
    Assistant assistant{};
    /// What an architecture has of its own, as it is spelled: ai-toolkit's model.model_kwargs.
    std::map<std::string, std::string> options{};
    bool operator==(const Pipeline&) const = default;
};

struct Environment {
    std::int32_t torch_major = 2, torch_minor = 13;
    std::int32_t cudnn = 0;  // as torch.backends.cudnn.version() says it, 91002; 0: the one that torch's wheel asks for
    std::string alloc_conf;  // as PYTORCH_CUDA_ALLOC_CONF
    enum class Os : std::uint8_t { linux_, windows, wsl } os = Os::linux_;
    Bytes other_processes = 0;
    enum class Attention : std::uint8_t {
        automatic,
        flash,
        efficient,
        cudnn,
        math,
        xformers
    } attention = Attention::automatic;
    bool operator==(const Environment&) const = default;
};

/// Less is no card that torch runs on, and most likely a size without its unit.
inline constexpr Bytes smallest_capacity = 512 * MiB;

/// The card that the job itself names: an id, or a capacity, or neither.
struct Card {
    std::string gpu;
    Bytes capacity = 0;
    bool operator==(const Card&) const = default;
};

/// What will run, fully resolved: no "auto", no optional. A trainer's `resolve` makes it, its `play` plays it.
struct Job {
    std::string trainer;     // "torch", "ai-toolkit"
    std::string model;       // profile id of the denoiser, or of the one component that is called; or its path
    bool component = false;  // `model` is a VAE or a text encoder
    Dtype dtype = Dtype::bf16;
    Quantization quantization = Quantization::none;
    std::variant<Call, Training, WeightsOnly> work;
    /// Models that the catalogue does not have so: read from folders and files (the id is the path), or with a
    /// trainer's own forward.
    std::vector<profile::ModelProfile> described;
    std::vector<StoredWeights> stored;  // of `model`, the most bytes first; empty where no file was read
    std::int64_t text_tokens = 0;
    std::vector<PictureSize> reference_images;
    Pipeline pipeline;
    Sampling sampling;
    Environment environment;
    Card card;
    /// Every key as it was understood, for the report's `job.resolved`: dotted name of the job file → value as text.
    std::map<std::string, std::string> resolved;
    bool operator==(const Job&) const = default;
};

}  // namespace vram::job
