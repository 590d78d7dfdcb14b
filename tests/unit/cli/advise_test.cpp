#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "unit/cli/command.hpp"

using namespace vram;
namespace fs = std::filesystem;

namespace {

const std::string job =
    "# mine\nvramest: 1\ntrainer: torch\nmodel: flux1_dev\ntrain:\n  method: lora\n  rank: 16\n"
    "  gradient_checkpointing: false  # fast\ndata: {resolution: 768}\n";

/// A folder that goes with the test, with the job in it.
class Folder {
  public:
    Folder() : path_(fs::temp_directory_path() / "vramest_advise_test") {
        fs::create_directories(path_);
        std::ofstream(path_ / "job.yaml", std::ios::binary) << job;
    }
    ~Folder() { fs::remove_all(path_); }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    [[nodiscard]] std::string file(const std::string& name) const { return (path_ / name).string(); }

  private:
    fs::path path_;
};

}  // namespace

TEST_CASE("advise --write leaves the file alone and writes one that fits") {
    const Folder folder;
    const std::string copy = folder.file("copy.yaml");
    const Said said = say({"advise", folder.file("job.yaml"), "--gpu", "rtx-5090", "--write", copy});
    CHECK(said.code == 0);
    CHECK(said.err.find("written") != std::string::npos);
    CHECK(said.out.find("gradient checkpointing") != std::string::npos);
    CHECK(said.out.find("job.yaml:8: train.gradient_checkpointing: false -> true") != std::string::npos);
    CHECK(contents_of(folder.file("job.yaml")) == job);
    std::string wanted = job;
    wanted.replace(wanted.find("false"), 5, "true");
    CHECK(contents_of(copy) == wanted);
    CHECK(say({"check", copy, "--gpu", "rtx-5090", "--strict"}).code == 0);
}

TEST_CASE("advise never writes over the file that it read, and nothing where there is nothing to write") {
    const Folder folder;
    const std::string file = folder.file("job.yaml");
    const Said over = say({"advise", file, "--gpu", "rtx-5090", "--write", file});
    CHECK(over.code == 2);
    CHECK(over.err.find("never touched") != std::string::npos);
    CHECK(contents_of(file) == job);
    const Said fits = say({"advise", file, "--gpu", "h200", "--write", folder.file("none.yaml")});
    CHECK(fits.code == 0);
    CHECK(fits.err.find("nothing has to change") != std::string::npos);
    CHECK(!fs::exists(folder.file("none.yaml")));
    const Said unwritable = say({"advise", file, "--gpu", "rtx-5090", "--write", folder.file("no/such/folder.yaml")});
    CHECK(unwritable.code == 2);
    CHECK(!unwritable.err.empty());
}

TEST_CASE("advise says what it cannot") {
    const Folder folder;
    const std::string file = folder.file("job.yaml");
    CHECK(say({"advise", file, "--gpu", "rtx-3060-12gb", "--set", "train.method=full"}).code == 2);  // rank stays
    const Said unknown = say({"advise", file, "--gpu", "rtx-4091"});
    CHECK(unknown.code == 2);
    CHECK(unknown.out.find("rtx-4090") != std::string::npos);
    CHECK(say({"advise", folder.file("none.yaml"), "--gpu", "rtx-4090"}).code == 2);
    CHECK(say({"advise"}).code == 2);
    const nlohmann::json told = nlohmann::json::parse(say({"advise", file, "--gpu", "rtx-4091", "--json"}).out);
    CHECK(told.at("before").at("verdict") == "cannot_say");
    CHECK(told.at("fits").empty());
}

TEST_CASE("advice as JSON has the keys of its schema") {
    const Folder folder;
    const nlohmann::json defs = nlohmann::json::parse(say({"schema"}).out).at("$defs");
    const nlohmann::json told =
        nlohmann::json::parse(say({"advise", folder.file("job.yaml"), "--gpu", "rtx-5090", "--json"}).out);
    for (const auto& [key, value] : told.items()) CHECK(defs.at("advice").at("properties").contains(key));
    for (const nlohmann::json& proposal : told.at("fits")) {
        for (const auto& [key, value] : proposal.items()) CHECK(defs.at("proposal").at("properties").contains(key));
        for (const nlohmann::json& change : proposal.at("changes"))
            for (const auto& [key, value] : change.items()) CHECK(defs.at("change").at("properties").contains(key));
    }
}
