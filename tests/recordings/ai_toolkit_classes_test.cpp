// ai-toolkit's own classes for FLUX.1 Kontext, Flex.2, FLUX.2, Chroma, LTX-2, OmniGen2, HiDream-I1, ERNIE-Image and
// Krea 2 (27a03a91), run on PyTorch's fake tensors: a prediction with gradients of every weight, or of a network's,
// under gradient checkpointing, and two denoising steps with the decode (three of HiDream, whose solver looks back), at
// published size (tests/reference/truth/ai_toolkit_classes.jsonl). All figures are bytes above what lives as the stage
// begins; a row has those that were recorded. OmniGen2 ran without triton's norm and flash-attn, which need a card.
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
    const std::int64_t frames = row.value("frames", 1);
    json dataset{{"folder_path", "none"}, {"resolution", 512}, {"cache_latents", true}, {"num_frames", frames}};
    dataset.update(row.value("dataset", json::object()));
    json train{{"dtype", "bf16"},
               {"batch_size", row["batch_size"]},
               {"cache_text_embeddings", true},
               {"noise_scheduler", "flowmatch"},
               {"optimizer", "adamw8bit"},
               {"gradient_checkpointing", true}};
    json sample{{"prompt", "x"},       {"width", row["width"]}, {"height", row["height"]},
                {"guidance_scale", 4}, {"num_frames", frames},  {"sample_steps", row.value("sample_steps", 2)}};
    const char* keys[] = {"ctrl_img_1", "ctrl_img_2", "ctrl_img_3"};
    for (std::size_t i = 0; i < row["reference_images"].size(); ++i) sample[keys[i]] = "none.png";
    json process{{"type", "sd_trainer"}};
    if (row.contains("network")) process["network"] = row["network"];
    process["datasets"] = json::array({dataset});
    process["train"] = train;
    process["model"] = {
        {"name_or_path", row["model"]}, {"arch", row["arch"]}, {"low_vram", row.value("low_vram", false)}};
    process["sample"]["samples"] = json::array({sample});
    json config{{"job", "extension"}};
    config["config"]["name"] = "recorded";
    config["config"]["process"] = json::array({process});
    return config.dump();
}

json report_of(const json& row) {
    const auto path =
        std::filesystem::temp_directory_path() / ("vramest_class_" + row["id"].get<std::string>() + ".json");
    std::ofstream(path) << config_of(row);
    const json size = json::array({row["width"], row["height"]});
    std::vector<std::string> arguments{
        "check", path.string(), "--gpu", "rtx-4090", "--json", "--set", "data.resolution=" + size.dump()};
    const auto set = [&](const char* key, const std::string& name) {
        if (!row.contains(name) || row[name].empty()) return;
        arguments.emplace_back("--set");
        arguments.push_back(key + ("=" + row[name].dump()));
    };
    set("data.reference_images", "reference_images");
    set("data.frames", "frames");
    set("data.text_tokens", "text_tokens");
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

TEST_CASE("recordings of ai-toolkit's own classes are met to the byte") {
    std::ifstream rows(std::string(VRAM_SOURCE_DIR) + "/tests/reference/truth/ai_toolkit_classes.jsonl");
    REQUIRE(rows.good());
    for (std::string line; std::getline(rows, line);) {
        const json row = json::parse(line);
        const std::string id = row["id"];
        CAPTURE(id);
        const json report = report_of(row);
        CAPTURE(report["diagnostics"].dump());
        REQUIRE(report["verdict"] != "cannot_say");
        const auto check = [&](const char* figure, std::int64_t bytes) {
            CAPTURE(figure);
            if (row.contains(figure)) CHECK(bytes == row[figure]);
        };
        // The second step: the VAE that control images need has come in the first.
        const json& step = named(report["phases"], "step 2");
        check("forward_peak", peak(step, "forward") - end(step, "prepare"));
        check("kept", step["kept_for_backward"].get<std::int64_t>());
        check("backward_peak", peak(step, "backward") - end(step, "loss"));
        const json& sample = named(report["phases"], "sample");
        const std::int64_t start = end(sample, "text");
        check("denoise_peak", peak(sample, "denoise") - start);
        check("decode_peak", peak(sample, "decode") - start);
    }
}
