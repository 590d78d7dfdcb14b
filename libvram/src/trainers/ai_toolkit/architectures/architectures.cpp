#include <algorithm>
#include <array>

#include "trainers/ai_toolkit/architectures/architecture.hpp"

namespace vram::trainers::ai_toolkit {

std::span<const Architecture* const> architectures() {
    static constexpr std::array all{
#define VRAM_ARCHITECTURE(name) &name::architecture,
#include "trainers/ai_toolkit/architectures/architectures.def"
#undef VRAM_ARCHITECTURE
    };
    return all;
}

const Architecture* architecture_named(std::string_view arch) {
    for (const Architecture* one : architectures())
        if (std::find(one->names.begin(), one->names.end(), arch) != one->names.end()) return one;
    return nullptr;
}

const Architecture* architecture_of(const profile::ModelProfile& profile) {
    for (const Architecture* one : architectures())
        if (one->plays(profile)) return one;
    return nullptr;
}

}  // namespace vram::trainers::ai_toolkit
