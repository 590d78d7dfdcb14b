#pragma once

#include <string>
#include <string_view>

#include "vram/base/expected.hpp"
#include "vram/io/document.hpp"

namespace vram::profile {

/// A file about models or cards, and what is wrong with it so far: a key that stands twice is a mistake of ours.
struct ProfileFile {
    io::Document document;
    Diagnostics complaints;
};
/// Errors: those of io::read, as YAML.
[[nodiscard]] expected<ProfileFile> read_profile_file(std::string_view text, std::string file_name);

/// The name of a file without its folder and extension.
[[nodiscard]] std::string_view stem_of(std::string_view file_name);

}  // namespace vram::profile
