#pragma once

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "run.hpp"

/// The command as tests give it, and what it says.
namespace vram {

struct Said {
    int code = 0;
    std::string out, err;
};

inline Said say(const std::vector<std::string>& args) {
    std::ostringstream out, err;
    Said said;
    said.code = cli::run(args, out, err);
    said.out = out.str();
    said.err = err.str();
    return said;
}

inline std::string contents_of(const std::filesystem::path& path) {
    const std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

/// A file in the folder for temporary ones, gone with the test.
class TemporaryFile {
  public:
    explicit TemporaryFile(const std::string& text)
        : path_(std::filesystem::temp_directory_path() / ("vramest_cli_" + std::to_string(counter++) + ".yaml")) {
        std::ofstream(path_, std::ios::binary) << text;
    }
    ~TemporaryFile() { std::filesystem::remove(path_); }
    TemporaryFile(const TemporaryFile&) = delete;
    TemporaryFile& operator=(const TemporaryFile&) = delete;
    [[nodiscard]] std::string path() const { return path_.string(); }

  private:
    static inline int counter = 0;
    std::filesystem::path path_;
};

/// Every key of a value has a place in the schema.
inline void check_keys(const nlohmann::json& value, const nlohmann::json& schema, const nlohmann::json& defs,
                       const std::string& where) {
    CAPTURE(where);
    if (schema.contains("$ref")) {
        const std::string name = schema.at("$ref").get<std::string>().substr(std::string("#/$defs/").size());
        check_keys(value, defs.at(name), defs, where);
        return;
    }
    if (value.is_array() && schema.contains("items"))
        for (const nlohmann::json& item : value) check_keys(item, schema.at("items"), defs, where + "[]");
    if (!value.is_object() || !schema.contains("properties")) return;
    for (const auto& [key, member] : value.items()) {
        CAPTURE(key);
        REQUIRE(schema.at("properties").contains(key));
        check_keys(member, schema.at("properties").at(key), defs, where + "." + key);
    }
    for (const auto& key : schema.value("required", nlohmann::json::array()))
        CHECK(value.contains(key.get<std::string>()));
}

}  // namespace vram
