#include "vram/io/document.hpp"

#include <doctest/doctest.h>

#include "tree.hpp"

using namespace vram;
using namespace vram::io;

TEST_CASE("the format is the name's, else what the text looks like") {
    struct Case {
        std::string why;
        const char* name;
        const char* text;
        Format format;
    };
    for (const Case& c : {
             Case{"yaml", "a.yaml", "{", Format::yaml},
             Case{"yml, any case", "A.YML", "", Format::yaml},
             Case{"json", "dir.toml/a.json", "", Format::json},
             Case{"jsonc", "a.jsonc", "", Format::jsonc},
             Case{"toml", "a.toml", "", Format::toml},
             Case{"a brace", "config", " {", Format::jsonc},
             Case{"a brace behind a comment", "config", "// c\n{", Format::jsonc},
             Case{"a section", "config", "# c\n[general]\nx = 1", Format::toml},
             Case{"a list of tables", "config", "[[datasets]]", Format::toml},
             Case{"key = value", "config", "\xEF\xBB\xBFoutput_dir = \"x\"", Format::toml},
             Case{"a flow list is YAML", "config", "[1, 2]", Format::yaml},
             Case{"key: value", "config.txt", "a: b = c", Format::yaml},
             Case{"nothing", "", "", Format::yaml},
         }) {
        CAPTURE(c.why);
        CHECK(format_of(c.name, c.text) == c.format);
    }
}

TEST_CASE("a tree is built in code without places") {
    Document job{.file_name = "dict"};
    job.root.put("model", Node{std::string("flux1_dev")});
    job.root.put("train", {}).put("batch_size", Node{std::int64_t{4}});
    job.root.put("model", Node{std::string("sdxl")});
    CHECK(shown(job.root) == "{model: \"sdxl\", train: {batch_size: 4}}");
    CHECK(job.place_of(*find(job.root, "train.batch_size")) == Place{"dict", 0, 0});
    CHECK(Node{2.5}.spelled() == "2.5");
    CHECK(Node{true}.spelled() == "true");
    CHECK(Node{List{}}.spelled() == "a list");
}

TEST_CASE("a place is the same however long the text before it") {
    const std::string byte_order_mark = "\xef\xbb\xbf";
    for (const bool marked : {false, true}) {
        std::string text = marked ? byte_order_mark : "";
        while (text.size() < 9000) text += "k" + std::to_string(text.size()) + ": \"äöü\"\n";
        text += "last: " + std::string(9000, 'x');
        const expected<Document> document = read(text, "job.yaml", Format::yaml);
        REQUIRE(document);
        Document unmarked = *document;
        unmarked.marks.clear();  // counts from the start
        CHECK(document->marks.size() == 5);
        std::int64_t apart = 0;
        for (std::int64_t at = 0; at <= static_cast<std::int64_t>(text.size()); ++at)
            if (document->place_of(Span{at, at}) != unmarked.place_of(Span{at, at})) ++apart;
        CHECK(apart == 0);
        CHECK(document->place_of(*document->root.find("last")).column == 7);
        CHECK(document->place_of(document->root.map()->front().key_span) == Place{"job.yaml", 1, 1});
    }
}
