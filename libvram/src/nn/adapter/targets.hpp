#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace vram::nn::adapter {

/// Whether a linear of this qualified name gets an adapter: "attention", "blocks" and "all" as job-file.md §1 has them,
/// else regular expressions of which one must be found in the name; `is_pattern` holds of each.
[[nodiscard]] std::function<bool(std::string_view)> targets(const std::vector<std::string>& names);

/// Whether it is a regular expression (ECMAScript, without back-references, whose search may take for ever, and with
/// counts that multiply to no more than 256) that can be compiled.
[[nodiscard]] bool is_pattern(const std::string& text);

}  // namespace vram::nn::adapter
