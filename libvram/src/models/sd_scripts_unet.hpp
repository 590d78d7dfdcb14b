#pragma once

#include <deque>

#include "models/embeddings.hpp"

/// What the UNets of sd-scripts share (48d368f, library/sdxl_original_unet.py and original_unet.py). Attention is as
/// with --sdpa.
namespace vram::models::sd_scripts {

/// CrossAttention.forward_sdpa: self-attention, or over `context` where it is defined.
class CrossAttention {
  public:
    CrossAttention(const nn::Builder& builder, std::int64_t dim, std::int64_t cross_dim, std::int64_t heads);
    [[nodiscard]] nn::Tensor operator()(nn::Tensor x, const nn::Tensor& context) const;

  private:
    std::int64_t heads_;
    nn::Linear to_q, to_k, to_v, to_out;
};

/// args: hidden_states [B, T, D], context [B, L, C]
class BasicTransformerBlock : public nn::Block {
  public:
    BasicTransformerBlock(const nn::Builder& parent, std::int64_t dim, std::int64_t cross_dim, std::int64_t heads);
    [[nodiscard]] nn::Tensors forward(const nn::Tensors& args) const override;

  private:
    BasicTransformerBlock(const nn::BlockBuilder& builder, std::int64_t dim, std::int64_t cross_dim,
                          std::int64_t heads);
    CrossAttention attn1;
    FeedForward ff;
    CrossAttention attn2;
    nn::LayerNorm norm1, norm2, norm3;
};

/// Over a picture's places [B, C, H, W].
class Transformer2DModel {
  public:
    struct Sizes {
        std::int64_t channels, cross_dim, heads, layers;
        bool use_linear_projection;
    };
    Transformer2DModel(const nn::Builder& builder, const Sizes& sizes);
    /// `call` calls the blocks.
    [[nodiscard]] nn::Tensor operator()(const nn::Caller& call, nn::Tensor hidden_states,
                                        const nn::Tensor& encoder_hidden_states) const;

  private:
    bool use_linear_projection_;
    nn::GroupNorm norm;
    nn::Conv conv_in, conv_out;
    nn::Linear linear_in, linear_out;
    std::deque<BasicTransformerBlock> transformer_blocks;
};

/// Upsample2D.forward_body: nearest, in fp32 where the input is bf16, then a convolution. `size` of rank 0: twice.
[[nodiscard]] nn::Tensor upsample(const nn::Conv& conv, nn::Tensor hidden_states, const nn::Dims& size = {});

}  // namespace vram::models::sd_scripts
