#include "shadow/memo.hpp"

namespace vram::shadow {

Memo::Memo(Run& run) : run_(run) {}
Memo::~Memo() = default;
void Memo::contribute(std::int32_t, Tensor) {}
void Memo::play_backward(Node&, Tensors, Engine&) { static_cast<void>(run_); }

Tensors call(Run& run, const CallSpec& spec, Tensors args, const std::function<Tensors(const Tensors&)>& function) {
    static_cast<void>(spec);
    run.gemm();
    return function(args);
}

std::int32_t spec_id(Run& run, std::string_view class_name, const std::vector<std::int64_t>& facts) {
    std::vector<std::int64_t> key(facts);
    for (char c : class_name) key.push_back(c);
    const auto [at, fresh] = run.specs.emplace(std::move(key), static_cast<std::int32_t>(run.specs.size()));
    static_cast<void>(fresh);
    return at->second;
}

}  // namespace vram::shadow
