#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace vram::nn::adapter {

/// Whether a linear of this qualified name gets an adapter: "attention", "blocks" and "all" as job-file.md §1 has them, else
/// regular expressions (ECMAScript) of which one must be found in the name; they have been checked when the job was read.
[[nodiscard]] std::function<bool(std::string_view)> targets(const std::vector<std::string>& names);

}  // namespace vram::nn::adapter
