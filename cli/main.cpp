#include <iostream>

#include "run.hpp"

int main(int argc, char** argv) { return vram::cli::run({argv + 1, argv + argc}, std::cout, std::cerr); }
