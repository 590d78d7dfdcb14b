#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tree.hpp"

using namespace vram;
using namespace vram::io;

TEST_CASE("JSON documents") {
    struct Case {
        std::string why;
        const char* text;
        const char* value;
    };
    for (const Case& c : {
             Case{"all kinds", R"({"a": [1, -2.5e3, "x", true, false, null, {}]})",
                  "{a: [1, -2500.0, \"x\", true, false, null, {}]}"},
             Case{"a scalar alone", " 4 ", "4"},
             Case{"escapes", R"(["\u00e9\ud83d\ude00\n\"\/"])", "[\"é😀\n\"/\"]"},
             Case{"tabs between", "{\t\"a\"\t:\t1\t}", "{a: 1}"},
             Case{"the largest", "[9223372036854775807]", "[9223372036854775807]"},
             Case{"beyond 63 bits", "[9223372036854775808]", "[~9223372036854775808.0]"},
             Case{"beyond 64 bits", "[100000000000000000000]", "[~1e+20]"},
             Case{"a large number with an exponent is no whole number", "[1e20]", "[1e+20]"},
             Case{"byte order mark and CRLF", "\xEF\xBB\xBF{\r\n\"a\": 1\r\n}\r\n", "{a: 1}"},
             Case{"the last of two keys counts", R"({"a": 1, "b": 2, "a": 3})", "{a: 3, b: 2}"},
         }) {
        CAPTURE(c.why);
        CHECK(reading(c.text, Format::json) == c.value);
    }
    CHECK(reading("// c\n{\"a\": /* c */ 1}//", Format::jsonc) == "{a: 1}");
}

TEST_CASE("what is not JSON is refused with its place") {
    struct Case {
        std::string why;
        std::string text;
        const char* complaint;
    };
    for (const Case& c : {
             Case{"nothing", " \n", "empty_file 0:0"},
             Case{"an open bracket", "{\"a\": 1", "syntax 1:8"},
             Case{"a comma too many", "{\"a\": 1,}", "syntax 1:9"},
             Case{"no quotes", "{a: 1}", "syntax 1:2"},
             Case{"single quotes", "{'a': 1}", "syntax 1:2"},
             Case{"a comment", "{\n// c\n}", "syntax 2:1"},
             Case{"two documents", "{}\n{}", "syntax 2:1"},
             Case{"a leading zero", "[01]", "syntax 1:3"},
             Case{"Python's NaN", "[NaN]", "syntax 1:2"},
             Case{"beyond doubles", "[1e999]", "syntax 1:6"},
             Case{"a raw line break in a string", "[\"a\nb\"]", "syntax 1:4"},
             Case{"half a surrogate pair", R"(["\ud83d"])", "syntax 1:9"},
             Case{"a NUL", std::string("[1\0]", 4), "bad_encoding 1:3"},
             Case{"Latin-1", "[\"\xE9\"]", "bad_encoding 1:3"},
             Case{"deep", std::string(1'000'000, '['), "too_deep 1:65"},
             Case{"deep maps",
                  [] {
                      std::string s;
                      for (int i = 0; i < 100; ++i) s += "{\"\":";
                      return s;
                  }(),
                  "too_deep 1:257"},
         }) {
        CAPTURE(c.why);
        CHECK(reading(c.text, Format::json) == c.complaint);
    }
}

TEST_CASE("a JSON complaint says what was found and what was due") {
    const expected<Document> document = read("{\n  \"a\": tru\n}", "c.json", Format::json);
    REQUIRE(!document);
    const Diagnostic& complaint = document.error().front();
    CHECK(complaint.place.file == "c.json");
    CHECK(complaint.place.line == 2);
    CHECK(complaint.found == "tru");
    CHECK(complaint.text ==
          "not JSON: syntax error while parsing value - invalid literal; last read: '\"a\": tru<U+000A>'");
}

TEST_CASE("JSON keys written twice are seen") {
    const expected<Document> document = read("{\"a\": 1,\n \"a\": 2}", "f", Format::json);
    REQUIRE(document);
    REQUIRE(document->complaints.size() == 1);
    CHECK(document->complaints[0].place == Place{"f", 2, 2});
}

TEST_CASE("a JSON span is exactly what stands in the file") {
    const std::string text =
        "// \"c\"\n{ \"k\\\"1\" : [ 1 ,-2.50e1/* ] */, \"é \\\\\" ] ,\n\"m\":{ \"t\":true}, \"n\":null }";
    const expected<Document> document = read(text, "f", Format::jsonc);
    REQUIRE(document);
    const Node& root = document->root;
    CHECK(slice(*document, root.span) == text.substr(7));
    CHECK(slice(*document, root.member("k\"1")->key_span) == "\"k\\\"1\"");
    const Node& list = *root.find("k\"1");
    CHECK(slice(*document, list.span) == "[ 1 ,-2.50e1/* ] */, \"é \\\\\" ]");
    CHECK(slice(*document, (*list.list())[0].span) == "1");
    CHECK(slice(*document, (*list.list())[1].span) == "-2.50e1");
    CHECK(slice(*document, (*list.list())[2].span) == "\"é \\\\\"");
    CHECK(slice(*document, find(root, "m")->span) == "{ \"t\":true}");
    CHECK(slice(*document, find(root, "m.t")->span) == "true");
    CHECK(slice(*document, find(root, "n")->span) == "null");
}
