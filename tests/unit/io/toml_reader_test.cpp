#include <doctest/doctest.h>

#include <cstdint>

#include "tree.hpp"

using namespace vram;
using namespace vram::io;

TEST_CASE("TOML documents, in the file's order") {
    struct Case {
        std::string why;
        const char* text;
        const char* value;
    };
    for (const Case& c : {
             Case{"all kinds", "z = 1\na = 2.5\nt = true\ns = 'x'\nl = [1, \"y\"]",
                  "{z: 1, a: 2.5, t: true, s: \"x\", l: [1, \"y\"]}"},
             Case{"sections", "[b]\nk = 1\n[a.c]\nk = 2", "{b: {k: 1}, a: {c: {k: 2}}}"},
             Case{"dotted keys", "a.b.c = 1\na.b.d = 2", "{a: {b: {c: 1, d: 2}}}"},
             Case{"lists of tables", "[[d]]\nk = 1\n[[d]]\nk = 2\n[[d.s]]\nj = 3",
                  "{d: [{k: 1}, {k: 2, s: [{j: 3}]}]}"},
             Case{"inline tables", "a = {z = 1, b.c = 2}", "{a: {z: 1, b: {c: 2}}}"},
             Case{"other bases and underscores", "a = 0x10\nb = 0o10\nc = 0b11\nd = 1_000",
                  "{a: 16, b: 8, c: 3, d: 1000}"},
             Case{"exponents", "lr = 1e-4", "{lr: 1e-04}"},
             Case{"infinite", "a = inf", "{a: inf}"},
             Case{"dates are text", "d = 1979-05-27 07:32:00", "{d: \"1979-05-27 07:32:00\"}"},
             Case{"byte order mark and CRLF",
                  "\xEF\xBB\xBF"
                  "a = 1\r\n[b]\r\nc = 2\r\n",
                  "{a: 1, b: {c: 2}}"},
             Case{"nothing is an empty map", "", "{}"},
             Case{"only a comment", "# c", "{}"},
         }) {
        CAPTURE(c.why);
        CHECK(reading(c.text, Format::toml) == c.value);
    }
}

TEST_CASE("what is not TOML is refused with its place") {
    struct Case {
        std::string why;
        std::string text;
        const char* complaint;
    };
    const auto repeat = [](int n, std::string_view what) {
        std::string s;
        while (n-- > 0) s += what;
        return s;
    };
    for (const Case& c : {
             Case{"no value", "a = 1\nb =\n", "syntax 2:4"},
             Case{"a word without quotes", "a = adamw", "syntax 1:5"},
             Case{"a key twice", "a = 1\na = 2", "duplicate_key 2:5"},
             Case{"a section over a value", "a = 1\n[a]", "duplicate_key 2:1"},
             Case{"beyond 63 bits", "a = 9223372036854775808", "syntax 1:24"},
             Case{"half a date and time, at which toml++ 3.3 asserts", "a = 1\nd = [1979-05-27 1]\n", "syntax 2:6"},
             Case{"YAML", "a: 1", "syntax 1:2"},
             Case{"NUL", std::string("a = '\0'", 7), "bad_encoding 1:6"},
             Case{"a key of many parts", repeat(100'000, "a.") + "a = 1", "too_deep 1:128"},
             Case{"a section of many parts", "[" + repeat(100'000, "a.") + "a]", "too_deep 1:129"},
             Case{"deep lists", "a = " + repeat(100'000, "["), "too_deep 1:133"},
             Case{"deep within the parser's limit", "a = " + repeat(70, "[") + repeat(70, "]"), "too_deep 1:68"},
             Case{"deep inline tables", repeat(100'000, "a={"), "too_deep 1:387"},
         }) {
        CAPTURE(c.why);
        CHECK(reading(c.text, Format::toml) == c.complaint);
    }
    CHECK(reading("a = '" + repeat(1000, ".") + "'", Format::toml).starts_with("{a: "));  // dots in a text are no key
}

TEST_CASE("no letter is taken for a blank, of which toml++ 3.3 is not sure") {
    const auto is_blank = [](std::uint32_t c) {  // Unicode's, which TOML does not allow outside of texts either
        return c == 0x85 || c == 0xA0 || c == 0x1680 || c == 0x180E || (c >= 0x2000 && c <= 0x200B) || c == 0x2028 ||
               c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x2060 || c == 0x3000 || c == 0xFEFF;
    };
    for (std::uint32_t c = 0x80; c < 0x3100; ++c) {
        if (is_blank(c)) continue;
        std::string letter;
        if (c >= 0x800)
            letter = {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3F)),
                      static_cast<char>(0x80 | (c & 0x3F))};
        else
            letter = {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
        CAPTURE(c);
        CHECK(reading("a = 1 " + letter, Format::toml).starts_with("syntax"));
        CHECK(reading("a = \"\"\"x\\\n " + letter + " y\"\"\" # " + letter, Format::toml) ==
              "{a: \"x" + letter + " y\"}");
    }
}

TEST_CASE("a TOML span is exactly what stands in the file") {
    struct Case {
        std::string why;
        const char* text;
        const char* path;
        const char* slice;
    };
    for (const Case& c : {
             Case{"a number", "a = 1_0 # c", "a", "1_0"},
             Case{"behind letters of two bytes", "\"é\" = \"ü\" # c", "é", "\"ü\""},
             Case{"long text", "a = \"\"\"x\n\"y\"\"\"\" # c", "a", "\"\"\"x\n\"y\"\"\"\""},
             Case{"literal text", "a = 'x\"#'", "a", "'x\"#'"},
             Case{"list over lines", "a = [ 1, # ]\n 2\n] # c", "a", "[ 1, # ]\n 2\n]"},
             Case{"an item behind an inner list", "a = [ [1], 'b' ]", "a[1]", "'b'"},
             Case{"inline table", "a = {b = 1} # c", "a", "{b = 1}"},
             Case{"a dotted key's value", "a.b.c = 1.5", "a.b.c", "1.5"},
             Case{"a section", "[s]\nk = 1\nl = [2]\n\n[t]\n", "s", "[s]\nk = 1\nl = [2]"},
             Case{"a date with a blank", "d = 1979-05-27 07:32:00 # c", "d", "1979-05-27 07:32:00"},
             Case{"behind a byte order mark",
                  "\xEF\xBB\xBF"
                  "a = 1",
                  "a", "1"},
             Case{"CRLF", "b = 2\r\na = 'x'\r\n", "a", "'x'"},
             Case{"in a list of tables", "[[d]]\nk = 1\n[[d]]\nk = 'z'", "d[1].k", "'z'"},
         }) {
        CAPTURE(c.why);
        const expected<Document> document = read(c.text, "f", Format::toml);
        REQUIRE(document);
        const Node* node = find(document->root, c.path);
        REQUIRE(node);
        CHECK(slice(*document, node->span) == c.slice);
    }
    const expected<Document> document = read("[s.\"t u\"]\nk . l = 1", "f", Format::toml);
    REQUIRE(document);
    CHECK(slice(*document, document->root.member("s")->key_span) == "s");
    CHECK(slice(*document, document->root.find("s")->member("t u")->key_span) == "\"t u\"");
    CHECK(slice(*document, find(document->root, "s")->find("t u")->find("k")->member("l")->key_span) == "l");
}
