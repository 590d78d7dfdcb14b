#include "trainers/ai_toolkit/dataset.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "unit/io/image_bytes.hpp"
#include "unit/io/temporary_folder.hpp"

using namespace vram;
using namespace vram::trainers::ai_toolkit;
using Batches = std::vector<job::Batch>;

namespace {

const Architecture& flux_images = *architecture_named("flux");

DatasetConfig at(const std::string& folder, std::int64_t resolution) {
    DatasetConfig dataset;
    dataset.folder_at.key = "config.process[0].datasets[0].folder_path";
    dataset.resolution_at = {{"job.yaml", 7, 3}, "config.process[0].datasets[0].resolution[1]"};
    dataset.folder = folder;
    dataset.resolution = resolution;
    return dataset;
}

}  // namespace

TEST_CASE("ai-toolkit: a folder's images are measured and fall into buckets, each once") {
    const io::TemporaryFolder folder;
    folder.write("a.png", io::png(1024, 1024));
    folder.write("b.JPG", io::jpeg(4000, 3000));
    folder.write("c.webp", io::webp(io::vp8(1024, 1024)));
    folder.write("d.jpeg", io::jpeg(3000, 4000, io::jpeg_exif(io::tiff(6))));  // turned: 4000 x 3000
    folder.write("a.txt", "a cat");
    folder.write(".hidden.png", io::png(64, 64));
    std::filesystem::create_directory(folder.path("more"));
    std::filesystem::create_directory(folder.path("_controls"));
    std::filesystem::create_directory(folder.path(".thumbs"));
    folder.write("more/e.png", io::png(800, 600));
    folder.write("_controls/a.png", io::png(96, 96));
    folder.write(".thumbs/a.png", io::png(300, 300));
    Diagnostics complaints, notes;
    DatasetConfig dataset = at(folder.path(""), 1024);
    dataset.batch_size = 2;
    CHECK(batches_of({dataset}, flux_images, complaints, notes) ==
          Batches{{1024, 1024, 1, 2}, {1152, 896, 1, 2}, {800, 608, 1, 2}});
    CHECK(complaints.empty());
    CHECK(notes.empty());
    CHECK(batches_of({at(folder.path(""), 512), at(folder.path(""), 512)}, flux_images, complaints, notes) ==
          Batches{{512, 512, 1, 1}, {576, 448, 1, 1}});
    dataset.square_crop = true;
    CHECK(batches_of({dataset}, flux_images, complaints, notes) == Batches{{1024, 1024, 1, 2}});
    dataset.square_crop = false;
    dataset.scale = 0.25;
    dataset.batch_size = 1;
    CHECK(batches_of({dataset}, flux_images, complaints, notes) ==
          Batches{{256, 256, 1, 1}, {1024, 736, 1, 1}, {192, 160, 1, 1}});
}

TEST_CASE("ai-toolkit: control images are those of the item's name, and the heaviest of a bucket count") {
    const io::TemporaryFolder folder, first, second;
    folder.write("a.png", io::png(1024, 1024));
    folder.write("b.png", io::png(1024, 1024));
    first.write("a.png", io::png(400, 400));
    first.write("b.jpg", io::jpeg(1000, 500));
    second.write("b.webp", io::webp(io::vp8(640, 480)));
    DatasetConfig dataset = at(folder.path(""), 512);
    dataset.controls = {first.path(""), second.path("")};
    struct Case {
        const char* why;
        const char* arch;
        bool small;
        std::vector<job::PictureSize> references;
    };
    for (const Case& c : {
             Case{"raw images keep their size; b has two", "qwen_image_edit_plus", false, {{1000, 500}, {640, 480}}},
             Case{"without full_size_control_images all are alike",
                  "qwen_image_edit_plus",
                  true,
                  {{512, 512}, {512, 512}}},
             Case{"others are cropped to the bucket", "flux", false, {{512, 512}, {512, 512}}},
         }) {
        CAPTURE(c.why);
        Diagnostics complaints, notes;
        dataset.small_controls = c.small;
        const Batches batches = batches_of({dataset}, *architecture_named(c.arch), complaints, notes);
        CHECK(batches == Batches{{512, 512, 1, 1, c.references}});
        CHECK(complaints.empty());
        CHECK(notes.empty());
    }
}

TEST_CASE("ai-toolkit: of control folders that are not there a note says what they are taken for") {
    const io::TemporaryFolder folder;
    folder.write("a.png", io::png(800, 600));
    DatasetConfig dataset = at(folder.path(""), 512);
    dataset.controls = {"/no/such/folder"};
    Diagnostics complaints, notes;
    CHECK(batches_of({dataset}, *architecture_named("qwen_image_edit_plus"), complaints, notes) ==
          Batches{{576, 448, 1, 1, {{576, 448}}}});
    REQUIRE(notes.size() == 1);
    CHECK(notes[0].problem == Problem::no_data);
    CHECK(notes[0].found == "/no/such/folder");
}

TEST_CASE("ai-toolkit: a folder that is not there is taken for its heaviest bucket, and a note says so") {
    Diagnostics complaints, notes;
    CHECK(batches_of({at("/no/such/folder", 1024), at("/no/such/folder", 632)}, flux_images, complaints, notes) ==
          Batches{{1024, 1024, 1, 1}, {832, 480, 1, 1}});
    CHECK(complaints.empty());
    REQUIRE(notes.size() == 2);
    CHECK(notes[0].severity == Severity::note);
    CHECK(notes[0].problem == Problem::no_data);
    CHECK(notes[0].key == "config.process[0].datasets[0].folder_path");
}

TEST_CASE("ai-toolkit: a folder without a readable image is an error, an unreadable one among others a warning") {
    const io::TemporaryFolder folder;
    folder.write("a.png", "no image");
    Diagnostics complaints, notes;
    CHECK(batches_of({at(folder.path(""), 512)}, flux_images, complaints, notes).empty());
    REQUIRE(complaints.size() == 1);
    CHECK(complaints[0].problem == Problem::no_data);
    complaints.clear();
    notes.clear();
    folder.write("b.png", io::png(512, 512));
    CHECK(batches_of({at(folder.path(""), 512)}, flux_images, complaints, notes) == Batches{{512, 512, 1, 1}});
    CHECK(complaints.empty());
    REQUIRE(notes.size() == 1);
    CHECK(notes[0].severity == Severity::warning);
    DatasetConfig crop = at("/no/such/folder", 1000);
    crop.square_crop = true;
    static_cast<void>(batches_of({crop}, flux_images, complaints, notes));
    REQUIRE(complaints.size() == 1);
    CHECK(complaints[0].problem == Problem::out_of_range);
    CHECK(complaints[0].nearest == "1008");
    CHECK(complaints[0].key == "config.process[0].datasets[0].resolution[1]");
    CHECK(complaints[0].place.line == 7);
}

TEST_CASE("ai-toolkit: of many missing folders some are named and the rest counted") {
    std::vector<DatasetConfig> datasets;
    for (std::int64_t i = 0; i < 40; ++i) datasets.push_back(at("/no/such/folder/" + std::to_string(i), 512));
    Diagnostics complaints, notes;
    CHECK(batches_of(datasets, flux_images, complaints, notes) == Batches{{512, 512, 1, 1}});
    REQUIRE(notes.size() == 33);
    CHECK(notes.back().text.starts_with("8 more datasets"));
    datasets = {at("a", 512), at("b", 512), at("a", 512), at("a", 768)};
    drop_repeated(datasets);
    REQUIRE(datasets.size() == 3);
    CHECK(datasets[2].resolution == 768);
}
