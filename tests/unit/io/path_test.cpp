#include "vram/io/path.hpp"

#include <doctest/doctest.h>

#include "tree.hpp"

using namespace vram;
using namespace vram::io;

TEST_CASE("--set overrides what stands at a dotted path") {
    struct Case {
        std::string why;
        const char* path;
        const char* value;
        const char* root;
    };
    for (const Case& c : {
             Case{"a value", "a.b", "4", "{a: {b: 4, c: 2}, l: [1, {k: 2}], n: null, s: \"x\"}"},
             Case{"a new key", "a.d", "yes", "{a: {b: 1, c: 2, d: true}, l: [1, {k: 2}], n: null, s: \"x\"}"},
             Case{"maps on the way", "x.y.z", "bf16",
                  "{a: {b: 1, c: 2}, l: [1, {k: 2}], n: null, s: \"x\", x: {y: {z: \"bf16\"}}}"},
             Case{"a null becomes a map", "n.k", "1e-4", "{a: {b: 1, c: 2}, l: [1, {k: 2}], n: {k: 1e-04}, s: \"x\"}"},
             Case{"flow list", "a", "[[1024,1024,1]]", "{a: [[1024, 1024, 1]], l: [1, {k: 2}], n: null, s: \"x\"}"},
             Case{"flow map", "a", "{q: 1}", "{a: {q: 1}, l: [1, {k: 2}], n: null, s: \"x\"}"},
             Case{"quoted stays text", "a", "'4'", "{a: \"4\", l: [1, {k: 2}], n: null, s: \"x\"}"},
             Case{"nothing is null", "a", "", "{a: null, l: [1, {k: 2}], n: null, s: \"x\"}"},
             Case{"an item", "l[0]", "5", "{a: {b: 1, c: 2}, l: [5, {k: 2}], n: null, s: \"x\"}"},
             Case{"in an item", "l[1].k", "5", "{a: {b: 1, c: 2}, l: [1, {k: 5}], n: null, s: \"x\"}"},
             Case{"behind the last item", "l[2]", "5", "{a: {b: 1, c: 2}, l: [1, {k: 2}, 5], n: null, s: \"x\"}"},
             Case{"a null becomes a list", "n[0].k", "5", "{a: {b: 1, c: 2}, l: [1, {k: 2}], n: [{k: 5}], s: \"x\"}"},
             Case{"a scalar is replaced", "s", "y", "{a: {b: 1, c: 2}, l: [1, {k: 2}], n: null, s: \"y\"}"},
         }) {
        CAPTURE(c.why);
        expected<Document> document = read("a: {b: 1, c: 2}\nl: [1, {k: 2}]\nn:\ns: x", "f", Format::yaml);
        REQUIRE(document);
        CHECK(!assign(*document, c.path, c.value));
        CHECK(shown(document->root) == c.root);
        const Node* node = find(document->root, c.path);
        REQUIRE(node);
        CHECK(node->origin == Origin::assigned);
        CHECK(document->place_of(*node) == Place{"--set", 0, 0});
    }
}

TEST_CASE("--set that cannot be done changes nothing and says why") {
    struct Case {
        std::string why;
        const char* path;
        const char* value;
        Problem problem;
    };
    for (const Case& c : {
             Case{"no path", "", "1", Problem::unknown_option},
             Case{"an empty part", "a..b", "1", Problem::unknown_option},
             Case{"ends with a dot", "a.", "1", Problem::unknown_option},
             Case{"half a bracket", "l[1", "1", Problem::unknown_option},
             Case{"no number in it", "l[x]", "1", Problem::unknown_option},
             Case{"a negative one", "l[-1]", "1", Problem::unknown_option},
             Case{"a number beyond all", "l[99999999999999999999]", "1", Problem::unknown_option},
             Case{"a key behind a bracket without a dot", "l[0]k", "1", Problem::unknown_option},
             Case{"a path of very many parts",
                  "a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a", "1",
                  Problem::unknown_option},
             Case{"a scalar on the way", "s.k", "1", Problem::wrong_type},
             Case{"a list on the way", "l.k", "1", Problem::wrong_type},
             Case{"a map taken for a list", "a[0]", "1", Problem::wrong_type},
             Case{"beyond the list", "l[3]", "1", Problem::out_of_range},
             Case{"beyond a list that is not there", "q[1]", "1", Problem::out_of_range},
             Case{"an open bracket", "a", "[1, 2", Problem::syntax},
             Case{"an alias", "a", "*x", Problem::syntax},
             Case{"a comment alone would be null", "a", "# 4", Problem::empty_file},
             Case{"two documents", "a", "1\n---\n2", Problem::syntax},
             Case{"not UTF-8", "a", "\xFF", Problem::bad_encoding},
         }) {
        CAPTURE(c.why);
        expected<Document> document = read("a: {b: 1}\nl: [1, {k: 2}]\ns: x", "f", Format::yaml);
        REQUIRE(document);
        const std::optional<Diagnostic> complaint = assign(*document, c.path, c.value);
        REQUIRE(complaint);
        CHECK(complaint->problem == c.problem);
        CHECK(complaint->place.file == "--set");
        CHECK(complaint->key == c.path);
        CHECK(shown(document->root) == "{a: {b: 1}, l: [1, {k: 2}], s: \"x\"}");
    }
}

TEST_CASE("a member is taken out of its map, and nothing else is touched") {
    struct Case {
        const char* path;
        bool was_there;
        const char* root;
    };
    for (const Case& c : {
             Case{"a.b", true, "{a: {c: 2}, l: [1, {k: 2}]}"},
             Case{"a", true, "{l: [1, {k: 2}]}"},
             Case{"l[1].k", true, "{a: {b: 1, c: 2}, l: [1, {}]}"},
             Case{"l[0]", false, "{a: {b: 1, c: 2}, l: [1, {k: 2}]}"},
             Case{"a.x", false, "{a: {b: 1, c: 2}, l: [1, {k: 2}]}"},
             Case{"a.b.c", false, "{a: {b: 1, c: 2}, l: [1, {k: 2}]}"},
             Case{"a..b", false, "{a: {b: 1, c: 2}, l: [1, {k: 2}]}"},
             Case{"", false, "{a: {b: 1, c: 2}, l: [1, {k: 2}]}"},
         }) {
        CAPTURE(c.path);
        expected<Document> document = read("a: {b: 1, c: 2}\nl: [1, {k: 2}]", "f", Format::yaml);
        REQUIRE(document);
        CHECK(erase(document->root, c.path) == c.was_there);
        CHECK(shown(document->root) == c.root);
    }
}
