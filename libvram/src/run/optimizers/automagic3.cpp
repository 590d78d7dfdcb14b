// ai-toolkit's Automagic3 (27a03a9): toolkit/optimizers/automagic3.py. Recorded: automagic3*.
#include "run/optimizers/arithmetic.hpp"
#include "run/optimizers/sign_votes.hpp"

namespace vram::run {
namespace {

using shadow::to_float;

class Automagic3 final : public SignVotes {
  public:
    Automagic3(const job::Automagic3& kind, Run& run, Parameters parameters)
        : SignVotes(kind.polarity_history, run, std::move(parameters)), fused_(kind.fused) {
        if (fused_)
            register_hooks(false, [this](std::size_t i) { update_param(i); });
        else
            accumulate_apart(false);  // _make_accum_hook
    }

    void step() override {
        Tensor accum;  // getattr(p, "_accum_grad", None); the last one lives on
        for (std::size_t i = 0; i < count() && !fused_; ++i) {
            accum = take_accumulated(i);
            if (accum.defined()) parameter(i).grad = accum;
            if (parameter(i).grad.defined()) update_param(i);
        }
        apply_votes();
    }

  private:
    enum : std::size_t { lr, sign_history, row, col };  // of one dimension: row is exp_avg_sq

    void init_state(std::size_t i) {
        const Tensor& p = parameter(i).value;
        make(i, lr, {}, Dtype::f32, Op::full);
        make_history(i, sign_history);
        make_factored(i, row, col, p.dtype());
    }

    void update_param(std::size_t i) {
        Parameter& p = parameter(i);
        const Dtype dtype = p.value.dtype();
        if (!has_state(i)) init_state(i);
        const Tensor grad = to_float(p.grad);
        const Tensor sq = like(grad, Op::mul);
        const Moments v = moments_of(sq, state(i, row), is_factored(p.value) ? state(i, col) : Tensor());
        const Tensor update =
            v.col.defined() ? approx_sq_grad(v.row, v.col) : shadow::rsqrt(shadow::add_scalar(v.row, true));
        clip_rms(update);
        const Tensor cur_bits = shadow::compare_scalar(update);
        const Vote names = vote(i, state(i, sign_history), cur_bits, update);
        Tensor new_p_fp32;
        if (dtype != Dtype::f32) {
            new_p_fp32 = to_float(p.value.detach());
            static_cast<void>(run_.empty_like(new_p_fp32, Dtype::i32, Op::noise));
        }
        p.grad = Tensor();
    }

    bool fused_;
};

}  // namespace

std::unique_ptr<Rule> rule_of(const job::Automagic3& kind, Run& run, Parameters parameters) {
    return std::make_unique<Automagic3>(kind, run, std::move(parameters));
}

}  // namespace vram::run
