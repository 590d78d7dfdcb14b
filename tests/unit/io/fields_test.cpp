#include "vram/io/fields.hpp"

#include <doctest/doctest.h>

#include "tree.hpp"

using namespace vram;
using namespace vram::io;

namespace {

enum class Method { full, lora };
constexpr Choice<Method> methods[] = {{"full", Method::full}, {"lora", Method::lora}, {"lierla", Method::lora}};

Document document_of(std::string_view text) {
    expected<Document> document = read(text, "job.yaml", Format::yaml);
    REQUIRE(document);
    return std::move(*document);
}

/// A getter by name, its answer as text: one table for all of them.
std::string ask(Fields& f, std::string_view getter, std::string_view key) {
    const auto list = [](const auto& values) {
        if (!values) return std::string("nothing");
        std::string out = "[";
        for (const auto& value : *values) out += (out.size() > 1 ? ", " : "") + Node{value}.spelled();
        return out + "]";
    };
    const auto one = [](const auto& value) { return value ? Node{*value}.spelled() : std::string("nothing"); };
    if (getter == "integer") return one(f.integer(key, {.min = 1, .max = 100}));
    if (getter == "number") return one(f.number(key, {.min = 0}));
    if (getter == "boolean") return one(f.boolean(key));
    if (getter == "text") return one(f.text(key));
    if (getter == "word") return one(f.word(key));
    if (getter == "size") return one(f.size(key));
    if (getter == "choice")
        return one(f.choice(key, methods).has_value() ? std::optional(f.choice(key, methods) == Method::lora)
                                                      : std::nullopt);
    if (getter == "integers") return list(f.integers(key, {.min = 1}, {.min = 1, .max = 3}));
    if (getter == "integers or one") return list(f.integers(key, {.min = 1}, {.min = 1, .max = 3}, Single::is_a_list));
    if (getter == "numbers") return list(f.numbers(key));
    if (getter == "texts") return list(f.texts(key, {.min = 2, .max = 2}));
    if (getter == "texts or one") return list(f.texts(key, {}, Single::is_a_list));
    FAIL("no such getter");
    return {};
}

}  // namespace

TEST_CASE("what a getter takes") {
    struct Case {
        std::string why;
        const char* getter;
        const char* written;
        const char* answer;
    };
    for (const Case& c : {
             Case{"a whole number", "integer", "4", "4"},
             Case{"the lower end", "integer", "1", "1"},
             Case{"the upper end", "integer", "100", "100"},
             Case{"a number that is whole", "integer", "4.0", "4"},
             Case{"with an exponent", "integer", "1e2", "100"},
             Case{"a number", "number", "1e-4", "1e-04"},
             Case{"a whole number is a number", "number", "3", "3"},
             Case{"a boolean", "boolean", "on", "true"},
             Case{"a text", "text", "adamw", "adamw"},
             Case{"a quoted number is a text", "text", "'8'", "8"},
             Case{"a version keeps its zero", "word", "2.10", "2.10"},
             Case{"a word", "word", "latest", "latest"},
             Case{"a size", "size", "24 GiB", "25769803776"},
             Case{"a size in bytes", "size", "1_024", "1024"},
             Case{"a choice", "choice", "lora", "true"},
             Case{"another word for it", "choice", "lierla", "true"},
             Case{"a list", "integers", "[1, 2]", "[1, 2]"},
             Case{"one is a list if asked", "integers or one", "1024", "[1024]"},
             Case{"numbers", "numbers", "[1, 2.5]", "[1, 2.5]"},
             Case{"texts", "texts", "[a, b]", "[a, b]"},
             Case{"one text", "texts or one", "a", "[a]"},
         }) {
        CAPTURE(c.why);
        const Document document = document_of(std::string("k: ") + c.written);
        Diagnostics complaints;
        Fields f(document, complaints);
        CHECK(ask(f, c.getter, "k") == c.answer);
        CHECK(complaints.empty());
    }
}

TEST_CASE("what a getter refuses, and what it says") {
    struct Case {
        std::string why;
        const char* getter;
        const char* written;
        Problem problem;
        const char* key;
        const char* text;
    };
    for (const Case& c : {
             Case{"a text", "integer", "four", Problem::wrong_type, "k",
                  "k must be a whole number, not the text \"four\""},
             Case{"a quoted number", "integer", "'4'", Problem::wrong_type, "k",
                  "k must be a whole number, not the text \"4\""},
             Case{"a fraction", "integer", "4.5", Problem::wrong_type, "k", "k must be a whole number, not 4.5"},
             Case{"a double that skips whole numbers", "integer", "1e300", Problem::wrong_type, "k",
                  "k must be a whole number, not 1e300"},
             Case{"a map", "integer", "{a: 1}", Problem::wrong_type, "k", "k must be a whole number, not a map"},
             Case{"null", "integer", "null", Problem::wrong_type, "k", "k must be a whole number, not null"},
             Case{"a boolean is no number", "integer", "yes", Problem::wrong_type, "k",
                  "k must be a whole number, not yes"},
             Case{"too small", "integer", "0", Problem::out_of_range, "k", "k must be from 1 to 100, not 0"},
             Case{"too large", "integer", "101", Problem::out_of_range, "k", "k must be from 1 to 100, not 101"},
             Case{"beyond 63 bits", "integer", "9223372036854775808", Problem::overflow, "k",
                  "k exceeds 63 bits: 9223372036854775808"},
             Case{"a negative number", "number", "-0.5", Problem::out_of_range, "k", "k must be at least 0, not -0.5"},
             Case{"an infinite number", "number", ".inf", Problem::out_of_range, "k", "k must be finite, not .inf"},
             Case{"not a number", "number", ".nan", Problem::out_of_range, "k", "k must be finite, not .nan"},
             Case{"a text for a number", "number", "fast", Problem::wrong_type, "k",
                  "k must be a number, not the text \"fast\""},
             Case{"one is not true", "boolean", "1", Problem::wrong_type, "k", "k must be true or false, not 1"},
             Case{"a number for a text", "text", "8", Problem::wrong_type, "k", "k must be a text, not 8"},
             Case{"a list for a word", "word", "[1]", Problem::wrong_type, "k",
                  "k must be a word or a number, not a list"},
             Case{"an unknown unit", "size", "24 gibi", Problem::bad_unit, "k",
                  "k must be a size such as 24 GiB, not the text \"24 gibi\""},
             Case{"a negative size", "size", "-1", Problem::out_of_range, "k", "k must be at least 0, not -1"},
             Case{"a boolean size", "size", "yes", Problem::wrong_type, "k",
                  "k must be a size such as 24 GiB, not yes"},
             Case{"an unknown word", "choice", "lorra", Problem::bad_value, "k",
                  "k must be one of full, lora, lierla, not the text \"lorra\""},
             Case{"another case", "choice", "LoRA", Problem::bad_value, "k",
                  "k must be one of full, lora, lierla, not the text \"LoRA\""},
             Case{"no list", "integers", "1", Problem::wrong_type, "k", "k must be a list, not 1"},
             Case{"an empty list", "integers", "[]", Problem::out_of_range, "k",
                  "k must hold from 1 to 3 items, not 0"},
             Case{"a long list", "texts", "[a, b, c]", Problem::out_of_range, "k", "k must hold 2 items, not 3"},
             Case{"a wrong item", "integers", "[1, x]", Problem::wrong_type, "k[1]",
                  "k[1] must be a whole number, not the text \"x\""},
             Case{"an item out of range", "integers", "[1, 0]", Problem::out_of_range, "k[1]",
                  "k[1] must be at least 1, not 0"},
             Case{"neither one nor a list", "integers or one", "x", Problem::wrong_type, "k",
                  "k must be a whole number, not the text \"x\""},
             Case{"a text of 60 bytes and more is cut", "integer", "éééééééééééééééééééééééééééééééé",
                  Problem::wrong_type, "k",
                  "k must be a whole number, not the text \"éééééééééééééééééééééééééééééé…\""},
         }) {
        CAPTURE(c.why);
        const Document document = document_of(std::string("# line 1\nk: ") + c.written);
        Diagnostics complaints;
        Fields f(document, complaints);
        CHECK(ask(f, c.getter, "k") == "nothing");
        REQUIRE(!complaints.empty());
        CHECK(complaints[0].severity == Severity::error);
        CHECK(complaints[0].problem == c.problem);
        CHECK(complaints[0].place.file == "job.yaml");
        CHECK(complaints[0].place.line == 2);
        CHECK(complaints[0].key == c.key);
        CHECK(complaints[0].text == c.text);
    }
}

TEST_CASE("an absent key gives the fallback, a missing one its complaint") {
    const Document document = document_of("train:\n  rank: x\n");
    Diagnostics complaints;
    Fields job(document, complaints);
    CHECK(job.integer("steps", {.min = 1}, 7) == 7);
    CHECK(job.number("lr", {}, 0.5) == 0.5);
    CHECK(job.boolean("ema", true));
    CHECK(job.text("name", "n") == "n");
    CHECK(job.word("torch", "2.13") == "2.13");
    CHECK(job.size("capacity", 5) == 5);
    CHECK(job.choice("method", methods, Method::lora) == Method::lora);
    CHECK(!job.integers("resolution"));
    CHECK(job.maps("datasets").empty());
    CHECK(complaints.empty());

    Fields train = job.map("train");
    CHECK(train.integer("rank", {.min = 1}, required) == 1);  // a stand-in within the range, after one complaint
    CHECK(train.integer("alpha", {.min = 4}, required) == 4);
    CHECK(train.choice("method", methods, required) == Method::full);
    REQUIRE(complaints.size() == 3);
    CHECK(complaints[0].problem == Problem::wrong_type);
    CHECK(complaints[0].key == "train.rank");
    CHECK(complaints[1].problem == Problem::missing_key);
    CHECK(complaints[1].text == "train.alpha is missing");
    CHECK(complaints[1].place == Place{"job.yaml", 1, 1});  // the key of the map
    CHECK(complaints[2].key == "train.method");

    Fields sample = job.map("sample");
    CHECK(sample.is_absent());
    CHECK(sample.integer("steps", {}, required) == 0);
    CHECK(complaints.back().key == "sample.steps");
}

TEST_CASE("unknown keys are named with the nearest known one") {
    const Document document = document_of("train:\n  gradient_checkpoint: true\n  batch_size: 1\n  qwertz: 2\n");
    Diagnostics complaints;
    Fields job(document, complaints);
    Fields train = job.map("train");
    CHECK(train.integer("batch_size", {}, 1) == 1);
    CHECK(!train.boolean("gradient_checkpointing", false));
    train.finish(Severity::warning);
    job.finish();
    REQUIRE(complaints.size() == 2);
    CHECK(complaints[0] == Diagnostic{Severity::warning,
                                      Problem::unknown_key,
                                      {"job.yaml", 2, 3},
                                      "train.gradient_checkpoint",
                                      "true",
                                      "gradient_checkpointing",
                                      "unknown option train.gradient_checkpoint"});
    CHECK(to_text(complaints[0]) ==
          "job.yaml:2:3: warning: unknown option train.gradient_checkpoint; did you mean gradient_checkpointing?");
    CHECK(complaints[1].nearest.empty());
}

TEST_CASE("keys that are known but not read are no complaint") {
    const Document document = document_of("a: 1\nb: 2\nc: 3\nd:\n");
    Diagnostics complaints;
    Fields f(document, complaints);
    CHECK(f.has("a"));
    CHECK(f.node("b")->spelled() == "2");
    f.ignore("c");
    constexpr std::string_view more[] = {"d", "e"};
    f.ignore(more);
    f.finish();
    CHECK(complaints.empty());
}

TEST_CASE("a hundred unknown keys are enough") {
    std::string text;
    for (int i = 0; i < 1000; ++i) text += "key" + std::to_string(i) + ": 1\n";
    const Document document = document_of(text);
    Diagnostics complaints;
    Fields f(document, complaints);
    f.finish();
    REQUIRE(complaints.size() == 101);
    CHECK(complaints.back().text == "900 more unknown options");
}

TEST_CASE("null is absent if asked, in inner maps too") {
    const Document document = document_of("a: null\nm: {b: ~}\nn:\n");
    Diagnostics complaints;
    Fields f(document, complaints, Nulls::are_absent);
    CHECK(f.integer("a", {}, 3) == 3);
    CHECK(f.map("m").integer("b", {}, 4) == 4);
    CHECK(f.map("n").is_absent());
    f.finish();
    CHECK(complaints.empty());
}

TEST_CASE("lists of lists and of maps carry their index in the key") {
    const Document document =
        document_of("data:\n  buckets: [[1024, 768], [512, 512, 33], [0, x]]\n  sets: [{n: 1}, {n: y, o: 2}, 3]\n");
    Diagnostics complaints;
    Fields job(document, complaints);
    Fields data = job.map("data");
    CHECK(!data.integer_lists("buckets", {.min = 1}, {.min = 2, .max = 3}));
    for (Fields& set : data.maps("sets")) {
        static_cast<void>(set.integer("n"));
        set.finish();
    }
    std::string keys;
    for (const Diagnostic& complaint : complaints) keys += complaint.key + " ";
    CHECK(keys == "data.buckets[2][0] data.buckets[2][1] data.sets[2] data.sets[1].n data.sets[1].o ");

    const Document good = document_of("buckets: [[1024, 768], [512, 512, 33]]");
    Fields f(good, complaints);
    CHECK(f.integer_lists("buckets", {.min = 1}, {.min = 2, .max = 3}) ==
          std::vector<std::vector<std::int64_t>>{{1024, 768}, {512, 512, 33}});
}

TEST_CASE("a document that is no map is one complaint") {
    const Document document = document_of("[1, 2]");
    Diagnostics complaints;
    Fields f(document, complaints);
    CHECK(f.integer("a", {}, 3) == 3);
    f.finish();
    REQUIRE(complaints.size() == 1);
    CHECK(complaints[0].text == "the file must be a map, not a list");
}

TEST_CASE("complaints about --set and about a dict point there") {
    Document document = document_of("a: 1");
    REQUIRE(!assign(document, "a", "x"));
    Diagnostics complaints;
    Fields f(document, complaints);
    CHECK(!f.integer("a"));
    f.complain("a", Problem::conflict, "a and b exclude each other");
    REQUIRE(complaints.size() == 2);
    CHECK(complaints[0].place == Place{"--set", 0, 0});
    CHECK(complaints[1].found == "x");
    CHECK(to_text(complaints[0]) == "--set: a must be a whole number, not the text \"x\"");

    Document dict{.file_name = "dict"};
    dict.root.put("a", Node{std::string("x")});
    Fields g(dict, complaints);
    CHECK(!g.integer("a"));
    CHECK(complaints.back().place == Place{"dict", 0, 0});
}
