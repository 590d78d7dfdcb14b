#pragma once

#include <memory>
#include <vector>

#include "shadow/run.hpp"
#include "vram/job/job.hpp"

namespace vram::run {

/// An optimizer over parameters that require grad, as its Python class plays a step: state that appears in the first
/// one, and what a step holds for a moment.
class Optimizer {
  public:
    Optimizer(shadow::Run& run, const job::Optimizer& kind, std::vector<shadow::Parameter*> parameters);

    /// Parameters without a gradient are passed over.
    void step();
    /// torch.nn.utils.clip_grad_norm_ with foreach: a norm a gradient, then of those; the gradients are scaled in
    /// place.
    void clip_grad_norm();
    /// set_to_none=True: the gradients die.
    void zero_grad();
    /// Bytes of the state that exists, each storage rounded to 512.
    [[nodiscard]] Bytes state_bytes() const;
    /// Bytes of the gradients that exist.
    [[nodiscard]] Bytes gradient_bytes() const;
    [[nodiscard]] const std::vector<shadow::Parameter*>& parameters() const noexcept { return parameters_; }

  private:
    void step_as(const job::AdamW& kind);
    void step_as(const job::AdamW8bit& kind);
    void add_state(std::size_t parameter, const shadow::Dims& sizes, Dtype dtype);

    shadow::Run& run_;
    job::Optimizer kind_;
    std::vector<shadow::Parameter*> parameters_;
    std::vector<shadow::Tensors> state_;  // by parameter; empty until its first step
    std::vector<shadow::Tensor> shared_;  // state that all parameters have in common
};

}  // namespace vram::run
