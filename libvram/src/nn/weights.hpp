#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "shadow/run.hpp"

namespace vram::shadow {
struct Conv;
}

namespace vram::nn {

class Layer;
class Linear;
class MemoryManager;
class Weights;
struct AdapterStyle;
struct QuantizedLayer;

/// How the linears of a model are stored; nn/quantize has one entry a library and format. One table, a name each:
/// nn/quantize/formats.hpp.
struct Quantizer {
    std::string_view id;
    std::int64_t bits = 8;  // a stored weight's, where one file holds several widths
    /// Whether a linear of these sizes is stored so; one that is not stays as it is. Null: every linear.
    bool (*takes)(const Quantizer& quantizer, std::int64_t in, std::int64_t out) = nullptr;
    /// Registers what replaces the weight (codes, scales, …) with the builder's owner: the module's parameters, and,
    /// after its bias, its buffers. Null: none.
    void (*build)(Weights& weights, QuantizedLayer& layer) = nullptr;
    void (*build_buffers)(Weights& weights, QuantizedLayer& layer) = nullptr;
    shadow::Tensor (*forward)(const QuantizedLayer& layer, shadow::Tensor x) = nullptr;
    /// Makes the stored parameters on the GPU out of the weight that stands there in full, and lets that go.
    void (*convert)(Weights& weights, QuantizedLayer& layer) = nullptr;
    /// The weight in its full type, as `.dequantize()` makes it.
    shadow::Tensor (*dequantize)(const QuantizedLayer& layer) = nullptr;
    /// Of a library whose tensors ai-toolkit's memory manager dequantises as it brings them; else it brings what is
    /// stored, and the format's own forward runs.
    bool dequantized_when_brought = false;
    /// Of a class whose `weight` dequantises. An adapter that was there before took nn.Linear's own forward, so that
    /// this weight is what it multiplies by.
    bool weight_is_property = false;
    /// Of a library that puts a module of its own in the layer's place: what took the old one's forward before is
    /// called no more.
    bool replaces_module = false;
    /// What its library keeps on the GPU for the process, where a call would make it. Null: nothing.
    void (*constants)(const QuantizedLayer& layer) = nullptr;
    /// What comes before, over all layers: quanto makes each module anew and only then freezes. Null: nothing.
    void (*prepare)(Weights& weights, QuantizedLayer& layer) = nullptr;
    /// nn.Conv2d, too. Null: convolutions stay as they are.
    shadow::Tensor (*convolve)(const QuantizedLayer& layer, shadow::Tensor x, const shadow::Conv& how) = nullptr;
};

/// A linear, or a convolution, that is stored quantised.
struct QuantizedLayer {
    std::string name;  // qualified
    const Quantizer* quantizer = nullptr;
    shadow::Dims weight;                     // [out, in] or [out, in, h, w]
    std::vector<shadow::Parameter*> stored;  // in the quantiser's own order
    shadow::Parameter* bias = nullptr;
    const shadow::Parameter* tied = nullptr;     // whose weight it has until it is quantised; null: its own
    shadow::Tensor full;                         // the weight, from its loading until it is quantised
    std::size_t place = 0;                       // in Weights::all_base(): before what stands there comes its weight
    [[nodiscard]] Dtype dtype() const noexcept;  ///< of the weight before
    [[nodiscard]] shadow::Run& run() const noexcept;
    [[nodiscard]] std::int64_t out() const { return weight[0]; }
    [[nodiscard]] std::int64_t in() const;  ///< elements of a row
    /// Whether a memory manager brings it for each call, so that module.to(device) leaves it.
    [[nodiscard]] bool stays_on_host() const { return !stored.empty() && stored.front()->stays_on_host; }
    [[nodiscard]] const shadow::Tensor& operator[](std::size_t i) const { return stored[i]->value; }
    [[nodiscard]] shadow::Tensor bias_value() const { return bias == nullptr ? shadow::Tensor() : bias->value; }
    Weights* weights = nullptr;
};

/// What a layer gets beside it.
struct Adaptation {
    const AdapterStyle* style = nullptr;  // null: the layer stays as it is
    std::int64_t rank = 0;
    std::int64_t factor = -1;  // of LoKr
    bool dropout = false, rank_dropout = false;
    bool untrained = false;  // of a file that says nothing of this layer: as it was made
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
    shadow::Dims sizes{};  // of its weight
    std::int64_t parameters = 0;
};

/// What a job does to the modules of one model, by qualified name: quantise, then adapt. Trainers fill it.
struct Rules {
    Dtype dtype = Dtype::bf16;              // of parameters and buffers
    std::vector<std::string> keep_in_fp32;  // name parts whose parameters stay fp32 (diffusers' _keep_in_fp32_modules)
    bool train_base = false;                // full fine-tune: every parameter requires grad,
    std::function<bool(std::string_view)> trains;  // or those of these qualified names
    const Quantizer* quantizer = nullptr;
    std::function<bool(std::string_view)> quantizes;  // by qualified name; null: every linear
    MemoryManager* manager = nullptr;                 // which layers live on the CPU: nn/memory_manager.hpp
    Weights* inner =
        nullptr;  // an adapter around the layers themselves before they are quantised, below the trained one
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
    void to_cpu(shadow::Parameter& base);
    /// The parameter is this tensor from now on: as many bytes, whatever it was made as.
    void put(shadow::Parameter& base, const shadow::Tensor& value);

    /// Bytes by storage, rounded to 512, wherever they are.
    [[nodiscard]] Bytes base_bytes() const;
    [[nodiscard]] Bytes adapter_bytes() const;
    [[nodiscard]] std::int64_t base_parameters() const;  ///< buffers not counted; a quantised linear counts its weight
    [[nodiscard]] std::int64_t adapter_parameters() const;
    /// Told of every parameter and buffer of the base that a builder makes, by its name in the Python module tree.
    std::function<void(const std::string& name, const shadow::Parameter& parameter)> on_birth;
    /// Whether adapted layers are called with their adapters, and whether these drop out.
    void set_adapters(bool active, bool training);
    std::int32_t modes_at = 0;  // the bit of Run::module_modes from which on these two stand
    [[nodiscard]] bool adapters_active() const noexcept { return adapters_active_; }
    [[nodiscard]] bool adapters_training() const noexcept { return adapters_training_; }
    /// module.train(): what drops out in the model itself does.
    void train(bool mode);
    [[nodiscard]] bool training() const noexcept { return training_; }
    std::int64_t multipliers = 0;  // items that the network's multiplier has; 0: as many as a batch
    std::deque<Adapter> adapters;  // in the order of building
    std::int64_t adapted_modules = 0;
    std::int64_t replaced_parameters = 0;     // elements that a quantiser stores as something else
    std::deque<QuantizedLayer> quantized;     // in the order of building
    std::vector<shadow::Parameter*> managed;  // what the memory manager will bring, in the order of building
    /// MemoryManager.attach: what is managed goes to the CPU, and stays there; so does the recovery adapter's.
    void leave_managed_on_host();
    /// Of each of all_base(), its qualified name, or of what a quantiser stores its layer's; empty where nothing asks.
    std::vector<std::string> names;

    [[nodiscard]] std::vector<shadow::Parameter*> trainable();
    [[nodiscard]] std::deque<shadow::Parameter>& all_base() noexcept { return base_; }
    [[nodiscard]] std::deque<shadow::Parameter>& all_adapter() noexcept { return adapter_; }

  private:
    void place(std::deque<shadow::Parameter>& group, shadow::Category category);
    void place(shadow::Parameter& parameter);

    shadow::Run& run_;
    std::string component_;
    Rules rules_;
    bool adapters_active_ = true, adapters_training_ = true, training_ = false;
    std::deque<shadow::Parameter> base_, adapter_;
};

}  // namespace vram::nn
