// The examples of gradient checkpointing: off it breaks, and where; on, or with the top bucket gone, or on the next
// card, it fits. And those of runs that train, and die outside of a step, beside one that fits.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "vram/report/check.hpp"

using namespace vram;
using report::Verdict;

namespace {

std::string example(const std::string& name) {
    const std::string ending = std::filesystem::path(name).has_extension() ? "" : ".yaml";
    const std::ifstream file(VRAM_SOURCE_DIR "/examples/" + name + ending, std::ios::binary);
    REQUIRE(file);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

report::Report on(const std::string& text, const std::string& gpu, const std::string& file_name = "example.yaml") {
    static const profile::Catalogue catalogue = profile::Catalogue::built_in();
    report::CheckOptions options;
    options.gpu = gpu;
    return report::check(text, file_name, options, catalogue);
}

std::string with_resolutions(std::string text, const std::string& list) {
    const std::size_t from = text.find('[', text.find("resolution:")), to = text.find(']', from);
    return text.replace(from, to + 1 - from, list);
}

/// Off it does not fit, in the first step already, and the report has the other number beside it.
void check_off(const std::string& name, const std::string& gpu) {
    CAPTURE(name);
    const report::Report off = on(example(name + "_no_checkpointing"), gpu);
    CHECK(off.verdict == Verdict::does_not_fit);
    REQUIRE(off.breaks_first);
    CHECK(off.breaks_first->phase == "step 1");
    const report::Report with = on(example(name + "_checkpointing"), gpu);
    REQUIRE(off.checkpointing.other);
    REQUIRE(with.checkpointing.other);
    CHECK(off.checkpointing.other->device_high == with.peak->device_high);
    CHECK(with.checkpointing.other->device_high == off.peak->device_high);
    CHECK(with.peak->device_high < off.peak->device_low);
}

Verdict of_bucket(const report::Report& report, const std::string& name) {
    const report::Phase* phase = report.phase(name);
    REQUIRE(phase != nullptr);
    return phase->verdict;
}

}  // namespace

TEST_CASE("examples: Z-Image Turbo with its training adapter is tight on 16 GB, where cached text makes it fit") {
    const std::string text = example("z_image_turbo_lora");
    CHECK(on(text, "rtx-4090").verdict == Verdict::fits);
    CHECK(on(text, "rtx-4060-ti-16gb").verdict == Verdict::tight);
    std::string cached = text;
    const std::string key = "cache_text_embeddings: ";
    cached.replace(cached.rfind(key), key.size() + 5, key + "true");  // a comment names it, too
    CHECK(on(cached, "rtx-4060-ti-16gb").verdict == Verdict::fits);
}

TEST_CASE("examples: Z-Image's large buckets with two pictures a batch need checkpointing") {
    check_off("z_image", "rtx-4090");
    const std::string text = example("z_image_checkpointing");
    const report::Report with = on(text, "rtx-4090");
    CHECK(of_bucket(with, "step 2") == Verdict::fits);
    CHECK(of_bucket(with, "bucket 1280x1280") == Verdict::fits);
    CHECK(of_bucket(with, "bucket 1536x1536") != Verdict::fits);
    CHECK(on(with_resolutions(text, "[1024, 1280]"), "rtx-4090").verdict == Verdict::fits);
    CHECK(on(text, "rtx-5090").verdict == Verdict::fits);
}

TEST_CASE("examples: SDXL of sd-scripts with four pictures a batch needs checkpointing") {
    const std::string name = "sd_scripts_sdxl_lora.toml", with_name = "sd_scripts_sdxl_lora_checkpointing.toml";
    const report::Report off = on(example(name), "rtx-4090", name);
    CHECK(off.verdict == Verdict::does_not_fit);
    REQUIRE(off.breaks_first);
    CHECK(off.breaks_first->phase == "step 1");
    const report::Report with = on(example(with_name), "rtx-4090", with_name);
    CHECK(with.verdict == Verdict::fits);
    REQUIRE(off.checkpointing.other);
    CHECK(off.checkpointing.other->device_high == with.peak->device_high);
}

TEST_CASE("examples: Qwen-Image-Edit with two control images needs checkpointing on 32 and on 48 GB") {
    check_off("qwen_image_edit", "rtx-a6000");
    const report::Report off = on(example("qwen_image_edit_no_checkpointing"), "rtx-5090");
    CHECK(off.verdict == Verdict::does_not_fit);
    CHECK(of_bucket(off, "step 1") == Verdict::does_not_fit);
    CHECK(on(example("qwen_image_edit_checkpointing"), "rtx-5090").verdict != Verdict::does_not_fit);
    CHECK(on(example("qwen_image_edit_checkpointing"), "rtx-a6000").verdict == Verdict::fits);
}

TEST_CASE("examples: FLUX with many buckets and four pictures a batch needs checkpointing") {
    check_off("flux_many_buckets", "rtx-4090");
    const std::string text = example("flux_many_buckets_checkpointing");
    const report::Report with = on(text, "rtx-4090");
    CHECK(of_bucket(with, "bucket 768x768") == Verdict::fits);
    CHECK(of_bucket(with, "bucket 1152x1152") == Verdict::does_not_fit);
    CHECK(on(with_resolutions(text, "[512, 640, 768]"), "rtx-4090").verdict == Verdict::fits);
    CHECK(on(text, "rtx-a6000").verdict == Verdict::fits);
}

namespace {

/// Every step fits; what breaks first is this phase, and the mirror fits.
void check_breaks(const std::string& name, const std::string& mirror, const std::string& gpu,
                  const std::string& phase) {
    CAPTURE(name);
    const report::Report broken = on(example(name), gpu);
    CHECK(broken.verdict == Verdict::does_not_fit);
    REQUIRE(broken.breaks_first);
    CHECK(broken.breaks_first->phase == phase);
    REQUIRE(broken.peak);
    for (const char* step : {"step 1", "step 2"}) CHECK(of_bucket(broken, step) == Verdict::fits);
    const report::Report with = on(example(mirror), gpu);
    CHECK(with.verdict == Verdict::fits);
    CHECK(with.peak->device_high < broken.peak->device_low);
}

}  // namespace

TEST_CASE("examples: Wan 2.1 14B trains on 24 GB and dies at a first sample of 1280 x 720") {
    check_breaks("wan21_first_sample", "wan21_lora_24gb", "rtx-4090", "sample");
    CHECK(on(example("wan21_first_sample"), "rtx-a6000").verdict == Verdict::fits);
}

TEST_CASE("examples: LTX-2 trains on 32 GB and dies at the first sample of five prompts") {
    check_breaks("ltx2_first_sample", "ltx2_lora_32gb", "rtx-5090", "sample");
    CHECK(on(example("ltx2_first_sample"), "rtx-a6000").verdict == Verdict::fits);
}

TEST_CASE("examples: caching captions of LTX-2 beside Gemma 3 in 8 bits is the peak of the run") {
    const report::Report broken = on(example("ltx2_text_cache"), "rtx-5090");
    CHECK(broken.verdict == Verdict::does_not_fit);
    CHECK(of_bucket(broken, "cache_text") == Verdict::does_not_fit);
    CHECK(of_bucket(broken, "step 2") == Verdict::fits);
    const report::Report larger = on(example("ltx2_text_cache"), "rtx-a6000");
    CHECK(larger.verdict == Verdict::fits);
    REQUIRE(larger.peak);
    CHECK(larger.peak->phase == "cache_text");
    const report::Report with = on(example("ltx2_lora_32gb"), "rtx-5090");
    CHECK(with.verdict == Verdict::fits);
    CHECK(of_bucket(with, "cache_text") == Verdict::fits);
}

TEST_CASE("examples: a concept slider of Z-Image fits 16 GB, and needs less without an anchor class") {
    const std::string text = example("z_image_concept_slider");
    const report::Report anchored = on(text, "rtx-4060-ti-16gb");
    CHECK(anchored.verdict == Verdict::fits);
    const auto without = [&](std::string changed, const std::string& line, const std::string& instead) {
        const std::size_t at = changed.find(line);
        REQUIRE(at != std::string::npos);
        return on(changed.replace(at, line.size(), instead), "rtx-4060-ti-16gb");
    };
    const report::Report single = without(text, "anchor_class: \"\"", "anchor_class: null");
    const report::Report lora = without(text, "type: concept_slider", "type: diffusion_trainer");
    const auto step = [](const report::Report& report) { return report.phase("bucket 1024x1024")->tensors_peak; };
    CHECK(step(single) < step(anchored));
    CHECK(step(lora) < step(single));
    // Two captions, of which one is blank, beside one; what is kept is of every block's input.
    CHECK(anchored.facts.kept_for_backward > single.facts.kept_for_backward * 18 / 10);
}
