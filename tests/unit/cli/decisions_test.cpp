// max, grow and sweep as commands.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "unit/cli/command.hpp"

using namespace vram;
namespace fs = std::filesystem;

namespace {

/// A job file that goes with the test.
struct JobFile : TemporaryFile {
    explicit JobFile(const std::string& rest = "train: {method: lora, rank: 4}\ndata: {resolution: 256}\n")
        : TemporaryFile("vramest: 1\ntrainer: torch\nmodel: sd15\n" + rest) {}
};

}  // namespace

TEST_CASE("exit codes of max, grow and sweep") {
    struct Case {
        const char* why;
        std::vector<std::string> args;
        int code;
    };
    const JobFile job;
    const std::string file = job.path();
    for (const Case& c : {
             Case{"a batch fits", {"max", file, "--gpu", "rtx-3070", "--vary", "batch_size"}, 0},
             Case{"two axes in one word", {"max", file, "--gpu", "rtx-3070", "--vary", "rank,batch_size"}, 0},
             Case{"nothing fits", {"max", file, "--capacity", "1GiB", "--vary", "batch_size"}, 1},
             Case{"no axis", {"max", file, "--gpu", "rtx-3070"}, 2},
             Case{"an unknown axis", {"max", file, "--gpu", "rtx-3070", "--vary", "batchsize"}, 2},
             Case{"an axis that the job has not", {"max", file, "--gpu", "rtx-3070", "--vary", "frames"}, 2},
             Case{"the same twice", {"max", file, "--gpu", "rtx-3070", "--vary", "rank,rank"}, 2},
             Case{"it fits and may grow", {"grow", file, "--gpu", "rtx-3070"}, 0},
             Case{"it does not fit", {"grow", file, "--capacity", "1GiB"}, 1},
             Case{"an unknown card", {"grow", file, "--gpu", "rtx-9"}, 2},
             Case{"a cell fits", {"sweep", file, "--gpu", "rtx-3070", "--set", "train.rank=4,8"}, 0},
             Case{"no cell fits", {"sweep", file, "--capacity", "1GiB", "--set", "train.rank=4,8"}, 1},
             Case{"every cell is refused", {"sweep", file, "--gpu", "rtx-3070", "--set", "train.rank=0,-1"}, 2},
             Case{"an empty value", {"sweep", file, "--set", "train.rank=4,,8"}, 2},
             Case{"no value", {"sweep", file, "--set", "train.rank="}, 2},
             Case{"no key", {"sweep", file, "--set", "4,8"}, 2},
             Case{"a key twice", {"sweep", file, "--set", "train.rank=4", "--set", "train.rank=8"}, 2},
             Case{"two forms", {"sweep", file, "--set", "train.rank=4", "--csv", "--json"}, 2},
             Case{"no file", {"sweep", "no such file", "--set", "train.rank=4"}, 2},
             Case{"a picture nowhere", {"sweep", file, "--set", "train.rank=4", "--svg", "/no/such/folder/x.svg"}, 2},
         }) {
        CAPTURE(c.why);
        const Said said = say(c.args);
        CAPTURE(said.out);
        CAPTURE(said.err);
        CHECK(said.code == c.code);
        CHECK_FALSE((said.out + said.err).empty());
        CHECK(said.err.find("an error of its own") == std::string::npos);
        std::vector<std::string> args = c.args;
        if (std::find(args.begin(), args.end(), "--csv") == args.end()) args.emplace_back("--json");
        const Said told = say(args);
        CHECK(told.code == c.code);
        CHECK(nlohmann::json::accept(told.out));
    }
}

TEST_CASE("a million million cells are refused at once") {
    const JobFile job;
    std::string thousand;
    for (int i = 1; i <= 1000; ++i) thousand += (i == 1 ? "" : ",") + std::to_string(i);
    const Said said =
        say({"sweep", job.path(), "--set", "train.rank=" + thousand, "--set", "train.batch_size=" + thousand, "--set",
             "data.resolution=" + thousand, "--set", "data.text_tokens=" + thousand});
    CHECK(said.code == 2);
    CHECK(said.err.find("more than 100000 combinations") != std::string::npos);
}

TEST_CASE("sweep writes its picture, prints CSV and says what does not vary above the table") {
    const JobFile job;
    const fs::path svg = job.path() + ".svg";
    const Said said = say({"sweep", job.path(), "--gpu", "rtx-3070", "--set", "train.batch_size=1,2", "--set",
                           "data.resolution=256,512", "--set", "train.rank=8", "--svg", svg.string(), "--csv"});
    CHECK(said.code == 0);
    CHECK(said.err.empty());
    CHECK(said.out.starts_with("train.rank,train.batch_size,data.resolution,verdict,"));
    CHECK(contents_of(svg).starts_with("<svg"));
    fs::remove(svg);
    const Said table = say({"sweep", job.path(), "--gpu", "rtx-3070", "--set", "train.batch_size=1,2", "--set",
                            "data.resolution=256,512", "--set", "train.rank=8"});
    CHECK(table.out.find("train.rank=8\n") != std::string::npos);
    CHECK(table.out.find("train.batch_size \\ data.resolution") != std::string::npos);
}

TEST_CASE("the schema has a place for every key of the answers") {
    const nlohmann::json schema = nlohmann::json::parse(say({"schema"}).out);
    const nlohmann::json& defs = schema.at("$defs");
    const JobFile job;
    const auto told = [](std::vector<std::string> args) {
        args.emplace_back("--json");
        return nlohmann::json::parse(say(args).out);
    };
    check_keys(told({"sweep", job.path(), "--gpu", "rtx-3070", "--set", "train.rank=4,0"}), defs.at("sweep"), defs,
               "sweep");
    check_keys(told({"sweep", job.path(), "--set", "train.rank=4,4"}), defs.at("sweep"), defs, "sweep");
    check_keys(told({"max", job.path(), "--gpu", "rtx-3070", "--vary", "rank,batch_size"}), defs.at("max"), defs,
               "max");
    check_keys(told({"max", job.path(), "--gpu", "rtx-3070", "--vary", "frames"}), defs.at("max"), defs, "max");
    check_keys(told({"grow", job.path(), "--gpu", "rtx-3070"}), defs.at("grow"), defs, "grow");
    check_keys(told({"grow", job.path(), "--gpu", "rtx-9"}), defs.at("grow"), defs, "grow");
}
