// ai-toolkit's AutomagicEXPERIMENT (27a03a9): toolkit/optimizers/automagicEXPERIMENT.py, and of toolkit/util/
// convrot_quant.py rotate, regular_hadamard and quantize_int8_rows_fused with Triton. Recorded: automagicexperiment*.
#include <map>

#include "run/optimizers/arithmetic.hpp"
#include "run/optimizers/sign_votes.hpp"

namespace vram::run {
namespace {

using shadow::to_float;

class AutomagicExperiment final : public SignVotes {
  public:
    AutomagicExperiment(const job::AutomagicExperiment& kind, Run& run, Parameters parameters)
        : SignVotes(kind.polarity_history, run, std::move(parameters)), fused_(kind.fused) {
        if (fused_)
            register_hooks(false, [this](std::size_t i) { update_param(i); });
        else
            accumulate_apart();
    }

    void step() override {
        if (!fused_) {
            take_accumulated();
            for (std::size_t i = 0; i < count(); ++i)
                if (parameter(i).grad.defined()) update_param(i);
        }
        apply_votes();
    }

  private:
    enum : std::size_t { lr, sign_history, moment, scale };  // of one dimension: moment is exp_avg_sq

    /// Of a tensor seen as [rows, numel / rows]: the block that is turned at a time; 1 turns none.
    static std::int64_t rot_size(const Tensor& p) {
        const std::int64_t columns = p.numel() / p.size(0);
        std::int64_t size = 1;
        while (size < 256 && columns % (4 * size) == 0) size *= 4;
        return size >= 16 ? size : 1;
    }

    /// rotate(x, rot): a product with a matrix that the first of its size puts on the GPU.
    Tensor rotate(const Tensor& x, std::int64_t rot) {
        if (rot == 1) return x;
        if (!std::exchange(hadamard_[rot], true)) share({rot, rot}, Dtype::f32);
        run_.gemm();
        return like(x, Op::mm);
    }

    /// _ConvRot8State.quantize_: int8 rows with an fp32 scale each, rows padded to 32.
    void quantize(std::size_t i, const Tensor& values) {
        const Tensor x = rotate(values, rot_size(values));
        const std::int64_t rows = values.size(0), padded = ceil_div(rows, 32) * 32;
        Tensor q = run_.empty({padded, values.numel() / rows}, Dtype::i8, Op::empty);
        Tensor scales = run_.empty({padded}, Dtype::f32, Op::empty);
        keep(i, moment, std::move(q));
        keep(i, scale, std::move(scales));
    }
    Tensor dequantize(const Tensor& p) {
        const Tensor w = run_.empty(p.sizes(), Dtype::f32, Op::to_copy);
        return rotate(w, rot_size(p));
    }

    void initialize_state(std::size_t i) {
        const Tensor& p = parameter(i).value;
        make(i, lr, {}, Dtype::f32, Op::full);
        make_history(i, sign_history);
        if (!is_factored(p)) return make(i, moment, p.sizes(), Dtype::f32);
        const Tensor zeros = run_.empty(p.sizes(), Dtype::f32, Op::zeros);
        quantize(i, zeros);
    }

    void update_param(std::size_t i) {
        Parameter& p = parameter(i);
        const Tensor grad = to_float(p.grad);
        if (!has_state(i)) initialize_state(i);
        Tensor denom;
        if (is_factored(p.value)) {
            denom = dequantize(p.value);
            quantize(i, denom);
        } else {
            denom = like(state(i, moment), Op::div);
        }
        const Tensor update = like(grad, Op::div);
        clip_rms(update);
        const Tensor cur_bits = shadow::compare_scalar(grad);
        const Vote names = vote(i, state(i, sign_history), cur_bits, update);
        Tensor p_data_fp32 = p.value.detach();
        if (p.value.dtype() != Dtype::f32) p_data_fp32 = to_float(shadow::clone(p_data_fp32));
        copy_stochastic(p.value, p_data_fp32);
        p.grad = Tensor();
    }

    bool fused_;
    std::map<std::int64_t, bool> hadamard_;
};

}  // namespace

std::unique_ptr<Rule> rule_of(const job::AutomagicExperiment& kind, Run& run, Parameters parameters) {
    return std::make_unique<AutomagicExperiment>(kind, run, std::move(parameters));
}

}  // namespace vram::run
