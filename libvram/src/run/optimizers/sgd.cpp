// torch.optim.SGD and Adagrad, foreach: torch/optim/sgd.py, _multi_tensor_sgd; adagrad.py, __init__ and
// _multi_tensor_adagrad (2.13). Recorded: sgd*, adagrad*.
#include "run/optimizers/arithmetic.hpp"
#include "run/optimizers/foreach.hpp"
#include "run/optimizers/rule.hpp"

namespace vram::run {
namespace {

class Sgd final : public Rule {
  public:
    Sgd(const job::Sgd& kind, Run& run, Parameters parameters) : Rule(run, std::move(parameters)), kind_(kind) {}

    void step() override {
        for (const Group& group : groups()) multi_tensor(group);
    }

  private:
    void multi_tensor(const Group& param_group) {
        std::vector<Tensor> device_grads;  // with weight decay a list of its own
        for (const std::vector<std::size_t>& group :
             foreach_groups(parameters(), param_group.first, param_group.last)) {
            std::vector<Tensor> grads;
            for (std::size_t i : group) grads.push_back(parameter(i).grad);
            device_grads = grads;
            if (kind_.weight_decay) device_grads = foreach_like(grads);
            if (!kind_.momentum) continue;
            for (std::size_t i : group)
                if (!has_state(i)) make_like_parameter(i, momentum_buffer, Op::clone);  // of the gradient
            if (!kind_.nesterov) device_grads.clear();
        }
    }

    enum : std::size_t { momentum_buffer };
    job::Sgd kind_;
};

class Adagrad final : public Rule {
  public:
    Adagrad(const job::Adagrad& kind, Run& run, Parameters parameters)
        : Rule(run, std::move(parameters)), kind_(kind) {}

    void start() override {
        for (std::size_t i = 0; i < count(); ++i) make_like_parameter(i, sum, Op::full);
    }

    void step() override {
        for (const Group& group : groups()) multi_tensor(group);
    }

  private:
    void multi_tensor(const Group& param_group) {
        std::vector<Tensor> device_grads, std, numerator;
        for (const std::vector<std::size_t>& group :
             foreach_groups(parameters(), param_group.first, param_group.last)) {
            std::vector<Tensor> grads, sums;
            for (std::size_t i : group) {
                grads.push_back(parameter(i).grad);
                sums.push_back(state(i, sum));
            }
            device_grads = grads;
            if (kind_.weight_decay) device_grads = foreach_like(grads);
            std = foreach_like(sums);
            numerator = kind_.weight_decay ? device_grads : foreach_like(device_grads);
        }
    }

    enum : std::size_t { sum };
    job::Adagrad kind_;
};

}  // namespace

std::unique_ptr<Rule> rule_of(const job::Sgd& kind, Run& run, Parameters parameters) {
    return std::make_unique<Sgd>(kind, run, std::move(parameters));
}
std::unique_ptr<Rule> rule_of(const job::Adagrad& kind, Run& run, Parameters parameters) {
    return std::make_unique<Adagrad>(kind, run, std::move(parameters));
}

}  // namespace vram::run
