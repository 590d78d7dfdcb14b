#pragma once

#include <optional>
#include <string>

#include "vram/io/document.hpp"
#include "vram/profile/model_profile.hpp"

namespace vram::profile {

/// What a Config holds of a value; nothing of a null, a map, or a list of mixed or other types.
[[nodiscard]] std::optional<Config::Value> config_value(const io::Node& node);

/// As a person writes it: "19", "[16, 56, 56]", "true".
[[nodiscard]] std::string spelled(const Config::Value& value);

}  // namespace vram::profile
