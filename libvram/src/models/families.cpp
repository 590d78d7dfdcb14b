#include "models/families.hpp"

#include <array>
#include <stdexcept>

namespace vram::models {

std::span<const Family> families() {
    static constexpr std::array list{
        Family{"auraflow", auraflow::build},
        Family{"autoencoder_dc", autoencoder_dc::build},
        Family{"autoencoder_kl", autoencoder_kl::build},
        Family{"autoencoder_kl_cogvideox", autoencoder_kl_cogvideox::build},
        Family{"autoencoder_kl_hunyuan_video", autoencoder_kl_hunyuan_video::build},
        Family{"autoencoder_kl_hunyuanvideo15", autoencoder_kl_hunyuanvideo15::build},
        Family{"autoencoder_kl_ltx", autoencoder_kl_ltx::build},
        Family{"autoencoder_kl_ltx2", autoencoder_kl_ltx2::build},
        Family{"autoencoder_kl_ltx2_audio", autoencoder_kl_ltx2_audio::build},
        Family{"autoencoder_kl_mochi", autoencoder_kl_mochi::build},
        Family{"autoencoder_kl_qwenimage", autoencoder_kl_qwenimage::build},
        Family{"autoencoder_kl_wan", autoencoder_kl_wan::build},
        Family{"chatglm", chatglm::build},
        Family{"chroma", chroma::build},
        Family{"clip_text", clip_text::build},
        Family{"cogvideox", cogvideox::build},
        Family{"ernie_image", ernie_image::build},
        Family{"flux", flux::build},
        Family{"flux2", flux2::build},
        Family{"hidream", hidream::build},
        Family{"hunyuan_video", hunyuan_video::build},
        Family{"hunyuan_video15", hunyuan_video15::build},
        Family{"hunyuan_video_framepack", hunyuan_video_framepack::build},
        Family{"kandinsky5", kandinsky5::build},
        Family{"krea2", krea2::build},
        Family{"ltx", ltx::build},
        Family{"ltx2", ltx2::build},
        Family{"ltx2_connectors", ltx2_connectors::build},
        Family{"lumina2", lumina2::build},
        Family{"mochi", mochi::build},
        Family{"omnigen2", omnigen2::build},
        Family{"pixart", pixart::build},
        Family{"qwen2_5_vl", qwen2_5_vl::build},
        Family{"qwen_image", qwen_image::build},
        Family{"sana", sana::build},
        Family{"sd3", sd3::build},
        Family{"t5", t5::build},
        Family{"text_decoder", text_decoder::build},
        Family{"unet", unet::build},
        Family{"vision_language", vision_language::build},
        Family{"wan", wan::build},
        Family{"z_image", z_image::build},
    };
    return list;
}

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    for (const Family& family : families())
        if (family.id == profile.family) return family.build(weights, profile);
    throw std::logic_error("profile " + profile.id + ": no family " + profile.family);
}

}  // namespace vram::models
