#pragma once

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainers/sd_scripts/arguments.hpp"
#include "trainers/sd_scripts/resolve.hpp"
#include "vram/io/document.hpp"
#include "vram/io/path.hpp"
#include "vram/profile/catalogue.hpp"

// Files of the GUI and of --config_file as tests write them.
namespace vram::trainers::sd_scripts::files {

/// A file of the LoRA tab with these fields.
inline std::string gui(const std::string& fields) {
    return R"({"LoRA_type": "Standard", "max_resolution": "512,512", "train_batch_size": 1, "mixed_precision": "bf16",
 "optimizer": "AdamW8bit", )" +
           fields + "}";
}
/// The same of FLUX.1.
inline std::string gui_flux(const std::string& fields) {
    return R"({"LoRA_type": "Flux1", "flux1_checkbox": true, "max_resolution": "512,512", "mixed_precision": "bf16",
 "optimizer": "AdamW8bit", "pretrained_model_name_or_path": "flux1-dev.safetensors", )" +
           fields + "}";
}
/// A file for --config_file with these lines.
inline std::string toml(const std::string& lines) {
    return "pretrained_model_name_or_path = \"stabilityai/stable-diffusion-xl-base-1.0\"\n"
           "network_module = \"networks.lora\"\n"
           "resolution = \"1024,1024\"\n" +
           lines;
}

inline io::Document document(const std::string& text, std::string name = {}) {
    const io::Format format = text.starts_with('{') ? io::Format::json : io::Format::toml;
    if (name.empty()) name = format == io::Format::json ? "lora.json" : "config.toml";
    expected<io::Document> out = io::read(text, std::move(name), format);
    if (!out) FAIL(to_text(out.error().front()));
    return *std::move(out);
}

struct Read {
    std::optional<Config> config;
    Diagnostics complaints, notes;
};
inline Read read(const std::string& text) {
    Read out;
    out.config = read_config(document(text), nullptr, out.complaints, out.notes);
    return out;
}
inline Arguments arguments(const std::string& text) {
    Read out = read(text);
    if (!out.complaints.empty()) FAIL(to_text(out.complaints.front()));
    REQUIRE(out.config);
    return out.config->arguments;
}

inline const profile::Catalogue& catalogue() {
    static const profile::Catalogue built_in = profile::Catalogue::built_in();
    return built_in;
}

using Settings = std::vector<std::pair<std::string, std::string>>;
struct Resolved {
    expected<job::Job> job;
    Diagnostics notes;
};
inline Resolved resolved(const std::string& text, const Settings& settings = {}, std::string name = {}) {
    io::Document file = document(text, std::move(name));
    for (const auto& [key, value] : settings) REQUIRE_FALSE(io::assign(file, "vramest." + key, value));
    Diagnostics notes;
    expected<job::Job> job = resolve(file, catalogue(), notes);
    return {std::move(job), std::move(notes)};
}
inline job::Job job_of(const std::string& text, const Settings& settings = {}, std::string name = {}) {
    Resolved out = resolved(text, settings, std::move(name));
    if (!out.job) FAIL(to_text(out.job.error().front()));
    return *std::move(out.job);
}

}  // namespace vram::trainers::sd_scripts::files
