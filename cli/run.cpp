#include "run.hpp"

#include <ostream>

namespace vram::cli {

int run(const std::vector<std::string>&, std::ostream&, std::ostream& err) {
    err << "vramest: no verb yet\n";
    return 2;
}

}  // namespace vram::cli
