// What each option of an ai-toolkit config moves: options.yaml says where, a play says how much, and the table of
// docs/ai-toolkit-options.md holds both. VRAM_REWRITE=1 writes the page anew; a person then reads the difference.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "base/blocks.hpp"
#include "shadow/run.hpp"
#include "trainers/ai_toolkit/play.hpp"
#include "trainers/ai_toolkit/resolve.hpp"
#include "vram/device/usage.hpp"
#include "vram/io/document.hpp"
#include "vram/io/path.hpp"
#include "vram/profile/catalogue.hpp"

using namespace vram;
using namespace vram::trainers;

namespace {

const profile::Catalogue& catalogue() {
    static const profile::Catalogue all = profile::Catalogue::built_in();
    return all;
}

// Most options in one word each; nothing is quantised, so that the adapter is merged for samples.
const std::string base =
    "job: extension\n"
    "config:\n"
    "  name: options\n"
    "  process:\n"
    "    - type: sd_trainer\n"
    "      network: {type: lora, linear: 16}\n"
    "      datasets: [{folder_path: /no/such/folder, resolution: 512, cache_latents_to_disk: true}]\n"
    "      train: {noise_scheduler: flowmatch, dtype: bf16, optimizer: adamw8bit}\n"
    "      model: {name_or_path: black-forest-labs/FLUX.1-dev, arch: flux}\n"
    "      sample: {width: 1024, height: 1024, prompts: [a]}\n";

std::string read(const std::string& path) {
    const std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    if (file) text << file.rdbuf();
    return text.str();
}

/// A node as YAML in one line, which io::assign reads.
std::string spelled(const io::Node& node) {
    std::string out;
    if (const io::Map* map = node.map()) {
        for (const io::Member& member : *map)
            out += (out.empty() ? "" : ", ") + member.key + ": " + spelled(member.value);
        return "{" + out + "}";
    }
    if (const io::List* list = node.list()) {
        for (const io::Node& item : *list) out += (out.empty() ? "" : ", ") + spelled(item);
        return "[" + out + "]";
    }
    return node.text() != nullptr ? "\"" + *node.text() + "\"" : node.spelled();
}

void assign(io::Document& document, const io::Node* settings) {
    if (settings == nullptr) return;
    for (const io::Member& member : *settings->map()) {
        CAPTURE(member.key);
        REQUIRE_FALSE(io::assign(document, "config.process[0]." + member.key, spelled(member.value)));
    }
}

struct Played {
    shadow::Trace trace;
    device::Usage usage;

    /// Of a component, or of all, at the peak of tensors of a phase or of one of its stages; -1: there is no such
    /// phase.
    [[nodiscard]] Bytes bytes(const std::string& phase_name, const std::string& stage, const std::string& part) const {
        const device::PhaseUsage* phase = usage.phase(phase_name);
        if (phase == nullptr) return -1;
        const device::Span& span = stage.empty() ? *phase : *phase->stage(stage);
        if (part == "all") return span.tensors_peak;
        Bytes sum = 0;
        for (const device::LiveSlot& slot : device::alive_after(trace, span.tensors_peak_event))
            if (trace.tags[slot.tag].component == part) sum += in_blocks(slot.bytes);
        return sum;
    }
};

Played play(const io::Node* over, const io::Node* set) {
    expected<io::Document> document = io::read(base, "job.yaml", io::Format::yaml);
    REQUIRE(document);
    assign(*document, over);
    assign(*document, set);
    Diagnostics notes;
    expected<job::Job> job = ai_toolkit::resolve(*document, catalogue(), notes);
    if (!job) FAIL(to_text(job.error().front()));
    shadow::Kernels kernels;
    kernels.scratch = false;
    shadow::Run run(kernels, true);
    static_cast<void>(ai_toolkit::play(*job, catalogue(), run));
    return {run.trace, device::sum(run.trace)};
}

std::string text_of(const io::Node& row, std::string_view key) {
    const io::Node* node = row.find(key);
    return node != nullptr && node->text() != nullptr ? *node->text() : std::string();
}

std::string with_sign(Bytes bytes) {
    std::string digits = std::to_string(bytes < 0 ? -bytes : bytes);
    for (std::ptrdiff_t at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3)
        digits.insert(static_cast<std::size_t>(at), ",");
    return (bytes < 0 ? "−" : bytes > 0 ? "+" : "") + digits;
}

}  // namespace

TEST_CASE("ai-toolkit's options move what the table says, where it says, by as much") {
    const expected<io::Document> rows =
        io::read(read(VRAM_SOURCE_DIR "/tests/options/options.yaml"), "options.yaml", io::Format::yaml);
    REQUIRE(rows);
    std::string table =
        "# What each option of an ai-toolkit config moves\n\n"
        "Bytes of tensors at the named phase's peak, as played, against the same config without the option: a LoRA of\n"
        "rank 16 on FLUX.1 dev at 512x512 in bf16, latents cached, samples at 1024x1024, nothing quantised, unless "
        "the\n"
        "row says otherwise. Sources are lines of ai-toolkit 27a03a91. `tests/options` plays every row.\n\n"
        "| option | beside it | older spelling | phase | whose | bytes | source |\n|---|---|---|---|---|---:|---|\n";
    std::map<std::string, Played> before;
    for (const io::Node& row : *rows->root.list()) {
        const std::string option = text_of(row, "option"), phase = text_of(row, "phase"), stage = text_of(row, "stage"),
                          part = text_of(row, "part"), moves = text_of(row, "moves");
        CAPTURE(option);
        const io::Node *over = row.find("over"), *set = row.find("set"), *older = row.find("older");
        const std::string beside = over != nullptr ? spelled(*over) : "";
        if (before.find(beside) == before.end()) before.emplace(beside, play(over, nullptr));
        const Played &first = before.at(beside), second = play(over, set);
        if (older != nullptr) CHECK(play(over, older).trace == second.trace);
        std::string effect;
        if (moves == "gone") {
            CHECK(first.usage.phase(phase) != nullptr);
            CHECK(second.usage.phase(phase) == nullptr);
            effect = "no such phase";
        } else {
            const bool is_new = first.usage.phase(phase) == nullptr;
            const Bytes was = std::max<Bytes>(0, first.bytes(phase, stage, part)),
                        is = second.bytes(phase, stage, part);
            REQUIRE(is >= 0);
            if (moves == "more") CHECK(is > was);
            if (moves == "less") CHECK(is < was);
            if (moves == "none") CHECK(is == was);
            effect = is_new ? "a phase of " + with_sign(is).substr(1) : with_sign(is - was);
        }
        table += "| `" + option + "` | " + (beside.empty() ? "" : "`" + beside + "`") + " | " +
                 (older != nullptr ? "`" + spelled(*older) + "`" : "") + " | " + phase +
                 (stage.empty() ? "" : ", " + stage) + " | " + part + " | " + effect + " | " + text_of(row, "source") +
                 " |\n";
    }
    const std::string path = VRAM_SOURCE_DIR "/docs/ai-toolkit-options.md";
    if (std::getenv("VRAM_REWRITE") != nullptr) std::ofstream(path, std::ios::binary) << table;
    CHECK(read(path) == table);
}
