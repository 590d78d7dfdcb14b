#pragma once

namespace vram::io {
struct Document;
}

namespace vram::trainers::sd_scripts {

/// Whether this is a file for --config_file of a script of sd-scripts.
[[nodiscard]] bool is_config_file(const io::Document& document);

}  // namespace vram::trainers::sd_scripts
