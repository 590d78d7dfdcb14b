#include "run/optimizer.hpp"

#include <stdexcept>

namespace vram::run {

using shadow::Op;
using shadow::Parameter;
using shadow::Tensor;

Optimizer::Optimizer(shadow::Run& run, const job::Optimizer& kind, std::vector<Parameter*> parameters)
    : run_(run), kind_(kind), parameters_(std::move(parameters)), state_(parameters_.size()) {}

void Optimizer::step() {
    run_.op = Op::optimizer;
    if (std::holds_alternative<job::AdamW>(kind_)) {
        step_adamw();
        return;
    }
    throw std::logic_error("optimizer: not modelled");
}

// torch.optim.AdamW, foreach: exp_avg and exp_avg_sq of a parameter appear in its first step (zeros_like, preserve_format);
// `step` stays on the CPU. A step holds sqrt(exp_avg_sq) of a whole group; groups are by dtype, and the name keeps the previous
// group's list until the next is made. Source: torch/optim/adam.py, _init_group and _multi_tensor_adam (2.13).
void Optimizer::step_adamw() {
    const std::uint16_t before = run_.activation_tag;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
        const Parameter& parameter = *parameters_[i];
        if (!parameter.grad.defined() || !state_[i].empty()) continue;
        run_.activation_tag = run_.tag(run_.trace.tags[parameter.value.storage()->tag].component, shadow::Category::optimizer_state);
        state_[i].push_back(run_.empty_like(parameter.value, Op::zeros));
        state_[i].push_back(run_.empty_like(parameter.value, Op::zeros));
    }
    run_.activation_tag = before;

    std::vector<Dtype> groups;
    for (const Parameter* parameter : parameters_) {
        bool known = !parameter->grad.defined();
        for (Dtype dtype : groups) known = known || dtype == parameter->value.dtype();
        if (!known) groups.push_back(parameter->value.dtype());
    }
    std::vector<Tensor> exp_avg_sq_sqrt;
    for (Dtype group : groups) {
        std::vector<Tensor> made;
        for (std::size_t i = 0; i < parameters_.size(); ++i)
            if (parameters_[i]->grad.defined() && parameters_[i]->value.dtype() == group)
                made.push_back(run_.empty_like(state_[i][1], Op::foreach_));
        exp_avg_sq_sqrt = std::move(made);
    }
}

void Optimizer::zero_grad() {
    for (Parameter* parameter : parameters_) parameter->grad = Tensor();
}

Bytes Optimizer::state_bytes() const {
    Bytes total = 0;
    for (const auto& tensors : state_)
        for (const Tensor& tensor : tensors) total = checked_add(total, round_up(tensor.layout()->bytes, 512));
    return total;
}

Bytes Optimizer::gradient_bytes() const {
    Bytes total = 0;
    for (const Parameter* parameter : parameters_)
        if (parameter->grad.defined()) total = checked_add(total, round_up(parameter->grad.storage()->bytes, 512));
    return total;
}

}  // namespace vram::run
