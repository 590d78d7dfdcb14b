#pragma once

#include <functional>
#include <vector>

#include "shadow/run.hpp"

namespace vram::shadow {

/// One call under torch.utils.checkpoint(use_reentrant=False). Forward runs with grad while saved tensors are only
/// counted; the first one that backward asks for plays the call again, up to the last value that is needed (early
/// stop). Source: torch/utils/checkpoint.py, _CheckpointFrame, _checkpoint_hook, _recomputation_hook.
struct Frame {
    Run* run = nullptr;
    std::int32_t refs = 0;
    Tensors args;  // held until every saved value of the call is gone,
    /// or, of a call within a checkpointed call, saved as that one's values are: played again with it.
    struct Argument {
        Saved value;
        NodeRef node;  // undefined tensors and those without history have none
        int output = 0;
        bool cut_off = false;
    };
    std::vector<Argument> saved_args;
    std::function<Tensors(const Tensors&)> function;
    Run::Autocast autocast;
    bool recomputed = false;
    std::int32_t counter = 0;  // of the recomputation
    struct Holder {
        bool alive = true;
        Tensor value;
    };
    std::vector<Holder> holders;
};

/// Ends a recomputation once everything needed is there. Never leaves Run::unpack.
struct StopRecomputation {};

/// function(args) with gradient checkpointing if grad mode is on, else plainly. `function` must not hold tensors of its
/// own that die before backward; what it reads besides `args` (rotary tables, masks) belongs into `args`.
[[nodiscard]] Tensors checkpoint(Run& run, std::function<Tensors(const Tensors&)> function, Tensors args);

/// The same under torch.utils.checkpoint(use_reentrant=True): forward without grad, and backward plays the whole call
/// again on detached arguments, then a backward of its own. Where no argument requires grad, neither do the outputs,
/// whatever `function` trains. Source: torch/utils/checkpoint.py, CheckpointFunction.
[[nodiscard]] Tensors checkpoint_reentrant(Run& run, std::function<Tensors(const Tensors&)> function, Tensors args);

/// x.requires_grad_(True) of an activation without history, which callers of reentrant checkpointing ask for: a leaf
/// that has its gradient beside it until the tape goes. Nothing where grad mode is off or x has a history.
void requires_grad_(Tensor& x);

}  // namespace vram::shadow
