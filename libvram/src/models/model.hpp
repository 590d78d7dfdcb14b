#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nn/module.hpp"
#include "vram/profile/model_profile.hpp"

namespace vram::models {

using nn::BlockBuilder;
using nn::Builder;
using nn::Caller;
using nn::Dims;
using nn::Run;
using nn::Tensor;
using nn::Tensors;

/// What a call is about: sizes of the pictures in pixels, never of latents.
struct Request {
    std::int64_t batch = 1, width = 0, height = 0, frames = 1, text_tokens = 0;
    std::vector<std::array<std::int64_t, 2>> reference_images{};
    Dtype dtype = Dtype::bf16;
    enum class Operation : std::uint8_t { forward, encode, decode } operation = Operation::forward;
    bool tiling = false, slicing = false, attention_mask = false, all_hidden_states = false, use_cache = false;
    /// Of a VAE that takes a clip piece by piece: frames of a piece, and how far the next one begins behind it. 0:
    /// whole.
    std::int64_t tile_frames = 0, tile_frames_stride = 0;
    /// Of a model of video and sound: these do not see one another; and the blocks whose self-attention is left out.
    bool isolate_modalities = false;
    std::vector<std::int64_t> perturbed_blocks{};
};

/// A tensor that the caller makes: an argument of forward, or what an output is compared with.
struct Value {
    std::string name;
    Dims shape;
    Dtype dtype = Dtype::bf16;
};

/// A model as its Python class is: built once, called often. Parameters belong to the Weights it was built with.
class Model {
  public:
    Model() = default;
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;
    virtual ~Model() = default;

    /// The arguments of forward for this request, in its order: what a plain loop hands over.
    [[nodiscard]] virtual std::vector<Value> inputs(const Request& request) const = 0;
    /// Shapes of what forward returns and a loss is taken of.
    [[nodiscard]] virtual std::vector<Dims> outputs(const Request& request) const = 0;
    /// Module.__call__. `args` are held by the caller; the outputs are what the Python call returns.
    [[nodiscard]] virtual Tensors forward(const Tensors& args, const Request& request) const = 0;

    /// torch.is_grad_enabled() and this: blocks are checkpointed.
    bool gradient_checkpointing = false;
};

/// A family is a file and a line in families.def.
struct Family {
    std::string_view id;
    std::unique_ptr<Model> (*build)(nn::Weights& weights, const profile::ModelProfile& profile);
};
[[nodiscard]] std::span<const Family> families();

/// Builds a profile's model; its parameters are born on the CPU. The profile's family must be known: logic_error.
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);

}  // namespace vram::models
