// A trial says what check says, whatever the job and the card.
#include <doctest/doctest.h>

#include "laws/plays.hpp"
#include "vram/io/file.hpp"
#include "vram/report/trial.hpp"

using namespace vram;
using report::CheckOptions;
using report::Report;
using report::Trial;
using report::Verdict;

namespace {

struct Asked {
    std::string text, file;
};

Report checked(const Asked& asked, CheckOptions options) {
    options.compares_checkpointing = false;
    return report::check(asked.text, asked.file, options, laws::catalogue());
}

Trial tried(const Asked& asked, const CheckOptions& options) {
    const expected<io::Document> document = io::read(asked.text, asked.file, io::format_of(asked.file, asked.text));
    REQUIRE(document);
    return report::try_job(*document, options, laws::catalogue());
}

void agree(const Asked& asked, const CheckOptions& options) {
    const Report report = checked(asked, options);
    const Trial trial = tried(asked, options);
    CAPTURE(asked.file);
    CAPTURE(options.gpu);
    CAPTURE(options.capacity);
    for (const report::Setting& setting : options.settings) CAPTURE(setting.key + "=" + setting.value);
    CHECK(trial.verdict == report.verdict);
    CHECK(trial.diagnostics == report.diagnostics);
    if (!report.peak) {
        CHECK(trial.reason == report.reason);
        return;
    }
    CHECK(trial.gpu == report.gpu);
    CHECK(trial.tensors_peak == report.peak->tensors);
    if (trial.replayed) {
        CHECK(trial.device_low == report.peak->device_low);
        CHECK(trial.device_high == report.peak->device_high);
    } else {
        CHECK(trial.verdict == Verdict::does_not_fit);
        CHECK(trial.device_low <= report.peak->device_low);
        CHECK(trial.device_low > report.gpu.usable_high());
    }
}

/// Cards whose size lies where the verdict turns.
std::vector<Bytes> sizes_around(const Report& report) {
    const report::Peak& peak = *report.peak;
    std::vector<Bytes> out;
    for (const Bytes at : {peak.tensors, peak.device_low, peak.device_high, (peak.tensors + peak.device_low) / 2})
        for (const Bytes by : {-64 * MiB, -Bytes{1}, Bytes{0}})
            if (at + by >= job::smallest_capacity) out.push_back(at + by);
    return out;
}

Asked job_of(const std::string& model, const std::string& rest) {
    return {"vramest: 1\ntrainer: torch\n" + model + "\n" + rest + "\n", "job.yaml"};
}

}  // namespace

TEST_CASE("a trial's verdict and figures are those of check, at every size where the verdict turns") {
    const std::string lora = "train: {method: lora, rank: 8, gradient_checkpointing: true}\ndata: {resolution: 256}";
    for (const Asked& asked : {
             job_of("model: flux1_dev", lora),
             job_of("model: sd15", "train: {method: lora, rank: 4}\ndata: {resolution: 256}"),  // convolutions: a range
             job_of("model: sdxl", "train: {method: full}\ndata: {buckets: [[256, 256], [320, 256]]}"),
             job_of("model: wan21_t2v_1_3b", lora + "\n"),
             job_of("model: z_image", "data: {resolution: 256}"),
             job_of("component: vae_flux1", "op: decode\ndata: {resolution: 512}"),
         }) {
        for (const char* conf : {"''", "expandable_segments:True", "backend:cudaMallocAsync",
                                 "'garbage_collection_threshold:0.6,max_split_size_mb:128'"}) {
            CheckOptions options;
            options.settings = {{"environment.alloc_conf", conf}};
            options.gpu = "h200";
            const Report roomy = checked(asked, options);
            CAPTURE(asked.text);
            CAPTURE(roomy.reason);
            REQUIRE(roomy.peak);
            agree(asked, options);
            options.gpu.clear();
            for (const Bytes capacity : sizes_around(roomy)) {
                options.capacity = capacity;
                agree(asked, options);
            }
        }
    }
}

TEST_CASE("a trial chooses the card that check chooses, and refuses what check refuses") {
    const std::string lora = "train: {method: lora, rank: 8}\ndata: {resolution: 512}";
    for (const char* gpu : {"", "rtx-3070", "rtx-4090", "b200", "no such card"})
        for (const char* batch : {"1", "16", "0", "64", "4096", "two"})
            for (const char* system : {"linux", "windows"}) {
                CheckOptions options;
                options.gpu = gpu;
                options.settings = {{"train.batch_size", batch}, {"environment.os", system}};
                agree(job_of("model: flux1_dev", lora), options);
            }
    agree(job_of("model: no_model", lora), {});
    agree(job_of("model: flux1_dev", "train: {method: lora, rank: 8, targets: ['no such module']}"), {});
    agree({"not: a job", "other.yaml"}, {});
}

TEST_CASE("a trial of a trainer's own file says what check says") {
    for (const char* file : {"flux_lora.yaml", "z_image_no_checkpointing.yaml"}) {
        const std::string path = std::string(VRAM_SOURCE_DIR) + "/examples/" + file;
        const expected<std::string> text = io::read_file(path);
        REQUIRE(text);
        for (const char* gpu : {"rtx-3060-12gb", "rtx-4090", "a100-80gb"}) {
            CheckOptions options;
            options.gpu = gpu;
            agree({*text, file}, options);
        }
    }
}
