#include "jobs.hpp"

#include <fstream>
#include <iterator>

namespace vram::bench {

std::string example(const char* name) {
    std::ifstream file(std::string(VRAM_SOURCE_DIR "/examples/") + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace vram::bench
