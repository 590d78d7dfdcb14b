// lion_pytorch.Lion (0.2.5): lion_pytorch.py, update_fn. Recorded: lion-*.
#include "run/optimizers/arithmetic.hpp"
#include "run/optimizers/rule.hpp"

namespace vram::run {
namespace {

class Lion final : public Rule {
  public:
    using Rule::Rule;

    void step() override {
        for (std::size_t i = 0; i < count(); ++i) {
            if (!parameter(i).grad.defined()) continue;
            if (!has_state(i)) make_like_parameter(i, exp_avg);
            const Tensor update = shadow::add(shadow::clone(state(i, exp_avg)), parameter(i).grad);
        }
    }

  private:
    enum : std::size_t { exp_avg };
};

}  // namespace

std::unique_ptr<Rule> rule_of(const job::Lion&, Run& run, Parameters parameters) {
    return std::make_unique<Lion>(run, std::move(parameters));
}

}  // namespace vram::run
