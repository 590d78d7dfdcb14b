#pragma once

#include <memory>
#include <vector>

#include "run/optimizers/rule.hpp"

namespace vram::run {

/// An optimizer over parameters that require grad, as its Python class plays it: state that appears in the first step
/// (or elsewhere: optimizers/), and what a step holds for a moment.
class Optimizer {
  public:
    Optimizer(shadow::Run& run, const job::Optimizer& kind, Parameters parameters);

    /// The rest of the constructor: state that some classes make there. The parameters are on the GPU.
    void start() { rule_->start(); }
    /// Parameters without a gradient are passed over.
    void step();
    /// As if so many steps had passed that a further one is like the one before.
    void settle() { rule_->settle(); }
    /// torch.nn.utils.clip_grad_norm_ with foreach, once a group: a norm a gradient, then of those; the gradients are
    /// scaled in place.
    void clip_grad_norm();
    /// The same once, of all parameters.
    void clip_all_grad_norms();
    /// set_to_none=True: the gradients die.
    void zero_grad();
    /// Bytes of the state that exists, each storage rounded to 512.
    [[nodiscard]] Bytes state_bytes() const { return rule_->state_bytes(); }
    /// Bytes of the gradients that exist.
    [[nodiscard]] Bytes gradient_bytes() const { return rule_->gradient_bytes(); }
    [[nodiscard]] const std::vector<shadow::Parameter*>& parameters() const noexcept { return rule_->parameters(); }

  private:
    void clip_grad_norm(const Rule::Group& group);

    shadow::Run& run_;
    std::unique_ptr<Rule> rule_;
};

}  // namespace vram::run
