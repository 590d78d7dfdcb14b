#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shadow/run.hpp"

namespace vram::shadow {

class Engine;
struct Macro;

/// Which call it is: blocks of one spec, called in one way, are played alike.
struct CallSpec {
    std::int32_t block = -1;  // spec_id; -1: plays always
    std::int32_t variant = 0;
    const std::vector<Parameter*>* trainable = nullptr;
};

/// Plays `function(args)`; a call that repeats (same spec, layouts, aliases, modes) is copied from the first one's trace.
/// `args` are held until it returns, as Module.__call__ does.
[[nodiscard]] Tensors call(Run& run, const CallSpec& spec, Tensors args, const std::function<Tensors(const Tensors&)>& function);

/// A number for everything that a block's forward depends on; equal for equal facts, within one run.
[[nodiscard]] std::int32_t spec_id(Run& run, std::string_view class_name, const std::vector<std::int64_t>& facts);

class Memo {
  public:
    explicit Memo(Run& run);
    ~Memo();
    void contribute(std::int32_t sink, Tensor grad);
    void play_backward(Node& node, Tensors grads, Engine& engine);

  private:
    Run& run_;
};

}  // namespace vram::shadow
