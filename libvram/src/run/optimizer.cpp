#include "run/optimizer.hpp"

#include <variant>

namespace vram::run {

Optimizer::Optimizer(Run& run, const job::Optimizer& kind, Parameters parameters)
    : run_(run), rule_(std::visit([&](const auto& one) { return rule_of(one, run, std::move(parameters)); }, kind)) {}

void Optimizer::step() {
    const shadow::NoGrad no_grad(run_);
    rule_->step();
}

void Optimizer::clip_grad_norm() {
    for (const Rule::Group& group : rule_->groups()) clip_grad_norm(group);
}

void Optimizer::clip_all_grad_norms() { clip_grad_norm({0, parameters().size()}); }

void Optimizer::clip_grad_norm(const Rule::Group& group) {
    Tensor total_norm;
    {
        std::vector<Tensor> norms;
        for (std::size_t i = group.first; i < group.last; ++i)
            if (const Tensor& grad = parameters()[i]->grad; grad.defined())
                norms.push_back(run_.empty({}, grad.dtype(), Op::foreach_));
        if (norms.empty()) return;
        const Tensor stacked = run_.empty({static_cast<std::int64_t>(norms.size())}, norms.front().dtype(), Op::stack);
        total_norm = run_.empty({}, norms.front().dtype(), Op::norm);
    }
    Tensor clip_coef;
    {
        const Tensor sum = run_.empty({}, total_norm.dtype(), Op::add);      // total_norm + 1e-6
        const Tensor inverse = run_.empty({}, total_norm.dtype(), Op::div);  // max_norm / that
        clip_coef = run_.empty({}, total_norm.dtype(), Op::mul);
    }
    const Tensor clip_coef_clamped = run_.empty({}, total_norm.dtype(), Op::clamp);
}

void Optimizer::zero_grad() {
    for (Parameter* parameter : parameters()) parameter->grad = Tensor();
}

}  // namespace vram::run
