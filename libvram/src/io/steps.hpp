#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "vram/io/document.hpp"

namespace vram::io {

struct Step {
    std::string_view key;             // of a map, or empty:
    std::optional<std::size_t> item;  // of a list
};

/// A dotted path, taken apart; the keys are views of it. Nothing if malformed: an empty part, a bracket without a
/// number in it, more than 32 steps.
[[nodiscard]] std::optional<std::vector<Step>> steps_of(std::string_view path);

/// How far steps lead.
struct Met {
    const Node* node = nullptr;      // the last that is there
    const Member* member = nullptr;  // it as a map's; null of an item and of the root
    const Node* parent = nullptr;    // null of the root
    std::size_t steps = 0;           // that are there
};
[[nodiscard]] Met walk(const Node& root, const std::vector<Step>& steps);

}  // namespace vram::io
