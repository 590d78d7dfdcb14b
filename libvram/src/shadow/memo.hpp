#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shadow/run.hpp"

namespace vram::shadow {

/// Which call it is: blocks of one spec, called in one way, are played alike.
struct CallSpec {
    std::int32_t block = -1;   // spec_id; -1: plays always
    std::int32_t variant = 0;  // how it is called: plainly, checkpointed
    const std::vector<Parameter*>* trainable =
        nullptr;        // the block's own, in the order of building; lives as long as the block
    bool gemms = true;  // opens the thread's cuBLAS workspace
};

/// What is called. It may move out of its arguments: then these die when it lets go, else when the call has returned.
using Callee = std::function<Tensors(Tensors&)>;

/// Plays `function(args)`; a call that repeats (same spec, layouts, aliases, modes) is copied from the first one's
/// trace, event by event. `args` are held until it returns, as Module.__call__ does, but for what `function` takes
/// over. `function` depends on nothing but the block that `spec` names, which must live until the call's graph is gone,
/// and on its arguments.
[[nodiscard]] Tensors call(Run& run, const CallSpec& spec, Tensors args, const Callee& function);

/// A number for everything that a block's forward depends on; equal for equal facts, within one run.
[[nodiscard]] std::int32_t spec_id(Run& run, std::string_view class_name, const std::vector<std::int64_t>& facts);

/// Remembers what calls did. A call's forward and its backward are each recorded once, on stand-ins for what comes from
/// outside, and then copied: events with slots moved, and between them the few steps that touch what lives longer than
/// the call.
class Memo {
  public:
    explicit Memo(Run& run);
    ~Memo();
    [[nodiscard]] Tensors forward(const CallSpec& spec, Tensors& args, const Callee& function);
    /// Plays a call's backward; gradients of its inputs land in the buffers of the nodes that its edges lead to.
    void backward(Node& node, Tensors grads);
    /// Lets recorded graphs go that no backward came for: they hold weights. Only where their events leave no trace.
    void drop_graphs();

  private:
    friend struct Macro;
    using Key = std::vector<std::int64_t>;
    struct KeyHash {
        std::size_t operator()(const Key& key) const noexcept;
    };
    struct Slice;
    struct Backward;
    struct RecordedForward;
    struct Look;
    using Looks = Small<Look, 8>;
    class Groups;
    class Capture;
    struct Played;

    [[nodiscard]] std::unique_ptr<Macro> record_forward(const CallSpec& spec, const Tensors& args,
                                                        const Callee& function);
    [[nodiscard]] std::unique_ptr<RecordedForward> play_forward(const Macro& macro, Capture& capture);
    [[nodiscard]] std::unique_ptr<Backward> record_backward(const Node& node, Key key, const Looks& incoming,
                                                            const Looks& waiting,
                                                            std::span<Storage* const> gradient_storages,
                                                            const Small<std::uint8_t, 12>& shared);
    [[nodiscard]] Tensor look_at(const Look& look, const std::vector<StorageRef>& storages) const;
    [[nodiscard]] Tensors stand_ins(const Macro& macro, const std::vector<StorageRef>& outsiders) const;
    static Look look_of(const Tensor& tensor, Groups& groups);
    static void add(Key& key, const Look& look);
    void append(const Slice& slice, const Stretch& stretch, Slot offset);

    Run& run_;
    std::unordered_map<Key, std::unique_ptr<Macro>, KeyHash> macros_;
    std::vector<Macro*> with_graph_;  // in the order of recording
};

}  // namespace vram::shadow
