// schedulefree.AdamWScheduleFree (1.4.1): adamw_schedulefree.py, step. Recorded: adamwschedulefree*.
#include "run/optimizers/arithmetic.hpp"
#include "run/optimizers/foreach.hpp"
#include "run/optimizers/rule.hpp"

namespace vram::run {
namespace {

class AdamWScheduleFree final : public Rule {
  public:
    AdamWScheduleFree(const job::AdamWScheduleFree& kind, Run& run, Parameters parameters)
        : Rule(run, std::move(parameters)), kind_(kind) {}

    void step() override {
        std::vector<Tensor> moments;
        for (std::size_t i = 0; i < count(); ++i) {
            if (!parameter(i).grad.defined()) continue;
            if (!has_state(i)) {
                make_like_parameter(i, z, Op::clone);
                make_like_parameter(i, exp_avg_sq);
            }
            moments.push_back(state(i, exp_avg_sq));
        }
        if (kind_.foreach) {
            const std::vector<Tensor> denom = foreach_like(moments);  // of all groups at once
            return;
        }
        Tensor denom;
        for (const Tensor& moment : moments) denom = like(moment, Op::div);
    }

  private:
    enum : std::size_t { z, exp_avg_sq };
    job::AdamWScheduleFree kind_;
};

}  // namespace

std::unique_ptr<Rule> rule_of(const job::AdamWScheduleFree& kind, Run& run, Parameters parameters) {
    return std::make_unique<AdamWScheduleFree>(kind, run, std::move(parameters));
}

}  // namespace vram::run
