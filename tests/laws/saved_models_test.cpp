#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "models/described.hpp"
#include "unit/models/saved.hpp"

using namespace vram;
using namespace vram::models;

namespace {

const profile::Catalogue& catalogue() {
    static const profile::Catalogue all = profile::Catalogue::built_in();
    return all;
}

std::string class_of(const profile::ModelProfile& profile) {
    return profile.source.substr(0, profile.source.find(','));
}

}  // namespace

TEST_CASE("law: a folder that holds a profile's model is that model") {
    for (const profile::ModelProfile& profile : catalogue().models()) {
        CAPTURE(profile.id);
        const auto parameters = parameters_of(profile);
        REQUIRE(parameters);
        std::int64_t count = 0;
        for (const ListedParameter& parameter : *parameters) count += parameter.buffer ? 0 : numel_of(parameter);
        CHECK(count == profile.checked.parameters);

        const io::TemporaryFolder folder;
        folder.write("config.json", config_of(profile).dump(2));
        write_weights(folder, "model.safetensors", *parameters);
        const expected<Described> found = describe(folder.path(""), profile::Wanted::component, catalogue());
        REQUIRE(found);
        CAPTURE(found->why_not);
        REQUIRE(found->profile);
        CHECK(found->class_name == class_of(profile));
        CHECK(found->profile->family == profile.family);
        CHECK(found->profile->kind == profile.kind);
        for (const auto& [key, value] : profile.config.values) {
            CAPTURE(key);
            REQUIRE(found->profile->config.has(key));
            CHECK(found->profile->config.values.find(key)->second == value);
        }
        CHECK(*parameters_of(*found->profile) == *parameters);
        REQUIRE(found->stored.size() == 1);
        CHECK(found->stored[0].numel == count);
    }
}

TEST_CASE("law: a file that holds a denoiser, as its library names it, is that denoiser") {
    for (const profile::ModelProfile& profile : catalogue().models()) {
        const profile::ModelClass* facts = catalogue().model_class(class_of(profile));
        if (profile.kind != profile::ModelKind::denoiser || facts == nullptr || facts->named.empty()) continue;
        CAPTURE(profile.id);
        const io::TemporaryFolder folder;
        const auto parameters = parameters_of(profile);
        REQUIRE(parameters);
        for (const std::string prefix : {"", "model.diffusion_model."}) {
            CAPTURE(prefix);
            const std::string path = write_weights(folder, "x.safetensors", *parameters, prefix);
            const expected<Described> found = describe(path, profile::Wanted::denoiser, catalogue());
            REQUIRE(found);
            CAPTURE(found->why_not);
            REQUIRE(found->profile);
            CHECK(found->class_name == class_of(profile));
            // By names and shapes; what a config says beside is told apart by a warning at most.
            CHECK(*parameters_of(*found->profile) == *parameters);
        }
    }
}

TEST_CASE("law: a class that is described has profiles, and knows all of their keys") {
    for (const profile::ModelClass& facts : catalogue().model_classes()) {
        CAPTURE(facts.name);
        std::set<std::string> keys;
        for (const profile::ModelProfile& profile : catalogue().models())
            if (class_of(profile) == facts.name)
                for (const auto& [key, value] : profile.config.values) keys.insert(key);
        CHECK(!keys.empty());
        for (const profile::NamingScheme& scheme : facts.named) {
            for (const auto& [key, stem] : scheme.layers) CHECK_MESSAGE(keys.count(key) == 1, key);
            for (const auto& [key, size] : scheme.sizes) CHECK_MESSAGE(keys.count(key) == 1, key);
            for (const auto& [key, tensor] : scheme.present) CHECK_MESSAGE(keys.count(key) == 1, key);
        }
        for (const auto& [key, value] : facts.assumed) CHECK_MESSAGE(keys.count(key) == 0, key);
    }
}

TEST_CASE(
    "law: a config.json as the class writes it builds as many parameters as the class does, published or pruned") {
    std::ifstream rows(std::string(VRAM_SOURCE_DIR) + "/tests/reference/truth/classes.jsonl");
    REQUIRE(rows.good());
    std::set<std::string> met;
    for (std::string line; std::getline(rows, line);) {
        const auto row = nlohmann::ordered_json::parse(line);
        const std::string id = row["id"], model = row["model"];
        CAPTURE(id);
        const profile::ModelProfile& known = catalogue().model_of(model);
        met.insert(model);
        // LlamaForCausalLM_eager is LlamaForCausalLM with an argument of from_pretrained, which no config.json says.
        if (class_of(known) != row["class"]) continue;
        const io::TemporaryFolder folder;
        folder.write("config.json", row["config"].dump(2));
        const expected<Described> found = describe(folder.path(""), profile::Wanted::component, catalogue());
        if (!found) {
            FAIL_CHECK(to_text(found.error().front()));
            continue;
        }
        CAPTURE(found->why_not);
        CHECK(found->profile);
        if (!found->profile) continue;
        CHECK(found->profile->family == known.family);
        const auto parameters = parameters_of(*found->profile);
        REQUIRE(parameters);
        std::int64_t count = 0, tensors = 0;
        for (const ListedParameter& parameter : *parameters) {
            count += parameter.buffer ? 0 : numel_of(parameter);
            tensors += parameter.buffer ? 0 : 1;
        }
        CHECK(count == row["parameters"]);
        CHECK(tensors == row["tensors"]);
        for (const Diagnostic& note : found->notes) {
            CAPTURE(note.text);
            CHECK(note.problem != Problem::unknown_key);
            CHECK(note.problem != Problem::missing_key);
        }
        if (!id.ends_with("-published")) continue;
        CHECK(count == known.checked.parameters);
        CHECK(*parameters == *parameters_of(known));
        for (const auto& [key, value] : known.config.values) {
            CAPTURE(key);
            REQUIRE(found->profile->config.has(key));
            CHECK(found->profile->config.values.find(key)->second == value);
        }
    }
    for (const profile::ModelProfile& profile : catalogue().models())
        CHECK_MESSAGE(met.contains(profile.id), profile.id);
}

TEST_CASE("law: a file with its authors' names is that class, with as many layers as it holds") {
    std::ifstream rows(std::string(VRAM_SOURCE_DIR) + "/tests/reference/truth/authors_names.jsonl");
    REQUIRE(rows.good());
    int read = 0;
    for (std::string line; std::getline(rows, line); ++read) {
        const auto row = nlohmann::json::parse(line);
        const std::string id = row["id"];
        CAPTURE(id);
        std::vector<ListedParameter> tensors;
        std::int64_t count = 0;
        for (const auto& tensor : row["tensors"]) {
            tensors.push_back({tensor[0], tensor[1], false});
            count += numel_of(tensors.back());
        }
        const io::TemporaryFolder folder;
        for (const std::string prefix : {"", "model.diffusion_model."}) {
            const std::string path = write_weights(folder, "x.safetensors", tensors, prefix);
            const expected<Described> found = describe(path, profile::Wanted::denoiser, catalogue());
            REQUIRE(found);
            CAPTURE(found->why_not);
            CHECK(found->class_name == row["class"]);
            REQUIRE(found->profile);
            CHECK(found->profile->config.integer("num_layers") == 2);
            const auto parameters = parameters_of(*found->profile);
            REQUIRE(parameters);
            std::int64_t built = 0;
            for (const ListedParameter& parameter : *parameters) built += parameter.buffer ? 0 : numel_of(parameter);
            CHECK(built == count);
        }
    }
    CHECK(read == 4);
}
