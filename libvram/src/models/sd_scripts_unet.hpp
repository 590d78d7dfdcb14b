#pragma once

#include <deque>
#include <string_view>

#include "models/embeddings.hpp"

/// What the UNets of sd-scripts share (48d368f, library/sdxl_original_unet.py and original_unet.py).
namespace vram::models::sd_scripts {

/// What set_use_memory_efficient_attention and set_use_sdpa choose of CrossAttention's forwards.
enum class Attention : std::int8_t {
    sdpa,     // scaled_dot_product_attention; --xformers is taken for it
    mem_eff,  // --mem_eff_attn: FlashAttentionFunction, in Python
    plain,    // _attention: a score for each pair of tokens
};

/// The attention heads of a layer, and how they attend.
struct Heads {
    std::int64_t count;
    Attention attention;
};
/// "sdpa", "mem_eff_attn" or "plain", as a described profile's `attention` says it.
[[nodiscard]] Attention attention_named(std::string_view word);

/// CrossAttention: self-attention, or over `context` where it is defined.
class CrossAttention {
  public:
    CrossAttention(const nn::Builder& builder, std::int64_t dim, std::int64_t cross_dim, Heads heads);
    [[nodiscard]] nn::Tensor operator()(nn::Tensor x, const nn::Tensor& context) const;

  private:
    [[nodiscard]] nn::Tensor split(nn::Tensor t) const;     ///< "b n (h d) -> b h n d"
    [[nodiscard]] nn::Tensor to_batch(nn::Tensor t) const;  ///< reshape_heads_to_batch_dim

    Heads heads_;
    nn::Linear to_q, to_k, to_v, to_out;
};

/// What BasicTransformerBlock does: hidden_states [B, T, D], context [B, L, C].
class TransformerLayer {
  public:
    TransformerLayer(const nn::Builder& builder, std::int64_t dim, std::int64_t cross_dim, Heads heads);
    [[nodiscard]] nn::Tensor operator()(const nn::Tensor& hidden_states, const nn::Tensor& context) const;

  private:
    CrossAttention attn1;
    FeedForward ff;
    CrossAttention attn2;
    nn::LayerNorm norm1, norm2, norm3;
};

/// A layer that is called, and checkpointed, by itself. args: hidden_states, context
class BasicTransformerBlock : public nn::Block {
  public:
    BasicTransformerBlock(const nn::Builder& parent, std::int64_t dim, std::int64_t cross_dim, Heads heads);
    [[nodiscard]] nn::Tensors forward(const nn::Tensors& args) const override;

  private:
    BasicTransformerBlock(const nn::BlockBuilder& builder, std::int64_t dim, std::int64_t cross_dim, Heads heads);
    TransformerLayer layer;
};

/// Transformer2DModel around its layers: a picture's places as rows, and back.
class Rows {
  public:
    Rows(const nn::Builder& builder, std::int64_t channels, bool use_linear_projection);
    void build_out(const nn::Builder& builder, std::int64_t channels);  ///< proj_out, which stands behind the layers
    [[nodiscard]] nn::Tensor in(const nn::Tensor& residual) const;      ///< [B, C, H, W] → [B, H W, C]
    [[nodiscard]] nn::Tensor out(nn::Tensor hidden_states, const nn::Tensor& residual) const;

  private:
    bool use_linear_projection_;
    nn::GroupNorm norm;
    nn::Conv conv_in, conv_out;
    nn::Linear linear_in, linear_out;
};

/// Transformer2DModel over a picture's places [B, C, H, W], whose blocks are called one by one.
class Transformer2DModel {
  public:
    struct Sizes {
        std::int64_t channels, cross_dim, heads, layers;
        bool use_linear_projection;
        Attention attention = Attention::sdpa;
        [[nodiscard]] Heads how() const { return {heads, attention}; }
    };
    Transformer2DModel(const nn::Builder& builder, const Sizes& sizes);
    /// `call` calls the blocks.
    [[nodiscard]] nn::Tensor operator()(const nn::Caller& call, nn::Tensor hidden_states,
                                        const nn::Tensor& encoder_hidden_states) const;

  private:
    Rows rows;
    std::deque<BasicTransformerBlock> transformer_blocks;
};

/// Transformer2DModel that is called, and checkpointed, as a whole. args: hidden_states [B, C, H, W],
/// encoder_hidden_states [B, L, C]
class Transformer2DBlock : public nn::Block {
  public:
    Transformer2DBlock(const nn::Builder& parent, const Transformer2DModel::Sizes& sizes);
    [[nodiscard]] nn::Tensors forward(const nn::Tensors& args) const override;

  private:
    Transformer2DBlock(const nn::BlockBuilder& builder, const Transformer2DModel::Sizes& sizes);
    Rows rows;
    std::deque<TransformerLayer> layers;
};

/// Upsample2D.forward_body: nearest, in fp32 where the input is bf16, then a convolution. `size` of rank 0: twice.
[[nodiscard]] nn::Tensor upsample(const nn::Conv& conv, nn::Tensor hidden_states, const nn::Dims& size = {});

}  // namespace vram::models::sd_scripts
