#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "shadow/memo.hpp"

/// What a memo keeps of a call: how it is recorded stands in recording.cpp, how it is played in memo.cpp.
namespace vram::shadow {

/// A tensor of a call, said without a storage: which storage it looks at, and how.
struct Memo::Look {
    std::int32_t storage = -1;   // an index whose meaning the holder says; -1: host memory
    LayoutRef layout = nullptr;  // null: undefined
    bool view = false, has_history = false, shared = false, cut_off = false;
};

/// Numbers storages in the order in which they are met.
class Memo::Groups {
  public:
    std::int32_t of(Storage* storage) {
        if (storage->slot < 0) return -1;
        for (std::size_t i = 0; i < met_.size(); ++i)
            if (met_[i] == storage) return static_cast<std::int32_t>(i);
        met_.push_back(storage);
        return static_cast<std::int32_t>(met_.size() - 1);
    }
    [[nodiscard]] std::span<Storage* const> met() const noexcept { return {met_.begin(), met_.size()}; }

  private:
    Small<Storage*, 12> met_;
};

/// What a recorded stretch of a trace does. Slots of the recording: below `first` they stand for storages from outside,
/// from there on they are born in the stretch. A step is done before the event at `at` is copied.
struct Memo::Slice {
    enum class Step : std::uint8_t {
        birth,  // of a slot that outlives the stretch: `index` among the survivors
        drop,   // of what came from outside: `index` among the outsiders
        die,    // of a survivor of this very stretch that something outside already took over: never emitted
        retag,  // of an outsider
    };
    struct Action {
        std::size_t at = 0;
        Step step = Step::birth;
        std::int32_t index = 0;
        Event event;
        Stretch before;  // the events since the action before it
    };
    std::vector<Event> events;  // of slots that live and die inside, counted from 0
    std::vector<Action> actions;
    Stretch after;   // the events that no action follows
    Slot slots = 0;  // born inside
    std::int32_t survivors = 0;
    AttentionCalls calls;
};

/// The backward of a call, for one pattern of incoming gradients.
struct Memo::Backward {
    Key key;
    std::unique_ptr<Slice> slice;
    std::vector<Look> buffers;                            // one an edge: what lies in the node's buffer afterwards
    std::vector<std::pair<std::size_t, Look>> gradients;  // of trainable parameters, by index
};

/// The recorded call itself, stopped after its forward: its graph, until a backward is recorded from it. Slots and
/// storages are those of the recording.
struct Memo::RecordedForward {
    Tensors roots;               // of the outputs that require grad: nodes without storages
    std::vector<NodeRef> sinks;  // by edge
    Slot first = 0, end = 0;     // what forward gave birth to
    std::vector<std::int32_t> survivor_of;
    const std::vector<Parameter*>* trainable = nullptr;
};

/// A call as it was recorded.
struct Macro {
    using Look = Memo::Look;

    // What the call is handed: storages by group, tags and layouts; which inputs share an edge.
    std::vector<Look> inputs;
    std::vector<Bytes> group_bytes;
    std::vector<std::uint16_t> group_tags;
    std::vector<std::int32_t> input_edges;  // input → edge, or -1
    std::int32_t edges = 0;
    bool has_node = false;
    Run::Autocast autocast;
    std::uint16_t tag = 0;

    std::unique_ptr<Memo::Slice> slice;
    std::vector<Look> outputs;                        // storage: group, or groups + survivor
    std::vector<std::int32_t> held;                   // by the graph: groups, or groups + survivor
    std::vector<std::pair<std::size_t, Look>> casts;  // autocast's cache: trainable parameter → cast

    std::unique_ptr<Memo::RecordedForward> forward;  // until a backward is recorded from it

    // Of the latest call; equal calls may stand in for each other.
    Callee function;
    const std::vector<Parameter*>* trainable = nullptr;
    std::vector<std::unique_ptr<Memo::Backward>> backwards;
};

}  // namespace vram::shadow
