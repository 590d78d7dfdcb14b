#pragma once

#include "models/model.hpp"

/// What each family file offers. A new family is its file, a declaration here and a line in families.cpp.
namespace vram::models {

namespace auraflow {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace autoencoder_dc {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace autoencoder_kl {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace autoencoder_kl_cogvideox {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace autoencoder_kl_hunyuan_video {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace autoencoder_kl_hunyuanvideo15 {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace autoencoder_kl_ltx {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace autoencoder_kl_ltx2 {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace autoencoder_kl_ltx2_audio {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace autoencoder_kl_mochi {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace autoencoder_kl_qwenimage {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace autoencoder_kl_wan {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace chatglm {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace chroma {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace clip_text {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace cogvideox {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace ernie_image {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace flux {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace flux2 {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace hidream {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace hunyuan_video {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace hunyuan_video15 {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace hunyuan_video_framepack {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace kandinsky5 {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace krea2 {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace ltx {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace ltx2 {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace ltx2_connectors {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace lumina2 {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace mochi {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace omnigen2 {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace pixart {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace qwen2_5_vl {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace qwen_image {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace sana {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace sd3 {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace t5 {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace text_decoder {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace unet {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace vision_language {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace wan {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}
namespace z_image {
[[nodiscard]] std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile);
}

}  // namespace vram::models
