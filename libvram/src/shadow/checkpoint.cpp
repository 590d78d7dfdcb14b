#include "shadow/checkpoint.hpp"

namespace vram::shadow {

void add_ref(Frame* frame) noexcept { ++frame->refs; }
void release(Frame* frame) noexcept {
    if (--frame->refs == 0) delete frame;
}

Saved& Saved::operator=(Saved&& other) noexcept {
    std::swap(storage, other.storage);
    std::swap(layout, other.layout);
    std::swap(frame, other.frame);
    std::swap(index, other.index);
    return *this;
}

Saved::~Saved() {
    if (!frame) return;
    Frame::Holder& holder = frame->holders[static_cast<std::size_t>(index)];
    holder.alive = false;
    holder.value = Tensor();
}

namespace {
class HookScope {
  public:
    HookScope(Run& run, Run::Hook hook) : run_(run) { run.hooks.push_back(hook); }
    ~HookScope() { run_.hooks.pop_back(); }
    HookScope(const HookScope&) = delete;
    HookScope& operator=(const HookScope&) = delete;

  private:
    Run& run_;
};

void recompute(Run& run, Frame& frame) {
    frame.recomputed = true;
    // The preserved context re-enters autocast: outside of any other, its cache starts and ends empty.
    const AutocastScope autocast(run, frame.autocast);
    const HookScope hook(run, {&frame, true});
    const EnableGrad grad(run);
    const bool in_backward = run.in_backward;
    try {
        const Tensors outputs = frame.function(frame.args);
    } catch (const StopRecomputation&) {
    }
    run.in_backward = in_backward;
}
}  // namespace

Tensors checkpoint(Run& run, std::function<Tensors(const Tensors&)> function, Tensors args) {
    if (!run.grad_enabled()) return function(args);
    Ref<Frame> frame(new Frame);
    frame->run = &run;
    frame->function = std::move(function);
    frame->args = std::move(args);
    frame->autocast = run.autocast();
    const std::uint16_t kept = run.tag(run.trace.tags[run.activation_tag].component, Category::checkpoints);
    for (const Tensor& arg : frame->args)
        if (arg.defined() && arg.requires_grad() && arg.storage()->tag == run.activation_tag)
            run.retag(*arg.storage(), kept);
    const HookScope hook(run, {frame.get(), false});
    return frame->function(frame->args);
}

void Run::save(Node& node, const Tensor& tensor) {
    Saved saved;
    saved.layout = tensor.layout();
    if (hooks.empty()) {
        saved.storage = tensor.storage_ref();
    } else if (Frame& frame = *hooks.back().frame; !hooks.back().recompute) {
        saved.frame = Ref<Frame>(&frame);
        saved.index = static_cast<std::int32_t>(frame.holders.size());
        frame.holders.emplace_back();
    } else {
        saved.storage = tensor.storage_ref();
        const auto index = static_cast<std::size_t>(frame.counter++);
        if (index < frame.holders.size() && frame.holders[index].alive) frame.holders[index].value = tensor.detach();
        if (index + 1 >= frame.holders.size()) {
            node.saved.push_back(std::move(saved));
            throw StopRecomputation{};
        }
    }
    node.saved.push_back(std::move(saved));
}

Tensor Run::unpack(Saved& saved) {
    if (!saved.defined()) return {};
    if (!saved.frame) return {saved.storage, saved.layout};
    if (!saved.frame->recomputed) recompute(*this, *saved.frame);
    return std::move(saved.frame->holders[static_cast<std::size_t>(saved.index)].value);
}

}  // namespace vram::shadow
