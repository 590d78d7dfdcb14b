#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

namespace vram::io {

struct Step {
    std::string_view key;             // of a map, or empty:
    std::optional<std::size_t> item;  // of a list
};

/// A dotted path, taken apart; the keys are views of it. Nothing if malformed: an empty part, a bracket without a
/// number in it, more than 32 steps.
[[nodiscard]] std::optional<std::vector<Step>> steps_of(std::string_view path);

}  // namespace vram::io
