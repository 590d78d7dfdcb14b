#pragma once

#include "trainers/ai_toolkit/pipeline.hpp"

namespace vram::trainers::ai_toolkit {

/// What classes with Qwen-Image's VAE do with it (extensions_built_in/diffusion_models/qwen_image/qwen_image.py and
/// krea2/krea2.py, 27a03a91).
class QwenImageVae : public Pipeline {
  public:
    [[nodiscard]] Tensor encode_images(Tensor image_list, const job::Batch& batch) override;

  protected:
    using Pipeline::Pipeline;

    /// The VAE's latents_mean and latents_std, [1, 16, 1, 1, 1] each; `inverted`: encode_images multiplies by 1 / std.
    struct LatentStatistics {
        explicit LatentStatistics(Pipeline& of, bool inverted = true);
        Tensor mean, std;
    };
};

}  // namespace vram::trainers::ai_toolkit
