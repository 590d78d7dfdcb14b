#include <doctest/doctest.h>

#include "tree.hpp"

using namespace vram;
using namespace vram::io;

TEST_CASE("plain YAML scalars read as PyYAML reads them") {
    struct Case {
        std::string why;
        const char* text;
        const char* value;
    };
    for (const Case& c : {
             Case{"a whole number", "4", "4"},
             Case{"signed", "-4", "-4"},
             Case{"signed up", "+4", "4"},
             Case{"underscores are dropped", "1_000_000", "1000000"},
             Case{"hexadecimal", "0x1F", "31"},
             Case{"negative hexadecimal", "-0x10", "-16"},
             Case{"binary", "0b101", "5"},
             Case{"YAML 1.1 octal", "010", "8"},
             Case{"YAML 1.2 octal is a word in 1.1", "0o10", "\"0o10\""},
             Case{"no octal digit: a word", "08", "\"08\""},
             Case{"sixty-based", "1:30", "90"},
             Case{"an aspect ratio is sixty-based as well", "16:9", "969"},
             Case{"a third part", "1:00:00", "3600"},
             Case{"over fifty-nine: a word", "1:75", "\"1:75\""},
             Case{"sixty-based with a fraction", "1:30.5", "90.5"},
             Case{"the largest", "9223372036854775807", "9223372036854775807"},
             Case{"the smallest", "-9223372036854775808", "-9223372036854775808"},
             Case{"beyond 63 bits: flagged, not wrapped", "9223372036854775808", "~9223372036854775808.0"},
             Case{"far beyond", "1000000000000000000000000000000", "~1e+30"},
             Case{"hexadecimal beyond", "0x10000000000000000", "~18446744073709551616.0"},
             Case{"a decimal", "2.5", "2.5"},
             Case{"no digit behind the dot", "2.", "2.0"},
             Case{"no digit before the dot", ".5", "0.5"},
             Case{"negative, without a digit before the dot", "-.5", "-0.5"},
             Case{"a dot alone", ".", "\".\""},
             Case{"an exponent without a dot: a number for the trainers, a word for PyYAML alone", "1e-4", "1e-04"},
             Case{"with a dot", "1.0e-4", "1e-04"},
             Case{"unsigned exponent", "5E6", "5e+06"},
             Case{"half an exponent", "1e", "\"1e\""},
             Case{"half a signed exponent", "1e-", "\"1e-\""},
             Case{"infinite", ".inf", "inf"},
             Case{"minus infinite", "-.INF", "-inf"},
             Case{"not a number", ".nan", "nan"},
             Case{"beyond doubles is infinite", "1e999", "inf"},
             Case{"below doubles is zero", "1e-999", "0.0"},
             Case{"yes", "yes", "true"},
             Case{"off", "Off", "false"},
             Case{"true", "TRUE", "true"},
             Case{"y alone is a word", "y", "\"y\""},
             Case{"odd case is a word", "tRUE", "\"tRUE\""},
             Case{"tilde", "~", "null"},
             Case{"null", "Null", "null"},
             Case{"none is a word", "none", "\"none\""},
             Case{"a date is text", "2024-01-31", "\"2024-01-31\""},
             Case{"a version of three parts", "2.6.0", "\"2.6.0\""},
             Case{"quoted stays text", "\"4\"", "\"4\""},
             Case{"single quoted stays text", "'yes'", "\"yes\""},
             Case{"quoted nothing is text", "''", "\"\""},
             Case{"tagged as text", "!!str 4", "\"4\""},
             Case{"tagged as text, with nothing behind it", "!!str", "\"\""},
             Case{"tagged as float", "!!float 4", "4.0"},
             Case{"tagged as int", "!!int 4", "4"},
         }) {
        CAPTURE(c.why);
        CHECK(reading(std::string("k: ") + c.text, Format::yaml) == std::string("{k: ") + c.value + "}");
    }
}

TEST_CASE("YAML documents") {
    struct Case {
        std::string why;
        const char* text;
        const char* value;
    };
    for (const Case& c : {
             Case{"block maps and lists", "a:\n  b: 1\n  c:\n    - 2\n    - x: 3\n", "{a: {b: 1, c: [2, {x: 3}]}}"},
             Case{"a list no deeper than its key", "a:\n- 1\n- 2\nb: 3", "{a: [1, 2], b: 3}"},
             Case{"flow", "a: {b: [1, 2], c: }", "{a: {b: [1, 2], c: null}}"},
             Case{"JSON is YAML", "{\"a\": [1, \"x\"]}", "{a: [1, \"x\"]}"},
             Case{"comments", "# head\na: 1 # tail\n# foot\n", "{a: 1}"},
             Case{"no value", "a:\nb: 1", "{a: null, b: 1}"},
             Case{"no value before a key that is called null", "a:\nnull: 1", "{a: null, null: 1}"},
             Case{"folded and literal", "a: >\n  x\n  y\nb: |\n  x\n  y\n", "{a: \"x y\n\", b: \"x\ny\n\"}"},
             Case{"byte order mark",
                  "\xEF\xBB\xBF"
                  "a: 1",
                  "{a: 1}"},
             Case{"CRLF", "a: 1\r\nb:\r\n  - 2\r\n", "{a: 1, b: [2]}"},
             Case{"a start and an end", "---\na: 1\n...\n", "{a: 1}"},
             Case{"a verbatim tag", "a: !<tag:yaml.org,2002:str> 4", "{a: \"4\"}"},
             Case{"a tag and an anchor in a flow, with nothing behind them", "[!!str , &x , 1]", "[\"\", null, 1]"},
             Case{"alias", "a: &x [1]\nb: *x", "{a: [1], b: [1]}"},
             Case{"merge key: the map's own keys win", "d: &d {a: 1, b: 2}\ne:\n  <<: *d\n  b: 3",
                  "{d: {a: 1, b: 2}, e: {b: 3, a: 1}}"},
             Case{"merge of two: the first wins", "x: &x {a: 1}\ny: &y {a: 2, b: 3}\nz: {<<: [*x, *y]}",
                  "{x: {a: 1}, y: {a: 2, b: 3}, z: {a: 1, b: 3}}"},
             Case{"a quoted << is a key", "a: {\"<<\": 1}", "{a: {<<: 1}}"},
             Case{"the last of two keys counts", "a: 1\nb: 2\na: 3", "{a: 3, b: 2}"},
             Case{"a number as key", "1: x\n2.10: y", "{1: \"x\", 2.10: \"y\"}"},
             Case{"an anchored key", "&k key: 1\nb: *k", "{key: 1, b: \"key\"}"},
             Case{"a scalar alone", "4", "4"},
             Case{"escapes", "a: \"\\u00e9\\n\"", "{a: \"é\n\"}"},
             Case{"empty containers", "a: []\nb: {}", "{a: [], b: {}}"},
         }) {
        CAPTURE(c.why);
        CHECK(reading(c.text, Format::yaml) == c.value);
    }
}

TEST_CASE("what is not YAML is refused with its place") {
    struct Case {
        std::string why;
        std::string text;
        const char* complaint;
    };
    for (const Case& c : {
             Case{"nothing", "", "empty_file 0:0"},
             Case{"only comments", "# a\n\n  # b", "empty_file 0:0"},
             Case{"an open bracket", "a: [1, 2\nb: 3", "syntax 2:2"},
             Case{"a map where a scalar stands", "a: b: c", "syntax 1:5"},
             Case{"a tab as indent", "a: x\n\tb: 3", "syntax 2:1"},
             Case{"an open quote", "a: \"x", "syntax 1:6"},
             Case{"unknown alias", "a: *x", "syntax 1:4"},
             Case{"an alias in its own anchor", "a: &x [*x]", "syntax 1:8"},
             Case{"two documents", "a: 1\n---\nb: 2", "syntax 2:1"},
             Case{"a list as key", "? [1]\n: 2", "syntax 1:3"},
             Case{"an unknown tag, as safe_load has it", "a: !!python/object:os.system x", "syntax 1:30"},
             Case{"an unknown tag on a map", "a: !include {b: 1}", "syntax 1:13"},
             Case{"a tag that does not go with the value", "a: !!int x", "syntax 1:10"},
             Case{"a tag that runs into its value", "a: !\xC3\xA9 4", "syntax 1:4"},
             Case{"an anchor that runs into its value", "a: &x[1]", "syntax 1:6"},
             Case{"two byte order marks",
                  "\xEF\xBB\xBF\xEF\xBB\xBF"
                  "a: 1",
                  "bad_encoding 1:1"},
             Case{"a merge key of a number", "a:\n  <<: 3", "wrong_type 2:7"},
             Case{"NUL", std::string("a: 1\0", 5), "bad_encoding 1:5"},
             Case{"byte 4, which yaml-cpp takes for the end",
                  "a: 1\n\x04"
                  "b: 2",
                  "bad_encoding 2:1"},
             Case{"Latin-1", "a: \xE9", "bad_encoding 1:4"},
             Case{"an overlong slash", "a: \xC0\xAF", "bad_encoding 1:4"},
             Case{"a surrogate", "a: \xED\xA0\x80", "bad_encoding 1:4"},
             Case{"half a character", "a: \xE2\x82", "bad_encoding 1:4"},
             Case{"UTF-16",
                  std::string("\xFF\xFE"
                              "a\0",
                              4),
                  "bad_encoding 1:1"},
             Case{"an old Mac's line ends", "a: 1\rb: 2", "syntax 1:5"},
             Case{"deep flow", std::string(100, '[') + std::string(100, ']'), "too_deep 1:65"},
             Case{"deep flow without an end: yaml-cpp looks for that first", std::string(100'000, '['), "syntax 1:1"},
             Case{"deep blocks",
                  [] {
                      std::string s;
                      for (int i = 0; i < 100; ++i) s += "- ";
                      return s;
                  }(),
                  "too_deep 1:129"},
         }) {
        CAPTURE(c.why);
        CHECK(reading(c.text, Format::yaml) == c.complaint);
    }
}

TEST_CASE("aliases that multiply are refused before they fill the memory") {
    std::string laughs = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n";
    for (int i = 1; i < 12; ++i) {
        const std::string last = "*a" + std::to_string(i - 1), name = "a" + std::to_string(i);
        laughs += name + ": &" + name + " [" + last;
        for (int k = 1; k < 10; ++k) laughs += ", " + last;
        laughs += "]\n";
    }
    CHECK(reading(laughs, Format::yaml).starts_with("too_many_aliases"));
    CHECK(reading("a: &a {x: 1}\nb: {<<: *a}\nc: {<<: *a}", Format::yaml, {.aliased = 6}) == "too_many_aliases 3:9");
}

TEST_CASE("limits") {
    CHECK(reading("[1, 2, 3]", Format::yaml, {.nodes = 3}) == "file_too_large 1:8");
    CHECK(reading("[1, 2, 3]", Format::json, {.nodes = 3}) == "file_too_large 1:8");
    CHECK(reading("a = [1, 2, 3]", Format::toml, {.nodes = 3}) == "file_too_large 1:9");
    CHECK(reading("a: 12345", Format::yaml, {.bytes = 7}) == "file_too_large 0:0");
    CHECK(reading("[[[1]]]", Format::json, {.depth = 2}) == "too_deep 1:3");
    CHECK(reading("a.b.c = 1", Format::toml, {.depth = 2}) == "too_deep 1:4");
}

TEST_CASE("a key written twice is a warning where the second stands") {
    const expected<Document> document = read("train:\n  lr: 1\n  lr: 2\n", "job.yaml", Format::yaml);
    REQUIRE(document);
    REQUIRE(document->complaints.size() == 1);
    const Diagnostic& complaint = document->complaints[0];
    CHECK(complaint.severity == Severity::warning);
    CHECK(complaint.problem == Problem::duplicate_key);
    CHECK(complaint.place == Place{"job.yaml", 3, 3});
    CHECK(complaint.key == "lr");
    CHECK(complaint.found == "2");
    CHECK(complaint.text == "lr is written twice, first in line 2; the last one counts");
    CHECK(slice(*document, find(document->root, "train.lr")->span) == "2");
}

TEST_CASE("a YAML span is exactly what stands in the file") {
    struct Case {
        std::string why;
        const char* text;
        const char* path;
        const char* slice;
    };
    for (const Case& c : {
             Case{"plain", "a: 1 # one\nb: 2", "a", "1"},
             Case{"spaces inside", "a: two  words   # c", "a", "two  words"},
             Case{"double quotes and escapes", "a: \"x \\\" # y\" # c", "a", "\"x \\\" # y\""},
             Case{"single quotes, doubled", "a: 'it''s'", "a", "'it''s'"},
             Case{"behind a tag and an anchor", "a: !!str &x  1", "a", "1"},
             Case{"over lines", "a: one\n  two\n\n  three\nb: 1", "a", "one\n  two\n\n  three"},
             Case{"quoted over lines", "a: \"one\n  two\"\nb: 1", "a", "\"one\n  two\""},
             Case{"literal block", "a: |\n  x\n   y\n\n  z\n\nb: 1", "a", "|\n  x\n   y\n\n  z"},
             Case{"folded block that is stripped", "a:\n  b: >-\n    x\n  c: 1", "a.b", ">-\n    x"},
             Case{"block with its own indent", "a: |2\n   x\nb: 1", "a", "|2\n   x"},
             Case{"block in a list", "- |\n x\n- 1", "[0]", "|\n x"},
             Case{"an empty block", "a: |\nb: 1", "a", "|"},
             Case{"a comment ends a block", "a: |\n  x\n# c\nb: 1", "a", "|\n  x"},
             Case{"block with CRLF", "a: |\r\n  x\r\n  y\r\nb: 1", "a", "|\r\n  x\r\n  y"},
             Case{"behind letters of two bytes", "é: ü # c", "é", "ü"},
             Case{"behind a byte order mark",
                  "\xEF\xBB\xBF"
                  "a: 1",
                  "a", "1"},
             Case{"CRLF", "a: 1\r\nb: x y\r\n", "b", "x y"},
             Case{"null", "a: ~", "a", "~"},
             Case{"a null that is not there", "a: # c\nb: 1", "a", ""},
             Case{"a tag without a value", "a: !!str # c\n\"b\": 1", "a", ""},
             Case{"flow list", "a: [1, [2], 3 ] # c", "a", "[1, [2], 3 ]"},
             Case{"flow map with a comment inside", "a: {b: 1, # }\n  c: 2\n}", "a", "{b: 1, # }\n  c: 2\n}"},
             Case{"empty flow list", "a: [ ]", "a", "[ ]"},
             Case{"an item", "a: [1, two , 3]", "a[1]", "two"},
             Case{"block map", "a:\n  b: 1\n  c: 2\n\nd: 3", "a", "b: 1\n  c: 2"},
             Case{"block list", "a:\n  - 1\n  - x: 2\nd: 3", "a", "- 1\n  - x: 2"},
             Case{"alias", "a: &x 1\nb: *x # c", "b", "*x"},
             Case{"alias in a flow", "a: &x 1\nb: [*x]", "b[0]", "*x"},
         }) {
        CAPTURE(c.why);
        const expected<Document> document = read(c.text, "f", Format::yaml);
        REQUIRE(document);
        const Node* node = find(document->root, c.path);
        REQUIRE(node);
        CHECK(slice(*document, node->span) == c.slice);
    }
}

TEST_CASE("a null that is not there has its place behind the sign it belongs to") {
    struct Case {
        std::string why;
        const char* text;
        const char* path;
        std::int64_t offset;
    };
    for (const Case& c : {
             Case{"the colon", "a: # c\nb: 1", "a", 2},
             Case{"the last colon", "a: 1\nb:", "b", 7},
             Case{"a key that is called null follows", "a:\nnull: 1", "a", 2},
             Case{"a key that starts with null follows", "a:\nnull x: 1", "a", 2},
             Case{"the dash", "- 1\n-\n- 3", "[1]", 5},
             Case{"the first dash", "-\n- 3", "[0]", 1},
             Case{"a colon in braces", "{a: , b: 1}", "a", 3},
             Case{"behind an anchor", "a: &x\nb: 1", "a", 5},
         }) {
        CAPTURE(c.why);
        const expected<Document> document = read(c.text, "f", Format::yaml);
        REQUIRE(document);
        const Node* node = find(document->root, c.path);
        REQUIRE(node);
        CHECK(node->is(Kind::null));
        CHECK(node->span == Span{c.offset, c.offset});
    }
}

TEST_CASE("keys have spans too, and places count code points") {
    const expected<Document> document = read("é: {\"ü k\" : 1}\n'q': 2", "f", Format::yaml);
    REQUIRE(document);
    const Member* inner = document->root.find("é")->member("ü k");
    REQUIRE(inner);
    CHECK(slice(*document, inner->key_span) == "\"ü k\"");
    CHECK(document->place_of(inner->key_span) == Place{"f", 1, 5});
    CHECK(document->place_of(inner->value) == Place{"f", 1, 13});
    CHECK(slice(*document, document->root.member("q")->key_span) == "'q'");
}

TEST_CASE("what an anchor gave is marked, since an edit there changes more than one place") {
    const expected<Document> document = read("a: &x {k: 1}\nb: *x\nc: {<<: *x, l: 2}", "f", Format::yaml);
    REQUIRE(document);
    CHECK(find(document->root, "a.k")->origin == Origin::file);
    CHECK(find(document->root, "b")->origin == Origin::file);  // `*x` may be replaced
    CHECK(find(document->root, "b.k")->origin == Origin::shared);
    CHECK(find(document->root, "c.k")->origin == Origin::shared);
    CHECK(find(document->root, "c.l")->origin == Origin::file);
}

TEST_CASE("a scalar that is not text keeps what was written") {
    const expected<Document> document = read("torch: 2.10\nflag: yes\nlr: 1e-4\nt: \"2.10\"", "f", Format::yaml);
    REQUIRE(document);
    CHECK(document->root.find("torch")->spelled() == "2.10");
    CHECK(document->root.find("flag")->spelled() == "yes");
    CHECK(document->root.find("lr")->spelled() == "1e-4");
    CHECK(document->root.find("t")->spelled() == "2.10");
}
