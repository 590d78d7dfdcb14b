// What a user of find_package(vram) may write: public headers, one target to link.
#include <iostream>

#include "vram/base/bytes.hpp"
#include "vram/io/document.hpp"

int main() {
    const vram::expected<vram::io::Document> document = vram::io::read("a: [1, 2]\n", "a.yaml", vram::io::Format::yaml);
    if (!document || document->root.find("a") == nullptr) return 1;
    std::cout << vram::to_text(24 * vram::GiB) << '\n';
    return 0;
}
