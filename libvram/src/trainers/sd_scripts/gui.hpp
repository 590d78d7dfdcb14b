#pragma once

#include <string>
#include <string_view>

#include "trainers/sd_scripts/script.hpp"

namespace vram::io {
struct Document;
}

namespace vram::trainers::sd_scripts {

/// The field whose text is a command line.
inline constexpr std::string_view free_text = "additional_parameters";

/// The field of kohya_ss that becomes an argument.
[[nodiscard]] std::string gui_field(std::string_view argument, const Script* script);

/// Whether this is a file of kohya_ss, of whatever tab.
[[nodiscard]] bool is_gui_file(const io::Document& document);

}  // namespace vram::trainers::sd_scripts
