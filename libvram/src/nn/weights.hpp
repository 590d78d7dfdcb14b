#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "shadow/run.hpp"

namespace vram::nn {

class Layer;
class Linear;
class Weights;
struct AdapterStyle;

/// How the linears of a model are stored; nn/quantize has one entry a library and scheme.
struct Quantizer {
    std::string_view id;
    /// Registers what replaces the weight (codes, scales, …) with the builder's owner.
    void (*build)(class Weights& weights, Linear& linear);
    shadow::Tensor (*forward)(const Linear& linear, shadow::Tensor x);
    /// The weight in its full type, as `.dequantize()` makes it.
    shadow::Tensor (*dequantize)(const Linear& linear) = nullptr;
};

/// What a layer gets beside it.
struct Adaptation {
    const AdapterStyle* style = nullptr;  // null: the layer stays as it is
    std::int64_t rank = 0;
    std::int64_t factor = -1;  // of LoKr
    bool dropout = false, rank_dropout = false;
};

/// The adapter of one layer.
struct Adapter {
    Adaptation how;
    std::vector<shadow::Parameter*> own;  // what the style registered, in its own order
    shadow::Dims sizes;                   // of the layer's weight
    shadow::Parameter* weight = nullptr;  // the layer's own; null where a quantiser stores it
    shadow::Parameter* bias = nullptr;
};

/// Whose code wraps an adapted layer; nn/adapter has one entry a style.
struct AdapterStyle {
    std::string_view id;
    /// Registers the adapter's parameters.
    void (*build)(Weights& weights, Adapter& adapter);
    shadow::Tensor (*forward)(const Layer& layer, shadow::Tensor x);
    /// Adds the adapter to the layer's weight, or takes it away again; null: the style cannot.
    void (*merge)(Weights& weights, const Adapter& adapter, bool untrained) = nullptr;
};

/// A layer as rules see it.
struct LayerFacts {
    enum class Kind : std::uint8_t { linear, conv2d, other };
    std::string_view name;  // qualified
    Kind kind = Kind::linear;
    shadow::Dims sizes;  // of its weight
    std::int64_t parameters = 0;
};

/// What a job does to the modules of one model, by qualified name: quantise, then adapt. Trainers fill it.
struct Rules {
    Dtype dtype = Dtype::bf16;              // of parameters and buffers
    std::vector<std::string> keep_in_fp32;  // name parts whose parameters stay fp32 (diffusers' _keep_in_fp32_modules)
    bool train_base = false;                // full fine-tune: every parameter requires grad,
    std::function<bool(std::string_view)> trains;  // or those of these qualified names
    const Quantizer* quantizer = nullptr;
    std::function<bool(std::string_view)> quantizes;      // by qualified name; null: every linear
    std::function<Adaptation(const LayerFacts&)> adapts;  // null: no layer
    Dtype adapter_dtype = Dtype::bf16;
};

/// The parameters and buffers of one model, where they are and what they weigh.
class Weights {
  public:
    Weights(shadow::Run& run, std::string component, Rules rules);
    Weights(const Weights&) = delete;
    Weights& operator=(const Weights&) = delete;

    [[nodiscard]] shadow::Run& run() const noexcept { return run_; }
    [[nodiscard]] const Rules& rules() const noexcept { return rules_; }
    [[nodiscard]] const std::string& component() const noexcept { return component_; }

    /// New parameters start on the CPU, where they cost nothing; `to_gpu` allocates them in the order of their birth.
    shadow::Parameter& base(const shadow::Dims& sizes, Dtype dtype, bool buffer = false);
    shadow::Parameter& adapter(const shadow::Dims& sizes, Dtype dtype, bool buffer = false);
    void to_gpu();
    void to_cpu();
    void base_to_gpu();
    void base_to_cpu();
    void adapter_to_gpu();
    void to_gpu(shadow::Parameter& base);  ///< one of the base

    /// Bytes by storage, rounded to 512, wherever they are.
    [[nodiscard]] Bytes base_bytes() const;
    [[nodiscard]] Bytes adapter_bytes() const;
    [[nodiscard]] std::int64_t base_parameters() const;  ///< buffers not counted; a quantised linear counts its weight
    [[nodiscard]] std::int64_t adapter_parameters() const;
    /// Told of every parameter and buffer of the base that a builder makes, by its name in the Python module tree.
    std::function<void(const std::string& name, const shadow::Parameter& parameter)> on_birth;
    /// Whether adapted layers are called with their adapters, and whether these drop out.
    void set_adapters(bool active, bool training);
    [[nodiscard]] bool adapters_active() const noexcept { return adapters_active_; }
    [[nodiscard]] bool adapters_training() const noexcept { return adapters_training_; }
    std::int64_t multipliers = 0;  // items that the network's multiplier has; 0: as many as a batch
    std::deque<Adapter> adapters;  // in the order of building
    std::int64_t adapted_modules = 0;
    std::int64_t replaced_parameters = 0;  // elements that a quantiser stores as something else

    [[nodiscard]] std::vector<shadow::Parameter*> trainable();
    [[nodiscard]] std::deque<shadow::Parameter>& all_base() noexcept { return base_; }
    [[nodiscard]] std::deque<shadow::Parameter>& all_adapter() noexcept { return adapter_; }

  private:
    void place(std::deque<shadow::Parameter>& group, shadow::Category category);
    void place(shadow::Parameter& parameter);

    shadow::Run& run_;
    std::string component_;
    Rules rules_;
    bool adapters_active_ = true, adapters_training_ = true;
    std::deque<shadow::Parameter> base_, adapter_;
};

}  // namespace vram::nn
