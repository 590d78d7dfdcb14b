#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace vram::cli {

/// The `vramest` command. Writes the answer to `out` and complaints to `err`; returns the exit code: 0 fits or tight, 1
/// does not fit (tight too with --strict), 2 cannot say or wrong usage.
int run(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace vram::cli
