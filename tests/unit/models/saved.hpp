#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/described.hpp"
#include "unit/io/temporary_folder.hpp"
#include "unit/io/tensor_bytes.hpp"

namespace vram::models {

/// A safetensors file of these parameters whose data is a hole: as large as it says, and on the disk next to nothing.
inline std::string write_weights(const io::TemporaryFolder& folder, const std::string& name,
                                 const std::vector<ListedParameter>& parameters, const std::string& prefix = "",
                                 const std::string& type = "BF16", std::int64_t size = 2) {
    nlohmann::ordered_json header = nlohmann::ordered_json::object();
    std::int64_t at = 0;
    for (const ListedParameter& parameter : parameters) {
        if (parameter.buffer) continue;
        const std::int64_t end = at + size * numel_of(parameter);
        header[prefix + parameter.name] = {{"dtype", type}, {"shape", parameter.shape}, {"data_offsets", {at, end}}};
        at = end;
    }
    const std::string head = io::safetensors(header.dump(), 0);
    std::string path = folder.write(name, head);
    std::filesystem::resize_file(path, head.size() + static_cast<std::uintmax_t>(at));
    return path;
}

/// A config.json of this class.
inline nlohmann::ordered_json config_of(const profile::ModelProfile& profile) {
    nlohmann::ordered_json config{{"_class_name", profile.source.substr(0, profile.source.find(','))}};
    for (const auto& [key, value] : profile.config.values)
        std::visit([&, &key = key](const auto& typed) { config[key] = typed; }, value);
    return config;
}

}  // namespace vram::models
