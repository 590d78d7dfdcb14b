// ai-toolkit's StableDiffusion.generate_images and encode_prompt over diffusers' own pipelines and published sizes,
// two steps, recorded on a fake GPU (torch 2.13, diffusers 0.42.1, transformers 5.24): peaks above what is there once
// both prompts are encoded.
#include <doctest/doctest.h>

#include <string>

#include "shadow/run.hpp"
#include "trainers/ai_toolkit/play.hpp"
#include "trainers/ai_toolkit/resolve.hpp"
#include "vram/device/usage.hpp"
#include "vram/io/document.hpp"
#include "vram/profile/catalogue.hpp"

using namespace vram;
using namespace vram::trainers;

namespace {

const profile::Catalogue& catalogue() {
    static const profile::Catalogue all = profile::Catalogue::built_in();
    return all;
}

std::string config(const std::string& model, const std::string& train, const std::string& sample) {
    return "job: extension\n"
           "config:\n"
           "  name: cat\n"
           "  process:\n"
           "    - type: sd_trainer\n"
           "      network: {type: lora, linear: 16}\n"
           "      datasets: [{folder_path: /no/such/folder, resolution: [512], cache_latents_to_disk: true}]\n"
           "      train: {optimizer: adamw8bit, " +
           train + "}\n      model: {name_or_path: " + model + "}\n      sample: {sample_steps: 2, prompts: [a], " +
           sample + "}\n";
}

/// Of Lumina 2's rotary embedding, complex128: recorded among the weights, ours from the first call on.
constexpr Bytes lumina_tables = (300 + 512 + 512) * 16 * 16;

device::Usage play(const std::string& text) {
    expected<io::Document> document = io::read(text, "job.yaml", io::Format::yaml);
    REQUIRE(document);
    Diagnostics notes;
    const expected<job::Job> job = ai_toolkit::resolve(*document, catalogue(), notes);
    if (!job) FAIL(to_text(job.error().front()));
    shadow::Kernels kernels;
    kernels.scratch = false;
    shadow::Run run(kernels, true);
    static_cast<void>(ai_toolkit::play(*job, catalogue(), run));
    return device::sum(run.trace);
}

}  // namespace

TEST_CASE("ai-toolkit: samples of Stable Diffusion and its like are met to the byte") {
    struct Case {
        const char* why;
        std::string model, train, sample;
        Bytes text, denoise, decode;
    };
    const std::string bf16 = "dtype: bf16, noise_scheduler: ddpm", fp16 = "dtype: fp16, noise_scheduler: ddpm",
                      flow = "dtype: bf16, noise_scheduler: flowmatch";
    for (const Case& c : {
             Case{"no arch is Stable Diffusion 1", "runwayml/stable-diffusion-v1-5", bf16,
                  "width: 512, height: 512, guidance_scale: 4", 1775104, 136873472, 403270656},
             Case{"Stable Diffusion 2", "a, is_v2: true", bf16, "width: 512, height: 768, guidance_scale: 4", 1735680,
                  205247488, 604846592},
             Case{"both encoders of SDXL", "a, arch: sdxl", bf16, "width: 1024, height: 768, guidance_scale: 4",
                  8198656, 249285120, 1209605120},
             Case{"its VAE is cast to fp32 where it is fp16", "a, arch: sdxl", fp16,
                  "width: 512, height: 512, guidance_scale: 4", 8198656, 83741184, 973856768},
             Case{"without guidance there is one picture", "a, arch: sdxl", bf16,
                  "width: 512, height: 512, guidance_scale: 1", 8198656, 41678336, 403103232},
             Case{"flow matching in fp32, and text of three encoders", "sd3-medium, arch: sd3", flow,
                  "sampler: flowmatch, width: 768, height: 1024, guidance_scale: 4", 35653632, 259372032, 1215783936},
             Case{"Lumina 2, one prompt after the other, with its whole prompt", "a, is_lumina2: true", flow,
                  "sampler: flowmatch, width: 1024, height: 768, guidance_scale: 4", 74857984,
                  407802880 + lumina_tables, 1210725888 + lumina_tables},
         }) {
        CAPTURE(c.why);
        const device::Usage usage = play(config(c.model, c.train, c.sample));
        const device::PhaseUsage* sample = usage.phase("baseline_sample");
        REQUIRE(sample != nullptr);
        Bytes encoded = 0;
        for (const device::Span& stage : sample->stages) {
            if (stage.name == "text") encoded = stage.tensors_end;
            CAPTURE(stage.name);
            if (stage.name == "text") CHECK(stage.tensors_peak - encoded == c.text);
            if (stage.name == "denoise") CHECK(stage.tensors_peak - encoded == c.denoise);
            if (stage.name == "decode") CHECK(stage.tensors_peak - encoded == c.decode);
        }
    }
}
