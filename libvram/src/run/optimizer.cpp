#include "run/optimizer.hpp"

#include <variant>

namespace vram::run {

using shadow::Op;
using shadow::Parameter;
using shadow::Tensor;

Optimizer::Optimizer(shadow::Run& run, const job::Optimizer& kind, std::vector<Parameter*> parameters)
    : run_(run), kind_(kind), parameters_(std::move(parameters)), state_(parameters_.size()) {}

void Optimizer::step() {
    std::visit([this](const auto& kind) { step_as(kind); }, kind_);
}

void Optimizer::add_state(std::size_t parameter, const shadow::Dims& sizes, Dtype dtype) {
    state_[parameter].push_back(run_.empty(sizes, dtype, Op::zeros));
}

// bitsandbytes AdamW8bit: two moments of one byte an element with an fp32 absmax a block; below 4096 elements both in
// fp32. The two code maps of 256 fp32 are the optimizer's, made with the first 8-bit state. A step works in place,
// parameter by parameter. Source: bitsandbytes 0.50.2, optim/optimizer.py, Optimizer8bit.step and
// Optimizer2State.init_state.
void Optimizer::step_as(const job::AdamW8bit& kind) {
    constexpr std::int64_t min_8bit_size = 4096;
    const std::uint16_t before = run_.activation_tag;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
        const Parameter& parameter = *parameters_[i];
        if (!parameter.grad.defined() || !state_[i].empty()) continue;
        run_.activation_tag =
            run_.tag(run_.trace.tags[parameter.value.storage()->tag].component, shadow::Category::optimizer_state);
        const std::int64_t numel = parameter.value.numel();
        if (numel < min_8bit_size) {
            add_state(i, parameter.value.sizes(), Dtype::f32);
            add_state(i, parameter.value.sizes(), Dtype::f32);
            continue;
        }
        if (shared_.empty())
            for (int map = 0; map < 2; ++map) shared_.push_back(run_.empty({256}, Dtype::f32, Op::to_device));
        add_state(i, parameter.value.sizes(), Dtype::u8);
        add_state(i, parameter.value.sizes(), Dtype::u8);
        add_state(i, {ceil_div(numel, kind.block)}, Dtype::f32);
        add_state(i, {ceil_div(numel, kind.block)}, Dtype::f32);
    }
    run_.activation_tag = before;
}

void Optimizer::clip_grad_norm() {
    Tensor total_norm;
    {
        std::vector<Tensor> norms;
        for (const Parameter* parameter : parameters_)
            if (parameter->grad.defined()) norms.push_back(run_.empty({}, parameter->grad.dtype(), Op::foreach_));
        if (norms.empty()) return;
        const Tensor stacked = run_.empty({static_cast<std::int64_t>(norms.size())}, norms.front().dtype(), Op::stack);
        total_norm = run_.empty({}, norms.front().dtype(), Op::norm);
    }
    Tensor clip_coef = run_.empty({}, total_norm.dtype(), Op::add);  // total_norm + 1e-6
    clip_coef = run_.empty({}, total_norm.dtype(), Op::mul);         // max_norm / that
    const Tensor clip_coef_clamped = run_.empty({}, total_norm.dtype(), Op::clamp);
}

// torch.optim.AdamW, foreach: exp_avg and exp_avg_sq of a parameter appear in its first step (zeros_like,
// preserve_format); `step` stays on the CPU. A step holds sqrt(exp_avg_sq) of a whole group; groups are by dtype, and
// the name keeps the previous group's list until the next is made. Groups come in the reverse of the order in which
// their dtypes first appear: they are read out of a std::unordered_map, where libstdc++ puts the newest in front.
// (Three dtypes may stand otherwise; two do not.) Source: torch/optim/adam.py, _init_group and _multi_tensor_adam
// (2.13); ATen/native/ForeachUtils.h, FlatMap.
void Optimizer::step_as(const job::AdamW&) {
    const std::uint16_t before = run_.activation_tag;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
        const Parameter& parameter = *parameters_[i];
        if (!parameter.grad.defined() || !state_[i].empty()) continue;
        run_.activation_tag =
            run_.tag(run_.trace.tags[parameter.value.storage()->tag].component, shadow::Category::optimizer_state);
        state_[i].push_back(run_.empty_like(parameter.value, Op::zeros));
        state_[i].push_back(run_.empty_like(parameter.value, Op::zeros));
    }
    run_.activation_tag = before;

    std::vector<Dtype> groups;
    for (const Parameter* parameter : parameters_) {
        bool known = !parameter->grad.defined();
        for (Dtype dtype : groups) known = known || dtype == parameter->value.dtype();
        if (!known) groups.insert(groups.begin(), parameter->value.dtype());
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
    for (const Tensor& tensor : shared_) total = checked_add(total, round_up(tensor.layout()->bytes, 512));
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
