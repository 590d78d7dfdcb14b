// clang++ only: VRAMEST_FUZZ=ON builds bin/vram_fuzz, a libFuzzer target over the same check.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>

#include "one_input.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string input(data, data + size);
    if (const std::string law = vram::fuzz::check_one(input); !law.empty()) {
        std::cerr << law << "\n";
        std::abort();
    }
    return 0;
}
