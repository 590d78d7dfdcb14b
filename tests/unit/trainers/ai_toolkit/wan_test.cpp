// Wan in ai-toolkit: what its classes did around diffusers' models of two layers, on a fake GPU (torch 2.13.0,
// diffusers 0.42.1, ai-toolkit 27a03a91), beside our run of the same.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "shadow/run.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/dataset.hpp"
#include "trainers/ai_toolkit/play.hpp"
#include "trainers/ai_toolkit/resolve.hpp"
#include "unit/io/image_bytes.hpp"
#include "unit/io/temporary_folder.hpp"
#include "unit/models/saved.hpp"
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

struct Case {
    const char* why;
    const char* arch;
    const char* profile;
    const char* model;    // further keys of `model`
    const char* dataset;  // and of the dataset
    const char* sample;   // and of the sample
};

std::string text_of(const Case& c, const std::string& name, bool trains_in_full) {
    return std::string("job: extension\nconfig:\n  name: cat\n  process:\n    - type: sd_trainer\n") +
           (trains_in_full ? "" : "      network: {type: lora, linear: 16}\n") +
           "      datasets: [{folder_path: /no/such/folder, resolution: 512, num_frames: 9" + c.dataset +
           "}]\n"
           "      train: {noise_scheduler: flowmatch, dtype: bf16, optimizer: adamw8bit, cache_text_embeddings: true}\n"
           "      model: {name_or_path: '" +
           name + "', arch: " + c.arch + c.model +
           "}\n"
           "      sample: {width: 512, height: 320, num_frames: 9, guidance_scale: 5, sample_steps: 2, samples: "
           "[{prompt: "
           "a" +
           c.sample + "}]}\n";
}

struct Resolved {
    expected<job::Job> job;
    Diagnostics notes;
};
Resolved resolved(const Case& c, const std::string& name, bool trains_in_full) {
    expected<io::Document> document = io::read(text_of(c, name, trains_in_full), "job.yaml", io::Format::yaml);
    REQUIRE(document);
    REQUIRE_FALSE(io::assign(*document, "vramest.data.buckets", "[[512, 320, 9]]"));
    Diagnostics notes;
    expected<job::Job> job = ai_toolkit::resolve(*document, catalogue(), notes);
    return {std::move(job), std::move(notes)};
}

struct Played {
    run::Facts facts;
    device::Usage usage;
};
/// Two layers of the profile, from a folder.
Played played(const Case& c, bool trains_in_full = false) {
    const io::TemporaryFolder folder;
    nlohmann::ordered_json config = models::config_of(catalogue().model_of(c.profile));
    config["num_layers"] = 2;
    config.erase("vae_scale_factor_spatial");  // a fact of the profile, not of the class
    folder.write("config.json", config.dump());
    const Resolved out = resolved(c, folder.path(""), trains_in_full);
    if (!out.job) FAIL(to_text(out.job.error().front()));
    shadow::Kernels kernels;
    kernels.scratch = false;
    shadow::Run run(kernels, true);
    Played result;
    result.facts = ai_toolkit::play(*out.job, catalogue(), run);
    result.usage = device::sum(run.trace);
    return result;
}
const device::Span& stage(const Played& played, const std::string& phase, const std::string& name) {
    const device::PhaseUsage* found = played.usage.phase(phase);
    REQUIRE(found != nullptr);
    const auto at = std::find_if(found->stages.begin(), found->stages.end(),
                                 [&](const device::Span& span) { return span.name == name; });
    REQUIRE(at != found->stages.end());
    return *at;
}

const Case text_to_video{"", "wan21", "wan21_t2v_1_3b", "", ", cache_latents: true", ""};
const Case two_experts{"", "wan22_14b", "wan22_t2v_a14b", "", ", cache_latents: true", ""};
const Case small{"", "wan22_5b", "wan22_ti2v_5b", "", ", cache_latents: true", ""};
const Case from_a_picture{"", "wan22_5b", "wan22_ti2v_5b", "", ", do_i2v: true", ", ctrl_img: a.png"};
const Case two_experts_from_a_picture{"", "wan22_14b_i2v", "wan22_i2v_a14b", "", "", ", ctrl_img: a.png"};
const Case with_an_image_encoder{"", "wan21_i2v", "wan21_i2v_14b", "", "", ", ctrl_img: a.png"};

}  // namespace

TEST_CASE("ai-toolkit: a Wan sample needs what the trainer's pipelines needed, to the byte") {
    struct Row {
        const Case& c;
        Bytes denoise, decode;  // above what lay there before
    };
    for (const Row& row : {Row{text_to_video, 96495616, 1668794368}, Row{small, 100224000, 1774571520},
                           Row{two_experts_from_a_picture, 1230192640, 1671129088},
                           Row{with_an_image_encoder, 1230115328, 1672339968}}) {
        CAPTURE(row.c.arch);
        const Played one = played(row.c);
        const Bytes before = stage(one, "baseline_sample", "text").tensors_end;
        CHECK(stage(one, "baseline_sample", "denoise").tensors_peak - before == row.denoise);
        CHECK(stage(one, "baseline_sample", "decode").tensors_peak - before == row.decode);
    }
}

TEST_CASE("ai-toolkit: a prediction from a first frame needs what the trainer's classes needed, to the byte") {
    struct Row {
        const Case& c;
        Bytes kept, peak;
        Bytes input;  // what the recording was handed, and predict_noise makes within the stage
    };
    for (const Row& row : {Row{from_a_picture, 63389696, 162022400, 184320},
                           Row{two_experts_from_a_picture, 155264512, 1226997760, 245760},
                           Row{with_an_image_encoder, 166506496, 1249012736, 245760}}) {
        CAPTURE(row.c.arch);
        const Played one = played(row.c, true);
        const device::Span& forward = stage(one, "step 1", "forward");
        CHECK(forward.tensors_peak - forward.tensors_start == row.peak + row.input);
        for (const run::PhaseFacts& phase : one.facts.phases)
            if (phase.name == "step 1") CHECK(phase.kept_for_backward == row.kept);
    }
}

TEST_CASE("ai-toolkit: of two experts one trains at a time, and with low_vram one is on the GPU") {
    const auto phases = [](const Played& one) {
        std::vector<std::string> names;
        for (const run::PhaseFacts& phase : one.facts.phases)
            if (phase.kind == "train") names.push_back(phase.name);
        return names;
    };
    const Played both = played(two_experts);
    CHECK(phases(both) == std::vector<std::string>{"step 1", "step 2", "step 3"});
    Case one_only = two_experts;
    one_only.model = ", model_kwargs: {train_high_noise: false}";
    const Played one = played(one_only);
    CHECK(phases(one) == std::vector<std::string>{"step 1", "step 2"});
    CHECK(one.facts.counts.adapted_modules * 2 == both.facts.counts.adapted_modules);
    constexpr Bytes code_maps = 2048;  // of 8-bit state, once an optimizer
    CHECK((one.facts.optimizer_state - code_maps) * 2 == both.facts.optimizer_state - code_maps);
    Case low_vram = two_experts;
    low_vram.model = ", low_vram: true";
    const Bytes expert = both.facts.weights / 2;
    CHECK(both.usage.phase("step 3")->tensors_start - played(low_vram).usage.phase("step 3")->tensors_start == expert);
}

TEST_CASE(
    "ai-toolkit: Wan's blocks are quantised one by one, or beside an accuracy recovery adapter where they stand") {
    const auto with = [](const std::string& model) {
        Case out = two_experts;
        out.model = model.c_str();
        return played(out);
    };
    const Played plain = with(", low_vram: true");
    const Played blocks = with(", low_vram: true, quantize: true, quantize_te: false, qtype: uint4");
    const Played recovered =
        with(", low_vram: true, quantize: true, quantize_te: false, qtype: 'uint4|no/such/file.safetensors'");
    CHECK(blocks.facts.weights < plain.facts.weights);
    // Its matrices are of bf16, those of the trained one, of rank 16 as well, of fp32; two scalars stand beside each
    // pair.
    const Bytes scalars = recovered.facts.counts.adapted_modules * 2 * 512;
    CHECK(recovered.facts.adapter == blocks.facts.adapter);
    CHECK(recovered.facts.weights - blocks.facts.weights == (recovered.facts.adapter - scalars) / 2 + scalars);
}

TEST_CASE("ai-toolkit: what Wan's classes cannot run is said") {
    struct Row {
        const char* why;
        Case c;
        Problem problem;
        const char* key;
    };
    Case both_off = two_experts, no_pixels = with_an_image_encoder, no_picture = with_an_image_encoder;
    both_off.model = ", model_kwargs: {train_high_noise: false, train_low_noise: false}";
    no_pixels.dataset = ", cache_latents_to_disk: true";
    no_picture.sample = "";
    for (const Row& row :
         {Row{"no expert trains", both_off, Problem::conflict, "config.process[0].model.model_kwargs"},
          Row{"each step looks at the pixels", no_pixels, Problem::conflict, "config.process[0].datasets"},
          Row{"a sample begins with a picture", no_picture, Problem::conflict, "config.process[0].sample"}}) {
        CAPTURE(row.why);
        const Resolved out = resolved(row.c, row.c.profile, false);
        REQUIRE_FALSE(out.job);
        CHECK(out.job.error().front().problem == row.problem);
        CHECK(out.job.error().front().key == row.key);
    }
}

TEST_CASE("ai-toolkit: videos are taken for their heaviest bucket, images beside them for one frame") {
    const io::TemporaryFolder folder;
    folder.write("a.mp4", "");
    folder.write("b.png", io::png(480, 320));
    ai_toolkit::DatasetConfig dataset;
    dataset.folder = folder.path("");
    dataset.resolution = 512;
    dataset.num_frames = 33;
    Diagnostics complaints, notes;
    const ai_toolkit::Architecture& wan21 = *ai_toolkit::architecture_named("wan21");
    CHECK(batches_of({dataset}, wan21, complaints, notes) ==
          std::vector<job::Batch>{{512, 512, 33, 1}, {480, 320, 1, 1}});
    CHECK(complaints.empty());
    CHECK(notes.size() == 1);
    dataset.num_frames = 1;  // then it looks for images
    CHECK(batches_of({dataset}, wan21, complaints, notes) == std::vector<job::Batch>{{480, 320, 1, 1}});
    CHECK(complaints.empty());
    dataset.auto_frame_count = true;
    (void)batches_of({dataset}, wan21, complaints, notes);
    REQUIRE(complaints.size() == 1);
    CHECK(complaints.front().problem == Problem::no_data);
}
