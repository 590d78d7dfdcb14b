#include "shadow/memo.hpp"

#include <doctest/doctest.h>

#include "shadow/ops.hpp"

using namespace vram;
using namespace vram::shadow;

namespace {

/// A causal call that keeps the end of its input for the next: {x, kept} → {y, kept}. It lets go of what was kept
/// before y is made.
Tensors step(Tensors& args) {
    Tensor kept = args.size() > 1 ? std::move(args[1]) : Tensor();
    const Tensor x = args[0];
    Tensor wide = kept.defined() ? cat({kept, x}, 1) : clone(x);
    kept = clone(slice(x, 1, -1, x.size(1)));
    Tensor y = silu(wide);
    y = mul(y, y);
    return {y, kept};
}

/// What three such calls leave in a trace, each handed what the one before kept.
Trace played(bool memo, bool trains, bool held_outside) {
    Run run({}, memo);
    Parameter parameter;
    parameter.value = run.empty({2, 4, 8}, Dtype::f32, Op::parameter);
    if (trains) run.make_leaf(parameter);
    {
        Tensors kept;
        Tensor loss;
        for (int i = 0; i < 3; ++i) {
            Tensors args{parameter.value};
            Tensors outside;
            for (Tensor& entry : kept) {
                if (held_outside) outside.push_back(entry);
                args.push_back(std::move(entry));
            }
            kept.clear();
            Tensors results = call(run, {7, 0, nullptr, false}, std::move(args), step);
            const Tensor own = sum_all(results[0]);
            loss = loss.defined() ? add(loss, own) : own;
            kept.push_back(std::move(results[1]));
        }
        if (trains) run.backward(loss);
    }
    return run.trace;
}

}  // namespace

TEST_CASE("what a call takes over dies inside the call, copied or played") {
    const Trace trace = played(true, false, false);
    // In the second call: what was kept goes once it is in the wide input and the new one has taken its name.
    Slot kept = -1;
    int births = 0;
    std::ptrdiff_t death = -1, last_birth = -1;
    for (std::size_t i = 0; i < trace.events.size(); ++i) {
        const Event& event = trace.events[i];
        if (event.kind == EventKind::alloc && ++births == 3) kept = event.slot;  // parameter, wide, kept
        if (event.kind == EventKind::free && event.slot == kept) death = static_cast<std::ptrdiff_t>(i);
        if (event.kind == EventKind::alloc && births == 9)
            last_birth = static_cast<std::ptrdiff_t>(i);  // silu of the second
    }
    CHECK(death > 0);
    CHECK(death < last_birth);

    for (const bool trains : {false, true})
        for (const bool held_outside : {false, true}) {
            CAPTURE(trains);
            CAPTURE(held_outside);
            const Trace copied = played(true, trains, held_outside), direct = played(false, trains, held_outside);
            CHECK(copied.events == direct.events);
            CHECK(copied.slots == direct.slots);
        }
}
