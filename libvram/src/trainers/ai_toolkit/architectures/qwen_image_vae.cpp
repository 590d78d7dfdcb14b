#include "trainers/ai_toolkit/architectures/qwen_image_vae.hpp"

#include "shadow/ops.hpp"

namespace vram::trainers::ai_toolkit {

using shadow::Op;

QwenImageVae::LatentStatistics::LatentStatistics(Pipeline& of, bool inverted) {
    const Dtype dtype = of.job.pipeline.vae_dtype;
    mean = of.run.empty({1, 16, 1, 1, 1}, dtype, Op::to_device);
    std = of.run.empty({1, 16, 1, 1, 1}, dtype, Op::to_device);
    if (!inverted) return;
    std = shadow::div_scalar(std);  // 1.0 / std: its reciprocal, times 1.0
    std = shadow::mul_scalar(std);
}

Tensor QwenImageVae::encode_images(Tensor image_list_in, const job::Batch& batch) {
    const Tensor image_list = std::move(image_list_in);
    vae->to_gpu();
    const shadow::ComponentScope scope(run, "vae");
    Tensor images = run.empty_like(image_list, Op::stack);
    images = shadow::unsqueeze(std::move(images), 2);
    Tensor latents = sample_latents(images, batch);
    const LatentStatistics statistics(*this);
    latents = shadow::mul(shadow::sub(latents, statistics.mean), statistics.std);
    return shadow::squeeze(std::move(latents), 2);
}

}  // namespace vram::trainers::ai_toolkit
