#include "vram/advise/advise.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "vram/io/path.hpp"

using namespace vram;
using advise::Advised;
using advise::Proposal;
using report::Verdict;

namespace {

const profile::Catalogue& catalogue() {
    static const profile::Catalogue built_in = profile::Catalogue::built_in();
    return built_in;
}

report::CheckOptions on(const std::string& gpu) {
    report::CheckOptions options;
    options.gpu = gpu;
    options.compares_checkpointing = false;
    return options;
}

report::CheckOptions with(report::CheckOptions options, const Proposal& proposal) {
    for (const advise::Placed& placed : proposal.changes)
        options.settings.insert(options.settings.end(), placed.change.settings.begin(), placed.change.settings.end());
    return options;
}

std::string job_text(const std::string& train, const std::string& data, const std::string& rest = "") {
    return "vramest: 1\ntrainer: torch\nmodel: flux1_dev\n" + rest + "train:\n  method: lora\n  rank: 16\n" + train +
           "data:\n" + data;
}

std::set<job::Lever> levers_of(const Proposal& proposal) {
    std::set<job::Lever> out;
    for (const advise::Placed& placed : proposal.changes) out.insert(placed.change.lever);
    return out;
}

std::string example(const std::string& name) {
    std::ostringstream text;
    text << std::ifstream(std::string(VRAM_SOURCE_DIR) + "/examples/" + name, std::ios::binary).rdbuf();
    return text.str();
}

/// The laws of every answer.
void hold(const std::string& text, const std::string& name, const report::CheckOptions& options) {
    CAPTURE(name);
    CAPTURE(options.gpu);
    const Advised advised = advise::advise(text, name, options, catalogue());
    CHECK(advised.before == report::check(text, name, options, catalogue()));
    if (advised.before.verdict == Verdict::cannot_say || advised.before.verdict == Verdict::fits) {
        CHECK(advised.fits.empty());
        return;
    }
    CHECK((advised.fits.empty() || !advised.nearest));
    std::vector<Proposal> all = advised.fits;
    all.insert(all.end(), advised.helps.begin(), advised.helps.end());
    if (advised.nearest) all.push_back(*advised.nearest);
    for (const Proposal& proposal : all) {
        const report::Report after = report::check(proposal.file, name, with(options, proposal), catalogue());
        REQUIRE(after.peak);
        CHECK(after.verdict == proposal.verdict);
        CHECK(after.verdict <= advised.before.verdict);  // in the order fits, tight, does_not_fit
        CHECK(proposal.saves == advised.before.peak->device_high - after.peak->device_high);
        CHECK(proposal.device_high == after.peak->device_high);
        CHECK(proposal.device_low == after.peak->device_low);
        const auto shortage = [](const report::Report& r) { return r.peak->device_high - r.gpu.usable(); };
        CHECK(shortage(after) <= shortage(advised.before));
        CHECK((shortage(after) < shortage(advised.before) || proposal.saves_there > 0));
        CHECK((proposal.verdict == Verdict::fits) == (proposal.short_of == 0));
    }
    for (const Proposal& proposal : advised.fits) CHECK(proposal.verdict == Verdict::fits);
    for (const Proposal& proposal : advised.helps) {
        CHECK(proposal.verdict != Verdict::fits);
        CHECK(proposal.changes.size() == 1);
    }
    CHECK(advise::exit_code(advised) == (advised.fits.empty() ? 1 : 0));
}
void hold(const std::string& text, const std::string& name, const std::string& gpu) { hold(text, name, on(gpu)); }

/// Every change that was tried on its own, whatever came of it.
std::vector<job::Change> changes_of(const Advised& advised) {
    std::vector<job::Change> out;
    for (const std::vector<Proposal>* proposals : {&advised.fits, &advised.helps})
        for (const Proposal& proposal : *proposals)
            for (const advise::Placed& placed : proposal.changes) out.push_back(placed.change);
    for (const advise::Placed& placed : advised.idle) out.push_back(placed.change);
    return out;
}

}  // namespace

TEST_CASE("advice keeps its laws: it fits when checked, saves the difference, and never makes it worse") {
    hold(job_text("  batch_size: 4\n  gradient_checkpointing: true\n", "  resolution: 1024\n"), "job.yaml", "rtx-4090");
    hold(job_text("  batch_size: 2\n  gradient_checkpointing: false\n", "  buckets: [[512, 512], [1024, 1024]]\n"),
         "job.yaml", "rtx-6000-ada");
    hold(job_text("  gradient_checkpointing: true\n", "  resolution: 512\n"), "job.yaml", "rtx-3060-12gb");
    hold(
        job_text("  gradient_checkpointing: true\n", "  resolution: 1024\n", "environment: {other_processes: 20GiB}\n"),
        "job.yaml", "rtx-5090");
    hold(job_text("  gradient_checkpointing: true\n", "  resolution: 512\n"), "job.yaml", "h200");
}

TEST_CASE("the safest change comes first, and what moves nothing is said to") {
    const Advised advised =
        advise::advise(job_text("  batch_size: 4\n  gradient_checkpointing: false\n", "  resolution: 1024\n"),
                       "job.yaml", on("rtx-6000-ada"), catalogue());
    REQUIRE(!advised.fits.empty());
    CHECK(levers_of(advised.fits.front()) == std::set{job::Lever::gradient_checkpointing});
}

TEST_CASE("of a concept slider the anchor class may go") {
    const std::string text = example("z_image_concept_slider.yaml");
    hold(text, "slider.yaml", "rtx-3060-12gb");
    const Advised advised = advise::advise(text, "slider.yaml", on("rtx-3060-12gb"), catalogue());
    const auto drops = [](const Proposal& proposal) {
        const std::vector<io::Edit>& edits = proposal.changes.front().change.edits;
        return proposal.changes.size() == 1 && edits.size() == 1 &&
               edits.front().path == "config.process[0].slider.anchor_class";
    };
    const auto found = std::find_if(advised.helps.begin(), advised.helps.end(), drops);
    REQUIRE(found != advised.helps.end());
    CHECK(found->saves > 2 * GiB);
    const report::Report after =
        report::check(found->file, "slider.yaml", with(on("rtx-3060-12gb"), *found), catalogue());
    CHECK(after.job.resolved.at("slider.anchor_class") == "none");
}

TEST_CASE("where one change is not enough, two are played together") {
    const Advised advised =
        advise::advise(job_text("  batch_size: 4\n  gradient_checkpointing: false\n", "  resolution: 1024\n"),
                       "job.yaml", on("rtx-4090"), catalogue());
    REQUIRE(!advised.fits.empty());
    CHECK(advised.fits.front().changes.size() > 1);
    CHECK(!advised.helps.empty());
}

TEST_CASE("closing other processes is advice where these are the reason") {
    const std::string text =
        job_text("  gradient_checkpointing: true\n", "  resolution: 1024\n", "environment: {other_processes: 20GiB}\n");
    const Advised advised = advise::advise(text, "job.yaml", on("rtx-5090"), catalogue());
    const auto closes = [](const Proposal& proposal) {
        return levers_of(proposal) == std::set{job::Lever::other_processes};
    };
    REQUIRE(std::any_of(advised.fits.begin(), advised.fits.end(), closes));
    const auto found = std::find_if(advised.fits.begin(), advised.fits.end(), closes);
    CHECK(found->file == text);
    CHECK(!found->changes.front().change.shell.empty());
}

TEST_CASE("where nothing helps enough, the nearest miss is told") {
    const Advised advised = advise::advise(
        "vramest: 1\ntrainer: torch\nmodel: flux1_dev\ntrain: {method: full}\n"
        "data: {resolution: 1024}\n",
        "job.yaml", on("rtx-3060-12gb"), catalogue());
    CHECK(advised.fits.empty());
    REQUIRE(advised.nearest);
    CHECK(advised.nearest->verdict == Verdict::does_not_fit);
    CHECK(advised.nearest->short_of > 0);
    CHECK(advise::exit_code(advised) == 1);
}

TEST_CASE("advice starts from what --set says, and leaves it") {
    struct Case {
        std::string file;
        job::Setting setting;
        job::Lever lever;
        const char* gpu = "rtx-3060-12gb";
    };
    for (const Case& c : {
             Case{"flux_lora.yaml", {"train.batch_size", "24"}, job::Lever::batch_size},
             Case{"flux_lora.yaml", {"train.gradient_checkpointing", "false"}, job::Lever::gradient_checkpointing},
             Case{"flux_lora.yaml", {"data.resolution", "1536"}, job::Lever::resolution},
             Case{"flux_lora.yaml", {"data.buckets", "[[1024, 1024], [512, 512]]"}, job::Lever::resolution},
             Case{"flux_lora.yaml", {"train.optimizer", "adamw"}, job::Lever::optimizer},
             Case{"flux_lora.yaml", {"train.rank", "512"}, job::Lever::rank},
             Case{"flux_lora.yaml", {"quantize", "none"}, job::Lever::quantization},
             Case{"flux_lora.yaml", {"sample.enabled", "true"}, job::Lever::samples},
             Case{"wan21_lora_24gb.yaml", {"data.frames", "81"}, job::Lever::frames},
             Case{"sd_scripts_sdxl_lora.toml", {"train.batch_size", "24"}, job::Lever::batch_size},
             Case{"sd_scripts_sdxl_lora.toml",
                  {"train.gradient_checkpointing", "false"},
                  job::Lever::gradient_checkpointing},
             Case{"sd_scripts_sdxl_lora.toml", {"data.buckets", "[[1536, 1536]]"}, job::Lever::resolution},
             Case{"sd_scripts_sdxl_lora.toml", {"train.optimizer", "adamw"}, job::Lever::optimizer},
             Case{"sd_scripts_sdxl_lora.toml", {"train.rank", "512"}, job::Lever::rank},
             Case{"sd_scripts_sdxl_lora.toml", {"dtype", "fp32"}, job::Lever::precision},
             Case{"job_torch_flux.yaml", {"train.batch_size", "24"}, job::Lever::batch_size},
             Case{"job_torch_flux.yaml", {"data.buckets", "[[1024, 1024], [512, 512]]"}, job::Lever::resolution},
         }) {
        CAPTURE(c.file);
        CAPTURE(c.setting.key);
        report::CheckOptions options = on(c.gpu);
        options.settings.push_back(c.setting);
        const Advised advised = advise::advise(example(c.file), c.file, options, catalogue());
        CHECK(advised.before.verdict == Verdict::does_not_fit);
        const std::vector<job::Change> changes = changes_of(advised);
        CHECK(!changes.empty());
        for (const job::Change& change : changes) {
            CAPTURE(change.text);
            // Samples may still be smaller, or fewer.
            if (c.lever == job::Lever::samples)
                CHECK(change.text != "no samples while training");
            else
                CHECK(change.lever != c.lever);
        }
        hold(example(c.file), c.file, options);
    }
}

TEST_CASE("advice is of the model that --set names") {
    report::CheckOptions options = on("rtx-3060-12gb");
    options.settings = {{"model", "sd15"}, {"data.buckets", "[[512, 512]]"}, {"train.batch_size", "16"}};
    const Advised advised = advise::advise(example("sd_scripts_sdxl_lora.toml"), "lora.toml", options, catalogue());
    CHECK(advised.before.job.model == "sd15");
    const std::vector<job::Change> changes = changes_of(advised);
    CHECK(!changes.empty());
    // Stable Diffusion's script has no cache for captions, and SDXL's, which the file is for, has.
    for (const job::Change& change : changes)
        for (const io::Edit& edit : change.edits) CHECK(edit.path.find("cache_text_encoder") == std::string::npos);
}
