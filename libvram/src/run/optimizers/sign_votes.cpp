#include "run/optimizers/sign_votes.hpp"

#include <algorithm>

#include "run/optimizers/arithmetic.hpp"

namespace vram::run {
namespace {

using shadow::mul;
using shadow::sum_all;

std::int64_t width(const Tensor& p) { return ceil_div(p.numel(), 8); }

}  // namespace

SignVotes::SignVotes(std::int64_t polarity_history, Run& run, Parameters parameters)
    : Rule(run, std::move(parameters)), H_(polarity_history), hist_fill_(count()) {}

void SignVotes::settle() {
    for (std::int64_t& fill : hist_fill_) fill = H_;
}

void SignVotes::make_history(std::size_t i, std::size_t name) {
    make(i, name, {H_, width(parameter(i).value)}, Dtype::u8);
}

SignVotes::Vote SignVotes::vote(std::size_t i, const Tensor& history, const Tensor& bits, const Tensor& update) {
    pack_bits(bits);
    hist_fill_[i] = std::min(H_, hist_fill_[i] + 1);
    return hist_fill_[i] == H_ ? count_votes(history, update) : Vote{};
}

// Eight bits a byte, as a weighted sum.
void SignVotes::pack_bits(const Tensor& bits) {
    if (!std::exchange(has_constants_, true))
        for (int constant = 0; constant < 2; ++constant) share({8}, Dtype::u8);  // _PACK_CONSTS
    Tensor flat = shadow::to(bits, Dtype::u8);
    if (flat.numel() % 8 != 0) {
        const Tensor zeros = run_.empty({8 - flat.numel() % 8}, Dtype::u8, Op::zeros);
        flat = run_.empty({8 * width(bits)}, Dtype::u8, Op::cat);
    }
    const Tensor weighted = run_.empty({8 * width(bits)}, Dtype::u8, Op::mul);
    const Tensor packed = run_.empty({width(bits)}, Dtype::u8, Op::sum);
}

SignVotes::Vote SignVotes::count_votes(const Tensor& history, const Tensor& update) {
    const std::int64_t numel = update.numel();
    Vote vote;
    vote.chron = like(history, Op::roll);
    vote.bits = run_.empty({H_, width(update), 8}, Dtype::u8, Op::bitwise);
    vote.s1 = run_.empty({numel}, Dtype::i16, Op::sum);
    {
        const Tensor flipped = run_.empty({H_ - 1, numel}, Dtype::u8, Op::bitwise);
        vote.flips = run_.empty({numel}, Dtype::i16, Op::sum);
    }
    vote.up = run_.empty({numel}, Dtype::boolean, Op::eq);
    static_cast<void>(run_.empty({numel}, Dtype::boolean, Op::eq));
    vote.down = run_.empty({numel}, Dtype::boolean, Op::eq);
    vote.w = shadow::view(like(update, Op::abs), {numel});
    vote.num = sum_all(mul(vote.w, vote.up));
    static_cast<void>(sum_all(mul(vote.w, vote.down)));
    vote.den = sum_all(vote.w);
    if (!group_num_.defined()) {
        group_num_ = vote.num;
        group_den_ = vote.den;
    }
    return vote;
}

void SignVotes::apply_votes() {
    if (!group_num_.defined()) return;
    const Tensor factor = like(group_num_, Op::exp);
    group_num_ = group_den_ = Tensor();
}

}  // namespace vram::run
