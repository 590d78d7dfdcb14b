#include "vram/io/edit.hpp"

#include <doctest/doctest.h>

#include "tree.hpp"

using namespace vram;
using namespace vram::io;

namespace {

std::string after(const std::string& text, Format format, const std::vector<Edit>& edits) {
    const expected<Document> document = read(text, "f", format);
    REQUIRE(document);
    const expected<EditedDocument> out = edited(*document, edits);
    return out ? out->document.text : "refused: " + out.error().front().text;
}

const std::string config = R"(# mine
train:
  batch_size: 4   # as many as fit
  "lr": 1e-4

  steps: 2000
datasets:
  # faces
  - folder: a
    resolution: [ 512, 768,1024 ]  # three
  - folder: b
    resolution:
      - 512
      - 1024 # large
sample: {width: 1024, height: 1024}
empty:
text: |
  two
  lines
)";

std::string with(std::string text, const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("an edit touches its own place of a YAML text and nothing else") {
    struct Case {
        const char* why;
        std::vector<Edit> edits;
        std::string from, to;
    };
    for (const Case& c : {
             Case{"a value", {{"train.batch_size", "1"}}, "batch_size: 4 ", "batch_size: 1 "},
             Case{"behind a quoted key", {{"train.lr", "2e-4"}}, "1e-4", "2e-4"},
             Case{"a new key goes behind the last of its map",
                  {{"train.ema", "true"}},
                  "steps: 2000\n",
                  "steps: 2000\n  ema: true\n"},
             Case{"of an item", {{"datasets[0].repeats", "2"}}, "# three\n", "# three\n    repeats: 2\n"},
             Case{"behind a block list", {{"datasets[1].n", "2"}}, "# large\n", "# large\n    n: 2\n"},
             Case{"of a map in braces", {{"sample.seed", "3"}}, "height: 1024}", "height: 1024, seed: 3}"},
             Case{"of the root, behind a block scalar", {{"gpu", "x"}}, "lines\n", "lines\ngpu: x\n"},
             Case{"maps on the way", {{"a.b.c", "1"}}, "lines\n", "lines\na: {b: {c: 1}}\n"},
             Case{"below a null", {{"empty.k", "[1, 2]"}}, "empty:\n", "empty: {k: [1, 2]}\n"},
             Case{"a null", {{"empty", "5"}}, "empty:\n", "empty: 5\n"},
             Case{"an item in brackets goes", {{"datasets[0].resolution[2]", {}}}, "768,1024 ]", "768 ]"},
             Case{"the first one", {{"datasets[0].resolution[0]", {}}}, "[ 512, 768", "[ 768"},
             Case{"an item with its dash and comment",
                  {{"datasets[1].resolution[1]", {}}},
                  "      - 1024 # large\n",
                  ""},
             Case{"a key goes", {{"train.batch_size", {}}}, "  batch_size: 4   # as many as fit\n", ""},
             Case{"a key in braces goes", {{"sample.width", {}}}, "{width: 1024, height", "{height"},
             Case{"a block list becomes one in brackets",
                  {{"datasets[1].resolution", "[512]"}},
                  "resolution:\n      - 512\n      - 1024 # large",
                  "resolution: [512] # large"},
         }) {
        CAPTURE(c.why);
        CHECK(after(config, Format::yaml, c.edits) == with(config, c.from, c.to));
    }
}

TEST_CASE("edits follow one another") {
    const std::string two = after(config, Format::yaml, {{"train.a", "1"}, {"train.b", "2"}, {"train.a", "3"}});
    CHECK(two == with(config, "2000\n", "2000\n  a: 3\n  b: 2\n"));
}

TEST_CASE("line ends and a missing last one stay") {
    CHECK(after("a:\r\n  b: 1\r\nc: 2", Format::yaml, {{"a.d", "4"}}) == "a:\r\n  b: 1\r\n  d: 4\r\nc: 2");
    CHECK(after("a: 1", Format::yaml, {{"b", "2"}}) == "a: 1\nb: 2");
    CHECK(after("a:\n  b: 1\nc: 2\r\n", Format::yaml, {{"a.d", "4"}}) == "a:\n  b: 1\n  d: 4\nc: 2\r\n");
    CHECK(after("\xEF\xBB\xBF"
                "a: 1\n",
                Format::yaml, {{"a", "2"}}) ==
          "\xEF\xBB\xBF"
          "a: 2\n");
}

TEST_CASE("JSON and TOML are edited in their own way") {
    const std::string json = "{\n  \"a\": {\n    \"b\": 1, // one\n    \"c\": [1, 2]\n  },\n  \"d\": {}\n}\n";
    CHECK(after(json, Format::jsonc, {{"a.b", "true"}}) == with(json, ": 1,", ": true,"));
    CHECK(after(json, Format::jsonc, {{"a.e", "adamw8bit"}}) ==
          with(json, "[1, 2]\n", "[1, 2],\n    \"e\": \"adamw8bit\"\n"));
    CHECK(after(json, Format::jsonc, {{"d.x", "1.5"}}) == with(json, "{}", "{\"x\": 1.5}"));
    CHECK(after(json, Format::jsonc, {{"a.c[0]", {}}}) == with(json, "[1, 2]", "[2]"));
    CHECK(after(json, Format::jsonc, {{"a.x.y", "no"}}) ==
          with(json, "[1, 2]\n", "[1, 2],\n    \"x\": {\"y\": false}\n"));

    const std::string toml = "top = 1 # first\n\n[a]\nb = 'x'\n[a.deep]\nc = 2\n[empty]\n";
    CHECK(after(toml, Format::toml, {{"a.b", "y"}}) == with(toml, "'x'", "\"y\""));
    CHECK(after(toml, Format::toml, {{"a.n", "3"}}) == with(toml, "'x'\n", "'x'\nn = 3\n"));
    CHECK(after(toml, Format::toml, {{"empty.n", "3"}}) == toml + "n = 3\n");
    CHECK(after(toml, Format::toml, {{"new", "[1, 2]"}}) == with(toml, "# first\n", "# first\nnew = [1, 2]\n"));
    CHECK(after(toml, Format::toml, {{"a.b", {}}}) == with(toml, "b = 'x'\n", ""));
    CHECK(after(toml, Format::toml, {{"a.deep.c", {}}}).starts_with("refused: "));
    CHECK(after(toml, Format::toml, {{"a.deep.x.y", "1"}}) == with(toml, "c = 2\n", "c = 2\nx = {y = 1}\n"));
}

TEST_CASE("what cannot be said in place is refused") {
    const std::string shared = "base: &b {x: 1, y: 2}\nuse: *b\nmerged:\n  <<: *b\n  z: 3\n";
    CHECK(after(shared, Format::yaml, {{"use.x", "2"}}).starts_with("refused: use.x stands in an anchor"));
    CHECK(after(shared, Format::yaml, {{"merged.x", "2"}}).starts_with("refused: "));
    CHECK(after(shared, Format::yaml, {{"base.x", "2"}}).starts_with("refused: "));  // `use` would change, too
    CHECK(after(shared, Format::yaml, {{"merged.z", "4"}}) == with(shared, "z: 3", "z: 4"));
    CHECK(after("a:\n  b: 1\n", Format::yaml, {{"a.b", {}}}).starts_with("refused: a.b is alone"));
    CHECK(after("a: 1\n", Format::yaml, {{"a.b", "1"}}).starts_with("refused: "));
    CHECK(after("a: 1\n", Format::yaml, {{"b", {}}}).starts_with("refused: b is not there"));
    CHECK(after("a: [1]\n", Format::yaml, {{"a[3]", "1"}}).starts_with("refused: "));
    CHECK(after("a: 1\n", Format::yaml, {{"a..b", "1"}}).starts_with("refused: a..b is no path"));
    CHECK(after("a: 1\n", Format::yaml, {{"a", "[1"}}).starts_with("refused: "));
}

TEST_CASE("an edit says where it lands and what stood there") {
    const expected<Document> document = read(config, "f.yaml", Format::yaml);
    REQUIRE(document);
    const expected<EditedDocument> out =
        edited(*document, {{"train.batch_size", "1"}, {"train.ema", "true"}, {"datasets[0].resolution[2]", {}}});
    REQUIRE(out);
    REQUIRE(out->edits.size() == 3);
    CHECK(out->edits[0].place == Place{"f.yaml", 3, 15});
    CHECK(out->edits[0].before == "4");
    CHECK(out->edits[0].after == "1");
    CHECK(out->edits[1].is_new);
    CHECK(out->edits[1].place.line == 6);
    CHECK(out->edits[2].before == "1024");
    CHECK(out->edits[2].after.empty());
}

TEST_CASE("of a document without a text the tree is changed") {
    Document document;
    document.root.put("train", Node{Map{}}).put("batch_size", Node{std::int64_t{4}});
    const expected<EditedDocument> out = edited(document, {{"train.batch_size", "1"}, {"train.ema", "false"}});
    REQUIRE(out);
    CHECK(shown(out->document.root) == "{train: {batch_size: 1, ema: false}}");
    CHECK(out->document.text.empty());
    CHECK(out->edits[0].before == "4");
    CHECK(out->edits[0].place.line == 0);
}
