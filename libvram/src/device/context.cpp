#include "vram/device/context.hpp"

namespace vram::device {

using profile::DeviceProfile;
using profile::Evidence;
using profile::MemoryRange;
using profile::Os;
using shadow::Category;

namespace {
// 666,632,192 B eager against 287,047,680 B lazy on one card. Source: pytorch PR 86509.
constexpr Bytes eager_extra = 666632192 - 287047680;
}  // namespace

std::vector<OutsidePart> outside_parts(const DeviceProfile& card, Os os, ModuleLoading loading) {
    std::vector<OutsidePart> out;
    OutsidePart context{Category::context, card.context.low, card.context.high, card.context.source};
    if (os == Os::windows) {
        // Nobody published one of Windows. ComfyUI keeps 600 MiB free there instead of Linux's 400
        // (comfy/model_management.py, EXTRA_RESERVED_VRAM).
        context.high = context.high * 3 / 2;
        context.source += "; on Linux, up to half as much again for Windows";
    }
    out.push_back(std::move(context));
    if (loading == ModuleLoading::eager)
        out.push_back({Category::libraries, eager_extra, 2 * eager_extra,
                       "eager against lazy loading on one card, pytorch PR 86509 (2022); libraries have grown since"});
    return out;
}

MemoryRange context_by_size(std::int32_t multiprocessors) {
    // Steps that hold every public number of a process in full swing; see device_profiles/ for each.
    struct Step {
        std::int32_t multiprocessors;
        Bytes low, high;
    };
    constexpr Step steps[] = {{60, 83 * MiB, 349 * MiB}, {90, 124 * MiB, 456 * MiB}, {150, 379 * MiB, 760 * MiB}};
    const char* source = "range over measured cards of about this many multiprocessors, from out-of-memory messages";
    for (const Step& step : steps)
        if (multiprocessors <= step.multiprocessors) return {step.low, step.high, Evidence::nominal, source};
    return {460 * MiB, 900 * MiB, Evidence::nominal, source};
}

}  // namespace vram::device
