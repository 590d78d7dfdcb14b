#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "profile/config_json.hpp"
#include "vram/io/tensor_file.hpp"
#include "vram/profile/model_class.hpp"

namespace vram::profile {

/// Tensors by name; both belong to the file that was read.
using Names = std::map<std::string_view, const io::StoredTensor*>;

/// What stands before every one of a scheme's names, or nothing if they are not all there.
[[nodiscard]] std::optional<std::string> prefix_of(const Names& names, const NamingScheme& scheme);

/// The keys of a config that the names behind a prefix give away.
[[nodiscard]] Said config_of_names(const Names& names, const std::string& prefix, const NamingScheme& scheme);

}  // namespace vram::profile
