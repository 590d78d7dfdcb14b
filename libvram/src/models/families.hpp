#pragma once

#include "models/model.hpp"

/// What each family file offers. A new family is its file and a line in families.def.
namespace vram::models {

#define VRAM_FAMILY(name)                                                                                   \
    namespace name {                                                                                        \
    [[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile); \
    }
#include "models/families.def"
#undef VRAM_FAMILY

}  // namespace vram::models
