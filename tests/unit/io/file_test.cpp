#include "vram/io/file.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "temporary_folder.hpp"
#include "tree.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include <sys/stat.h>
#include <unistd.h>
#endif

using namespace vram;
using namespace vram::io;
namespace fs = std::filesystem;

TEST_CASE("a file is read whole, and read as what its name says") {
    const TemporaryFolder folder;
    const fs::path path = folder.write("job.toml", "a = 1\r\n");
    const expected<std::string> text = read_file(path);
    REQUIRE(text);
    CHECK(*text == "a = 1\r\n");
    const expected<Document> document = io::open(path);
    REQUIRE(document);
    CHECK(document->file_name == path.string());
    CHECK(shown(document->root) == "{a: 1}");

    const std::string large(300'000, 'x');  // more than one step of the reader
    const expected<std::string> same = read_file(folder.write("large", large));
    REQUIRE(same);
    CHECK(*same == large);
    CHECK(read_file(folder.write("exact", "1234"), 4));
    const expected<std::string> empty = read_file(folder.write("empty", ""));
    REQUIRE(empty);
    CHECK(empty->empty());
}

TEST_CASE("what cannot be read is refused, and nothing waits") {
    const TemporaryFolder folder;
    folder.write("job.yaml", "a: 1");
    struct Case {
        std::string why;
        std::string path;
        Problem problem;
        std::string text;
        std::string nearest;
    };
    std::vector<Case> cases = {
        {"a typo", folder.path("job.yml"), Problem::file_not_found, "there is no such file", folder.path("job.yaml")},
        {"nothing like it", folder.path("quite_another.json"), Problem::file_not_found, "there is no such file", ""},
        {"no such folder", folder.path("no/job.yaml"), Problem::file_not_found, "there is no such file", ""},
        {"a folder", folder.path(""), Problem::file_not_found, "this is a folder, not a file", ""},
        {"no name", "", Problem::file_not_found, "no file is named", ""},
        {"a NUL in the name", folder.path(std::string("job.yaml\0x", 10)), Problem::file_not_found,
         "a file's name holds no NUL", ""},
        {"too large", folder.path("job.yaml"), Problem::file_too_large, "larger than 3 B", ""},
    };
#if defined(__unix__) || defined(__APPLE__)
    REQUIRE(::mkfifo(folder.path("fifo").c_str(), 0600) == 0);
    cases.push_back(
        {"a pipe that nobody writes to", folder.path("fifo"), Problem::file_not_found, "this is no regular file", ""});
    cases.push_back({"a device without an end", "/dev/zero", Problem::file_not_found, "this is no regular file", ""});
    REQUIRE(::symlink(folder.path("loop").c_str(), folder.path("loop").c_str()) == 0);
#endif
    for (const Case& c : cases) {
        CAPTURE(c.why);
        const expected<std::string> text = read_file(c.path, 3);
        REQUIRE(!text);
        const Diagnostic& complaint = text.error().front();
        CHECK(complaint.problem == c.problem);
        CHECK(complaint.place == Place{c.path, 0, 0});
        CHECK(complaint.text == c.text);
        CHECK(complaint.nearest == c.nearest);
    }
#if defined(__unix__) || defined(__APPLE__)
    CHECK(!read_file(folder.path("loop")));  // a link to itself
#endif
}
