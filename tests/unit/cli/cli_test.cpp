#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "unit/cli/command.hpp"
#include "vram/base/bytes.hpp"

using namespace vram;

namespace {

/// A job file that goes with the test.
struct JobFile : TemporaryFile {
    explicit JobFile(const std::string& rest = {})
        : TemporaryFile("vramest: 1\ntrainer: torch\nmodel: flux1_dev\ndata: {resolution: 256}\n" + rest) {}
};

}  // namespace

TEST_CASE("exit codes tell the verdict") {
    struct Case {
        const char* why;
        std::vector<std::string> options;
        int code;
    };
    const JobFile job;
    for (const Case& c : {
             Case{"it fits", {"--gpu", "rtx-5090"}, 0},
             Case{"it fits by capacity", {"--capacity", "80GiB"}, 0},
             Case{"it does not fit", {"--gpu", "rtx-3070"}, 1},
             Case{"tight is 0", {"--capacity", "23 GiB"}, 0},
             Case{"tight is 1 if strict", {"--capacity", "23 GiB", "--strict"}, 1},
             Case{"an unknown card", {"--gpu", "rtx-9999"}, 2},
         }) {
        CAPTURE(c.why);
        std::vector<std::string> args{"check", job.path()};
        args.insert(args.end(), c.options.begin(), c.options.end());
        const Said said = say(args);
        CAPTURE(said.out);
        CHECK(said.code == c.code);
        if (c.code != 2) CHECK(said.err.empty());
        CHECK_FALSE((said.out + said.err).empty());
    }
}

TEST_CASE("flags reach the job") {
    const JobFile job("train: {method: lora, rank: 4}\n");
    const Said said = say({"check", job.path(), "--json", "--set", "train.rank=8", "--set", "data.buckets=[[256, 512]]",
                           "--set", "data.resolution=256", "--gpu", "h200"});
    CHECK(said.code == 2);  // a bucket and a resolution
    const Said right = say({"check", job.path(), "--json", "--set", "train.rank=8", "--set=train.ema=true", "--gpu",
                            "h200", "--os", "windows", "--other-processes", "2GiB", "--alloc-conf",
                            "max_split_size_mb:128,roundup_power2_divisions:4"});
    CAPTURE(right.err);
    REQUIRE(right.code == 0);
    const nlohmann::json report = nlohmann::json::parse(right.out);
    CHECK(report.at("job").at("resolved").at("train.rank") == "8");
    CHECK(report.at("job").at("resolved").at("train.ema") == "true");
    CHECK(report.at("job").at("resolved").at("environment.os") == "windows");
    CHECK(report.at("gpu").at("other_processes") == 2147483648);
}

TEST_CASE("a wrong word is answered with the right one") {
    struct Case {
        std::vector<std::string> args;
        const char* err;
    };
    for (const Case& c : {
             Case{{"chekc", "job.yaml"}, "unknown verb chekc; did you mean check?\n"},
             Case{{"check", "job.yaml", "--stirct"}, "unknown option --stirct; did you mean --strict?\n"},
             Case{{"check", "job.yaml", "--capcity=4GiB"}, "unknown option --capcity; did you mean --capacity?\n"},
             Case{{"check"}, "a FILE is due; - reads standard input\n"},
             Case{{"check", "a.yaml", "b.yaml"}, "unexpected argument b.yaml\n"},
             Case{{"--versoin"}, "unknown option --versoin; did you mean --version?\n"},
             Case{{"check", "a.yaml", "--gpu"}, "--gpu: 1 required TEXT missing\n"},
         }) {
        CAPTURE(c.err);
        const Said said = say(c.args);
        CHECK(said.code == 2);
        CHECK(said.out.empty());
        CHECK(said.err == c.err);
    }
}

TEST_CASE("with --json the command line's own mistakes are a report too") {
    const Said said = say({"check", "--json", "--gqu", "x"});
    CHECK(said.code == 2);
    const nlohmann::json report = nlohmann::json::parse(said.out);
    CHECK(report.at("verdict") == "cannot_say");
    CHECK(report.at("peak").is_null());
    CHECK(report.at("diagnostics").at(0).at("problem") == "unknown_option");
    CHECK(report.at("diagnostics").at(0).at("nearest") == "--gpu");
}

TEST_CASE("help, version and lists") {
    CHECK(say({}).code == 0);
    CHECK(say({"--help"}).out.find("check") != std::string::npos);
    CHECK(say({"check", "--help"}).out.find("--capacity") != std::string::npos);
    CHECK(say({"--version"}).out == "vramest 0.1.0\n");
    CHECK(say({"models"}).out.find("flux1_dev") != std::string::npos);
    const Said one = say({"models", "FLUX1-dev"});
    CHECK(one.code == 0);
    CHECK(one.out.starts_with("flux1_dev"));
    CHECK(one.out.find("flux1_schnell") == std::string::npos);
    CHECK(say({"gpus"}).out.find("rtx-4090") != std::string::npos);
    CHECK(say({"trainers"}).out.find("torch") != std::string::npos);
    for (const char* verb : {"models", "gpus", "trainers"}) {
        CAPTURE(verb);
        CHECK(nlohmann::json::parse(say({verb, "--json"}).out).size() > 0);
    }
}

TEST_CASE("models PATH says what a folder or a file is") {
    const std::string folder = std::string(VRAM_SOURCE_DIR) + "/tests/bad_inputs/models/";
    const Said unknown = say({"models", folder + "no_class"});
    CHECK(unknown.code == 2);
    CHECK(unknown.out.starts_with("no known class  "));
    CHECK(unknown.out.find("BF16 8 B") != std::string::npos);
    CHECK(unknown.err.find("names no class") != std::string::npos);
    const nlohmann::json told = nlohmann::json::parse(say({"models", folder + "no_class", "--json"}).out);
    CHECK(told.at("stored_weights") == nlohmann::json::parse(R"([{"type": "BF16", "parameters": 4, "bytes": 8}])"));
    CHECK(say({"models", folder + "cut.safetensors"}).code == 2);
    CHECK(say({"models", folder + "absent"}).err.find("there is no such file or folder") != std::string::npos);
    CHECK(say({"models", "flux1_dex"}).err.find("did you mean flux1_dev?") != std::string::npos);
}

TEST_CASE("the schema has a place for every key of a report") {
    const nlohmann::json schema = nlohmann::json::parse(say({"schema"}).out);
    const JobFile job("train: {method: lora, rank: 4, gradient_checkpointing: true}\n");
    const nlohmann::json& defs = schema.at("$defs");
    check_keys(nlohmann::json::parse(say({"check", job.path(), "--gpu", "h200", "--json"}).out), defs.at("report"),
               defs, "report");
    check_keys(nlohmann::json::parse(say({"check", "no such file", "--json"}).out), defs.at("report"), defs, "report");
}

TEST_CASE("the schema has a place for every key of explain and risk") {
    const nlohmann::json schema = nlohmann::json::parse(say({"schema"}).out);
    const JobFile job("train: {method: lora, rank: 4, gradient_checkpointing: true}\n");
    const nlohmann::json& defs = schema.at("$defs");
    for (const auto& [verb, def] : {std::pair{"explain", "explained"}, {"risk", "risk"}})
        for (const char* gpu : {"h200", "rtx-3060", "no-such-card"}) {
            CAPTURE(verb);
            CAPTURE(gpu);
            const Said said = say({verb, job.path(), "--gpu", gpu, "--json"});
            check_keys(nlohmann::json::parse(said.out), defs.at(def), defs, verb);
            CHECK(said.code == (std::string(gpu) == "h200" ? 0 : std::string(gpu) == "rtx-3060" ? 1 : 2));
        }
}

TEST_CASE("explain writes its picture where it is told") {
    const JobFile job;
    const std::string out = job.path() + ".svg";
    CHECK(say({"explain", job.path(), "--gpu", "h200", "--phase", "call", "--svg", out}).code == 0);
    std::ifstream stream(out);
    std::string first;
    std::getline(stream, first);
    CHECK(first.starts_with("<svg "));
    std::filesystem::remove(out);
    CHECK(say({"explain", job.path(), "--gpu", "h200", "--svg", "/no/such/folder/x.svg"}).code == 2);
    CHECK(say({"explain", job.path(), "--gpu", "h200", "--phase", "step 1", "--svg", out}).code == 2);
    CHECK_FALSE(std::filesystem::exists(out));
    CHECK(say({"explain", job.path(), "--gpu", "h200", "--phase", ""}).code == 2);
    CHECK(say({"explain", job.path(), "--gpu", "h200", "--svg", job.path()}).err.find("never touched") !=
          std::string::npos);
    CHECK(say({"check", job.path(), "--gpu", "h200"}).code == 0);  // it is what it was
    CHECK(say({"risk", job.path(), "--gpu", "h200"}).code == 2);   // a call trains nothing
}

TEST_CASE("trace writes the events where it is told") {
    const JobFile job;
    const std::string out = job.path() + ".json";
    CHECK(say({"trace", job.path(), "--out", out}).code == 0);
    std::ifstream stream(out);
    CHECK(nlohmann::json::parse(stream).at("events").size() > 100);
    std::filesystem::remove(out);
    CHECK(say({"trace", job.path(), "--out", "/no/such/folder/x.json"}).code == 2);
}

TEST_CASE("diagnose: exit codes, a config beside the log, and a place in the schema for every key") {
    const std::string logs = std::string(VRAM_SOURCE_DIR) + "/tests/fixtures/logs/";
    const std::string config = std::string(VRAM_SOURCE_DIR) + "/examples/flux_lora.yaml";
    CHECK(say({"diagnose", logs + "torch2_1_capacty.log"}).code == 0);
    const Said nothing = say({"diagnose", logs + "healthy.log"});
    CHECK(nothing.code == 2);
    CHECK(nothing.out.find("looked for") != std::string::npos);
    const Said absent = say({"diagnose", logs + "torch2_1_capacity.log"});
    CHECK(absent.code == 2);
    CHECK(absent.out.empty());
    CHECK(absent.err.find("torch2_1_capacty.log?") != std::string::npos);
    CHECK(say({"diagnose"}).err == "a LOG is due; - reads standard input\n");
    CHECK(say({"diagnose", "-", "-"}).err == "LOG and CONFIG cannot both be standard input\n");
    CHECK(say({"diagnose", logs + "nccl.log", config, "third"}).err == "unexpected argument third\n");

    const nlohmann::json schema = nlohmann::json::parse(say({"schema"}).out);
    const nlohmann::json& defs = schema.at("$defs");
    const auto told = [&](std::vector<std::string> args) {
        args.insert(args.begin(), "diagnose");
        args.emplace_back("--json");
        const nlohmann::json answer = nlohmann::json::parse(say(args).out);
        check_keys(answer, defs.at("diagnosis"), defs, "diagnosis");
        return answer;
    };
    CHECK(told({logs + "borderline_video.log"}).at("heaviest_bucket").at("count") == 2);
    CHECK(told({logs + "absent"}).at("diagnostics").at(0).at("problem") == "file_not_found");
    CHECK(told({logs + "healthy.log"}).at("looked_for").size() > 3);
    // The card is the log's, unless a flag names another.
    const nlohmann::json beside = told({logs + "aitk_three_in_a_row.log", config, "--capacity", "16GiB"});
    CHECK(beside.at("prediction").at("capacity") == 16 * GiB);
    CHECK(beside.at("prediction").at("verdict") == "does_not_fit");
    const nlohmann::json own = told({logs + "torch2_13_driver_warning.log", config});
    CHECK(own.at("prediction").at("capacity") == own.at("numbers").at("capacity"));
    CHECK(own.at("prediction").at("agrees") == false);
    CHECK(own.at("prediction").at("needs_high") > 10 * GiB);
    CHECK(own.at("prediction").at("change").empty());  // it fits there
    // The first advice on the config, in its own lines; none where the failure is not of its size.
    const std::string small = std::string(VRAM_SOURCE_DIR) + "/examples/job_torch_flux.yaml";
    const nlohmann::json big = told({logs + "torch2_1_capacty.log", small, "--gpu", "rtx-4090"});
    REQUIRE(big.at("kind") == "config_too_big");
    const nlohmann::json& change = big.at("prediction").at("change");
    REQUIRE(change.size() >= 2);
    CHECK(change.at(0).get<std::string>().find("then fits") != std::string::npos);
    CHECK(change.at(1).get<std::string>().find("job_torch_flux.yaml:") != std::string::npos);
    const Said advised = say({"advise", small, "--gpu", "rtx-4090"});
    CHECK(advised.out.find(change.at(1).get<std::string>()) != std::string::npos);
    CHECK(told({logs + "sigkill_accelerate.log", small, "--gpu", "rtx-4090"}).at("prediction").at("change").empty());
    const nlohmann::json refused = told({logs + "nccl.log", logs + "nccl.log"});
    CHECK(refused.at("prediction").at("verdict") == "cannot_say");
    CHECK(refused.at("kind") == "init_failure_oom");
}
