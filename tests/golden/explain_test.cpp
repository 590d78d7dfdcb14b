#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "vram/advise/explain.hpp"
#include "vram/advise/risk.hpp"

// One job of FLUX explained, and its risk; VRAM_REWRITE=1 writes them anew, as those of golden_test.cpp.

using namespace vram;
namespace fs = std::filesystem;

namespace {

const fs::path folder = fs::path(VRAM_SOURCE_DIR) / "tests" / "golden";

std::string read(const fs::path& path) {
    const std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    if (file) text << file.rdbuf();
    return text.str();
}

void compare(const std::string& name, const std::string& answer) {
    CAPTURE(name);
    if (std::getenv("VRAM_REWRITE") != nullptr) std::ofstream(folder / name, std::ios::binary) << answer;
    CHECK(read(folder / name) == answer);
}

}  // namespace

TEST_CASE("golden: a job of FLUX explained, and the risk of turning its checkpointing off") {
    const std::string file = "flux_lora_fits.yaml", text = read(folder / file);
    const profile::Catalogue catalogue = profile::Catalogue::built_in();
    advise::ExplainOptions how;
    how.most_points = 24;  // so that a person can read them
    how.most_blocks = 8;
    const advise::Explained explained = advise::explain(text, file, {}, catalogue, how);
    compare("flux_lora_fits.explain.txt", to_text(explained));
    compare("flux_lora_fits.explain.json", to_json(explained) + "\n");
    compare("flux_lora_fits.explain.svg", to_svg(explained));
    const advise::CheckpointingRisk risk = advise::risk(text, file, {}, catalogue);
    compare("flux_lora_fits.risk.txt", to_text(risk));
    compare("flux_lora_fits.risk.json", to_json(risk) + "\n");
}
