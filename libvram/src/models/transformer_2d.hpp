#pragma once

#include <deque>

#include "models/embeddings.hpp"
#include "nn/module.hpp"

/// diffusers' transformer over a picture's places (diffusers 0.42.1, models/transformers/transformer_2d.py,
/// attention.py).
namespace vram::models {

/// Attention with AttnProcessor2_0: self-attention, or cross-attention where encoder_hidden_states are defined.
class Attention {
  public:
    Attention(const nn::Builder& builder, std::int64_t dim, std::int64_t cross_dim, std::int64_t heads,
              bool bias = false);
    /// `attention_mask` [B, 1, T, L] or [B, 1, L], or undefined.
    [[nodiscard]] nn::Tensor operator()(nn::Tensor hidden_states, nn::Tensor encoder_hidden_states,
                                        const nn::Tensor& attention_mask = {}) const;

  private:
    std::int64_t heads_;
    nn::Linear to_q, to_k, to_v, to_out;
};

/// BasicTransformerBlock with layer norms and a GEGLU. args: hidden_states [B, T, D], encoder_hidden_states [B, L, C]
class BasicTransformerBlock : public nn::Block {
  public:
    BasicTransformerBlock(const nn::Builder& parent, std::int64_t dim, std::int64_t cross_dim, std::int64_t heads);
    [[nodiscard]] nn::Tensors forward(const nn::Tensors& args) const override;

  private:
    BasicTransformerBlock(const nn::BlockBuilder& builder, std::int64_t dim, std::int64_t cross_dim,
                          std::int64_t heads);
    nn::LayerNorm norm1;
    Attention attn1;
    nn::LayerNorm norm2;
    Attention attn2;
    nn::LayerNorm norm3;
    FeedForward ff;
};

/// Transformer2DModel over continuous inputs [B, C, H, W]. Its blocks are checkpointed one by one, itself never.
class Transformer2DModel {
  public:
    struct Sizes {
        std::int64_t channels, cross_dim, heads, layers;
        bool use_linear_projection;
    };
    Transformer2DModel(const nn::Builder& builder, const Sizes& sizes, std::int64_t groups);
    [[nodiscard]] nn::Tensor operator()(const nn::Caller& call, nn::Tensor hidden_states,
                                        const nn::Tensor& encoder_hidden_states) const;

  private:
    bool use_linear_projection_;
    nn::GroupNorm norm;
    nn::Conv conv_in, conv_out;        // proj_in and proj_out of SD 1.x,
    nn::Linear linear_in, linear_out;  // or of SD 2.x and SDXL
    std::deque<BasicTransformerBlock> transformer_blocks;
};

}  // namespace vram::models
