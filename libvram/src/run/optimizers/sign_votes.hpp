#pragma once

#include "run/optimizers/rule.hpp"

namespace vram::run {

/// What ai-toolkit's Automagic3 and AutomagicEXPERIMENT have in common (27a03a9): the signs of an element's last H
/// updates as bits, and from the H-th step on a vote that unpacks the window whole, at H bytes an element.
class SignVotes : public Rule {
  public:
    SignVotes(std::int64_t polarity_history, Run& run, Parameters parameters);

    void settle() override;

  protected:
    /// The names of a vote, which live until _update_param returns.
    struct Vote {
        Tensor chron, bits, s1, flips, up, down, w, num, den;
    };

    /// state["sign_history"]
    void make_history(std::size_t i, std::size_t name);
    /// hist[idx].copy_(_pack_bits(bits)), and the vote if the window is full.
    [[nodiscard]] Vote vote(std::size_t i, const Tensor& history, const Tensor& bits, const Tensor& update);
    /// _apply_group_votes
    void apply_votes();

  private:
    void pack_bits(const Tensor& bits);
    [[nodiscard]] Vote count_votes(const Tensor& history, const Tensor& update);

    std::int64_t H_;
    std::vector<std::int64_t> hist_fill_;
    bool has_constants_ = false;
    Tensor group_num_, group_den_;
};

}  // namespace vram::run
