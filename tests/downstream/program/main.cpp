// What a user of find_package(vram) may write: one header, one target to link.
#include <iostream>
#include <vram/vram.hpp>

int main() {
    const vram::Catalogue catalogue = vram::Catalogue::built_in();
    const char* job =
        "vramest: 1\ntrainer: torch\nmodel: flux1_dev\n"
        "train: {method: lora, rank: 16, gradient_checkpointing: true}\ndata: {resolution: 512}\n";
    vram::CheckOptions options;
    options.gpu = "rtx-5090";
    const vram::Report report = vram::check(job, "job.yaml", options, catalogue);
    std::cout << to_text(report);
    return report.peak ? 0 : 1;
}
