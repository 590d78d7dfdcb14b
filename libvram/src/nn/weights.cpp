#include "nn/weights.hpp"

#include "base/blocks.hpp"
#include "shadow/memo.hpp"
#include "shadow/provenance.hpp"

namespace vram::nn {

using shadow::Category;
using shadow::Dims;
using shadow::Parameter;

std::int64_t QuantizedLayer::in() const {
    std::int64_t elements = 1;
    for (int i = 1; i < weight.rank(); ++i) elements = checked_mul(elements, weight[i]);
    return elements;
}
Dtype QuantizedLayer::dtype() const noexcept { return weights->rules().dtype; }
shadow::Run& QuantizedLayer::run() const noexcept { return weights->run(); }

Weights::Weights(shadow::Run& run, std::string component, Rules rules)
    : run_(run), component_(std::move(component)), rules_(std::move(rules)) {}

Parameter& Weights::base(const Dims& sizes, Dtype dtype, bool buffer) {
    Parameter& parameter = base_.emplace_back();
    parameter.value = run_.on_cpu(sizes, dtype);
    parameter.buffer = buffer;
    if (rules_.train_base && !buffer && is_floating(dtype)) run_.make_leaf(parameter);
    return parameter;
}

Parameter& Weights::adapter(const Dims& sizes, Dtype dtype, bool buffer) {
    Parameter& parameter = adapter_.emplace_back();
    parameter.value = run_.on_cpu(sizes, dtype);
    parameter.buffer = buffer;
    if (!buffer) run_.make_leaf(parameter);
    return parameter;
}

namespace {
/// Bits of Run::module_modes, from Weights::modes_at on.
enum : std::int32_t { adapters_off = 1, adapters_evaluate = 2, modules_train = 4 };

void note(shadow::Run& run, const Parameter& parameter) {
    if (run.provenance != nullptr) run.provenance->put(&parameter, parameter.value.storage()->slot);
}
}  // namespace

// Each changes its own bits alone: the others may be another model's.
void Weights::set_adapters(bool active, bool training) {
    adapters_active_ = active;
    adapters_training_ = training;
    const std::int32_t modes = (active ? 0 : adapters_off) | (training ? 0 : adapters_evaluate);
    run_.module_modes = (run_.module_modes & ~((adapters_off | adapters_evaluate) << modes_at)) | (modes << modes_at);
}

void Weights::train(bool mode) {
    training_ = mode;
    const std::int32_t modes = mode ? modules_train : 0;
    run_.module_modes = (run_.module_modes & ~(modules_train << modes_at)) | (modes << modes_at);
}

void Weights::place(std::deque<Parameter>& group, Category category) {
    const std::uint16_t before = run_.activation_tag;
    run_.activation_tag = run_.tag(component_, category);
    for (Parameter& parameter : group)
        if (!parameter.stays_on_host) place(parameter);
    run_.activation_tag = before;
}

void Weights::place(Parameter& parameter) {
    if (parameter.value.storage()->slot >= 0) return;
    shadow::Tensor value =
        run_.empty(parameter.value.layout(), parameter.buffer ? shadow::Op::buffer : shadow::Op::parameter);
    value.set_node(parameter.value.node(), parameter.value.output_number());
    parameter.value = std::move(value);
    note(run_, parameter);
}

void Weights::base_to_gpu() { place(base_, Category::weights); }
void Weights::adapter_to_gpu() { place(adapter_, Category::adapter); }
void Weights::to_gpu() {
    base_to_gpu();
    adapter_to_gpu();
}

void Weights::to_gpu(Parameter& base) {
    const std::uint16_t before = run_.activation_tag;
    run_.activation_tag = run_.tag(component_, Category::weights);
    place(base);
    run_.activation_tag = before;
}

namespace {
void take_away(shadow::Run& run, Parameter& parameter) {
    shadow::Tensor value = run.on_cpu(parameter.value.layout());
    value.set_node(parameter.value.node(), parameter.value.output_number());
    parameter.value = std::move(value);
}
void take_away(shadow::Run& run, std::deque<Parameter>& group) {
    for (Parameter& parameter : group) take_away(run, parameter);
}
}  // namespace

void Weights::put(Parameter& base, const shadow::Tensor& value) {
    shadow::Tensor stored(value.storage_ref(), base.value.layout());
    stored.set_node(base.value.node(), base.value.output_number());
    base.value = std::move(stored);
    note(run_, base);
}
void Weights::to_cpu(Parameter& base) { take_away(run_, base); }

void Weights::leave_managed_on_host() {
    for (Parameter* parameter : managed) {
        take_away(run_, *parameter);
        parameter->stays_on_host = true;
    }
    if (rules_.inner != nullptr) rules_.inner->leave_managed_on_host();
}

void Weights::base_to_cpu() { take_away(run_, base_); }
void Weights::to_cpu() {
    take_away(run_, base_);
    take_away(run_, adapter_);
}

namespace {
Bytes bytes_of(const std::deque<Parameter>& group) {
    Bytes total = 0;
    for (const Parameter& parameter : group) total = checked_add(total, in_blocks(parameter.value.layout()->bytes));
    return total;
}
std::int64_t count_of(const std::deque<Parameter>& group) {
    std::int64_t total = 0;
    for (const Parameter& parameter : group)
        if (!parameter.buffer) total = checked_add(total, parameter.value.numel());
    return total;
}
}  // namespace

Bytes Weights::base_bytes() const { return bytes_of(base_); }
Bytes Weights::adapter_bytes() const { return bytes_of(adapter_); }
std::int64_t Weights::base_parameters() const { return count_of(base_) + replaced_parameters; }
std::int64_t Weights::adapter_parameters() const { return count_of(adapter_); }

std::vector<Parameter*> Weights::trainable() {
    std::vector<Parameter*> out;
    for (std::deque<Parameter>* group : {&base_, &adapter_})
        for (Parameter& parameter : *group)
            if (parameter.value.requires_grad()) out.push_back(&parameter);
    return out;
}

}  // namespace vram::nn
