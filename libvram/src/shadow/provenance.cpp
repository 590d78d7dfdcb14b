#include "shadow/provenance.hpp"

#include <utility>

#include "shadow/memo.hpp"

namespace vram::shadow {

std::string Provenance::parameter_at(Slot slot) const {
    const auto found = slots_.find(slot);
    return found == slots_.end() ? std::string() : found->second;
}

void Provenance::name_block(const void* identity, std::string_view name, std::string_view class_name) {
    block_at_[identity] = blocks_.size();
    blocks_.push_back({std::string(name), std::string(class_name)});
}

void Provenance::name_parameter(const Parameter* parameter, std::string name) { names_[parameter] = std::move(name); }

void Provenance::put(const Parameter* parameter, Slot slot) {
    const auto name = names_.find(parameter);
    if (name != names_.end()) put(slot, name->second);
}

void Provenance::put(Slot slot, const std::string& name) {
    if (depth_ == 0 && slot >= 0) slots_[slot] = name;
}

Noted::Noted(Run& run, const void* identity, bool backward)
    : run_(run), to_(run.memo() == nullptr ? nullptr : run.memo()->provenance) {
    if (to_ == nullptr) return;
    const auto block = to_->block_at_.find(identity);
    known_ = to_->depth_++ == 0 && block != to_->block_at_.end();
    if (known_) call_ = {run.trace.events.size(), 0, block->second, backward};
}

Noted::~Noted() {
    if (to_ == nullptr) return;
    --to_->depth_;
    call_.end = run_.trace.events.size();
    if (known_ && call_.end > call_.first) to_->calls_.push_back(call_);
}

}  // namespace vram::shadow
