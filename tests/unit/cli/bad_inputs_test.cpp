#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "run.hpp"
#include "vram/base/diagnostic.hpp"

using namespace vram;
namespace fs = std::filesystem;

namespace {

const fs::path folder = fs::path(VRAM_SOURCE_DIR) / "tests/bad_inputs";

std::string read(const fs::path& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
}

struct Outcome {
    int code = 0;
    nlohmann::json report;
};

Outcome check(const fs::path& input, const std::string& arguments) {
    std::vector<std::string> args{"check", input.string(), "--json"};
    std::istringstream words(arguments);
    for (std::string word; words >> word;) args.push_back(word);
    std::ostringstream out, err;
    Outcome outcome;
    outcome.code = cli::run(args, out, err);
    outcome.report = nlohmann::json::parse(out.str());
    return outcome;
}

/// "problem line column key nearest", a complaint a line.
std::string complaints_of(const nlohmann::json& report) {
    const auto word = [](std::string text) {
        const std::string here = folder.string() + "/";
        if (text.starts_with(here)) text.erase(0, here.size());
        return text.empty() ? std::string("-") : text;
    };
    std::string out;
    for (const nlohmann::json& d : report.at("diagnostics")) {
        if (d.at("severity") != "error") continue;
        out += d.at("problem").get<std::string>() + " " + std::to_string(d.at("line").get<int>()) + " " +
               std::to_string(d.at("column").get<int>()) + " " + word(d.at("key").get<std::string>()) + " " +
               word(d.at("nearest").get<std::string>()) + "\n";
    }
    return out;
}

/// Name → input file, which need not exist.
std::map<std::string, fs::path> cases() {
    std::map<std::string, fs::path> out;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        const fs::path& path = entry.path();
        if (path.extension() == ".md" || entry.is_directory()) continue;
        const bool is_input = path.extension() != ".args" && path.extension() != ".expect";
        const std::string name =
            path.stem().string() + (is_input && path.extension() != ".yaml" ? path.extension().string() : "");
        if (is_input)
            out[name] = path;
        else
            out.emplace(name, folder / (name + ".yaml"));
    }
    return out;
}

}  // namespace

TEST_CASE("every broken input is refused, with the complaint that stands beside it") {
    const bool rewrite = std::getenv("VRAM_REWRITE") != nullptr;
    std::set<std::string> problems;
    for (const auto& [name, input] : cases()) {
        CAPTURE(name);
        const Outcome outcome = check(input, read(folder / (name + ".args")));
        const std::string complaints = complaints_of(outcome.report);
        const fs::path expect = folder / (name + ".expect");
        if (rewrite) std::ofstream(expect) << complaints;
        CHECK(complaints == read(expect));
        CHECK(outcome.code == 2);
        CHECK(outcome.report.at("verdict") == "cannot_say");
        CHECK(outcome.report.at("peak").is_null());
        CHECK(outcome.report.at("reason") != "");
        std::istringstream lines(complaints);
        for (std::string line; std::getline(lines, line);) problems.insert(line.substr(0, line.find(' ')));
    }
    CHECK(cases().size() >= 40);

    SUBCASE("each kind of problem has a file") {
        const std::set<std::string> elsewhere{
            "file_too_large",  // made below, not stored
            "no_data",         // only where a trainer looks at images
        };
        for (int i = 0; i <= static_cast<int>(Problem::no_data); ++i) {
            const std::string problem(to_text(static_cast<Problem>(i)));
            CAPTURE(problem);
            CHECK((problems.count(problem) == 1 || elsewhere.count(problem) == 1));
        }
    }
}

TEST_CASE("a file beyond the reader's limit is refused") {
    const fs::path path = fs::temp_directory_path() / "vramest_too_large.yaml";
    std::ofstream(path) << std::string(17U << 20U, '#');
    const Outcome outcome = check(path, "");
    fs::remove(path);
    CHECK(outcome.code == 2);
    CHECK(complaints_of(outcome.report) == "file_too_large 0 0 - -\n");
}
