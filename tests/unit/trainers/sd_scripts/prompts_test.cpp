#include "trainers/sd_scripts/prompts.hpp"

#include <algorithm>
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
        Diagnostics notes;
        CHECK(prompt_of(c.line, sdxl, {}, notes) == c.prompt);
    }
    Diagnostics notes;
    CHECK(prompt_of("a", flux, {}, notes) == Prompt{512, 512, 20, 1});
    const std::vector<Prompt> two = prompts_of("a --w 64\n\n# b\n  c\r\n", sd1, {{"p.txt", 1, 1}, {}}, notes);
    REQUIRE(two.size() == 2);
    CHECK(two[0].at.place.line == 1);
    CHECK(two[1].at.place.line == 4);
    CHECK(notes.empty());
}

TEST_CASE("sd-scripts: what the trainer passes over in a prompt is told") {
    struct Case {
        const char* line;
        Problem problem;
        const char *found, *nearest;
    };
    for (const Case& c : {
             Case{"a --w x", Problem::bad_value, "--w x", ""},
             Case{"a --w -64", Problem::bad_value, "--w -64", ""},
             Case{"a --l", Problem::bad_value, "--l ", ""},
             Case{"a --width 640", Problem::unknown_key, "--width 640", ""},
             Case{"a --rcf 1", Problem::unknown_key, "--rcf 1", "--rcfg"},
             Case{"a -- b", Problem::unknown_key, "-- b", ""},
         }) {
        CAPTURE(std::string(c.line));
        Diagnostics notes;
        CHECK(prompt_of(c.line, sdxl, {{"p.txt", 3, 1}, {}}, notes).width == 512);
        REQUIRE(notes.size() == 1);
        CHECK(notes[0].severity == Severity::warning);
        CHECK(notes[0].problem == c.problem);
        CHECK(notes[0].place == Place{"p.txt", 3, 1});
        CHECK(notes[0].found == c.found);
        CHECK(notes[0].nearest == c.nearest);
    }
    Diagnostics notes;
    (void)prompt_of("a --d 4 --n ugly --ss euler --cn a.png --ctr 1 --rcfg 2 --fs 3 --g 3.5", sdxl, {}, notes);
    CHECK(notes.empty());
}

TEST_CASE("sd-scripts: a file of prompts that the trainer fails at") {
    const io::TemporaryFolder folder;
    folder.write("sides.txt", "a\n\nb --w 1000 --h 1016\n");
    folder.write("sides.json", R"([{"prompt": "a", "height": 1000}])");
    folder.write("twice.toml", "[prompt]\nwidth = 1024\n[[prompt.subset]]\nprompt = \"a\"\nwidth = 1024\n");
    folder.write("prompts", "a\n");
    folder.write("keys.json", R"([{"prompt": "a", "widht": 640}])");
    const auto read = [&](const char* file, const std::string& model) {
        const std::string text = "network_module = \"networks.lora\"\nresolution = \"512,512\"\n" + model +
                                 "sample_at_first = true\nsample_prompts = \"" + file + "\"\n";
        return resolved(text, {}, folder.path("config.toml"));
    };
    const std::string xl = "pretrained_model_name_or_path = \"sd_xl\"\n",
                      sd15 = "pretrained_model_name_or_path = \"sd15\"\n";
    struct Case {
        const char* file;
        Problem problem;
        const char* at;
        std::int32_t line;
        std::size_t complaints;
    };
    for (const Case& c : {Case{"sides.txt", Problem::conflict, "sides.txt", 3, 2},
                          Case{"sides.json", Problem::conflict, "sides.json", 1, 1},
                          Case{"twice.toml", Problem::conflict, "twice.toml", 5, 1},
                          Case{"prompts", Problem::bad_value, "config.toml", 5, 1}}) {
        CAPTURE(std::string(c.file));
        const Resolved out = read(c.file, xl);
        REQUIRE_FALSE(out.job.has_value());
        CHECK(out.job.error().size() == c.complaints);
        CHECK(out.job.error().front().problem == c.problem);
        CHECK(out.job.error().front().place.file == folder.path(c.at));
        CHECK(out.job.error().front().place.line == c.line);
    }
    CHECK(read("sides.txt", sd15).job.has_value());  // its U-Net takes any
    const Resolved keys = read("keys.json", xl);
    REQUIRE(keys.job.has_value());
    CHECK(std::any_of(keys.notes.begin(), keys.notes.end(), [](const Diagnostic& note) {
        return note.problem == Problem::unknown_key && note.key == "[0].widht" && note.nearest == "width";
    }));
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
