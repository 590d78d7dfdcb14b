#include "trainers/sd_scripts/changes.hpp"

#include <algorithm>
#include <initializer_list>

#include "unit/trainers/sd_scripts/files.hpp"
#include "vram/io/edit.hpp"

using namespace vram;
using namespace vram::trainers::sd_scripts;
using namespace vram::trainers::sd_scripts::files;

namespace {

const job::Change* change(const std::vector<job::Change>& all, const std::string& text) {
    const auto found = std::find_if(all.begin(), all.end(),
                                    [&](const job::Change& one) { return one.text.find(text) != std::string::npos; });
    return found == all.end() ? nullptr : &*found;
}

}  // namespace

TEST_CASE("sd-scripts: changes are edits of the user's own keys, and texts stay texts") {
    struct Case {
        const char* why;
        std::string text;
        const char* change;
        std::vector<io::Edit> edits;
    };
    const std::string xl = R"("sdxl": true, "unet_lr": 1e-4, "text_encoder_lr": 0)";
    for (const Case& c : {
             Case{"a key that is new",
                  gui("\"seed\": 0"),
                  "gradient checkpointing",
                  {{"gradient_checkpointing", "true"}}},
             Case{"a number that is a text",
                  gui(R"("train_batch_size": "4", "gradient_accumulation_steps": 1)"),
                  "batch size 2",
                  {{"train_batch_size", "\"2\""}, {"gradient_accumulation_steps", "2"}}},
             Case{"a resolution",
                  gui(R"("max_resolution": "1024,768")"),
                  "a resolution of 512",
                  {{"max_resolution", "\"512,384\""}}},
             Case{"the GUI's name", gui(R"("optimizer": "AdamW")"), "AdamW8bit", {{"optimizer", "\"AdamW8bit\""}}},
             Case{"argparse's name, in its section",
                  toml("[train]\nlearning_rate = 1e-4\nseed = 1\nvae_batch_size = 1\n"),
                  "AdamW8bit",
                  {{"optimizer_type", "\"AdamW8bit\""}}},
             Case{"said in a section",
                  toml("[train]\noptimizer_type = \"AdamW\"\n"),
                  "AdamW8bit",
                  {{"train.optimizer_type", "\"AdamW8bit\""}}},
             Case{"rates of learning leave text encoders out",
                  gui("\"sdxl\": true"),
                  "the text encoders not trained",
                  {{"text_encoder_lr", "0"}}},
             Case{"a flag leaves them out",
                  toml(""),
                  "the text encoders not trained",
                  {{"network_train_unet_only", "true"}}},
             Case{"cached text",
                  gui(xl + R"(, "caption_dropout_rate": 0.1)"),
                  "captions cached",
                  {{"sdxl_cache_text_encoder_outputs", "true"}, {"caption_dropout_rate", "0"}}},
             Case{"of FLUX.1",
                  gui_flux("\"text_encoder_lr\": 0"),
                  "captions cached",
                  {{"flux1_cache_text_encoder_outputs", "true"}}},
             Case{"8 bits of FLUX.1",
                  gui_flux("\"flux1_cache_text_encoder_outputs\": true, \"fp8_base\": false"),
                  "fp8_base",
                  {{"fp8_base", "true"}}},
             Case{"a rank and its alpha",
                  gui(R"("network_dim": 16, "network_alpha": 16)"),
                  "rank 8",
                  {{"network_dim", "8"}, {"network_alpha", "8"}}},
             Case{"a rank of convolutions",
                  toml("network_dim = 16\nnetwork_args = [\"conv_dim=12\"]\n"),
                  "rank 8",
                  {{"network_dim", "8"}, {"network_args[0]", "\"conv_dim=8\""}}},
             Case{"no samples", gui(R"("sample_every_n_steps": 10)"), "no samples", {{"sample_every_n_steps", "0"}}},
             Case{"pictures one by one",
                  gui(R"("vae_batch_size": 4)"),
                  "one picture at a time",
                  {{"vae_batch_size", "1"}}},
             Case{"latents",
                  gui(R"("cache_latents": false, "color_aug": true)"),
                  "latents cached",
                  {{"cache_latents", "true"}, {"color_aug", "false"}}},
             Case{"in bf16",
                  gui(R"("mixed_precision": "fp16")"),
                  "the adapter in bf16",
                  {{"full_bf16", "true"}, {"mixed_precision", "\"bf16\""}}},
         }) {
        CAPTURE(c.why);
        const io::Document file = document(c.text);
        const std::vector<job::Change> all = changes(file, catalogue(), job_of(c.text));
        const job::Change* found = change(all, c.change);
        REQUIRE(found != nullptr);
        CHECK(found->edits == c.edits);
        // The file that comes out is one that the trainer takes.
        const expected<io::EditedDocument> edited = io::edited(file, found->edits);
        REQUIRE(edited);
        CHECK(resolved(edited->document.text).job.has_value());
    }
}

TEST_CASE("sd-scripts: what cannot be changed in the file is not proposed") {
    const auto proposes = [](const std::string& text, const std::string& what) {
        return change(changes(document(text), catalogue(), job_of(text)), what) != nullptr;
    };
    CHECK(proposes(gui("\"train_batch_size\": 4"), "batch size"));
    CHECK_FALSE(proposes(gui("\"train_batch_size\": 4, \"dataset_config\": \"/no/data.toml\""), "batch size"));
    CHECK_FALSE(proposes(gui("\"additional_parameters\": \"--network_dim 64\""), "rank"));
    CHECK_FALSE(proposes(gui("\"gradient_checkpointing\": true"), "gradient checkpointing"));
    CHECK_FALSE(proposes(gui("\"sdxl\": false"), "captions cached"));
    CHECK_FALSE(proposes(gui("\"sdxl\": true"), "fp8_base"));
}
