#include "run/optimizers/rule.hpp"

#include "base/blocks.hpp"
#include "run/optimizers/arithmetic.hpp"

namespace vram::run {

using shadow::Category;

Parameters::Parameters(const std::vector<std::vector<Parameter*>>& groups) {
    for (const std::vector<Parameter*>& group : groups) {
        all.insert(all.end(), group.begin(), group.end());
        ends.push_back(all.size());
    }
}

Rule::Rule(Run& run, Parameters parameters)
    : run_(run), parameters_(std::move(parameters)), state_(count()), accumulated_(count()) {}

std::vector<Rule::Group> Rule::groups() const {
    std::vector<Group> out;
    for (const std::size_t end : parameters_.ends) out.push_back({out.empty() ? 0 : out.back().last, end});
    return out;
}

Rule::~Rule() {
    for (Parameter* parameter : parameters()) parameter->post_accumulate_grad = nullptr;
    run_.accumulates_with_hooks = false;
}

/// What is made within is a parameter's optimizer state.
class Rule::StateScope {
  public:
    StateScope(Run& run, const Parameter& parameter) : run_(run), before_(run.activation_tag) {
        run.activation_tag =
            run.tag(run.trace.tags[parameter.value.storage()->tag].component, Category::optimizer_state);
    }
    ~StateScope() { run_.activation_tag = before_; }
    StateScope(const StateScope&) = delete;
    StateScope& operator=(const StateScope&) = delete;

  private:
    Run& run_;
    std::uint16_t before_;
};

void Rule::put(std::size_t i, std::size_t name, Tensor tensor) {
    std::vector<Tensor>& named = state_[i];
    if (named.size() <= name) named.resize(name + 1);
    named[name] = std::move(tensor);
}

void Rule::keep(std::size_t i, std::size_t name, Tensor tensor) {
    run_.retag(*tensor.storage(),
               run_.tag(run_.trace.tags[parameter(i).value.storage()->tag].component, Category::optimizer_state));
    put(i, name, std::move(tensor));
}

void Rule::make(std::size_t i, std::size_t name, const Dims& sizes, Dtype dtype, Op op) {
    const StateScope scope(run_, parameter(i));
    put(i, name, run_.empty(sizes, dtype, op));
}

void Rule::make_like_parameter(std::size_t i, std::size_t name, Dtype dtype, Op op) {
    const StateScope scope(run_, parameter(i));
    put(i, name, run_.empty_like(parameter(i).value, dtype, op));
}

void Rule::make_like_parameter(std::size_t i, std::size_t name, Op op) {
    make_like_parameter(i, name, parameter(i).value.dtype(), op);
}

void Rule::make_factored(std::size_t i, std::size_t row, std::size_t col, Dtype dtype) {
    const Tensor& p = parameter(i).value;
    if (!is_factored(p)) return make(i, row, p.sizes(), dtype);
    make(i, row, row_of(p.sizes()), dtype);
    make(i, col, col_of(p.sizes()), dtype);
}

void Rule::share(const Dims& sizes, Dtype dtype) {
    const StateScope scope(run_, *parameters().front());
    shared_.push_back(run_.empty(sizes, dtype, Op::to_device));
}

void Rule::accumulate_apart(bool clones) {
    register_hooks(true, [this, clones](std::size_t i) {
        Parameter& param = parameter(i);
        Tensor& accumulated = accumulated_[i];
        if (!accumulated.defined()) {
            accumulated = run_.empty_like(param.grad, Op::clone);
            run_.retag(*accumulated.storage(), param.grad.storage()->tag);
        } else {
            const Tensor grad_fp32 = to_float(clones ? clone(accumulated) : accumulated);
            static_cast<void>(to_float(param.grad));  // grad_fp32.add_(..)
            copy_stochastic(accumulated, grad_fp32);
        }
        param.grad = Tensor();
    });
}

void Rule::take_accumulated() {
    for (std::size_t i = 0; i < count(); ++i)
        if (accumulated_[i].defined()) parameter(i).grad = take_accumulated(i);
}

Bytes Rule::state_bytes() const {
    Bytes total = 0;
    const auto add = [&](const Tensor& tensor) {
        if (tensor.defined() && tensor.storage()->slot >= 0)
            total = checked_add(total, in_blocks(tensor.storage()->bytes));
    };
    for (const Tensor& tensor : shared_) add(tensor);
    for (const auto& tensors : state_)
        for (const Tensor& tensor : tensors) add(tensor);
    return total;
}

Bytes Rule::gradient_bytes() const {
    Bytes total = 0;
    const auto add = [&](const Tensor& gradient) {
        if (gradient.defined()) total = checked_add(total, in_blocks(gradient.storage()->bytes));
    };
    for (const Parameter* parameter : parameters()) add(parameter->grad);
    for (const Tensor& gradient : accumulated_) add(gradient);
    return total;
}

}  // namespace vram::run
