#pragma once

#include <string>

#include "vram/base/expected.hpp"
#include "vram/report/check.hpp"

namespace vram::cli {

struct Arguments;

/// The whole file, or of standard input for "-". file_not_found where it cannot be read, file_too_large beyond
/// io::Limits.
[[nodiscard]] expected<std::string> read_input(const std::string& file);

/// Writes a file anew; the complaint is file_not_found.
[[nodiscard]] Diagnostics write_output(const std::string& file, const std::string& text);

/// The complaint where `flag` names the file that is read, under whatever name: that one is never touched.
[[nodiscard]] Diagnostics refuse_own_file(const std::string& flag, const std::string& output, const std::string& file);

/// What the command line says of a check, with this machine's card where the driver is to be asked.
[[nodiscard]] report::CheckOptions options_of(const Arguments& arguments);

}  // namespace vram::cli
