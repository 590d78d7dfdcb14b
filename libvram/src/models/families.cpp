#include "models/families.hpp"

#include <array>
#include <stdexcept>

namespace vram::models {

std::span<const Family> families() {
    static constexpr std::array list{
#define VRAM_FAMILY(name) Family{#name, name::build},
#include "models/families.def"
#undef VRAM_FAMILY
    };
    return list;
}

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    for (const Family& family : families())
        if (family.id == profile.family) return family.build(weights, profile);
    throw std::logic_error("profile " + profile.id + ": no family " + profile.family);
}

}  // namespace vram::models
