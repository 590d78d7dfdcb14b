#include "trainers/sd_scripts/prompts.hpp"

#include <initializer_list>

#include "unit/io/temporary_folder.hpp"
#include "unit/trainers/sd_scripts/files.hpp"

using namespace vram;
using namespace vram::trainers::sd_scripts;
using namespace vram::trainers::sd_scripts::files;
using Batches = std::vector<job::Batch>;

TEST_CASE("sd-scripts: a line of prompts says its size, its steps and its scale") {
    struct Case {
        const char* why;
        const char* line;
        Prompt prompt;
    };
    for (const Case& c : {
             Case{"nothing but words", "a cat", {512, 512, 30, 7.5}},
             Case{"all of them", "a cat --w 832 --h 1216 --s 20 --l 4.5 --d 42", {832, 1216, 20, 4.5}},
             Case{"any case", "a cat --W 640", {640, 512, 30, 7.5}},
             Case{"steps end at 1000", "a --s 5000", {512, 512, 1000, 7.5}},
             Case{"the words themselves are looked at, too", "w 256", {256, 512, 30, 7.5}},
             Case{"no blank before it", "a cat--w 640", {512, 512, 30, 7.5}},
             Case{"another flag", "a --ss euler --n ugly --w x", {512, 512, 30, 7.5}},
         }) {
        CAPTURE(c.why);
        CHECK(prompt_of(c.line, sdxl) == c.prompt);
    }
    CHECK(prompt_of("a", flux) == Prompt{512, 512, 20, 1});
    CHECK(prompts_of("a --w 64\n\n# b\n  c\r\n", sd1).size() == 2);
}

TEST_CASE("sd-scripts: what is rendered stands in the GUI's field, or in a file of prompts") {
    const job::Job field =
        job_of(gui(R"("sample_every_n_steps": 5, "sample_prompts": "a --w 832 --h 1220\nb --w 832 --h 1220\nc")"));
    CHECK(field.sampling.images == Batches{{832, 1216, 1, 1}, {512, 512, 1, 1}});
    CHECK(field.sampling.rendered == std::vector<std::int64_t>{2, 3});
    CHECK(field.sampling.periodic);
    CHECK_FALSE(field.sampling.baseline);
    CHECK(field.sampling.sampler == "euler_a");
    CHECK(job_of(gui(R"("sample_prompts": "a")")).sampling == job::Sampling{});

    const io::TemporaryFolder folder;
    folder.write("prompts.txt", "a --w 640 --h 640 --s 12\n");
    folder.write("prompts.json", R"([{"prompt": "a", "width": 768, "height": 768, "scale": 3}, "b --w 256"])");
    folder.write("prompts.toml", "[prompt]\nwidth = 1024\n[[prompt.subset]]\nprompt = \"a\"\nheight = 1024\n");
    struct Case {
        const char* file;
        Batches images;
        std::int64_t steps;
        double guidance;
    };
    for (const Case& c :
         {Case{"prompts.txt", {{640, 640, 1, 1}}, 12, 7.5},
          Case{"prompts.json", {{768, 768, 1, 1}, {256, 512, 1, 1}}, 30, 7.5},
          Case{"prompts.toml", {{1024, 1024, 1, 1}}, 30, 7.5}, Case{"none.txt", {{512, 512, 1, 1}}, 30, 7.5}}) {
        CAPTURE(c.file);
        // Beside the config.
        const std::string text = toml("sample_at_first = true\nsample_prompts = \"" + std::string(c.file) +
                                      "\"\nmixed_precision = \"bf16\"\n");
        const job::Sampling sampling = job_of(text, {}, folder.path("config.toml")).sampling;
        CHECK(sampling.images == c.images);
        CHECK(sampling.steps == c.steps);
        CHECK(sampling.guidance == c.guidance);
        CHECK(sampling.baseline);
        CHECK_FALSE(sampling.periodic);
    }
}
