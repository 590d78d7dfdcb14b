// transformers' Adafactor (5.24.0, optimization.py), ai-toolkit's (27a03a9, toolkit/optimizers/adafactor.py), and
// came_pytorch.CAME (0.1.3): second moments as means of rows and columns over the last two dimensions. RMS, a scalar of
// the parameter, stays on the GPU. Recorded: adafactor*, toolkit-adafactor*, came*.
#include "run/optimizers/arithmetic.hpp"
#include "run/optimizers/rule.hpp"

namespace vram::run {
namespace {

using shadow::add_scalar;
using shadow::neg;
using shadow::pow_scalar;
using shadow::to_float;

class Adafactor final : public Rule {
  public:
    Adafactor(const job::Adafactor& kind, Run& run, Parameters parameters)
        : Rule(run, std::move(parameters)), kind_(kind) {
        if (kind_.stochastic_accumulation) accumulate_apart();
    }

    void step() override {
        take_accumulated();
        Tensor grad, p_data_fp32, lr, update;
        for (std::size_t i = 0; i < count(); ++i) {
            Parameter& p = parameter(i);
            if (!p.grad.defined()) continue;
            grad = p.grad;
            grad = to_float(grad);
            if (!has_state(i)) init(i);
            p_data_fp32 = p.value.detach();
            p_data_fp32 = to_float(kind_.clones && !is_fp32(p) ? shadow::clone(p_data_fp32) : p_data_fp32);

            keep(i, RMS, rms(p_data_fp32));
            if (kind_.scale_parameter) {
                static_cast<void>(run_.empty({}, Dtype::boolean, Op::compare));  // max(eps, RMS)
                lr = scalar(state(i, RMS), Op::mul);
            }
            update = add_scalar(pow_scalar(grad), true);
            if (is_factored(grad)) {
                add_means(update);
                update = approx_sq_grad(state(i, exp_avg_sq_row), state(i, exp_avg_sq_col));
            } else {
                update = shadow::rsqrt(state(i, exp_avg_sq_row));
            }
            clip_rms(update);
            if (kind_.momentum) update = state(i, exp_avg);
            if (kind_.weight_decay && kind_.scale_parameter) static_cast<void>(scalar(lr, Op::mul));
            static_cast<void>(neg(update));
            if (kind_.stochastic_rounding) copy_stochastic(p.value, p_data_fp32);
        }
    }

  private:
    // Of one dimension: the row is exp_avg_sq.
    enum : std::size_t { exp_avg_sq_row, exp_avg_sq_col, exp_avg, RMS };

    static bool is_fp32(const Parameter& p) { return p.value.dtype() == Dtype::f32; }

    void init(std::size_t i) {
        if (kind_.momentum) make_like_parameter(i, exp_avg, Dtype::f32);
        make_factored(i, exp_avg_sq_row, exp_avg_sq_col, Dtype::f32);
    }

    job::Adafactor kind_;
};

class Came final : public Rule {
  public:
    using Rule::Rule;

    void step() override {
        Tensor grad, update, res, res_approx;
        for (std::size_t i = 0; i < count(); ++i) {
            const Parameter& p = parameter(i);
            if (!p.grad.defined()) continue;
            grad = p.grad;
            grad = to_float(grad);
            const bool factored = is_factored(grad);
            if (!has_state(i)) init(i, factored);
            keep(i, RMS, rms(p.value.detach()));

            update = add_scalar(pow_scalar(grad), true);
            if (factored) {
                add_means(update);
                update = approx_sq_grad(state(i, exp_avg_sq_row), state(i, exp_avg_sq_col));
            } else {
                update = shadow::rsqrt(state(i, exp_avg_sq_row));
            }
            clip_rms(update);
            {
                Tensor squared = pow_scalar(shadow::sub(update, state(i, exp_avg)));
                res = add_scalar(std::move(squared), true);
            }
            if (factored) {
                add_means(res);
                res_approx = approx_sq_grad(state(i, exp_avg_res_row), state(i, exp_avg_res_col));
                update = res_approx;
            } else {
                update = shadow::clone(state(i, exp_avg));
            }
            static_cast<void>(neg(update));
        }
    }

  private:
    enum : std::size_t { exp_avg, exp_avg_sq_row, exp_avg_sq_col, exp_avg_res_row, exp_avg_res_col, RMS };

    void init(std::size_t i, bool factored) {
        make_like_parameter(i, exp_avg, Dtype::f32);
        make_factored(i, exp_avg_sq_row, exp_avg_sq_col, Dtype::f32);
        if (factored) make_factored(i, exp_avg_res_row, exp_avg_res_col, Dtype::f32);
    }
};

}  // namespace

std::unique_ptr<Rule> rule_of(const job::Adafactor& kind, Run& run, Parameters parameters) {
    return std::make_unique<Adafactor>(kind, run, std::move(parameters));
}
std::unique_ptr<Rule> rule_of(const job::Came&, Run& run, Parameters parameters) {
    return std::make_unique<Came>(run, std::move(parameters));
}

}  // namespace vram::run
