#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "shadow/ops.hpp"
#include "shadow/run.hpp"
#include "vram/job/optimizer.hpp"

namespace vram::run {

using shadow::Dims;
using shadow::Op;
using shadow::Parameter;
using shadow::Run;
using shadow::Tensor;

/// What an optimizer is handed: parameters, in one param_group or more.
struct Parameters {
    Parameters(std::vector<Parameter*> one_group) : all(std::move(one_group)), ends{all.size()} {}  // NOLINT: a group
    explicit Parameters(const std::vector<std::vector<Parameter*>>& groups);

    std::vector<Parameter*> all;
    std::vector<std::size_t> ends;  // where each group ends in `all`
};

/// How an optimizer's class plays. Each file beside this one has some; a step reads like the class's own `step`, with
/// its names declared where Python's live on: from one parameter of the loop to the next.
///
/// State is by parameter, and named by an index that the rule chooses; what is kept counts as optimizer state.
class Rule {
  public:
    Rule(Run& run, Parameters parameters);
    virtual ~Rule();
    Rule(const Rule&) = delete;
    Rule& operator=(const Rule&) = delete;

    /// What the constructor allocates, once the parameters are where they are trained.
    virtual void start() {}
    virtual void step() = 0;
    /// As if so many steps had passed that nothing new comes any more.
    virtual void settle() {}

    [[nodiscard]] const std::vector<Parameter*>& parameters() const noexcept { return parameters_.all; }
    /// A param_group: the parameters from `first` up to `last`.
    struct Group {
        std::size_t first, last;
    };
    [[nodiscard]] std::vector<Group> groups() const;
    [[nodiscard]] Bytes state_bytes() const;
    /// Of the gradients that exist, those included that wait elsewhere for a step.
    [[nodiscard]] Bytes gradient_bytes() const;

  protected:
    [[nodiscard]] std::size_t count() const noexcept { return parameters().size(); }
    [[nodiscard]] Parameter& parameter(std::size_t i) const { return *parameters()[i]; }
    [[nodiscard]] bool has_state(std::size_t i) const { return !state_[i].empty(); }
    [[nodiscard]] Tensor& state(std::size_t i, std::size_t name) { return state_[i][name]; }
    /// state[name] = tensor: what was there dies after it.
    void keep(std::size_t i, std::size_t name, Tensor tensor);
    /// State that is zeros, or a copy, of its own.
    void make(std::size_t i, std::size_t name, const Dims& sizes, Dtype dtype, Op op = Op::zeros);
    void make_like_parameter(std::size_t i, std::size_t name, Dtype dtype, Op op = Op::zeros);
    void make_like_parameter(std::size_t i, std::size_t name, Op op = Op::zeros);
    /// Adafactor's second moment: a mean a row and a mean a column; of one dimension `row` is the moment itself.
    void make_factored(std::size_t i, std::size_t row, std::size_t col, Dtype dtype);
    /// State that all parameters share.
    void share(const Dims& sizes, Dtype dtype);
    [[nodiscard]] bool shares() const noexcept { return !shared_.empty(); }

    /// param.register_post_accumulate_grad_hook for each: `hook(i)` is called in backward, as soon as the gradient of
    /// the i-th parameter is there. The engine's own hold on that gradient ends after it.
    template <class Hook>
    void register_hooks(bool sixteen_bit_only, const Hook& hook) {
        for (std::size_t i = 0; i < count(); ++i) {
            if (sixteen_bit_only && parameter(i).value.dtype() == Dtype::f32) continue;
            parameter(i).post_accumulate_grad = &hooks_.emplace_back([hook, i] { hook(i); });
            run_.accumulates_with_hooks = true;
        }
    }
    /// toolkit.optimizers.optimizer_utils.stochastic_grad_accummulation as that hook, for 16-bit parameters: gradients
    /// leave for a copy, to which later ones are added in fp32; the copy is cloned before, or not.
    void accumulate_apart(bool clones = true);
    /// step_hook: the copies become the gradients.
    void take_accumulated();
    /// One copy's, where a class hands them over itself.
    [[nodiscard]] Tensor take_accumulated(std::size_t i) { return std::exchange(accumulated_[i], Tensor()); }

    Run& run_;

  private:
    class StateScope;
    void put(std::size_t i, std::size_t name, Tensor tensor);

    Parameters parameters_;
    std::deque<std::function<void()>> hooks_;
    std::vector<std::vector<Tensor>> state_;
    std::vector<Tensor> shared_;
    std::vector<Tensor> accumulated_;  // param._accum_grad
};

/// One for each kind; a file of this folder each, or a few that are alike.
[[nodiscard]] std::unique_ptr<Rule> rule_of(const job::AdamW& kind, Run& run, Parameters parameters);
[[nodiscard]] std::unique_ptr<Rule> rule_of(const job::Sgd& kind, Run& run, Parameters parameters);
[[nodiscard]] std::unique_ptr<Rule> rule_of(const job::Adagrad& kind, Run& run, Parameters parameters);
[[nodiscard]] std::unique_ptr<Rule> rule_of(const job::Bitsandbytes& kind, Run& run, Parameters parameters);
[[nodiscard]] std::unique_ptr<Rule> rule_of(const job::Lion& kind, Run& run, Parameters parameters);
[[nodiscard]] std::unique_ptr<Rule> rule_of(const job::Prodigy& kind, Run& run, Parameters parameters);
[[nodiscard]] std::unique_ptr<Rule> rule_of(const job::DAdapt& kind, Run& run, Parameters parameters);
[[nodiscard]] std::unique_ptr<Rule> rule_of(const job::Adafactor& kind, Run& run, Parameters parameters);
[[nodiscard]] std::unique_ptr<Rule> rule_of(const job::Came& kind, Run& run, Parameters parameters);
[[nodiscard]] std::unique_ptr<Rule> rule_of(const job::AdamWScheduleFree& kind, Run& run, Parameters parameters);
[[nodiscard]] std::unique_ptr<Rule> rule_of(const job::Adam8& kind, Run& run, Parameters parameters);
[[nodiscard]] std::unique_ptr<Rule> rule_of(const job::Prodigy8bit& kind, Run& run, Parameters parameters);
[[nodiscard]] std::unique_ptr<Rule> rule_of(const job::Automagic& kind, Run& run, Parameters parameters);
[[nodiscard]] std::unique_ptr<Rule> rule_of(const job::Automagic2& kind, Run& run, Parameters parameters);
[[nodiscard]] std::unique_ptr<Rule> rule_of(const job::Automagic3& kind, Run& run, Parameters parameters);
[[nodiscard]] std::unique_ptr<Rule> rule_of(const job::AutomagicExperiment& kind, Run& run, Parameters parameters);

}  // namespace vram::run
