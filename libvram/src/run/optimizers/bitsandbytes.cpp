// bitsandbytes.optim (0.50.2): optim/optimizer.py, Optimizer1State and Optimizer2State, init_state and
// get_state_buffer; optim/ademamix.py, AdEMAMix.init_state. From 4096 elements on state is one byte an element with an
// fp32 absmax a block; below, and with 32 bits, fp32. Code maps of 256 fp32 are the optimizer's, and come to the GPU
// with the first 8-bit state. Updates work in place, parameter by parameter. Recorded: *8bit, bnb-*, paged*.
#include "run/optimizers/rule.hpp"

namespace vram::run {
namespace {

using Algorithm = job::Bitsandbytes::Algorithm;

class Bitsandbytes final : public Rule {
  public:
    Bitsandbytes(const job::Bitsandbytes& kind, Run& run, Parameters parameters)
        : Rule(run, std::move(parameters)), kind_(kind) {}

    void step() override {
        for (std::size_t i = 0; i < count(); ++i)
            if (parameter(i).grad.defined() && !initialised_[i]) init_state(i);
    }

  private:
    enum : std::size_t { state1, state2, absmax1, absmax2 };
    static constexpr std::int64_t min_8bit_size = 4096, min_paged_size = 100000;

    [[nodiscard]] bool has_two_states() const {
        return kind_.algorithm == Algorithm::adam || kind_.algorithm == Algorithm::ademamix;
    }

    void init_state(std::size_t i) {
        initialised_[i] = true;
        const Tensor& p = parameter(i).value;
        const Dtype dtype = kind_.bits == 8 && p.numel() >= min_8bit_size ? Dtype::u8 : Dtype::f32;
        const bool is_8bit = dtype == Dtype::u8;
        const std::int64_t blocks = ceil_div(p.numel(), kind_.block);
        if (is_8bit && !shares())
            for (int map = 0; map < (has_two_states() ? 2 : 1); ++map) share({256}, Dtype::f32);
        if (kind_.algorithm == Algorithm::ademamix) {
            if (is_8bit) {
                make(i, absmax1, {2, blocks}, Dtype::f32);
                make(i, absmax2, {blocks}, Dtype::f32);
            }
            Dims both = p.sizes();  // the fast and the slow average
            both.insert(0, 2);
            if (!pages(p)) make(i, state1, both, dtype);
            if (!pages(p)) make_like_parameter(i, state2, dtype);
            return;
        }
        if (!pages(p)) make_like_parameter(i, state1, dtype);
        if (!pages(p) && has_two_states()) make_like_parameter(i, state2, dtype);
        if (is_8bit) make(i, absmax1, {blocks}, Dtype::f32);
        if (is_8bit && has_two_states()) make(i, absmax2, {blocks}, Dtype::f32);
    }

    /// Managed memory, which torch does not count; what of it is on the card at a time is the driver's choice.
    [[nodiscard]] bool pages(const Tensor& p) const { return kind_.paged && p.numel() >= min_paged_size; }

    job::Bitsandbytes kind_;
    std::vector<bool> initialised_ = std::vector<bool>(count());
};

}  // namespace

std::unique_ptr<Rule> rule_of(const job::Bitsandbytes& kind, Run& run, Parameters parameters) {
    return std::make_unique<Bitsandbytes>(kind, run, std::move(parameters));
}

}  // namespace vram::run
