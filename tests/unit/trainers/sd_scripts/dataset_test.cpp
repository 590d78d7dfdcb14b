#include "trainers/sd_scripts/dataset.hpp"

#include <algorithm>
#include <filesystem>
#include <initializer_list>

#include "unit/io/image_bytes.hpp"
#include "unit/io/temporary_folder.hpp"
#include "unit/trainers/sd_scripts/files.hpp"

using namespace vram;
using namespace vram::trainers::sd_scripts;
using namespace vram::trainers::sd_scripts::files;
using Batches = std::vector<job::Batch>;

namespace {

const Batches& batches(const job::Job& job) { return std::get<job::Training>(job.work).batches; }

bool says(const Diagnostics& all, Problem problem, const std::string& part) {
    return std::any_of(all.begin(), all.end(), [&](const Diagnostic& one) {
        return one.problem == problem && one.text.find(part) != std::string::npos;
    });
}

}  // namespace

TEST_CASE("sd-scripts: folders N_name are measured, and a bucket of few pictures makes a small batch") {
    const io::TemporaryFolder folder;
    for (const char* name :
         {"train", "train/3_cat", "train/2_dog", "train/cats", "train/0_none", "train/3_cat/more", "reg", "reg/1_dog"})
        std::filesystem::create_directory(folder.path(name));
    folder.write("train/3_cat/a.png", io::png(1024, 1024));
    folder.write("train/3_cat/b.JPG", io::jpeg(4000, 3000));
    folder.write("train/3_cat/c.jpeg", io::jpeg(3000, 4000, io::jpeg_exif(io::tiff(6))));  // as stored, not as turned
    folder.write("train/3_cat/a.txt", "a cat");
    folder.write("train/3_cat/.d.png", io::png(300, 900));
    folder.write("train/3_cat/more/e.png", io::png(300, 900));
    folder.write("train/2_dog/f.webp", io::webp(io::vp8(1920, 1080)));
    folder.write("train/cats/g.png", io::png(900, 300));
    folder.write("train/0_none/h.png", io::png(900, 300));
    folder.write("reg/1_dog/i.png", io::png(3000, 4000));
    const std::string lines =
        "train_batch_size = 4\nenable_bucket = true\nmax_bucket_reso = 2048\nmixed_precision = \"bf16\"\n"
        "train_data_dir = \"" +
        folder.path("train") + "\"\n";
    Resolved out = resolved(toml(lines));
    REQUIRE(out.job);
    // 4 of 1024 x 1024 would take 4 of 3 repeats.
    CHECK(batches(*out.job) == Batches{{1024, 1024, 1, 3}, {896, 1152, 1, 3}, {1152, 896, 1, 3}, {1344, 768, 1, 2}});
    CHECK(out.notes.empty());
    // Pictures of regularisation come until there are as many as of the others: 11.
    const job::Job more = job_of(toml(lines + "reg_data_dir = \"" + folder.path("reg") + "\"\n"));
    CHECK(std::count(batches(more).begin(), batches(more).end(), job::Batch{896, 1152, 1, 4}) == 1);
}

TEST_CASE("sd-scripts: a dataset's own file says sizes, and wins over the command line") {
    const io::TemporaryFolder folder;
    std::filesystem::create_directory(folder.path("cat"));
    folder.write("cat/a.png", io::png(800, 600));
    folder.write("cat/b.png", io::png(800, 600));
    const std::string subset = "[[datasets.subsets]]\nimage_dir = \"" + folder.path("cat") + "\"\nnum_repeats = 10\n";
    const std::string none = "[[datasets.subsets]]\nimage_dir = \"/no/such/folder\"\n";
    struct Case {
        const char* why;
        std::string dataset;
        Batches batches;
    };
    for (const Case& c : {
             Case{"of its own",
                  "[[datasets]]\nresolution = 512\nbatch_size = 4\nenable_bucket = true\n" + subset,
                  {{576, 448, 1, 4}}},
             Case{"of general", "[general]\nresolution = [512, 512]\n[[datasets]]\n" + subset, {{512, 512, 1, 2}}},
             Case{"of the command line", "[[datasets]]\n" + subset, {{1024, 1024, 1, 2}}},
             Case{"not made larger",
                  "[[datasets]]\nresolution = 1024\nenable_bucket = true\nbucket_no_upscale = true\n" + subset,
                  {{768, 576, 1, 2}}},
             Case{"several, the heaviest first",
                  "[[datasets]]\nresolution = 512\n" + subset + "[[datasets]]\nresolution = 768\nbatch_size = 3\n" +
                      none,
                  {{768, 768, 1, 3}, {512, 512, 1, 2}}},
         }) {
        CAPTURE(c.why);
        folder.write("data.toml", c.dataset);
        const std::string text =
            toml("dataset_config = \"data.toml\"\ntrain_batch_size = 2\nmixed_precision = \"bf16\"\n");
        CHECK(batches(job_of(text, {}, folder.path("config.toml"))) == c.batches);
    }
    folder.write("data.json", R"({"datasets": [{"resolution": 640, "subsets": [{"image_dir": "/none"}]}]})");
    CHECK(batches(job_of(toml("dataset_config = \"data.json\"\n"), {}, folder.path("config.toml"))) ==
          Batches{{640, 640, 1, 1}});

    folder.write("data.toml", "[[datasets]]\nresolution = 512\nbatchsize = 4\n" + subset);
    const Resolved typo = resolved(toml("dataset_config = \"data.toml\"\n"), {}, folder.path("config.toml"));
    REQUIRE_FALSE(typo.job);
    CHECK(typo.job.error().front().problem == Problem::unknown_key);
    CHECK(typo.job.error().front().place.file == folder.path("data.toml"));
    CHECK(typo.job.error().front().place.line == 3);
    CHECK(typo.job.error().front().nearest == "batch_size");
}

TEST_CASE("sd-scripts: complaints about a dataset's own file stand in it") {
    const io::TemporaryFolder folder;
    const std::string subset = "[[datasets.subsets]]\nimage_dir = \"/none\"\n";
    struct Case {
        const char* why;
        std::string dataset;
        Problem problem;
        const char* key;
        std::int32_t line;
    };
    for (const Case& c : {
             Case{"cropped at random", "[[datasets]]\nresolution = 512\n" + subset + "random_crop = true\n",
                  Problem::conflict, "datasets[0].subsets[0].random_crop", 5},
             Case{"of general", "[general]\ncolor_aug = true\n[[datasets]]\nresolution = 512\n" + subset,
                  Problem::conflict, "general.color_aug", 2},
             Case{"of another type", "[[datasets]]\nresolution = \"512,512\"\n" + subset, Problem::wrong_type,
                  "datasets[0].resolution", 2},
             Case{"missing", "[general]\nnum_repeats = 1\n[[datasets]]\n" + subset, Problem::missing_key,
                  "datasets[0].resolution", 3},
             Case{"steps", "[[datasets]]\nresolution = 512\nenable_bucket = true\nbucket_reso_steps = 48\n" + subset,
                  Problem::conflict, "datasets[0].bucket_reso_steps", 4},
         }) {
        CAPTURE(std::string(c.why));
        folder.write("data.toml", c.dataset);
        const Resolved out = resolved(
            "pretrained_model_name_or_path = \"a.safetensors\"\nnetwork_module = \"networks.lora\"\n"
            "cache_latents = true\ndataset_config = \"data.toml\"\n",
            {}, folder.path("config.toml"));
        REQUIRE_FALSE(out.job);
        REQUIRE(out.job.error().size() == 1);
        CHECK(out.job.error().front().problem == c.problem);
        CHECK(out.job.error().front().key == c.key);
        CHECK(out.job.error().front().place.file == folder.path("data.toml"));
        CHECK(out.job.error().front().place.line == c.line);
    }
}

TEST_CASE("sd-scripts: what is not at hand is taken for the heaviest bucket, with a note") {
    const Resolved file = resolved(toml("dataset_config = \"/no/data.toml\"\ntrain_batch_size = 2\n"));
    REQUIRE(file.job);
    CHECK(batches(*file.job) == Batches{{1024, 1024, 1, 2}});
    CHECK(says(file.notes, Problem::no_data, "/no/data.toml is no file here"));
    const Resolved folder =
        resolved(toml("train_data_dir = \"/no/such\"\nenable_bucket = true\n[a]\nresolution = \"512,800\"\n"));
    REQUIRE(folder.job);
    CHECK(batches(*folder.job) == Batches{{640, 640, 1, 1}});
    CHECK(says(folder.notes, Problem::no_data, "/no/such is no folder here"));
}

TEST_CASE("sd-scripts: what the trainer's checks refuse of a dataset") {
    const io::TemporaryFolder folder;
    const std::string subset = "[[datasets.subsets]]\nimage_dir = \"/none\"\n";
    folder.write("drops.toml", "[[datasets]]\n" + subset + "caption_dropout_rate = 0.1\n");
    folder.write("keeps.toml",
                 "[general]\ncaption_dropout_rate = 0.1\n[[datasets]]\n" + subset + "caption_dropout_rate = 0\n");
    folder.write("masks.toml", "[[datasets]]\n" + subset + "alpha_mask = true\n");
    const std::string cached = "cache_text_encoder_outputs = true\nnetwork_train_unet_only = true\n";
    struct Case {
        const char* why;
        std::string lines;
        Problem problem;
        const char* key;  // empty: it is taken
        const char* nearest;
    };
    for (const Case& c : {
             Case{"changing pictures", "cache_latents = true\ncolor_aug = true\n", Problem::conflict, "color_aug",
                  "false"},
             Case{"cropped at random", "cache_latents = true\nrandom_crop = true\n", Problem::conflict, "random_crop",
                  "false"},
             Case{"changing captions", cached + "shuffle_caption = true\n", Problem::conflict, "shuffle_caption", ""},
             Case{"a subset's", cached + "dataset_config = \"drops.toml\"\n", Problem::conflict,
                  "datasets[0].subsets[0].caption_dropout_rate", ""},
             Case{"a subset that keeps them", cached + "dataset_config = \"keeps.toml\"\n", Problem::conflict, "", ""},
             Case{"masks", "dataset_config = \"masks.toml\"\n", Problem::unsupported,
                  "datasets[0].subsets[0].alpha_mask", ""},
             Case{"steps of buckets", "enable_bucket = true\nbucket_reso_steps = 48\n", Problem::conflict,
                  "bucket_reso_steps", "64"},
             Case{"steps without buckets", "bucket_reso_steps = 48\n", Problem::conflict, "", ""},
             Case{"too small a limit", "enable_bucket = true\nmax_bucket_reso = 512\n", Problem::conflict, "resolution",
                  ""},
             Case{"too large a limit", "enable_bucket = true\nmin_bucket_reso = 2048\nmax_bucket_reso = 4096\n",
                  Problem::conflict, "resolution", ""},
         }) {
        CAPTURE(c.why);
        const Resolved out = resolved(toml(c.lines), {}, folder.path("config.toml"));
        CHECK(out.job.has_value() == (std::string(c.key).empty()));
        if (out.job || std::string(c.key).empty()) continue;
        REQUIRE(out.job.error().size() == 1);
        CHECK(out.job.error().front().problem == c.problem);
        CHECK(out.job.error().front().key == c.key);
        CHECK(out.job.error().front().nearest == c.nearest);
    }
}
