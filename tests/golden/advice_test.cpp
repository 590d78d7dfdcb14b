// What is advised about real configs on real cards: the first advice, written into a copy, fits when it is checked, and
// of the file nothing but the lines that it names has changed.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "vram/advise/advise.hpp"

using namespace vram;
using report::Verdict;
namespace fs = std::filesystem;

namespace {

std::string read(const fs::path& path) {
    const std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    if (file) text << file.rdbuf();
    return text.str();
}

const profile::Catalogue& catalogue() {
    static const profile::Catalogue built_in = profile::Catalogue::built_in();
    return built_in;
}

report::CheckOptions with(report::CheckOptions options, const advise::Proposal& proposal) {
    for (const advise::Placed& placed : proposal.changes)
        options.settings.insert(options.settings.end(), placed.change.settings.begin(), placed.change.settings.end());
    return options;
}

std::vector<std::string> lines_of(const std::string& text) {
    std::istringstream stream(text);
    std::vector<std::string> out;
    for (std::string line; std::getline(stream, line);) out.push_back(line);
    return out;
}

/// "-9:   batch_size: 4" and "+9:   batch_size: 1": what a longest common subsequence of the lines leaves.
std::string difference(const std::string& before, const std::string& after) {
    const std::vector<std::string> a = lines_of(before), b = lines_of(after);
    std::vector<std::vector<std::size_t>> common(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
    for (std::size_t i = a.size(); i-- > 0;)
        for (std::size_t j = b.size(); j-- > 0;)
            common[i][j] = a[i] == b[j] ? common[i + 1][j + 1] + 1 : std::max(common[i + 1][j], common[i][j + 1]);
    std::string out;
    for (std::size_t i = 0, j = 0; i < a.size() || j < b.size();) {
        if (i < a.size() && j < b.size() && a[i] == b[j]) {
            ++i;
            ++j;
        } else if (i < a.size() && (j == b.size() || common[i + 1][j] >= common[i][j + 1])) {
            out += "-" + std::to_string(i + 1) + ": " + a[i] + "\n";
            ++i;
        } else {
            out += "+" + std::to_string(j + 1) + ": " + b[j] + "\n";
            ++j;
        }
    }
    return out;
}

struct Case {
    std::string file, gpu;
    std::string other_processes{};  // "2GiB"; empty: the card is the job's alone
};

report::CheckOptions on(const Case& c) {
    report::CheckOptions options;
    options.gpu = c.gpu;
    options.compares_checkpointing = false;
    if (!c.other_processes.empty()) options.settings.push_back({"environment.other_processes", c.other_processes});
    return options;
}

/// A page about a case: what the first advice does, and the lines that it changes.
std::string answered(const fs::path& folder, const Case& c) {
    const std::string text = read(folder / c.file);
    CAPTURE(c.file);
    CAPTURE(c.gpu);
    REQUIRE(!text.empty());
    const advise::Advised advised = advise::advise(text, c.file, on(c), catalogue());
    CHECK(advised.before.verdict != Verdict::cannot_say);
    const std::string beside = c.other_processes.empty() ? "" : " beside " + c.other_processes;
    std::string out =
        c.file + " on " + c.gpu + beside + ": " + std::string(report::to_text(advised.before.verdict)) + "\n";
    if (advised.fits.empty()) {
        CHECK(advise::exit_code(advised) == 1);
        out += advised.nearest ? "no change makes it fit; nearest: " : "nothing helps\n";
        if (advised.nearest) out += to_text(advised.nearest->short_of) + " too little\n";
        return out;
    }
    const advise::Proposal& first = advised.fits.front();
    const report::Report after = report::check(first.file, c.file, with(on(c), first), catalogue());
    CHECK(after.verdict == Verdict::fits);
    if (after.verdict == Verdict::fits) CHECK(first.file != text);
    for (const advise::Placed& placed : first.changes) {
        out += placed.change.text + "\n";
        if (!placed.change.shell.empty()) out += placed.change.shell + "\n";
        if (!placed.change.panel.empty()) out += "panel: " + placed.change.panel + "\n";
    }
    return out + difference(text, first.file);
}

void compare(const std::string& name, const std::string& answer) {
    const fs::path path = fs::path(VRAM_SOURCE_DIR) / "tests" / "golden" / "advice" / name;
    CAPTURE(name);
    if (std::getenv("VRAM_REWRITE") != nullptr) std::ofstream(path, std::ios::binary) << answer;
    CHECK(read(path) == answer);
}

}  // namespace

TEST_CASE("golden: advice about the examples") {
    std::string out;
    for (const Case& c :
         {Case{"flux_lora.yaml", "rtx-4090"}, Case{"flux_lora.yaml", "rtx-4070-ti-super"},
          Case{"flux_many_buckets_no_checkpointing.yaml", "rtx-4090"},
          Case{"z_image_no_checkpointing.yaml", "rtx-4090"}, Case{"z_image_no_checkpointing.yaml", "rtx-5090"},
          Case{"qwen_image_edit_no_checkpointing.yaml", "rtx-5090"}, Case{"job_torch_flux.yaml", "rtx-4090"},
          Case{"job_torch_flux.yaml", "rtx-3060-12gb"}, Case{"sd_scripts_sdxl_lora.toml", "rtx-4090"}})
        out += answered(fs::path(VRAM_SOURCE_DIR) / "examples", c) + "\n";
    compare("examples.txt", out);
}

TEST_CASE("golden: advice about configs that trainers ship") {
    const fs::path folder = fs::path(VRAM_SOURCE_DIR).parent_path() / "shared" / "configs" / "ai-toolkit";
    if (!fs::is_directory(folder)) {
        MESSAGE("skipped: the trainers' configs are not beside the project");
        return;
    }
    std::string out;
    for (const Case& c : {Case{"train_full_fine_tune_flex.yaml", "a100-40gb"},
                          Case{"train_full_fine_tune_flex.yaml", "rtx-6000-ada"},
                          Case{"train_full_fine_tune_flex.yaml", "rtx-4090"},
                          Case{"train_lora_flex2_24gb.yaml", "rtx-4070-ti-super"},
                          Case{"train_lora_flex2_24gb.yaml", "rtx-3060-12gb"},
                          Case{"train_lora_hidream_48.yaml", "rtx-5090"},
                          Case{"train_lora_hidream_48.yaml", "a100-40gb"},
                          Case{"train_lora_lumina.yaml", "rtx-3060-12gb"},
                          Case{"train_lora_lumina.yaml", "rtx-3080-10gb"},
                          Case{"train_lora_flux_24gb.yaml", "rtx-4090"},
                          Case{"train_lora_flux_24gb.yaml", "rtx-3090"},
                          Case{"train_lora_flux_24gb.yaml", "rtx-4070-ti-super"},
                          Case{"train_lora_qwen_image_24gb.yaml", "rtx-4070-ti-super"},
                          Case{"train_lora_qwen_image_24gb.yaml", "rtx-3060-12gb"},
                          Case{"train_lora_qwen_image_edit_2509_32gb.yaml", "rtx-4090"},
                          Case{"train_lora_qwen_image_edit_2509_32gb.yaml", "rtx-4070-ti-super"},
                          Case{"train_lora_wan21_1b_24gb.yaml", "rtx-4070-ti-super"},
                          Case{"train_lora_wan21_1b_24gb.yaml", "rtx-3060-12gb"},
                          Case{"train_lora_wan22_14b_24gb.yaml", "rtx-4070-ti-super"},
                          Case{"train_lora_wan22_14b_24gb.yaml", "rtx-3060-12gb"}})
        out += answered(folder, c) + "\n";
    compare("ai-toolkit.txt", out);
}

TEST_CASE("golden: advice about kohya_ss presets") {
    const fs::path folder = fs::path(VRAM_SOURCE_DIR).parent_path() / "shared" / "configs" / "kohya";
    if (!fs::is_directory(folder)) {
        MESSAGE("skipped: the trainers' configs are not beside the project");
        return;
    }
    std::string out;
    for (const Case& c : {Case{"presets/lora/SDXL - LoRA AI_Now ADamW v1.0.json", "rtx-3060-12gb"},
                          Case{"presets/lora/SDXL - LoRA AI_characters standard v1.0.json", "rtx-3060-12gb"},
                          Case{"presets/lora/SDXL - LoRA AI_characters standard v1.1.json", "rtx-3080-10gb"},
                          Case{"presets/lora/SDXL - LoRA adafactor v1.0.json", "rtx-3060-12gb"},
                          Case{"presets/lora/SDXL - LoRA finetuning phase 1_v1.1.json", "rtx-4060-ti-16gb"},
                          Case{"presets/lora/SDXL - LoRA kudou-reira dadaptadam v1.0.json", "rtx-4090"},
                          Case{"presets/lora/SDXL - LoRA kudou-reira dadaptadam v1.1.json", "rtx-3060-12gb"},
                          Case{"presets/lora/flux1D - adamw8bit fp8.json", "rtx-4060-ti-16gb", "2GiB"},
                          Case{"presets/lora/sd15 - EDG_LoraOptiSettings.json", "rtx-3070"},
                          Case{"test-config/SDXL-Standard-Adafactor.json", "rtx-3070"},
                          Case{"test-config/locon-AdamW8bit-toml.json", "rtx-3070"}})
        out += answered(folder, c) + "\n";
    compare("kohya.txt", out);
}
