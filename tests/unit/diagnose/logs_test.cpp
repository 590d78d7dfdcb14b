// Every log of tests/fixtures/logs, which are of our own writing, and what expected.json says that it shows: in each
// form of PyTorch's messages from 1.0 to 2.14, of Linux, Windows and WSL, in the encodings that shells leave behind.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "vram/diagnose/diagnose.hpp"

using namespace vram;
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

const fs::path folder = fs::path(VRAM_SOURCE_DIR) / "tests/fixtures/logs";

std::string read(const fs::path& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
}

/// What a diagnosis says under a key of expected.json.
json said(const json& diagnosis, const std::string& key) {
    return key == "heaviest" ? diagnosis.at("heaviest_bucket").at("size") : diagnosis.at(key);
}

}  // namespace

TEST_CASE("every log is read as the text beside it says") {
    const json expected = json::parse(read(folder / "expected.json"));
    std::size_t logs = 0;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        if (entry.path().extension() != ".log") continue;
        ++logs;
        const std::string name = entry.path().filename().string();
        CAPTURE(name);
        REQUIRE(expected.contains(name));
        const diagnosis::Diagnosis diagnosis = diagnosis::diagnose(read(entry.path()), name);
        const json told = json::parse(to_json(diagnosis));
        CHECK(exit_code(diagnosis) == (diagnosis.recognised ? 0 : 2));
        CHECK(diagnosis.recognised != diagnosis.first_change.empty());
        CHECK(diagnosis.recognised == diagnosis.looked_for.empty());
        for (const auto& [key, value] : expected.at(name).items()) {
            CAPTURE(key);
            if (key != "numbers") {
                CHECK(said(told, key) == value);
                continue;
            }
            for (const auto& [number, bytes] : value.items()) {
                CAPTURE(number);
                CHECK(told.at("numbers").at(number) == bytes);
            }
        }
    }
    CHECK(logs == expected.size());
    CHECK(logs >= 25);
}

TEST_CASE("how a log comes in pieces changes nothing") {
    const diagnosis::Knowledge known = diagnosis::Knowledge::built_in();
    std::mt19937 random(7);
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        if (entry.path().extension() != ".log") continue;
        CAPTURE(entry.path().filename().string());
        const std::string text = read(entry.path());
        const diagnosis::Diagnosis whole = diagnosis::diagnose(text, "log", nullptr, known);
        diagnosis::LogReader reader(known);
        for (std::size_t at = 0; at < text.size();) {
            const std::size_t size = 1 + random() % 90;
            reader.feed(std::string_view(text).substr(at, size));
            at += size;
        }
        CHECK(reader.finish("log") == whole);
    }
}

TEST_CASE("line ends, colours and a byte order mark change nothing") {
    const diagnosis::Knowledge known = diagnosis::Knowledge::built_in();
    const std::string text = read(folder / "torch2_1_capacty.log");
    const diagnosis::Diagnosis plain = diagnosis::diagnose(text, "log", nullptr, known);
    REQUIRE(plain.recognised);
    std::string returns, colours = "\xEF\xBB\xBF", wide = "\xFF\xFE";
    for (const char c : text) {
        returns += c == '\n' ? "\r\n" : std::string(1, c);
        colours += c == ' ' ? "\x1b[31m \x1b[0m" : std::string(1, c);
        wide += {c, '\0'};
    }
    for (const std::string& other : {returns, colours, wide})
        CHECK(diagnosis::diagnose(other, "log", nullptr, known) == plain);
}

TEST_CASE("a failure after which the run goes on is said to be one, and a later one goes before it") {
    const std::string bar = "Steps:   1%|          | ", rest = "/1600 [00:09<20:00,  1.00s/it, loss=0.08]\n";
    const std::string oom =
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total "
        "capacity of 8.00 GiB of which 0 bytes is free.\n";
    const auto log = [&](bool ends) {
        std::string text = bar + "5" + rest + "Running validation...\n" + oom;
        for (int n = 6; n < 20; ++n) text += bar + std::to_string(n) + rest;
        return text + (ends ? "Saved state to out\nMemoryError\n" : "");
    };
    const diagnosis::Diagnosis survived = diagnosis::diagnose(log(false));
    CHECK(survived.went_on);
    CHECK(survived.phase == diagnosis::Phase::sampling);
    CHECK(survived.failures == 1);
    const diagnosis::Diagnosis died = diagnosis::diagnose(log(true));
    CHECK_FALSE(died.went_on);
    CHECK(died.kind == diagnosis::Kind::host_ram);
    CHECK(died.phase == diagnosis::Phase::save);
    CHECK(died.failures == 2);
}

TEST_CASE("a bar that is drawn again when it closes is no progress") {
    const std::string bar = "Steps:   1%|          | 5/1600 [00:09<20:00,  1.00s/it, loss=0.08]\n";
    const diagnosis::Diagnosis died = diagnosis::diagnose(bar + "MemoryError\n" + bar + bar);
    CHECK_FALSE(died.went_on);
    CHECK(died.step == 6);
}

TEST_CASE("a word is no failure where it only stands in a stack trace's code") {
    const std::string text =
        "Steps:   1%|          | 5/1600 [00:09<20:00,  1.00s/it, loss=0.08]\n"
        "Traceback (most recent call last):\n"
        "  File \"/home/u/train.py\", line 5, in train_step\n"
        "    raise RuntimeError(\"CUDA out of memory\")\n"
        "ValueError: no such file\n";
    CHECK_FALSE(diagnosis::diagnose(text).recognised);
}

TEST_CASE("a config that fits alone makes the others the reason, and one that does not makes them a note") {
    report::Report report;
    report.gpu.capacity = report.gpu.capacity_high = 24 * GiB;
    report::Peak peak;
    peak.phase = "load";
    report::Phase load;
    load.name = load.kind = "load";
    const auto with = [&](Bytes need) {
        peak.device = peak.device_low = peak.device_high = need;
        load.needs_low = load.needs_high = need;
        report.peak = peak;
        report.phases = {load};
        const std::string text =
            "Loading pipeline components...\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. "
            "GPU 0 "
            "has a total capacity of 24.00 GiB of which 512.00 MiB is free. Process 7 has 3.00 GiB memory in use. "
            "Including "
            "non-PyTorch memory, this process has 20.50 GiB memory in use.\n";
        return diagnosis::diagnose(text, "log", &report);
    };
    const diagnosis::Diagnosis alone = with(22 * GiB);
    CHECK(alone.kind == diagnosis::Kind::other_process);
    CHECK(alone.confidence == diagnosis::Confidence::high);
    REQUIRE(alone.prediction);
    CHECK(alone.prediction->agrees);
    CHECK(alone.prediction->needs_high == 22 * GiB);
    CHECK(with(25 * GiB).kind == diagnosis::Kind::config_too_big);
    CHECK_FALSE(with(25 * GiB).notes.empty());
}

TEST_CASE("the first lines of the text say where, what kind, by how much, and what to change") {
    const std::string text = to_text(diagnosis::diagnose(read(folder / "torch2_13_driver_warning.log"), "log"));
    CHECK(
        text.starts_with("died          in the VAE decode of a preview\n"
                         "kind          config too big: the job needs more than the card has (confidence high)\n"
                         "by how much   3.19 GiB were asked for, 914.38 MiB of 31.35 GiB were free: at least 2.30 GiB "
                         "too little\n"
                         "change first  turn VAE tiling on for the preview's decode, or make the previews smaller\n"));
    CHECK(to_text(diagnosis::diagnose("all is well\n", "run.log"))
              .starts_with("nothing recognised in run.log\n\nlooked for\n"));
}
