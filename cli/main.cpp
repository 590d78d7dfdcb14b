#include <iostream>

#include "run.hpp"

int main(int argc, char** argv) {
    const int code = vram::cli::run({argv + 1, argv + argc}, std::cout, std::cerr);
    std::cout.flush();
    if (std::cout) return code;
    std::cerr << "vramest: the answer could not be written\n";  // a full disk, a closed descriptor
    return 2;
}
