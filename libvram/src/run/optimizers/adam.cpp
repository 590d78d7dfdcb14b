// torch.optim.AdamW and Adam: torch/optim/adam.py (2.13), _init_group, _multi_tensor_adam, _single_tensor_adam,
// _fused_adam. Recorded: adamw*, adam*.
#include "run/optimizers/arithmetic.hpp"
#include "run/optimizers/foreach.hpp"
#include "run/optimizers/rule.hpp"

namespace vram::run {
namespace {

using Loop = job::AdamW::Loop;

class Adam final : public Rule {
  public:
    Adam(const job::AdamW& kind, Run& run, Parameters parameters) : Rule(run, std::move(parameters)), kind_(kind) {}

    void step() override {
        for (const Group& group : groups()) {
            for (std::size_t i = group.first; i < group.last; ++i)
                if (parameter(i).grad.defined() && !has_state(i)) init(i);
            switch (kind_.loop) {
                case Loop::foreach: multi_tensor(group); break;
                case Loop::one_by_one: single_tensor(group); break;
                case Loop::fused: break;  // one kernel, in place
            }
        }
    }

  private:
    enum : std::size_t { step_, exp_avg, exp_avg_sq, max_exp_avg_sq };

    // `step` is a number on the CPU but where kernels read it.
    void init(std::size_t i) {
        if (kind_.capturable || kind_.loop == Loop::fused) make(i, step_, {}, Dtype::f32);
        make_like_parameter(i, exp_avg);
        make_like_parameter(i, exp_avg_sq);
        if (kind_.amsgrad) make_like_parameter(i, max_exp_avg_sq);
    }

    void multi_tensor(const Group& param_group) {
        // Names keep the previous group's lists until the next are made.
        std::vector<Tensor> bias_correction1, bias_correction2, exp_avg_sq_sqrt;
        for (const std::vector<std::size_t>& group :
             foreach_groups(parameters(), param_group.first, param_group.last)) {
            std::vector<Tensor> grads, steps, roots_of;
            for (std::size_t i : group) {
                if (kind_.decays_gradient) grads.push_back(parameter(i).grad);
                if (kind_.capturable) steps.push_back(state(i, step_));
                roots_of.push_back(state(i, kind_.amsgrad ? max_exp_avg_sq : exp_avg_sq));
            }
            grads = foreach_like(grads);
            grads.clear();  // del device_grads
            if (kind_.capturable) {
                bias_correction1 = foreach_like(steps);
                bias_correction2 = foreach_like(steps);
            }
            exp_avg_sq_sqrt = foreach_like(roots_of);
        }
    }

    void single_tensor(const Group& group) {
        Tensor grad, denom;
        for (std::size_t i = group.first; i < group.last; ++i) {
            if (!parameter(i).grad.defined()) continue;
            grad = parameter(i).grad;
            if (kind_.decays_gradient) grad = like(grad, Op::add);
            const Tensor root = like(state(i, kind_.amsgrad ? max_exp_avg_sq : exp_avg_sq), Op::sqrt);
            denom = like(root, Op::div);
        }
    }

    job::AdamW kind_;
};

}  // namespace

std::unique_ptr<Rule> rule_of(const job::AdamW& kind, Run& run, Parameters parameters) {
    return std::make_unique<Adam>(kind, run, std::move(parameters));
}

}  // namespace vram::run
