// Recordings of real PyTorch (tests/reference/truth, format: README.md there), met through the front door: the case as
// a job file, `vramest check job.yaml --json`, the report's figures beside the recorded ones. All must be equal.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "run.hpp"
#include "unit/io/temporary_folder.hpp"
#include "vram/profile/catalogue.hpp"

using nlohmann::json;

namespace {

std::string yaml_bool(bool value) { return value ? "true" : "false"; }

/// The published config.json of each model, and its short names for keys that count layers: truth/classes.jsonl.
const json& published(const std::string& model) {
    static const std::map<std::string, json> all = [] {
        std::map<std::string, json> out;
        std::ifstream rows(std::string(VRAM_SOURCE_DIR) + "/tests/reference/truth/classes.jsonl");
        for (std::string line; std::getline(rows, line);) {
            const json row = json::parse(line);
            if (row["id"].get<std::string>().ends_with("-published")) out.emplace(row["model"], row);
        }
        return out;
    }();
    return all.at(model);
}

std::string name_of(const json& row) { return row[row.contains("component") ? "component" : "model"]; }

/// A shrunken model, which has no profile: the folder of a config.json.
bool is_shrunken(const json& row) { return row.contains("layers") || row.contains("config"); }
/// Whether the folder of a shrunken model is that model: not what an argument of from_pretrained does, nor which of two
/// profiles of one net is meant. A config.json whose lists are of other lengths than a profile's is refused.
bool folder_says_all(const json& row) {
    if (!is_shrunken(row)) return true;
    const std::string name = name_of(row);
    if (name == "llama31_8b_causal_eager") return false;
    if (row.contains("reference_images"))  // a plain model's net, which takes none
        for (const char* edit : {"flux1_kontext", "qwen_image_edit", "qwen_image_edit_2509"})
            if (name == edit) return false;
    if (name == "wan22_t2v_a14b" && row.contains("forward")) return false;  // Wan 2.1's net, and another forward
    if (row.contains("config") && row["config"].value("rope_type", "") == "interleaved")
        return false;  // no profile has it
    if (!row.contains("config") || !row["config"].contains("vision_config")) return true;
    const json& vision = row["config"]["vision_config"];
    return !vision.contains("fullatt_block_indexes") && !vision.contains("deepstack_visual_indexes");
}
json shrunken_config(const json& row) {
    const json& whole = published(name_of(row));
    json config = whole["config"];
    if (row.contains("layers"))
        for (const auto& [name, count] : row["layers"].items())
            config[whole["layers"][name].get<std::string>()] = count;
    if (row.contains("config")) config.merge_patch(row["config"]);
    return config;
}

std::string job_file(const json& row, const std::string& model) {
    std::ostringstream out;
    const bool component = row.contains("component");
    out << "vramest: 1\ntrainer: torch\n";
    out << (component ? "component: " : "model: ") << model << "\n";
    if (row.contains("forward")) out << "forward: " << row["forward"].get<std::string>() << "\n";
    if (component) out << "op: " << row.value("op", "forward") << "\n";
    out << "dtype: " << row["weights"].get<std::string>() << "\n";
    const std::string train = row.value("train", "none");
    if (train == "none") {
        out << "batch_size: " << row["batch"] << "\n";
    } else {
        out << "train: {method: " << train;
        if (train == "lora")
            out << ", rank: " << row["rank"] << ", alpha: " << row["rank"]
                << ", targets: " << row["targets"].get<std::string>()
                << ", adapter_dtype: " << row["lora_dtype"].get<std::string>();
        if (row.value("autocast", false)) out << ", autocast: bf16";
        for (const char* key : {"gradient_accumulation", "ema"})
            if (row.contains(key)) out << ", " << key << ": " << row[key];
        out << ", gradient_checkpointing: " << yaml_bool(row["checkpointing"]) << ", batch_size: " << row["batch"]
            << ", optimizer: adamw}\n";
    }
    out << "data: {";
    if (row.contains("width")) out << "resolution: [" << row["width"] << ", " << row["height"] << "], ";
    for (const char* key : {"frames", "text_tokens", "reference_images"})
        if (row.contains(key)) out << key << ": " << row[key] << ", ";
    out << "}\n";
    for (const char* flag : {"tiling", "slicing", "attention_mask", "all_hidden_states", "use_cache"})
        if (row.contains(flag)) out << flag << ": " << yaml_bool(row[flag]) << "\n";
    return out.str();
}

json report_of(const json& row) {
    const vram::io::TemporaryFolder folder;
    std::string model = name_of(row);
    if (is_shrunken(row)) {
        folder.write("config.json", shrunken_config(row).dump());
        model = folder.path("");
    }
    const std::string path = folder.write("job.yaml", job_file(row, model));
    std::ostringstream out, err;
    vram::cli::run({"check", path, "--gpu", "rtx-4090", "--json"}, out, err);
    return json::parse(out.str());
}

const json& named(const json& list, const std::string& name) {
    static const json none = json::object();
    for (const json& item : list)
        if (item["name"] == name) return item;
    return none;
}

/// One figure of a row, ours and the recorded one.
struct Figure {
    std::string name;
    std::int64_t ours, recorded;
    [[nodiscard]] double apart() const {
        if (ours == recorded) return 0;
        return recorded == 0 ? 1 : std::abs(static_cast<double>(ours - recorded)) / static_cast<double>(recorded);
    }
};

std::vector<Figure> figures(const json& report, const json& result) {
    std::vector<Figure> out;
    const auto add = [&](const std::string& name, const json& ours, const json& recorded) {
        out.push_back({name, ours.is_number() ? ours.get<std::int64_t>() : -1, recorded.get<std::int64_t>()});
    };
    const json& counts = report["counts"];
    const auto at = [](const json& object, const std::string& key) {
        return object.is_object() && object.contains(key) ? object[key] : json();
    };
    for (const char* key : {"parameters", "adapted_modules", "adapter_parameters"})
        if (result.contains(key)) add(key, counts[key], result[key]);
    for (const auto& [kernel, calls] : result["attention_calls"].items())
        add("attention " + kernel, counts["attention_calls"][kernel], calls);
    add("weights + adapter", report["weights"].get<std::int64_t>() + report["adapter"].get<std::int64_t>(),
        result["weights_bytes"]);
    if (result.contains("inputs_bytes")) add("inputs", report["inputs"], result["inputs_bytes"]);
    if (result.contains("target_bytes")) add("targets", report["targets"], result["target_bytes"]);
    if (result.contains("optimizer_state_bytes"))
        add("optimizer_state", report["optimizer_state"], result["optimizer_state_bytes"]);
    if (!result.contains("steps")) {
        const json& call = named(report["phases"], "call");
        const json& forward = named(call["stages"], "forward");
        add("call peak", call["tensors_peak"], result["forward_peak_bytes"]);
        add("forward end", forward["tensors_end"], result["forward_end_bytes"]);
        if (result.contains("end_bytes")) add("call end", call["tensors_end"], result["end_bytes"]);
        return out;
    }
    for (int i = 0; i < 2; ++i) {
        const std::string name = "step " + std::to_string(i + 1);
        const json& phase = named(report["phases"], name);
        const json& step = result["steps"][static_cast<std::size_t>(i)];
        for (const char* stage : {"forward", "loss", "backward", "optimizer"})
            add(name + " " + stage + " peak", at(named(phase["stages"], stage), "tensors_peak"),
                step[std::string(stage) + "_peak_bytes"]);
        add(name + " forward end", at(named(phase["stages"], "forward"), "tensors_end"), step["forward_end_bytes"]);
        add(name + " backward end", at(named(phase["stages"], "backward"), "tensors_end"), step["backward_end_bytes"]);
        add(name + " optimizer end", at(named(phase["stages"], "optimizer"), "tensors_end"), step["end_bytes"]);
        add(name + " kept", at(phase, "kept_for_backward"), step["kept_for_backward_bytes"]);
    }
    return out;
}

std::string torch_name(const std::string& dtype) {
    if (dtype == "bf16") return "bfloat16";
    if (dtype == "fp16") return "float16";
    if (dtype == "fp32") return "float32";
    return dtype;
}

void meet(const json& row) {
    const json& result = row["result"];
    const std::string id = row["case"]["id"];
    CAPTURE(id);
    if (result.is_null()) {
        FAIL_CHECK("not recorded yet");
        return;
    }
    const json report = report_of(row["case"]);
    CAPTURE(report["diagnostics"].dump());
    CHECK(report["verdict"] != "cannot_say");
    if (report["verdict"] == "cannot_say") return;
    const Figure* worst = nullptr;
    const std::vector<Figure> all = figures(report, result);
    for (const Figure& figure : all) {
        CAPTURE(figure.name);
        CHECK(figure.ours == figure.recorded);
        if (worst == nullptr || figure.apart() > worst->apart()) worst = &figure;
    }
    if (result.contains("inputs")) {
        json ours = json::array();
        for (const json& input : report["input_tensors"]) ours.push_back({input[0], input[1], torch_name(input[2])});
        CHECK(ours == result["inputs"]);
    }
    std::printf("%-32s %8zu %11.4f%%  %s\n", id.c_str(), all.size(), 100 * worst->apart(),
                worst->apart() > 0 ? worst->name.c_str() : "");
}

}  // namespace

TEST_CASE("recordings of real PyTorch are met to the byte") {
    std::printf("%-32s %8s %12s  %s\n", "recording", "figures", "worst apart", "where");
    for (const char* file : {"denoisers", "components", "own_forwards"}) {
        std::ifstream rows(std::string(VRAM_SOURCE_DIR) + "/tests/reference/truth/" + file + ".jsonl");
        REQUIRE(rows.good());
        for (std::string line; std::getline(rows, line);) meet(json::parse(line));
    }
}

TEST_CASE("recordings of models, whole and shrunken, are met to the byte; profiles say whether there are whole ones") {
    std::set<std::string> recorded;
    const auto note = [&](const json& c) {
        if (!c.contains("forward")) recorded.insert(c.contains("model") ? c["model"] : c["component"]);
    };
    std::vector<std::filesystem::path> files;
    for (const auto& entry :
         std::filesystem::directory_iterator(std::string(VRAM_SOURCE_DIR) + "/tests/reference/recordings"))
        files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    REQUIRE(!files.empty());
    for (const std::filesystem::path& file : files) {
        std::ifstream text(file);
        for (const json& row : json::parse(text)) {
            if (!folder_says_all(row["case"])) continue;
            meet(row);
            if (!is_shrunken(row["case"])) note(row["case"]);
        }
    }
    for (const char* file : {"denoisers", "components"}) {
        std::ifstream rows(std::string(VRAM_SOURCE_DIR) + "/tests/reference/truth/" + file + ".jsonl");
        for (std::string line; std::getline(rows, line);) note(json::parse(line)["case"]);
    }
    const vram::profile::Catalogue catalogue = vram::profile::Catalogue::built_in();
    for (const vram::profile::ModelProfile& profile : catalogue.models()) {
        CAPTURE(profile.id);
        const bool says_so = profile.checked.against.find("memory by whole recordings") != std::string::npos;
        CHECK(says_so == recorded.contains(profile.id));
    }
}
