#include "models/described.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <memory>

#include "models/model.hpp"
#include "saved.hpp"

using namespace vram;
using namespace vram::models;
using nlohmann::ordered_json;

namespace {

const profile::Catalogue& catalogue() {
    static const profile::Catalogue all = profile::Catalogue::built_in();
    return all;
}

expected<Described> describe_denoiser(const std::string& path) {
    return describe(path, profile::Wanted::denoiser, catalogue());
}

/// A FLUX of a few blocks.
ordered_json small_flux() {
    return {{"_class_name", "FluxTransformer2DModel"},
            {"_diffusers_version", "0.30.0"},
            {"attention_head_dim", 128},
            {"axes_dims_rope", {16, 56, 56}},
            {"guidance_embeds", true},
            {"in_channels", 64},
            {"joint_attention_dim", 4096},
            {"num_attention_heads", 24},
            {"num_layers", 3},
            {"num_single_layers", 5},
            {"out_channels", nullptr},
            {"patch_size", 1},
            {"pooled_projection_dim", 768}};
}

ordered_json with(ordered_json config, const std::string& key, const ordered_json& value) {
    config[key] = value;
    return config;
}
ordered_json without(ordered_json config, const std::string& key) {
    config.erase(key);
    return config;
}

std::vector<ListedParameter> parameters_with(const ordered_json& config) {
    const io::TemporaryFolder folder;
    folder.write("config.json", config.dump());
    const expected<Described> described = describe_denoiser(folder.path(""));
    REQUIRE(described);
    CAPTURE(described->why_not);
    REQUIRE(described->profile);
    return *parameters_of(*described->profile);
}

bool says(const Diagnostics& notes, std::string_view what) {
    for (const Diagnostic& note : notes)
        if (note.text.find(what) != std::string::npos) return true;
    return false;
}

}  // namespace

TEST_CASE("a config of a known class is a variant of the profile that it is nearest to") {
    const io::TemporaryFolder folder;
    folder.write("config.json", small_flux().dump());
    const expected<Described> pruned = describe_denoiser(folder.path(""));
    REQUIRE(pruned);
    REQUIRE(pruned->profile);
    CHECK(pruned->profile->family == "flux");
    CHECK(pruned->profile->config.integer("num_single_layers") == 5);
    CHECK(pruned->profile->defaults.text_tokens == 512);
    CHECK(pruned->stored.empty());
    CHECK(says(pruned->notes, "num_layers: 3 (8), num_single_layers: 5 (38)"));
    CHECK(says(pruned->notes, "no weights are there"));
}

TEST_CASE("what a config leaves out or says null is as the class has it") {
    struct Case {
        const char* why;
        ordered_json config;
        const char* key;
        bool has;
        std::int64_t value;
    };
    for (const Case& c : {
             Case{"left out: the constructor's default", without(small_flux(), "num_layers"), "num_layers", true, 19},
             Case{"null where that is the default", small_flux(), "out_channels", false, 0},
             Case{"said", with(small_flux(), "out_channels", 16), "out_channels", true, 16},
             Case{"a whole number with a point", with(small_flux(), "num_layers", 4.0), "num_layers", true, 4},
         }) {
        CAPTURE(std::string(c.why));
        const io::TemporaryFolder folder;
        folder.write("config.json", c.config.dump());
        const expected<Described> described = describe_denoiser(folder.path(""));
        REQUIRE(described);
        REQUIRE(described->profile);
        CHECK(described->profile->config.has(c.key) == c.has);
        if (c.has) CHECK(described->profile->config.integer(c.key) == c.value);
    }
}

TEST_CASE("a folder has the forwards of any profile of its net") {
    const io::TemporaryFolder folder;
    folder.write("config.json", small_flux().dump());
    const expected<Described> described = describe_denoiser(folder.path(""));
    REQUIRE(described);
    REQUIRE(described->profile);
    CHECK(catalogue().model_of("flex1").forwards.empty());  // which is as near, and comes first
    CHECK(described->profile->forwards.contains("sd_scripts"));
}

TEST_CASE("a config that no family can take is refused where it says so") {
    struct Case {
        const char* why;
        ordered_json config;
        Problem problem;
        const char* key;
    };
    const ordered_json unet = {{"_class_name", "UNet2DConditionModel"}, {"sample_size", 64}};
    for (const Case& c : {
             Case{"another value of what is taken for granted", with(small_flux(), "patch_size", 2),
                  Problem::unsupported, "patch_size"},
             Case{"a text for a number", with(small_flux(), "num_layers", "many"), Problem::wrong_type, "num_layers"},
             Case{"a number for a list", with(small_flux(), "axes_dims_rope", 16), Problem::wrong_type,
                  "axes_dims_rope"},
             Case{"a map", with(small_flux(), "num_layers", {{"double", 19}}), Problem::wrong_type, "num_layers"},
             Case{"a list of both", with(small_flux(), "axes_dims_rope", {16, "x"}), Problem::wrong_type,
                  "axes_dims_rope"},
             Case{"below zero", with(small_flux(), "num_layers", -1), Problem::out_of_range, "num_layers"},
             Case{"no head", with(small_flux(), "num_attention_heads", 0), Problem::out_of_range,
                  "num_attention_heads"},
             Case{"more layers than can be built", with(small_flux(), "num_layers", 1'000'000'000),
                  Problem::out_of_range, "num_layers"},
             Case{"beyond 63 bits", with(small_flux(), "in_channels", 1e30), Problem::wrong_type, "in_channels"},
             Case{"a block that no profile has",
                  with(unet, "down_block_types", {"DownBlock2D", "AttnDownBlock2D", "DownBlock2D"}),
                  Problem::unsupported, "down_block_types"},
             Case{"another activation", with(unet, "act_fn", "gelu"), Problem::unsupported, "act_fn"},
             Case{"class labels", with(unet, "num_class_embeds", 10), Problem::unsupported, "num_class_embeds"},
         }) {
        CAPTURE(std::string(c.why));
        const io::TemporaryFolder folder;
        folder.write("config.json", c.config.dump(2));
        const expected<Described> described = describe_denoiser(folder.path(""));
        REQUIRE_FALSE(described);
        const Diagnostic& first = described.error().front();
        CAPTURE(to_text(first));
        CHECK(first.problem == c.problem);
        CHECK(first.key == c.key);
        CHECK(first.place.file.ends_with("config.json"));
        CHECK(first.place.line > 1);
    }
}

TEST_CASE("lists that do not hang together are no variant of any profile") {
    ordered_json unet = {{"_class_name", "UNet2DConditionModel"},
                         {"block_out_channels", {320, 640}},
                         {"down_block_types", {"DownBlock2D", "CrossAttnDownBlock2D"}}};
    for (const ordered_json& config : {unet, with(unet, "block_out_channels", ordered_json::array())}) {
        const io::TemporaryFolder folder;
        folder.write("config.json", config.dump());
        const expected<Described> described = describe_denoiser(folder.path(""));
        REQUIRE(described);
        CHECK_FALSE(described->profile);
        CHECK(described->why_not.find("lists") != std::string::npos);
    }
}

TEST_CASE("a key that nobody asks for is told") {
    const io::TemporaryFolder folder;
    folder.write("config.json", with(small_flux(), "use_magic", true).dump());
    const expected<Described> described = describe_denoiser(folder.path(""));
    REQUIRE(described);
    CHECK(described->profile);
    CHECK(says(described->notes, "use_magic"));
}

TEST_CASE("weights must hold what the config builds") {
    const std::vector<ListedParameter> good = parameters_with(small_flux());
    struct Case {
        const char* why;
        std::vector<ListedParameter> parameters;
        const char* says;  // empty: it is good
    };
    std::vector<ListedParameter> fewer(good.begin(), good.end() - 2), more = good, other = good;
    more.push_back({"extra.weight", {4}, false});
    other[0].shape.push_back(2);
    for (const Case& c : {
             Case{"as they are", good, ""},
             Case{"one is missing", fewer, "is not there"},
             Case{"one is too many", more, "extra.weight [4] is none of its parameters"},
             Case{"one is twice as large", other, "and not"},
         }) {
        CAPTURE(std::string(c.why));
        const io::TemporaryFolder folder;
        folder.write("config.json", small_flux().dump());
        write_weights(folder, "diffusion_pytorch_model.safetensors", c.parameters);
        const expected<Described> described = describe_denoiser(folder.path(""));
        REQUIRE(described);
        CHECK(described->profile.has_value() == std::string_view(c.says).empty());
        CAPTURE(described->why_not);
        CHECK(described->why_not.find(c.says) != std::string::npos);
        CHECK(described->stored.size() == 1);
    }
}

TEST_CASE("shards with an index, a pipeline, and what is in a folder beside weights") {
    const std::vector<ListedParameter> all = parameters_with(small_flux());
    const auto half = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
    const io::TemporaryFolder folder;
    std::filesystem::create_directory(folder.path("transformer"));
    folder.write("transformer/config.json", small_flux().dump());
    CHECK(describe_denoiser(folder.path("")).error()[0].nearest == folder.path("transformer"));
    folder.write("model_index.json", R"({"_class_name": "FluxPipeline", "transformer": ["diffusers", "X"],
                                         "transformer_2": [null, null], "vae": ["diffusers", "AutoencoderKL"]})");
    write_weights(folder, "transformer/m-00001-of-00002.safetensors", {all.begin(), half});
    write_weights(folder, "transformer/m-00002-of-00002.safetensors", {half, all.end()});

    const expected<Described> no_index = describe_denoiser(folder.path(""));
    REQUIRE_FALSE(no_index);
    CHECK(no_index.error()[0].problem == Problem::file_not_found);

    ordered_json map;
    for (auto it = all.begin(); it != all.end(); ++it)
        map[it->name] = it < half ? "m-00001-of-00002.safetensors" : "m-00002-of-00002.safetensors";
    folder.write("transformer/m.safetensors.index.json", ordered_json{{"weight_map", map}}.dump());
    for (const std::string path : {"", "transformer", "transformer/m.safetensors.index.json"}) {
        CAPTURE(path);
        const expected<Described> described = describe_denoiser(folder.path(path));
        REQUIRE(described);
        CAPTURE(described->why_not);
        CHECK(described->profile);
        CHECK(described->class_name == "FluxTransformer2DModel");
    }
    const expected<Described> component = describe(folder.path(""), profile::Wanted::component, catalogue());
    REQUIRE_FALSE(component);
    CHECK(component.error()[0].nearest == folder.path("vae"));

    for (const std::string name : {"model_index.json", "transformer/config.json"}) {
        const expected<Described> file = describe_denoiser(folder.path(name));
        REQUIRE_FALSE(file);
        CHECK(file.error()[0].problem == Problem::bad_value);
        CHECK(file.error()[0].nearest == std::filesystem::path(folder.path(name)).parent_path());
    }

    folder.write("model_index.json", R"({"_class_name": "WanPipeline", "transformer": ["diffusers", "X"],
                                         "transformer_2": ["diffusers", "X"]})");
    CHECK(says(describe_denoiser(folder.path(""))->notes, "two experts"));
}

TEST_CASE("what is not known still has its weight") {
    struct Case {
        const char* why;
        std::string bytes, config, says;
        std::vector<io::StoredType> stored;
    };
    const std::string some = io::safetensors({{"a.weight", {4, 8}, "BF16"}, {"b", {3}, "F32", 4}});
    for (
        const Case& c : {
            Case{"an unknown class",
                 some,
                 R"({"_class_name": "MagicTransformer"})",
                 "MagicTransformer",
                 {{"BF16", 1, 32, 64}, {"F32", 1, 3, 12}}},
            Case{"no class", some, "{}", "names no class", {{"BF16", 1, 32, 64}, {"F32", 1, 3, 12}}},
            Case{
                "a class whose weights were quantised",
                some,
                R"({"_class_name": "FluxTransformer2DModel", "quantization_config": {"quant_method": "bitsandbytes"}})",
                "bitsandbytes",
                {{"BF16", 1, 32, 64}, {"F32", 1, 3, 12}}},
            Case{"an adapter",
                 io::safetensors({{"transformer.a.to_q.lora_A.weight", {4, 8}, "BF16"}}),
                 "",
                 "an adapter's",
                 {{"BF16", 1, 32, 64}}},
            Case{
                "names of no model", some, "", "no model that vramest knows", {{"BF16", 1, 32, 64}, {"F32", 1, 3, 12}}},
        }) {
        CAPTURE(std::string(c.why));
        const io::TemporaryFolder folder;
        const std::string file = folder.write("model.safetensors", c.bytes);
        if (!c.config.empty()) folder.write("config.json", c.config);
        const expected<Described> described = describe_denoiser(c.config.empty() ? file : folder.path(""));
        REQUIRE(described);
        CHECK_FALSE(described->profile);
        CHECK(described->why_not.find(c.says) != std::string::npos);
        CHECK(described->stored == c.stored);
    }
}

TEST_CASE("quantised weights of a known model have their weight, and are not played") {
    struct Case {
        const char* why;
        std::string name, bytes, says, type;
        Bytes total;
    };
    // The names by which FLUX is known in its authors' own files, and in nunchaku's.
    const std::string gguf_entries = io::gguf_key("general.architecture", "flux") +
                                     io::gguf_tensor("double_blocks.0.img_attn.norm.key_norm.scale", {128}, 0, 0) +
                                     io::gguf_tensor("single_blocks.0.linear1.weight", {512, 2}, 12, 512) +
                                     io::gguf_tensor("vector_in.in_layer.weight", {256, 4}, 8, 1088);
    for (const Case& c : {
             Case{"GGUF", "x.gguf", io::gguf(3, 1, gguf_entries, 4096), "Q4_K", "Q8_0", 512 + 576 + 1088},
             Case{"SVDQuant", "x.safetensors",
                  io::safetensors({{"context_embedder.weight", {8, 8}, "BF16"},
                                   {"time_text_embed.text_embedder.linear_1.weight", {8, 8}, "BF16"},
                                   {"x_embedder.weight", {8, 8}, "BF16"},
                                   {"transformer_blocks.0.qkv_proj.qweight", {24, 4}, "I8", 1},
                                   {"transformer_blocks.0.qkv_proj.wscales", {1, 24}, "BF16"},
                                   {"transformer_blocks.0.qkv_proj.smooth_factor", {8}, "BF16"}},
                                  R"({"quantization_config":"{}"})"),
                  "nunchaku", "BF16", 3 * 128 + 96 + 48 + 16},
         }) {
        CAPTURE(std::string(c.why));
        const io::TemporaryFolder folder;
        const expected<Described> described = describe_denoiser(folder.write(c.name, c.bytes));
        REQUIRE(described);
        CHECK(described->class_name == "FluxTransformer2DModel");
        CHECK_FALSE(described->profile);
        CAPTURE(described->why_not);
        CHECK(described->why_not.find(c.says) != std::string::npos);
        Bytes total = 0;
        for (const io::StoredType& type : described->stored) total += type.bytes;
        CHECK(total == c.total);
        CHECK(described->stored.front().type == c.type);
    }
}

TEST_CASE("of a file with more than a denoiser the denoiser alone counts") {
    const std::vector<ListedParameter> flux = parameters_with(small_flux());
    std::vector<ListedParameter> all;
    for (ListedParameter parameter : flux) {
        parameter.name = "model.diffusion_model." + parameter.name;
        all.push_back(std::move(parameter));
    }
    all.push_back({"first_stage_model.decoder.conv_in.weight", {512, 16, 3, 3}, false});
    all.push_back({"text_encoders.t5xxl.transformer.shared.weight", {32128, 4096}, false});
    const io::TemporaryFolder folder;
    const expected<Described> described = describe_denoiser(write_weights(folder, "all.safetensors", all));
    REQUIRE(described);
    CAPTURE(described->why_not);
    REQUIRE(described->profile);
    CHECK(described->profile->config.integer("num_layers") == 3);
    CHECK(described->profile->config.integer("num_single_layers") == 5);
    std::int64_t count = 0;
    for (const ListedParameter& parameter : flux) count += numel_of(parameter);
    CHECK(described->stored[0].numel == count);
}

TEST_CASE("numbers that do not hang together are refused when the class is built") {
    struct Row {
        const char *profile, *key;
        std::int64_t value;
        const char* says;
    };
    // Each once reached past a list, divided by nought, or never ended.
    constexpr Row rows[] = {{"hidream_i1", "num_layers", 32, "more blocks than llama_layers"},
                            {"hidream_i1", "num_single_layers", 1024, "more blocks than llama_layers"},
                            {"hidream_i1", "num_routed_experts", 1, "num_activated_experts"},
                            {"vae_wan22", "scale_factor_spatial", 1, "scale_factor_spatial"},
                            {"vae_wan22", "scale_factor_spatial", 1024, "scale_factor_spatial"},
                            {"vae_hunyuan_video15", "spatial_compression_ratio", 32, "block_out_channels"},
                            {"qwen25_vl_7b", "vision_window_size", 13, "window_size"},
                            {"qwen25_vl_7b", "vision_patch_size", 57, "window_size"}};
    for (const Row& row : rows) {
        CAPTURE(row.profile);
        CAPTURE(row.key);
        profile::ModelProfile profile = catalogue().model_of(row.profile);
        profile.config.values[row.key] = row.value;
        const expected<std::vector<ListedParameter>> listed = parameters_of(profile);
        REQUIRE_FALSE(listed);
        CHECK(says(listed.error(), row.says));
    }
}

TEST_CASE("tiles whose stride is less than one latent are refused, as Python's range refuses a step of 0") {
    struct Row {
        const char *profile, *key;
        profile::Config::Value value;
    };
    using Integers = std::vector<std::int64_t>;
    const Row rows[] = {{"vae_mochi", "spatial_expansions", Integers{2, 2, 64}},
                        {"vae_hunyuan_video", "spatial_compression_ratio", std::int64_t{256}},
                        {"vae_hunyuan_video", "temporal_compression_ratio", std::int64_t{16}},
                        {"vae_cogvideox", "sample_height", std::int64_t{16}},
                        {"vae_cogvideox", "sample_width", std::int64_t{16}},
                        {"vae_sd_4ch", "sample_size", std::int64_t{8}}};
    for (const Row& row : rows) {
        CAPTURE(row.profile);
        CAPTURE(row.key);
        profile::ModelProfile profile = catalogue().model_of(row.profile);
        profile.config.values[row.key] = row.value;
        shadow::Run run({}, false);
        nn::Weights weights(run, "vae", {});
        const std::unique_ptr<Model> vae = build(weights, profile);
        weights.to_gpu();
        Request request{.batch = 1, .width = 1024, .height = 1024, .frames = 97};
        request.operation = Request::Operation::decode;
        request.tiling = true;
        Tensors args;
        for (const Value& value : vae->inputs(request)) args.push_back(run.empty(value.shape, value.dtype));
        const shadow::NoGrad no_grad(run);
        CHECK_THROWS_AS(static_cast<void>(vae->forward(args, request)), shadow::Refused);
    }
}

TEST_CASE("a class has a name as Python allows it") {
    const io::TemporaryFolder folder;
    folder.write("config.json", R"({"_class_name": "\u001b[31mFlux\n"})");
    const expected<Described> described = describe_denoiser(folder.path(""));
    CHECK((!described || described->class_name.empty()));
}
