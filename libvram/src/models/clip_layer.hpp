#pragma once

#include "models/model.hpp"

/// What the text and the vision model of CLIP share (transformers 5.24.0, models/clip/modeling_clip.py).
namespace vram::models::clip {

struct Sizes {
    std::int64_t hidden, intermediate, heads;
    bool quick_gelu;
    bool causal;          // without a mask
    bool copies_heads{};  // sdpa_attention_forward of transformers 4 makes queries, keys and values contiguous
};

/// args: hidden_states [B, T, D], mask or undefined → hidden_states
class CLIPEncoderLayer : public nn::Block {
  public:
    CLIPEncoderLayer(const Builder& parent, const Sizes& sizes);

    [[nodiscard]] Tensors forward(const Tensors& args) const override;

  private:
    CLIPEncoderLayer(const BlockBuilder& builder, const Sizes& sizes);

    [[nodiscard]] Tensor self_attn(Tensor argument, const Tensor& mask) const;
    [[nodiscard]] Tensor mlp(Tensor argument) const;

    Sizes sizes_;
    nn::Linear k_proj, v_proj, q_proj, out_proj;
    nn::LayerNorm layer_norm1;
    nn::Linear fc1, fc2;
    nn::LayerNorm layer_norm2;
};

}  // namespace vram::models::clip
