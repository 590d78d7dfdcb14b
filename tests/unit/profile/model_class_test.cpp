#include "vram/profile/model_class.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

using namespace vram;
using namespace vram::profile;

namespace {

const std::string good = R"(schema: 1
name: Net
source: somewhere
defaults: {num_layers: 19, out_channels: null}
named:
  - {recognised_by: [a.weight], layers: {num_layers: blocks.}, sizes: {in_channels: [a.weight, 1]}}
)";

bool holds(const std::vector<std::string>& list, std::string_view word) {
    return std::find(list.begin(), list.end(), word) != list.end();
}

}  // namespace

TEST_CASE("a class is its defaults, and how files name its tensors") {
    const expected<ModelClass> read = read_model_class(good, "model_classes/Net.yaml");
    REQUIRE(read);
    CHECK(read->defaults.size() == 1);
    CHECK(read->unset == std::vector<std::string>{"out_channels"});
    CHECK(read->without_effect.empty());
    REQUIRE(read->named.size() == 1);
    CHECK(read->named[0].sizes.at("in_channels") == NamingScheme::Size{"a.weight", 1});
}

TEST_CASE("what all configs of transformers have beside sizes need not be listed") {
    const expected<ModelClass> read =
        read_model_class(good + "without_effect: [eps]\npretrained_config: true\n", "Net.yaml");
    REQUIRE(read);
    for (const char* key : {"eps", "torch_dtype", "rope_theta"}) CHECK(holds(read->without_effect, key));
    CHECK_FALSE(holds(read->without_effect, "vocab_size"));
}

TEST_CASE("a class that is written wrong is refused, with its key") {
    struct Case {
        const char* why;
        std::string text, key;
        Problem problem;
    };
    for (const Case& c : {
             Case{"a key that nobody reads", good + "also_known: []\n", "also_known", Problem::unknown_key},
             Case{"a size without its dimension", good + "  - {recognised_by: [b], sizes: {dim: [b]}}\n",
                  "named[1].sizes.dim", Problem::wrong_type},
             Case{"a dimension below nought", good + "  - {recognised_by: [b], sizes: {dim: [b, -1]}}\n",
                  "named[1].sizes.dim", Problem::wrong_type},
             Case{"names that nothing tells apart", good + "  - {recognised_by: []}\n", "named[1].recognised_by",
                  Problem::out_of_range},
             Case{"a default that no config holds", good + "assumed: {a: {b: 1}}\n", "assumed.a", Problem::wrong_type},
         }) {
        CAPTURE(std::string(c.why));
        const expected<ModelClass> read = read_model_class(c.text, "Net.yaml");
        REQUIRE_FALSE(read);
        CAPTURE(to_text(read.error().front()));
        CHECK(read.error().front().key == c.key);
        CHECK(read.error().front().problem == c.problem);
    }
    const expected<ModelClass> elsewhere = read_model_class(good, "Other.yaml");
    REQUIRE_FALSE(elsewhere);
    CHECK(elsewhere.error().front().nearest == "Other");
}
