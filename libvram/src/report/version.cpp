#include "vram/report/report.hpp"

namespace vram::report {

std::string_view library_version() { return VRAM_VERSION; }

}  // namespace vram::report
