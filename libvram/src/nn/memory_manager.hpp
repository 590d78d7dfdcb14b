#pragma once

#include <cstddef>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "nn/module.hpp"

namespace vram::nn {

/// What ai-toolkit's layer offloading keeps on a GPU for the process: a ring of slots for forward and one for backward.
/// A slot keeps what was brought until its turn comes again, so that up to twice `depth` layers stay there from the
/// first step on, whichever models they are of. Source: toolkit/memory_management/manager_modules.py,
/// _get_device_state (27a03a91).
struct DeviceState {
    /// AI_TOOLKIT_OFFLOAD_DEPTH, 4 where it is not set.
    static constexpr std::size_t depth = 4;
    struct Slot {
        Tensors weight, bias;  // of backward in the latter's place: the weight's gradient on its way to the host
    };
    struct Ring {
        Slot slots[depth];
        std::size_t clock = 0;
        [[nodiscard]] Slot& next();
    };
    Ring forward, backward;
    [[nodiscard]] Bytes bytes() const;  ///< of what the slots keep, each storage rounded to 512
    void clear() { *this = {}; }
};

/// ai-toolkit's layer offloading of one model: the weights of the layers that it takes live in host memory, and each
/// call brings its own into a slot of the device's rings. A managed linear keeps its input for backward. It must
/// outlive the calls' graphs. Source: toolkit/memory_management/manager_modules.py, _BouncingLinearFn,
/// _BouncingConv2dFn, OstrisLinearLayerMemoryManager; manager.py, MemoryManager.attach (27a03a91).
class MemoryManager {
  public:
    /// What becomes of a layer.
    enum class Taken : std::uint8_t {
        no,
        yes,
        moved,  // yes, and module.to(device) moves it, because it stands in a module that is moved as a whole
    };
    /// `leaves`, by qualified name: parameters outside of layers that module.to(device) does not move either, because
    /// they stand in no module that is moved as a whole. Null: none.
    MemoryManager(DeviceState& state, std::function<Taken(const LayerFacts&)> takes,
                  std::function<bool(std::string_view)> leaves = nullptr)
        : state_(state), takes_(std::move(takes)), leaves_(std::move(leaves)) {}
    [[nodiscard]] Taken takes(const LayerFacts& layer) const { return takes_(layer); }
    [[nodiscard]] bool leaves(std::string_view name) const { return leaves_ && leaves_(name); }

    [[nodiscard]] Tensor linear(const Linear& linear, Tensor x);
    [[nodiscard]] Tensor convolution(const Conv& conv, Tensor x);

    /// The model was quantised with the layers managed already: those of ai-toolkit's own formats are taken for plain
    /// ones, dequantised on the host, and come in full.
    bool before_quantize = false;

  private:
    [[nodiscard]] Tensor materialized(const Linear& linear) const;
    static void linear_backward(Run& run, shadow::Node& node, Tensors& grads, Tensors& out);

    DeviceState& state_;
    std::function<Taken(const LayerFacts&)> takes_;
    std::function<bool(std::string_view)> leaves_;
};

}  // namespace vram::nn
