// prodigyopt.Prodigy (1.1.2): prodigyopt/prodigy.py; dadaptation.DAdaptAdam and DAdaptLion (3.2): dadapt_adam.py,
// dadapt_lion.py. All read sums back to the CPU, parameter by parameter. Recorded: prodigy*, dadapt*.
#include "run/optimizers/arithmetic.hpp"
#include "run/optimizers/rule.hpp"

namespace vram::run {
namespace {

class Prodigy final : public Rule {
  public:
    Prodigy(const job::Prodigy& kind, Run& run, Parameters parameters)
        : Rule(run, std::move(parameters)), kind_(kind) {}

    void step() override {
        for (std::size_t i = 0; i < count(); ++i) {
            if (!parameter(i).grad.defined()) continue;
            const Tensor& p = parameter(i).value;
            if (!has_state(i)) init(i);
            {
                const Tensor moved = run_.empty(sliced(p), p.dtype(), Op::sub);  // p0 - p
                static_cast<void>(dot(moved, moved));
            }
            static_cast<void>(reduce_abs(state(i, s), Op::sum));
        }
        Tensor denom;
        for (std::size_t i = 0; i < count(); ++i)
            if (parameter(i).grad.defined()) denom = like(state(i, exp_avg_sq), Op::sqrt);
    }

  private:
    enum : std::size_t { s, p0, exp_avg, exp_avg_sq };

    [[nodiscard]] Dims sliced(const Tensor& p) const { return {ceil_div(p.numel(), kind_.slice_p)}; }

    void init(std::size_t i) {
        const Tensor& p = parameter(i).value;
        make(i, s, sliced(p), p.dtype());
        static_cast<void>(run_.empty({}, Dtype::boolean, Op::any));  // p.any()
        // "All values are zero, so save VRAM with a zero-tensor": the second matrix of an adapter.
        make(i, p0, parameter(i).starts_at_zero ? Dims{} : sliced(p), p.dtype(), Op::clone);
        if (kind_.momentum) make_like_parameter(i, exp_avg);
        make_like_parameter(i, exp_avg_sq);
    }

    job::Prodigy kind_;
};

class DAdaptAdam final : public Rule {
  public:
    using Rule::Rule;

    void step() override {
        Tensor denom;
        for (std::size_t i = 0; i < count(); ++i) {
            if (!parameter(i).grad.defined()) continue;
            if (!has_state(i))
                for (std::size_t name : {s, exp_avg, exp_avg_sq}) make_like_parameter(i, name);
            denom = like(state(i, exp_avg_sq), Op::sqrt);
            static_cast<void>(dot(parameter(i).grad, shadow::div(state(i, s), denom)));
            static_cast<void>(reduce_abs(state(i, s), Op::sum));
        }
        for (std::size_t i = 0; i < count(); ++i)
            if (parameter(i).grad.defined()) denom = like(state(i, exp_avg_sq), Op::sqrt);
    }

  private:
    enum : std::size_t { s, exp_avg, exp_avg_sq };
};

class DAdaptLion final : public Rule {
  public:
    using Rule::Rule;

    void step() override {
        Tensor update;
        for (std::size_t i = 0; i < count(); ++i) {
            if (!parameter(i).grad.defined()) continue;
            if (!has_state(i))
                for (std::size_t name : {exp_avg, s}) make_like_parameter(i, name);
            update = shadow::clone(state(i, exp_avg));
            static_cast<void>(dot(update, state(i, s)));
            static_cast<void>(reduce_abs(state(i, s), Op::sum));
        }
    }

  private:
    enum : std::size_t { exp_avg, s };
};

}  // namespace

std::unique_ptr<Rule> rule_of(const job::Prodigy& kind, Run& run, Parameters parameters) {
    return std::make_unique<Prodigy>(kind, run, std::move(parameters));
}
std::unique_ptr<Rule> rule_of(const job::DAdapt& kind, Run& run, Parameters parameters) {
    if (kind.algorithm == job::DAdapt::Algorithm::lion) return std::make_unique<DAdaptLion>(run, std::move(parameters));
    return std::make_unique<DAdaptAdam>(run, std::move(parameters));
}

}  // namespace vram::run
