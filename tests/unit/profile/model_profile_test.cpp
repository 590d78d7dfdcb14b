#include "vram/profile/model_profile.hpp"

#include <doctest/doctest.h>

#include <stdexcept>

#include "profile/embedded.hpp"
#include "vram/profile/catalogue.hpp"

using namespace vram;
using namespace vram::profile;

namespace {
constexpr std::string_view good = R"(schema: 1
id: flux1_dev
family: flux
kind: denoiser
name: FLUX.1 dev
aliases: [flux, black-forest-labs/FLUX.1-dev]
source: FluxTransformer2DModel, diffusers 0.42.1
checked: {parameters: 11901408320, against: the real class on the meta device}
defaults: {resolution: [1024, 768], text_tokens: 512}
divisible_by: 16
text_divisible_by: 128
fixed_resolution: true
keep_in_fp32: [time_embedder]
config:
  num_layers: 19
  guidance_embeds: true
  mlp_ratio: 4.0
  act: gelu
  axes_dims_rope: [16, 56, 56]
  downsample: [false, true]
  down_block_types: [DownBlock2D, CrossAttnDownBlock2D]
)";

std::string with(std::string_view from, std::string_view to) {
    std::string text(good);
    return text.replace(text.find(from), from.size(), to);
}

ModelProfile named(std::string id, std::vector<std::string> aliases) {
    ModelProfile profile;
    profile.id = std::move(id);
    profile.aliases = std::move(aliases);
    return profile;
}
}  // namespace

TEST_CASE("a profile is read whole") {
    const expected<ModelProfile> profile = read_model_profile(good, "model_profiles/flux1_dev.yaml");
    REQUIRE(profile);
    CHECK(profile->family == "flux");
    CHECK(profile->kind == ModelKind::denoiser);
    CHECK(profile->aliases == std::vector<std::string>{"flux", "black-forest-labs/FLUX.1-dev"});
    CHECK(profile->checked == Passport{11901408320, "the real class on the meta device"});
    CHECK(profile->defaults == Defaults{1024, 768, 1, 512});
    CHECK(profile->divisible_by == 16);
    CHECK(profile->text_divisible_by == 128);
    CHECK(profile->fixed_resolution);
    CHECK(profile->keep_in_fp32 == std::vector<std::string>{"time_embedder"});
    const Config& config = profile->config;
    CHECK(config.integer("num_layers") == 19);
    CHECK(config.integer("num_single_layers", 38) == 38);
    CHECK(config.boolean("guidance_embeds"));
    CHECK(config.number("mlp_ratio") == 4.0);
    CHECK(config.number("num_layers") == 19.0);
    CHECK(config.text("act") == "gelu");
    CHECK(config.integers("axes_dims_rope") == std::vector<std::int64_t>{16, 56, 56});
    CHECK(config.integers("downsample") == std::vector<std::int64_t>{0, 1});
    CHECK(config.texts("down_block_types").size() == 2);
}

TEST_CASE("a family that asks for what a profile lacks is told which profile and which key") {
    const ModelProfile profile = *read_model_profile(good, "flux1_dev.yaml");
    CHECK_THROWS_WITH_AS((void)profile.config.integer("num_heads"), "profile flux1_dev: config.num_heads is missing",
                         std::logic_error);
    CHECK_THROWS_WITH_AS((void)profile.config.boolean("num_layers", true),
                         "profile flux1_dev: config.num_layers is not true or false", std::logic_error);
}

TEST_CASE("a profile is strict") {
    struct Case {
        const char* why;
        std::string text, file;
        Problem problem;
        std::string key;
    };
    for (const Case& c : {
             Case{"a typo does not fall back to a default", with("divisible_by", "divisble_by"), "flux1_dev.yaml",
                  Problem::unknown_key, "divisble_by"},
             Case{"a twice-written key", std::string(good) + "family: wan\n", "flux1_dev.yaml", Problem::duplicate_key,
                  "family"},
             Case{"a family is due", with("family: flux\n", ""), "flux1_dev.yaml", Problem::missing_key, "family"},
             Case{"a kind that we do not know", with("kind: denoiser", "kind: vea"), "flux1_dev.yaml",
                  Problem::bad_value, "kind"},
             Case{"no maps in config", with("num_layers: 19", "num_layers: {double: 19}"), "flux1_dev.yaml",
                  Problem::wrong_type, "config.num_layers"},
             Case{"lists are of one type", with("[16, 56, 56]", "[16, a]"), "flux1_dev.yaml", Problem::wrong_type,
                  "config.axes_dims_rope"},
             Case{"the id is the file's name", std::string(good), "flux.yaml", Problem::bad_value, "id"},
             Case{"who counted is due", with(", against: the real class on the meta device", ""), "flux1_dev.yaml",
                  Problem::missing_key, "checked.against"},
         }) {
        CAPTURE(c.why);
        const expected<ModelProfile> profile = read_model_profile(c.text, c.file);
        REQUIRE(!profile);
        REQUIRE(profile.error().size() == 1);
        CHECK(profile.error()[0].problem == c.problem);
        CHECK(profile.error()[0].key == c.key);
        CHECK(profile.error()[0].severity == Severity::error);
    }
}

TEST_CASE("a model is found by any of its names") {
    const expected<Catalogue> catalogue = Catalogue::of(
        {named("wan21", {"Wan-AI/Wan2.1-T2V-14B"}), named("flux1_dev", {"flux", "black-forest-labs/FLUX.1-dev"})},
        DeviceCatalogue::built_in());
    REQUIRE(catalogue);
    CHECK(catalogue->models()[0].id == "flux1_dev");
    for (const char* name : {"flux1_dev", "FLUX", "black-forest-labs/flux.1-DEV"}) {
        CAPTURE(name);
        REQUIRE(catalogue->model(name) != nullptr);
        CHECK(catalogue->model(name)->id == "flux1_dev");
    }
    CHECK(catalogue->model("flux2") == nullptr);
    CHECK(catalogue->nearest_model("flux1-dev") == "flux1_dev");
    CHECK(catalogue->model_of("wan21").id == "wan21");
    CHECK_THROWS_AS((void)catalogue->model_of("Wan21"), std::logic_error);
}

TEST_CASE("two models may not share a name") {
    const expected<Catalogue> catalogue =
        Catalogue::of({named("a", {"same"}), named("b", {"SAME"})}, DeviceCatalogue::built_in());
    REQUIRE(!catalogue);
    CHECK(catalogue.error()[0].problem == Problem::duplicate_key);
}

TEST_CASE("what is built in reads without a complaint") {
    const Catalogue catalogue = Catalogue::built_in();
    CHECK(catalogue.models().size() == embedded_model_profiles().size());
    for (const ModelProfile& profile : catalogue.models()) {
        CAPTURE(profile.id);
        CHECK(profile.checked.parameters > 0);
        CHECK(profile.aliases.size() > 0);
    }
}

TEST_CASE("one model is the same, read alone or among all") {
    const Catalogue all = Catalogue::built_in();
    for (const ModelProfile& profile : all.models()) {
        CAPTURE(profile.id);
        const Catalogue fresh = Catalogue::built_in();
        REQUIRE(fresh.model(profile.id) != nullptr);
        CHECK(*fresh.model(profile.id) == profile);
        for (const std::string& alias : profile.aliases) {
            CAPTURE(alias);
            const Catalogue other = Catalogue::built_in();
            REQUIRE(other.model(alias) != nullptr);
            CHECK(other.model(alias)->id == profile.id);
        }
    }
    const Catalogue fresh = Catalogue::built_in();
    CHECK(fresh.model("no such model") == nullptr);
    CHECK(fresh.model("") == nullptr);
    const ModelProfile* early = Catalogue(fresh).model("flux1_dev");
    CHECK(fresh.models().size() > 1);
    CHECK(early->id == "flux1_dev");  // what was handed out stays
}

TEST_CASE("a trainer's own forward is another family, or the same one told so, and keeps nothing in fp32") {
    const Catalogue catalogue = Catalogue::built_in();
    const ModelProfile& flux = catalogue.model_of("flux1_dev");
    const ModelProfile own = with_forward(flux, "sd_scripts");
    CHECK(own.id == flux.id);
    CHECK(own.family == "flux_sd_scripts");
    CHECK(own.config.text("forward") == "sd_scripts");
    CHECK(with_forward(catalogue.model_of("qwen_image"), "musubi").family == "qwen_image");
    REQUIRE(!catalogue.model_of("wan21_t2v_1_3b").keep_in_fp32.empty());
    CHECK(with_forward(catalogue.model_of("wan21_t2v_1_3b"), "musubi").keep_in_fp32.empty());
    CHECK_THROWS_AS((void)with_forward(flux, "musubi"), std::out_of_range);
}
