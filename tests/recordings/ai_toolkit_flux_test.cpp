// ai-toolkit's own classes for FLUX.1 Kontext, Flex.2 and FLUX.2 (27a03a91), run on PyTorch's fake tensors: a
// prediction with gradients of every weight under gradient checkpointing, and two denoising steps with the decode, at
// published size (tests/reference/truth/ai_toolkit_flux.jsonl). All figures are bytes above what lives as the stage
// begins.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "run.hpp"

using nlohmann::json;

namespace {

std::string config_of(const json& row) {
    json dataset{{"folder_path", "none"}, {"resolution", 512}, {"cache_latents", true}};
    json train{{"dtype", "bf16"},
               {"batch_size", row["batch_size"]},
               {"cache_text_embeddings", true},
               {"noise_scheduler", "flowmatch"},
               {"optimizer", "adamw8bit"},
               {"gradient_checkpointing", true}};
    json sample{{"prompt", "x"},
                {"width", row["width"]},
                {"height", row["height"]},
                {"guidance_scale", 4},
                {"sample_steps", 2}};
    const char* keys[] = {"ctrl_img_1", "ctrl_img_2", "ctrl_img_3"};
    for (std::size_t i = 0; i < row["reference_images"].size(); ++i) sample[keys[i]] = "none.png";
    json process{{"type", "sd_trainer"}};
    process["datasets"] = json::array({dataset});
    process["train"] = train;
    process["model"] = {{"name_or_path", row["model"]}, {"arch", row["arch"]}};
    process["sample"]["samples"] = json::array({sample});
    json config{{"job", "extension"}};
    config["config"]["name"] = "recorded";
    config["config"]["process"] = json::array({process});
    return config.dump();
}

json report_of(const json& row) {
    const auto path =
        std::filesystem::temp_directory_path() / ("vramest_flux_" + row["id"].get<std::string>() + ".json");
    std::ofstream(path) << config_of(row);
    const json size = json::array({row["width"], row["height"]});
    std::vector<std::string> arguments{
        "check", path.string(), "--gpu", "rtx-4090", "--json", "--set", "data.resolution=" + size.dump()};
    if (!row["reference_images"].empty()) {
        arguments.emplace_back("--set");
        arguments.push_back("data.reference_images=" + row["reference_images"].dump());
    }
    std::ostringstream out, err;
    vram::cli::run(arguments, out, err);
    std::filesystem::remove(path);
    return json::parse(out.str());
}

const json& named(const json& list, const std::string& name) {
    for (const json& item : list)
        if (item["name"] == name) return item;
    FAIL("no " << name);
    return list;
}

std::int64_t peak(const json& phase, const char* stage) {
    return named(phase["stages"], stage)["tensors_peak"].get<std::int64_t>();
}
std::int64_t end(const json& phase, const char* stage) {
    return named(phase["stages"], stage)["tensors_end"].get<std::int64_t>();
}

}  // namespace

TEST_CASE("recordings of ai-toolkit's FLUX classes are met to the byte") {
    std::ifstream rows(std::string(VRAM_SOURCE_DIR) + "/tests/reference/truth/ai_toolkit_flux.jsonl");
    REQUIRE(rows.good());
    for (std::string line; std::getline(rows, line);) {
        const json row = json::parse(line);
        const std::string id = row["id"];
        CAPTURE(id);
        const json report = report_of(row);
        CAPTURE(report["diagnostics"].dump());
        REQUIRE(report["verdict"] != "cannot_say");
        // The second step: the VAE that control images need has come in the first.
        const json& step = named(report["phases"], "step 2");
        CHECK(peak(step, "forward") - end(step, "prepare") == row["forward_peak"]);
        CHECK(step["kept_for_backward"] == row["kept"]);
        CHECK(peak(step, "backward") - end(step, "loss") == row["backward_peak"]);
        const json& sample = named(report["phases"], "sample");
        const std::int64_t start = end(sample, "text");
        CHECK(peak(sample, "denoise") - start == row["denoise_peak"]);
        CHECK(peak(sample, "decode") - start == row["decode_peak"]);
    }
}
