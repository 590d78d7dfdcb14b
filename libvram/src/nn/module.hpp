#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nn/weights.hpp"
#include "shadow/ops.hpp"

namespace vram::nn {

using shadow::Dims;
using shadow::Parameter;
using shadow::Run;
using shadow::Tensor;
using shadow::Tensors;

/// A layer with a weight, which a job may put an adapter beside. A call holds its argument until it returns.
class Layer {
  public:
    Layer() = default;
    Layer(const Layer&) = default;
    Layer(Layer&&) noexcept = default;
    Layer& operator=(const Layer&) = default;
    Layer& operator=(Layer&&) noexcept = default;
    virtual ~Layer() = default;

    [[nodiscard]] Tensor operator()(shadow::Arg x) const;
    /// The layer below the adapter.
    [[nodiscard]] virtual Tensor base(Tensor x) const;
    /// The same layer with another weight and bias.
    [[nodiscard]] virtual Tensor with(Tensor x, Tensor own_weight, Tensor own_bias) const = 0;
    /// A low rank's two steps: `down` sees what the layer's weight sees, `up` one point at a time.
    [[nodiscard]] virtual Tensor down(Tensor x, Tensor matrix) const;
    [[nodiscard]] virtual Tensor up(Tensor x, Tensor matrix) const;
    /// The weight as one tensor in its full type, as `.dequantize()` makes it; no history.
    [[nodiscard]] Tensor full_weight() const;

    Weights* weights = nullptr;
    Parameter* weight = nullptr;
    Parameter* bias = nullptr;
    const Adapter* adapter = nullptr;
    const QuantizedLayer* quantized = nullptr;
    MemoryManager* manager =
        nullptr;  // brings the layer, which lives on the CPU, for each call; null: it is on the GPU
};

/// nn.Linear as the job made it: plain, quantised, with an adapter.
class Linear final : public Layer {
  public:
    [[nodiscard]] Tensor base(Tensor x) const override;
    [[nodiscard]] Tensor with(Tensor x, Tensor own_weight, Tensor own_bias) const override;

    std::int64_t in = 0, out = 0;
    // weight: [out, in]; null where a quantiser stores it as something else. bias: [out] or null
    std::shared_ptr<const Linear> inner;  // the layer with the adapter that is its own; null: it has none
    bool multiplies_weight = false;       // nn.Linear's own forward, whatever class the layer is of
};

/// nn.LayerNorm over the last dimension, with or without weight and bias.
class LayerNorm final : public Layer {
  public:
    [[nodiscard]] Tensor with(Tensor x, Tensor own_weight, Tensor own_bias) const override;
};
/// torch.nn.RMSNorm over the last dimension: F.rms_norm, one fused kernel.
class RmsNorm final : public Layer {
  public:
    [[nodiscard]] Tensor with(Tensor x, Tensor own_weight, Tensor own_bias) const override;
};
class GroupNorm final : public Layer {
  public:
    [[nodiscard]] Tensor with(Tensor x, Tensor own_weight, Tensor own_bias) const override;
    std::int64_t groups = 32;
};
/// nn.Conv2d, nn.Conv3d: [B, C, (T,) H, W].
class Conv final : public Layer {
  public:
    [[nodiscard]] Tensor with(Tensor x, Tensor own_weight, Tensor own_bias) const override;
    [[nodiscard]] Tensor base(Tensor x) const override;
    [[nodiscard]] Tensor down(Tensor x, Tensor matrix) const override;
    [[nodiscard]] Tensor up(Tensor x, Tensor matrix) const override;
    shadow::Conv how;
};
class Embedding final : public Layer {
  public:
    [[nodiscard]] Tensor with(Tensor ids, Tensor own_weight, Tensor own_bias) const override;
};

/// A module whose calls repeat: a transformer block, a resnet. Two blocks of one `spec` are played alike. A call may be
/// checkpointed; the block cannot tell.
class Block {
  public:
    Block() = default;
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    virtual ~Block() = default;
    /// Outputs in the order of the Python forward's. `args` are held by the caller until it returns.
    [[nodiscard]] virtual Tensors forward(const Tensors& args) const = 0;
    /// The same where the call may let arguments go before it returns: entries of a list that a Python forward
    /// replaces.
    [[nodiscard]] virtual Tensors take(Tensors& args) const { return forward(args); }

    bool gemms = true;                  // multiplies matrices somewhere
    std::int32_t spec = -1;             // equal for blocks that are built alike; -1: not known
    std::vector<Parameter*> trainable;  // in the order of building
};

/// How the blocks of a model are called: Module.__call__, under gradient checkpointing if the job says so.
class Caller {
  public:
    /// torch.utils.checkpoint's use_reentrant.
    enum class Checkpointing : std::uint8_t { none, non_reentrant, reentrant };
    Caller(Run& run, Checkpointing checkpointing) : run_(run), checkpointing_(checkpointing) {}
    Caller(Run& run, bool gradient_checkpointing)
        : Caller(run, gradient_checkpointing ? Checkpointing::non_reentrant : Checkpointing::none) {}
    [[nodiscard]] Tensors operator()(const Block& block, Tensors args) const;

  private:
    Run& run_;
    Checkpointing checkpointing_;
};

class BlockBuilder;

/// Hands out modules by qualified name and applies the job's rules to them. Names are those of the Python module tree.
class Builder {
  public:
    explicit Builder(Weights& weights) : weights_(weights) {}

    [[nodiscard]] Builder operator[](std::string_view name) const;  ///< the child module of this name
    [[nodiscard]] Builder operator[](std::int64_t index) const;

    [[nodiscard]] Linear linear(std::string_view name, std::int64_t in, std::int64_t out, bool bias = true) const;
    /// A linear without bias whose weight is this embedding's. Quantising it makes one of its own.
    [[nodiscard]] Linear tied_linear(std::string_view name, const Embedding& embedding) const;
    [[nodiscard]] LayerNorm layer_norm(std::string_view name, std::int64_t size, bool affine = true,
                                       bool bias = true) const;
    [[nodiscard]] RmsNorm rms_norm(std::string_view name, std::int64_t size, bool affine = true) const;
    [[nodiscard]] GroupNorm group_norm(std::string_view name, std::int64_t groups, std::int64_t channels) const;
    /// A square or cubic kernel.
    [[nodiscard]] Conv conv2d(std::string_view name, std::int64_t in, std::int64_t out, std::int64_t kernel,
                              std::int64_t stride = 1, std::int64_t padding = 0, bool bias = true) const;
    [[nodiscard]] Conv conv(std::string_view name, std::int64_t in, std::int64_t out, const Dims& kernel,
                            const Dims& stride, const Dims& padding, bool bias = true) const;
    [[nodiscard]] Embedding embedding(std::string_view name, std::int64_t count, std::int64_t size) const;
    [[nodiscard]] Parameter& parameter(std::string_view name, const Dims& sizes) const;
    /// A floating buffer in the model's dtype unless the class keeps parts in fp32 (then as built), an integer one as
    /// built.
    [[nodiscard]] Parameter& buffer(std::string_view name, const Dims& sizes, Dtype dtype) const;

    /// Starts a block: what is built through the returned builder becomes its spec and its trainable parameters.
    [[nodiscard]] BlockBuilder block(Block& block) const;
    /// Ends it. `facts` are what the class's forward depends on besides its modules: heads, head size, flags.
    void finish(Block& block, std::string_view class_name, std::initializer_list<std::int64_t> facts) const;

    [[nodiscard]] Weights& weights() const noexcept { return weights_; }
    [[nodiscard]] Run& run() const noexcept { return weights_.run(); }
    [[nodiscard]] const std::string& name() const noexcept { return prefix_; }

  private:
    struct Record {
        std::vector<std::int64_t> spec;
        std::vector<Parameter*> trainable;
    };
    [[nodiscard]] std::string qualified(std::string_view name) const;
    [[nodiscard]] Dtype dtype_of(std::string_view name) const;
    /// `leaf`: weight or bias of the module `name`; empty where `name` is the parameter's own.
    [[nodiscard]] Parameter& make(std::string_view name, std::string_view leaf, const Dims& sizes) const;
    void tell(std::string_view name, std::string_view leaf, const Parameter& parameter) const;
    /// Puts beside a layer what the rules want there. `sizes`: of its weight.
    void adapt(Layer& layer, std::string_view name, LayerFacts::Kind kind, const Dims& sizes) const;
    /// An adapter of `owner` beside the layer.
    [[nodiscard]] const Adapter& put_beside(Weights& owner, const Layer& layer, const Adaptation& how,
                                            const Dims& sizes) const;
    /// The layer as a quantiser stores it, or null where it stays as it is.
    [[nodiscard]] const QuantizedLayer* quantized(const std::string& full, const Dims& weight) const;
    void finish_quantized(Parameter* bias) const;  ///< of the layer that was made last
    /// The memory manager brings the layer for each call, if it takes it.
    /// `tied`: its weight is an embedding's.
    void manage(Layer& layer, const LayerFacts& facts, bool tied = false) const;
    /// Puts Rules::inner around the layer itself.
    void put_inside(Linear& linear, const std::string& full) const;
    void name_last(std::string_view full) const;
    void note(std::initializer_list<std::int64_t> facts) const;
    void note(const Parameter& parameter) const;

    Weights& weights_;
    std::string prefix_;
    std::shared_ptr<Record> record_;
};

/// The builder of one block's own modules: a type apart, so that a block's public constructor, which is handed the
/// parent's builder, can hand on to the private one that builds.
class BlockBuilder : public Builder {
  private:
    friend class Builder;
    explicit BlockBuilder(Builder builder) : Builder(std::move(builder)) {}
};

}  // namespace vram::nn
