#include "shadow/provenance.hpp"

#include <utility>

#include "shadow/run.hpp"

namespace vram::shadow {
namespace {

/// As it is called within the sources, wherever these lie.
std::string below_sources(std::string_view file) {
    constexpr std::string_view root = "libvram/src/";
    const std::size_t at = file.rfind(root);
    return std::string(at == std::string_view::npos ? file : file.substr(at + root.size()));
}

}  // namespace

Provenance::Birth Provenance::birth(std::size_t event) const {
    return event < births_.size() ? births_[event] : Birth{};
}

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

void Provenance::note(std::size_t event, bool backward) {
    births_.resize(event);
    births_.push_back({origin_, backward});
}

void Provenance::called(const char* file, int line) {
    const auto [at, fresh] = line_at_.try_emplace({file, line}, -1);
    if (fresh) {
        std::string name = below_sources(file);
        if (!name.starts_with("shadow/") && !name.starts_with("nn/")) {
            at->second = static_cast<std::int32_t>(lines_.size());
            lines_.push_back({std::move(name), line});
        }
    }
    if (at->second >= 0) origin_.line = at->second;
}

OriginScope::OriginScope(Run& run, Origin origin) : to_(run.provenance) {
    if (to_ == nullptr) return;
    before_ = std::exchange(to_->origin_, origin);
}

ForwardScope::ForwardScope(Run& run)
    : OriginScope(run, {run.provenance == nullptr ? -1 : run.provenance->origin().block, -1}) {}

Called::Called(Run& run, const void* identity) : ForwardScope(run) {
    if (to_ == nullptr) return;
    const auto block = to_->block_at_.find(identity);
    if (to_->depth_++ == 0)
        to_->origin_.block = block == to_->block_at_.end() ? -1 : static_cast<std::int32_t>(block->second);
}

Called::~Called() {
    if (to_ != nullptr) --to_->depth_;
}

}  // namespace vram::shadow
