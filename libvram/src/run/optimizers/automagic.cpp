// ai-toolkit's Automagic and Automagic2 (27a03a9): toolkit/optimizers/automagic.py, automagic2.py. Recorded:
// automagic-*, automagic2-*.
#include "run/optimizers/arithmetic.hpp"
#include "run/optimizers/eight_bit.hpp"
#include "run/optimizers/rule.hpp"

namespace vram::run {
namespace {

using shadow::add_scalar;
using shadow::clone;
using shadow::compare;
using shadow::compare_scalar;
using shadow::mean_all;
using shadow::mul_scalar;
using shadow::neg;
using shadow::pow_scalar;
using shadow::rsqrt;
using shadow::to;
using shadow::to_float;

class Automagic final : public Rule {
  public:
    Automagic(const job::Automagic& kind, Run& run, Parameters parameters)
        : Rule(run, std::move(parameters)), kind_(kind) {
        accumulate_apart();
    }

    void step() override {
        take_accumulated();
        Tensor grad, p_data_fp32, update, last_polarity, current_polarity, sign_agreement, lr_mask, new_lr, decay;
        for (std::size_t i = 0; i < count(); ++i) {
            const Parameter& p = parameter(i);
            if (!p.grad.defined()) continue;
            grad = p.grad;
            grad = to_float(grad);
            const bool factored = is_factored(grad);
            if (!has_state(i))
                initialize_state(i);
            else  // state["exp_avg_sq_row"].to(grad): a 16-bit parameter's becomes fp32 in its second step
                for (std::size_t name = row; name <= (factored ? col : row); ++name)
                    if (state(i, name).dtype() != Dtype::f32) keep(i, name, to_float(state(i, name)));
            p_data_fp32 = p.value.detach();
            if (p.value.dtype() != Dtype::f32) p_data_fp32 = to_float(clone(p_data_fp32));

            keep(i, RMS, rms(p_data_fp32));
            update = add_scalar(pow_scalar(grad), true);
            if (factored) {
                add_means(update);
                update = approx_sq_grad(state(i, row), state(i, col));
            } else {
                update = rsqrt(state(i, row));
            }
            clip_rms(update);

            last_polarity = state(i, polarity);
            current_polarity = compare_scalar(update);
            sign_agreement = shadow::where_scalars(compare(last_polarity, current_polarity), Dtype::i64);
            keep(i, polarity, current_polarity);
            lr_mask = dequantize(state(i, mask));
            {
                const Tensor agrees = compare_scalar(sign_agreement);
                const Tensor up = add_scalar(lr_mask, true), down = like(lr_mask, Op::sub);
                new_lr = shadow::where(agrees, up, down);
            }
            new_lr = like(new_lr, Op::clamp);
            keep(i, mask, quantize(new_lr));
            keep(i, avg_lr, mean_all(new_lr));
            if (kind_.weight_decay) decay = shadow::mul(mul_scalar(p_data_fp32), new_lr);
            static_cast<void>(neg(update));
            if (p.value.dtype() != Dtype::f32) copy_stochastic(p.value, p_data_fp32);
        }
    }

  private:
    enum : std::size_t { row, col, mask, avg_lr, polarity, RMS };  // of one dimension: row is exp_avg_sq

    void initialize_state(std::size_t i) {
        const Tensor& p = parameter(i).value;
        keep(i, mask, quantize(mul_scalar(run_.empty_like(p, Dtype::f32, Op::to_copy))));  // torch.ones(..) * lr
        keep(i, avg_lr, mean_all(dequantize(state(i, mask))));
        make(i, polarity, p.sizes(), Dtype::boolean);
        make_factored(i, row, col, p.dtype());
    }

    job::Automagic kind_;
};

class Automagic2 final : public Rule {
  public:
    Automagic2(Run& run, Parameters parameters) : Rule(run, std::move(parameters)) {
        register_hooks(false, [this](std::size_t i) { update_param(i); });
    }

    void step() override {}

  private:
    enum : std::size_t { lr, last_polarity, row, col };  // of one dimension: row is exp_avg_sq

    void init_state(std::size_t i) {
        const Tensor& p = parameter(i).value;
        make(i, lr, {}, Dtype::f32, Op::full);
        make(i, last_polarity, p.sizes(), Dtype::boolean);
        make_factored(i, row, col, p.dtype());
    }

    void update_param(std::size_t i) {
        Parameter& p = parameter(i);
        const Dtype dtype = p.value.dtype();
        const bool first = !has_state(i);
        if (first) init_state(i);
        const Tensor grad = to_float(p.grad);
        const Tensor sq = like(grad, Op::mul);
        const Moments v = moments_of(sq, state(i, row), is_factored(p.value) ? state(i, col) : Tensor());
        const Tensor update = v.col.defined() ? approx_sq_grad(v.row, v.col) : rsqrt(v.row);
        clip_rms(update);
        const Tensor cur_polarity = compare_scalar(update), before = state(i, last_polarity);
        const Tensor agreement = mean_all(to_float(compare(cur_polarity, before)));
        keep(i, last_polarity, cur_polarity);
        Tensor direction, new_p_fp32;
        if (!first) {
            direction = mul_scalar(to_float(compare_scalar(agreement)));
            direction = like(direction, Op::sub);
        }
        if (dtype == Dtype::bf16) {
            new_p_fp32 = to_float(p.value.detach());
            static_cast<void>(run_.empty_like(new_p_fp32, Dtype::i32, Op::noise));
        } else {
            static_cast<void>(to(update, dtype));
        }
        p.grad = Tensor();
    }
};

}  // namespace

std::unique_ptr<Rule> rule_of(const job::Automagic& kind, Run& run, Parameters parameters) {
    return std::make_unique<Automagic>(kind, run, std::move(parameters));
}
std::unique_ptr<Rule> rule_of(const job::Automagic2&, Run& run, Parameters parameters) {
    return std::make_unique<Automagic2>(run, std::move(parameters));
}

}  // namespace vram::run
