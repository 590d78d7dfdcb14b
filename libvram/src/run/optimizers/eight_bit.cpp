// ai-toolkit's Adam8bit and Prodigy8bit (27a03a9): toolkit/optimizers/adam8bit.py, prodigy_8bit.py. The arithmetic of
// one parameter at a time is in fp32, state included. Recorded: adam8-*, prodigy8bit-*.
#include "run/optimizers/eight_bit.hpp"

#include "run/optimizers/arithmetic.hpp"
#include "run/optimizers/rule.hpp"

namespace vram::run {

Tensor quantize(const Tensor& data) {
    static_cast<void>(reduce_abs(data, Op::max));
    Tensor x = shadow::div_scalar(data);
    x = like(x, Op::round);
    x = like(x, Op::clamp);
    return shadow::to(std::move(x), Dtype::i8);
}

Tensor dequantize(const Tensor& quantized) { return shadow::mul_scalar(shadow::to_float(quantized)); }

namespace {

using shadow::clone;
using shadow::to_float;

class Adam8 final : public Rule {
  public:
    Adam8(Run& run, Parameters parameters) : Rule(run, std::move(parameters)) { accumulate_apart(); }

    void step() override {
        take_accumulated();
        Tensor grad, p_fp32, exp_avg, exp_avg_sq, denom;
        for (std::size_t i = 0; i < count(); ++i) {
            const Parameter& p = parameter(i);
            if (!p.grad.defined()) continue;
            grad = to_float(p.grad);
            p_fp32 = to_float(clone(p.value.detach()));
            if (!has_state(i))
                for (std::size_t name : {first, second}) keep(i, name, quantize(like(p_fp32, Op::zeros)));
            exp_avg = dequantize(state(i, first));
            exp_avg_sq = dequantize(state(i, second));
            denom = shadow::div_scalar(shadow::sqrt(exp_avg_sq));
            keep(i, first, quantize(exp_avg));
            keep(i, second, quantize(exp_avg_sq));
            copy_stochastic(p.value, p_fp32);
        }
    }

  private:
    enum : std::size_t { first, second };  // exp_avg, exp_avg_sq
};

class Prodigy8bit final : public Rule {
  public:
    Prodigy8bit(Run& run, Parameters parameters) : Rule(run, std::move(parameters)) { accumulate_apart(); }

    void step() override {
        take_accumulated();
        Tensor grad, p_fp32, exp_avg, exp_avg_sq, s, p0, denom;
        for (std::size_t i = 0; i < count(); ++i) {
            const Parameter& p = parameter(i);
            if (!p.grad.defined()) continue;
            grad = to_float(p.grad);
            p_fp32 = to_float(clone(p.value.detach()));
            if (!has_state(i))
                for (std::size_t name : {state_s, state_p0, first, second})
                    keep(i, name, quantize(like(p_fp32, name == state_p0 ? Op::clone : Op::zeros)));
            exp_avg = dequantize(state(i, first));
            exp_avg_sq = dequantize(state(i, second));
            s = dequantize(state(i, state_s));
            p0 = dequantize(state(i, state_p0));
            static_cast<void>(dot(grad, shadow::sub(p0, p_fp32)));
            static_cast<void>(reduce_abs(s, Op::sum));
            keep(i, first, quantize(exp_avg));
            keep(i, second, quantize(exp_avg_sq));
            keep(i, state_s, quantize(s));
            keep(i, state_p0, quantize(p0));
        }
        for (std::size_t i = 0; i < count(); ++i) {
            const Parameter& p = parameter(i);
            if (!p.grad.defined()) continue;
            grad = to_float(p.grad);
            p_fp32 = to_float(clone(p.value.detach()));
            exp_avg = dequantize(state(i, first));
            exp_avg_sq = dequantize(state(i, second));
            denom = shadow::sqrt(exp_avg_sq);
            copy_stochastic(p.value, p_fp32);
        }
    }

  private:
    enum : std::size_t { state_s, state_p0, first, second };  // exp_avg, exp_avg_sq
};

}  // namespace

std::unique_ptr<Rule> rule_of(const job::Adam8&, Run& run, Parameters parameters) {
    return std::make_unique<Adam8>(run, std::move(parameters));
}
std::unique_ptr<Rule> rule_of(const job::Prodigy8bit&, Run& run, Parameters parameters) {
    return std::make_unique<Prodigy8bit>(run, std::move(parameters));
}

}  // namespace vram::run
