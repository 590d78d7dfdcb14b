#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "nn/module.hpp"

namespace vram::nn {

/// ai-toolkit's layer offloading: the weights of the layers that it takes live in host memory, and each call brings its
/// own into a ring of slots on the GPU, one ring for forward and one for backward. A slot keeps what was brought until
/// its turn comes again, so up to twice `depth` layers stay there from the first step on. A managed linear keeps its
/// input for backward. One manager a device: the rings are shared by the models of a process. It must outlive the
/// calls' graphs. Source: toolkit/memory_management/manager_modules.py, _get_device_state, _BouncingLinearFn,
/// _BouncingConv2dFn, OstrisLinearLayerMemoryManager; manager.py, MemoryManager.attach (27a03a91).
class MemoryManager {
  public:
    /// AI_TOOLKIT_OFFLOAD_DEPTH, 4 where it is not set.
    static constexpr std::size_t depth = 4;

    explicit MemoryManager(std::function<bool(std::string_view)> takes) : takes_(std::move(takes)) {}
    [[nodiscard]] bool takes(std::string_view name) const { return takes_(name); }

    [[nodiscard]] Tensor linear(const Linear& linear, Tensor x);
    [[nodiscard]] Tensor convolution(const Conv& conv, Tensor x);
    void clear();  ///< MemoryManager.detach: the device's state goes

  private:
    [[nodiscard]] static Tensor materialized(const Linear& linear);
    static void linear_backward(Run& run, shadow::Node& node, Tensors& grads, Tensors& out);
    struct Slot {
        Tensors weight, bias;
    };
    std::function<bool(std::string_view)> takes_;
    Slot forward_[depth], backward_[depth];
    std::size_t forward_clock_ = 0, backward_clock_ = 0;
};

}  // namespace vram::nn
