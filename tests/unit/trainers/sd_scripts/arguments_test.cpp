#include "trainers/sd_scripts/arguments.hpp"

#include <algorithm>
#include <initializer_list>
#include <variant>

#include "trainers/sd_scripts/gui.hpp"
#include "trainers/sd_scripts/keys.hpp"
#include "unit/trainers/sd_scripts/files.hpp"

using namespace vram;
using namespace vram::trainers::sd_scripts;
using namespace vram::trainers::sd_scripts::files;

TEST_CASE("sd-scripts: files of the GUI's tabs and of --config_file are told from others") {
    struct Case {
        const char* why;
        std::string text;
        io::Format format;
        bool recognised;
    };
    for (const Case& c : {
             Case{"the LoRA tab", gui("\"sdxl\": true"), io::Format::json, true},
             Case{"another tab", R"({"max_resolution": "512,512", "train_batch_size": 1, "clip_skip": 1})",
                  io::Format::json, true},
             Case{"--config_file", toml(""), io::Format::toml, true},
             Case{"in sections", "[a]\nnetwork_module = \"networks.lora\"\n[b]\noutput_dir = \"out\"\n",
                  io::Format::toml, true},
             Case{"a dataset", "[general]\nresolution = 512\n[[datasets]]\nbatch_size = 1\n", io::Format::toml, false},
             Case{"musubi-tuner", "dit = \"a\"\nnetwork_module = \"networks.lora_wan\"\ndataset_config = \"a.toml\"\n",
                  io::Format::toml, false},
             Case{"ai-toolkit", "job: extension\nconfig: {process: [{type: sd_trainer}]}\n", io::Format::yaml, false},
             Case{"a job file", "vramest: 1\ntrainer: sd-scripts\nmodel: sdxl\n", io::Format::yaml, false},
         }) {
        CAPTURE(c.why);
        const expected<io::Document> document = io::read(c.text, "a", c.format);
        REQUIRE(document);
        CHECK(recognises(*document) == c.recognised);
    }
}

TEST_CASE("sd-scripts: what a file of --config_file does not say is argparse's default") {
    const Arguments found = arguments(toml(""));
    CHECK(found.script == &sdxl);
    CHECK(found.weight_dtype == Dtype::f32);
    CHECK_FALSE(found.mixed_precision);
    CHECK(found.network_dim == 4);
    CHECK(found.network_alpha == 1);
    CHECK(std::holds_alternative<job::AdamW>(found.optimizer));
    CHECK(found.attention == Attention::plain);
    CHECK_FALSE(found.cache_latents);
    CHECK_FALSE(found.dataset.enable_bucket);
    CHECK(found.dataset.max_bucket_reso == 1024);
    CHECK_FALSE(found.network_train_unet_only);
    CHECK(found.max_grad_norm == 1);
}

TEST_CASE("sd-scripts: what a file of the GUI does not say is what a fresh GUI shows") {
    const Arguments found = arguments(R"({"LoRA_type": "Standard", "epoch": 1, "save_precision": "fp16"})");
    CHECK(found.script == &sd1);
    CHECK(found.weight_dtype == Dtype::f16);
    CHECK(found.network_dim == 8);
    CHECK(std::holds_alternative<job::AdamW>(found.optimizer));  // update_my_data says it where a file does not
    CHECK(found.attention == Attention::xformers);
    CHECK(found.cache_latents);
    CHECK(found.dataset.enable_bucket);
    CHECK(found.dataset.bucket_no_upscale);
    CHECK(found.dataset.max_bucket_reso == 2048);
    CHECK(found.dataset.width == 512);
    CHECK(found.clip_skip == 1);
    CHECK_FALSE(found.network_train_unet_only);  // both rates of learning are 1e-4
}

TEST_CASE("sd-scripts: the GUI's fields become arguments as its own code hands them on") {
    struct Case {
        const char* why;
        std::string fields;
        bool (*holds)(const Arguments&);
    };
    for (const Case& c : {
             Case{"numbers as texts", R"("network_dim": "64", "gradient_accumulation_steps": "4")",
                  [](const Arguments& a) { return a.network_dim == 64 && a.gradient_accumulation_steps == 4; }},
             Case{"a number with a point", R"("train_batch_size": 2.0)",
                  [](const Arguments& a) { return a.dataset.batch_size == 2; }},
             Case{"0 is left out: argparse's default", R"("network_dim": 0, "max_grad_norm": 0)",
                  [](const Arguments& a) { return a.network_dim == 4 && a.max_grad_norm == 1; }},
             Case{"xformers of older files", R"("xformers": false)",
                  [](const Arguments& a) { return a.attention == Attention::plain; }},
             Case{"sdpa", R"("xformers": "sdpa")", [](const Arguments& a) { return a.attention == Attention::sdpa; }},
             Case{"no rate for the text encoder", R"("text_encoder_lr": 0, "unet_lr": "1e-4")",
                  [](const Arguments& a) { return a.network_train_unet_only; }},
             Case{"a rate of 0 as a text", R"("text_encoder_lr": "0.0", "unet_lr": 1e-4)",
                  [](const Arguments& a) { return a.network_train_unet_only; }},
             Case{"no rate of its own for either", R"("text_encoder_lr": 0, "unet_lr": 0, "learning_rate": 1e-4)",
                  [](const Arguments& a) { return !a.network_train_unet_only; }},
             Case{"a network's conv_dim is LoCon's alone", R"("conv_dim": 32)",
                  [](const Arguments& a) { return a.conv_dim == 0; }},
             Case{"arguments in free text win", R"("additional_parameters": "--network_dim=2 --lowram --sdpa")",
                  [](const Arguments& a) { return a.network_dim == 2 && a.lowram; }},
             Case{"no_half_vae is SDXL's", R"("sdxl_no_half_vae": true)",
                  [](const Arguments& a) { return !a.no_half_vae; }},
             Case{"of SDXL", R"("sdxl": true, "sdxl_no_half_vae": true)",
                  [](const Arguments& a) { return a.no_half_vae && a.script == &sdxl; }},
             Case{"v2", R"("v2": true)", [](const Arguments& a) { return a.script == &sd2; }},
             Case{"noise by its type", R"("noise_offset": 0.1, "multires_noise_iterations": 6)",
                  [](const Arguments& a) { return a.noise_and_loss.size() == 1; }},
             Case{"the other type",
                  R"("noise_offset": 0.1, "multires_noise_iterations": 6, "noise_offset_type": "Multires")",
                  [](const Arguments& a) { return a.noise_and_loss.contains("multires_noise_iterations"); }},
             Case{"a vae_batch_size of 0", R"("vae_batch_size": 0)",
                  [](const Arguments& a) { return a.vae_batch_size == 1; }},
             Case{"samples never", R"("sample_every_n_steps": 0, "sample_prompts": "a cat")",
                  [](const Arguments& a) { return !a.samples_while_training; }},
             Case{"latents on disk are cached", R"("cache_latents": false, "cache_latents_to_disk": true)",
                  [](const Arguments& a) { return a.cache_latents; }},
         }) {
        CAPTURE(c.why);
        // The later of two fields counts.
        CHECK(c.holds(arguments(gui(c.fields))));
    }
    const Arguments locon = arguments(R"({"LoRA_type": "Kohya LoCon", "epoch": 1, "optimizer": "AdamW", "conv_dim": 16,
        "rank_dropout": 0.1})");
    CHECK(locon.conv_dim == 16);
    CHECK(locon.rank_dropout);
    const Arguments flux1 = arguments(gui_flux(R"("flux1_cache_text_encoder_outputs": true, "fp8_base": true,
        "train_blocks": "single", "apply_t5_attn_mask": true, "text_encoder_lr": 0, "xformers": "none")"));
    CHECK(flux1.script == &flux);
    CHECK(flux1.cache_text_encoder_outputs);
    CHECK(flux1.fp8_base);
    CHECK(flux1.apply_t5_attn_mask);
    CHECK(flux1.t5xxl_max_token_length == 512);
    CHECK(flux1.attention == Attention::sdpa);  // whatever is said
}

TEST_CASE("sd-scripts: --config_file's sections are flattened, and say which script it is for") {
    const Arguments found = arguments(
        "[model]\npretrained_model_name_or_path = \"a.safetensors\"\nresolution = \"512\"\n"
        "[training]\nnetwork_module = \"networks.lora\"\nnetwork_dim = 8\nnetwork_args = [\"conv_dim=4\"]\n"
        "[more]\nnetwork_dim = 16\n");
    CHECK(found.script == &sd1);
    CHECK(found.network_dim == 16);
    CHECK(found.conv_dim == 4);
    struct Case {
        const char* why;
        std::string lines;
        const Script* script;
    };
    const std::string sd = "pretrained_model_name_or_path = \"a.safetensors\"\nresolution = \"512\"\n";
    for (const Case& c : {
             Case{"nothing more", "network_module = \"networks.lora\"\n", &sd1},
             Case{"v2", "network_module = \"networks.lora\"\nv2 = true\n", &sd2},
             Case{"its network", "network_module = \"networks.lora_flux\"\n", &flux},
             Case{"a cache that Stable Diffusion 1 has none of",
                  "network_module = \"networks.lora\"\ncache_text_encoder_outputs = true\nnetwork_train_unet_only = "
                  "true\n",
                  &sdxl},
         }) {
        CAPTURE(c.why);
        CHECK(arguments(sd + c.lines).script == c.script);
    }
}

TEST_CASE("sd-scripts: names of optimizers, and what their arguments move") {
    struct Case {
        const char* why;
        const char* name;
        const char* args;
        job::Optimizer kind;
    };
    using Algorithm = job::Bitsandbytes::Algorithm;
    for (const Case& c : {
             Case{"any case", "adamw8bit", "", job::Bitsandbytes{}},
             Case{"paged", "PagedAdamW8bit", "", job::Bitsandbytes{.paged = true}},
             Case{"a class of a module", "bitsandbytes.optim.AdEMAMix8bit", "",
                  job::Bitsandbytes{.algorithm = Algorithm::ademamix}},
             Case{"transformers scales by the parameter", "Adafactor", "", job::Adafactor{.scale_parameter = true}},
             Case{"unless told not to", "Adafactor", "\"scale_parameter=False\", \"relative_step=False\"",
                  job::Adafactor{}},
             Case{"a decay", "Adafactor", "\"weight_decay=2\"",
                  job::Adafactor{.scale_parameter = true, .weight_decay = true}},
             Case{"betas", "Prodigy", "\"betas=0.9,0.99\", \"d_coef=1.0\"", job::Prodigy{}},
             Case{"no momentum", "Prodigy", "\"betas=(0,0.99)\"", job::Prodigy{.momentum = false}},
             Case{"D-adaptation", "DAdaptAdam", "\"decouple=True\", \"growth_rate=1.02\"", job::DAdapt{}},
             Case{"Nesterov", "SGDNesterov", "", job::Sgd{.momentum = true, .nesterov = true}},
             Case{"one by one", "AdamW", "\"foreach=False\"", job::AdamW{.loop = job::AdamW::Loop::one_by_one}},
         }) {
        CAPTURE(c.why);
        const std::string lines =
            "optimizer_type = \"" + std::string(c.name) + "\"\noptimizer_args = [" + c.args + "]\n";
        CHECK(arguments(toml(lines)).optimizer == c.kind);
    }
}

TEST_CASE("sd-scripts: what the trainer refuses, and what is not modelled, is told where it stands") {
    struct Case {
        const char* why;
        std::string text;
        Problem problem;
        const char* key;
        std::int32_t line;  // 0: the file does not say it
    };
    for (const Case& c : {
             Case{"cached text of trained encoders", toml("cache_text_encoder_outputs = true\n"), Problem::conflict,
                  "cache_text_encoder_outputs", 4},
             Case{"the GUI's own field", gui("\"sdxl\": true,\n\"sdxl_cache_text_encoder_outputs\": true"),
                  Problem::conflict, "sdxl_cache_text_encoder_outputs", 3},
             Case{"full_bf16", toml("full_bf16 = true\nmixed_precision = \"fp16\"\n"), Problem::conflict, "full_bf16",
                  4},
             Case{"full_fp16", toml("[a]\nfull_fp16 = true\n"), Problem::conflict, "a.full_fp16", 5},
             Case{"fp8 of SDXL", toml("mixed_precision = \"bf16\"\nfp8_base = true\n"), Problem::unsupported,
                  "fp8_base", 5},
             Case{"fp8 without a half", gui_flux("\"mixed_precision\": \"no\",\n\"fp8_base\": true"), Problem::conflict,
                  "fp8_base", 3},
             Case{"v2 of SDXL", gui("\"sdxl\": true,\n\"v2\": true"), Problem::conflict, "v2", 3},
             Case{"LyCORIS", R"({"LoRA_type": "LyCORIS/LoHa", "epoch": 1, "optimizer": "AdamW"})", Problem::unsupported,
                  "LoRA_type", 1},
             Case{"no such type", R"({"LoRA_type": "Standart", "epoch": 1, "optimizer": "AdamW"})", Problem::bad_value,
                  "LoRA_type", 1},
             Case{"a type that does not go with the box", gui("\"flux1_checkbox\": true"), Problem::conflict,
                  "LoRA_type", 1},
             Case{"another model", gui("\"sd3_checkbox\": true"), Problem::unsupported, "sd3_checkbox", 2},
             Case{"several cards", gui("\"num_processes\": 2"), Problem::unsupported, "num_processes", 2},
             Case{"another loss", gui("\"loss_type\": \"huber\""), Problem::unsupported, "loss_type", 2},
             Case{"weighted captions", gui("\"weighted_captions\": true"), Problem::unsupported, "weighted_captions",
                  2},
             Case{"more layers than CLIP has", gui("\"clip_skip\": 14"), Problem::out_of_range, "clip_skip", 2},
             Case{"masks", gui("\"masked_loss\": true"), Problem::unsupported, "masked_loss", 2},
             Case{"noise of its own", gui("\"ip_noise_gamma\": 0.1"), Problem::unsupported, "ip_noise_gamma", 2},
             Case{"text encoders alone", gui("\"text_encoder_lr\": 1e-4, \"unet_lr\": 0"), Problem::unsupported,
                  "unet_lr", 2},
             Case{"blocks wait", gui_flux("\"blocks_to_swap\": 18"), Problem::unsupported, "blocks_to_swap", 2},
             Case{"ranks of blocks", gui("\"block_dims\": \"4,4,4\""), Problem::unsupported, "block_dims", 2},
             Case{"a split that cannot be trained",
                  gui_flux("\"additional_parameters\": \"--network_args split_qkv=True\""), Problem::conflict,
                  "additional_parameters", 2},
             Case{"the GUI's field of it", gui_flux("\"split_qkv\": true"), Problem::conflict, "split_qkv", 2},
             Case{"T5 trained", gui_flux("\"train_t5xxl\": true"), Problem::unsupported, "train_t5xxl", 2},
             Case{"an argument nobody knows", gui("\"additional_parameters\": \"--fp8base\""), Problem::unknown_key,
                  "additional_parameters", 2},
             Case{"a side of resolution", gui("\"max_resolution\": \"512x512\""), Problem::bad_value, "max_resolution",
                  2},
             Case{"a number where argparse wants a text",
                  "pretrained_model_name_or_path = \"a\"\nnetwork_module = \"networks.lora\"\nresolution = 512\n",
                  Problem::wrong_type, "resolution", 3},
             Case{"no resolution", "pretrained_model_name_or_path = \"a\"\nnetwork_module = \"networks.lora\"\n",
                  Problem::missing_key, "resolution", 0},
             Case{"no network", "pretrained_model_name_or_path = \"a\"\nresolution = \"512\"\n", Problem::unsupported,
                  "network_module", 0},
             Case{"what only Stable Diffusion 3 is told", toml("clip_g = \"a\"\n"), Problem::unsupported, "clip_g", 4},
             Case{"another network",
                  "network_module = \"lycoris.kohya\"\npretrained_model_name_or_path = \"a\"\nresolution = \"512\"\n",
                  Problem::unsupported, "network_module", 1},
             Case{"an optimizer", toml("optimizer_type = \"AdmW\"\n"), Problem::bad_value, "optimizer_type", 4},
             Case{"one that is not modelled", toml("optimizer_type = \"RAdamScheduleFree\"\n"), Problem::unsupported,
                  "optimizer_type", 4},
             Case{"fused steps", toml("fused_backward_pass = true\n"), Problem::conflict, "fused_backward_pass", 4},
         }) {
        CAPTURE(c.why);
        const Read out = read(c.text);
        REQUIRE_FALSE(out.complaints.empty());
        CHECK(out.complaints.front().problem == c.problem);
        CHECK(out.complaints.front().key == c.key);
        CHECK(out.complaints.front().place.line == c.line);
        CHECK(out.complaints.size() == 1);
    }
}

TEST_CASE("sd-scripts: complaints come all at once, keys that nobody knows are warnings") {
    const Read many = read(toml("network_dim = \"8\"\ntrain_batch_size = 0\nloss_type = \"l3\"\n"));
    CHECK(many.complaints.size() == 3);
    const Read unknown = read(toml("save_statee = true\nblocks_to_swap = 8\n"));
    CHECK(unknown.complaints.empty());
    REQUIRE(unknown.notes.size() == 2);  // the second is FLUX.1's
    CHECK(unknown.notes.front().severity == Severity::warning);
    CHECK(unknown.notes.front().problem == Problem::unknown_key);
    CHECK(unknown.notes.front().nearest == "save_state");
    // One that moves memory is none to pass over.
    const Read near = read(toml("gradient_checkpoint = true\n"));
    REQUIRE(near.complaints.size() == 1);
    CHECK(near.complaints.front().nearest == "gradient_checkpointing");
    const Read field = read(gui("\"gradient_checkpoint\": true, \"lowvram\": true, \"wandb_api_key\": \"\""));
    REQUIRE(field.complaints.size() == 1);
    CHECK(field.complaints.front().nearest == "gradient_checkpointing");
    const Read other = read(gui("\"save_statee\": true"));
    CHECK(other.complaints.empty());
    CHECK(other.notes.size() == 1);
    const Read zero = read(gui("\"max_grad_norm\": 0"));
    REQUIRE(zero.notes.size() == 1);
    CHECK(zero.notes.front().key == "max_grad_norm");
}

TEST_CASE("sd-scripts: what a user may have meant otherwise is a warning") {
    struct Case {
        const char* why;
        std::string text;
        Problem problem;
        const char* key;
    };
    for (const Case& c : {
             Case{"null is what a fresh GUI shows",
                  R"({"LoRA_type": "Standard", "max_resolution": "512,512", "train_batch_size": null, "clip_skip": 1})",
                  Problem::wrong_type, "train_batch_size"},
             Case{"two boxes of models", gui(R"("sdxl": true, "flux1_checkbox": true)"), Problem::conflict,
                  "flux1_checkbox"},
             Case{"a key in two sections", toml("[a]\nnetwork_dim = 8\n[b]\nnetwork_dim = 16\n"),
                  Problem::duplicate_key, "b.network_dim"},
             Case{"a text for a flag", toml("sdpa = \"false\"\n"), Problem::wrong_type, "sdpa"},
         }) {
        CAPTURE(std::string(c.why));
        const Read out = read(c.text);
        CHECK(out.complaints.empty());
        REQUIRE(out.notes.size() == 1);
        CHECK(out.notes.front().severity == Severity::warning);
        CHECK(out.notes.front().problem == c.problem);
        CHECK(out.notes.front().key == c.key);
    }
}

TEST_CASE("sd-scripts: the GUI's own names of arguments are fields that it is known to have") {
    const std::span<const std::string_view> fields = gui_fields();
    std::size_t renamed = 0;
    for (const Script* script : scripts())
        for (const Key& key : argument_keys()) {
            const std::string field = gui_field(key.name, script);
            if (field == key.name) continue;
            CAPTURE(field);
            CHECK(std::find(fields.begin(), fields.end(), field) != fields.end());
            ++renamed;
        }
    CHECK(renamed > 10);
}

TEST_CASE("sd-scripts: a command line is read as argparse reads it") {
    const auto flags = [](const std::string& words) {
        return arguments(gui("\"additional_parameters\": \"" + words + "\""));
    };
    CHECK(flags("--train_batch_s 4").dataset.batch_size == 4);  // the beginning of one name
    CHECK(flags("--network_args conv_dim=4 rank_dropout=0.1 --network_dim=16").conv_dim == 4);
    CHECK(flags("--network_dim 4 --network_dim=16").network_dim == 16);
    CHECK(flags("--network_args conv_dim=4 --network_args rank_dropout=0.1").conv_dim == 0);  // a list replaces a list
    CHECK(flags("--clip 2").clip_skip == 2);                                                  // clip_l is FLUX.1's
    CHECK(flags("--v2 --max_grad_norm -1").max_grad_norm == -1);
    const Arguments number = arguments(gui("\"additional_parameters\": null, \"train_batch_size\": 3"));
    CHECK(number.dataset.batch_size == 3);
}
