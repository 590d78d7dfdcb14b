#include "trainers/sd_scripts/script.hpp"

#include <algorithm>

namespace vram::trainers::sd_scripts {
namespace {

constexpr std::string_view clip[] = {"clip_l"}, open_clip[] = {"openclip_h"};
constexpr std::string_view two_clips[] = {"clip_l", "openclip_bigg"}, clip_and_t5[] = {"clip_l", "t5_xxl"};

bool is_sd(const profile::ModelProfile& profile, std::int64_t cross_attention_dim) {
    return profile.family == "unet" && profile.config.integer("cross_attention_dim") == cross_attention_dim &&
           profile.config.integer("in_channels") == 4;
}

}  // namespace

// Steps of buckets: assert_extra_args of each trainer. Sides: original_unet.py hands the skipped features' sizes to its
// upsamplers, sdxl_original_unet.py does not and stops where two halvings leave a rest; FLUX.1 packs latents two by
// two. Samples: train_util.py, sample_image_inference, and flux_train_utils.py's.
const Script sd1{
    .file = "train_network.py",
    .architecture = "sd1",
    .title = "Stable Diffusion 1",
    .model = "sd15",
    .vae = "vae_sd_4ch",
    .text_encoders = clip,
    .network_module = "networks.lora",
    .bucket_reso_steps = 64,
    .side_step = 1,
    .sample_step = 8,
    .sample_steps = 30,
    .sample_scale = 7.5,
    .plays = [](const profile::ModelProfile& profile) { return is_sd(profile, 768); },
    .most_clip_skip = 13,
};
const Script sd2{
    .file = "train_network.py",
    .architecture = "sd2",
    .title = "Stable Diffusion 2",
    .model = "sd21",
    .vae = "vae_sd_4ch",
    .text_encoders = open_clip,
    .network_module = "networks.lora",
    .bucket_reso_steps = 64,
    .side_step = 1,
    .sample_step = 8,
    .sample_steps = 30,
    .sample_scale = 7.5,
    .plays = [](const profile::ModelProfile& profile) { return is_sd(profile, 1024); },
    .most_clip_skip = 24,
};
const Script sdxl{
    .file = "sdxl_train_network.py",
    .architecture = "sdxl",
    .title = "SDXL",
    .model = "sdxl",
    .vae = "vae_sd_4ch",
    .text_encoders = two_clips,
    .network_module = "networks.lora",
    .bucket_reso_steps = 32,
    .side_step = 32,
    .sample_step = 8,
    .sample_steps = 30,
    .sample_scale = 7.5,
    .plays =
        [](const profile::ModelProfile& profile) {
            return is_sd(profile, 2048) && profile.config.text("addition_embed_type", "none") == "text_time" &&
                   profile.config.integer("encoder_hid_dim", 0) == 0;
        },
};
// FluxNetworkTrainer asks for 32, and NetworkTrainer before it for 64.
const Script flux{
    .file = "flux_train_network.py",
    .architecture = "flux",
    .title = "FLUX.1",
    .model = "flux1_dev",
    .vae = "vae_flux1",
    .text_encoders = clip_and_t5,
    .network_module = "networks.lora_flux",
    .bucket_reso_steps = 64,
    .side_step = 16,
    .sample_step = 16,
    .sample_steps = 20,
    .sample_scale = 1,
    .plays =
        [](const profile::ModelProfile& profile) {
            return profile.family == "flux" && !profile.reference_images && profile.config.integer("in_channels") == 64;
        },
};

std::int64_t side_below(const Script& script, std::int64_t side) {
    return std::max<std::int64_t>(64, side / script.side_step * script.side_step);
}

std::span<const Script* const> scripts() {
    static constexpr const Script* all[] = {&sd1, &sd2, &sdxl, &flux};
    return all;
}

const Script* script_of(const profile::ModelProfile& profile) {
    for (const Script* script : scripts())
        if (script->plays(profile) && profile.forwards.contains("sd_scripts")) return script;
    return nullptr;
}

}  // namespace vram::trainers::sd_scripts
