#pragma once

#include <array>
#include <deque>

#include "models/normalization.hpp"
#include "models/transformer_2d.hpp"

/// What the HunyuanVideo classes share (diffusers 0.42.1, models/transformers/transformer_hunyuan_video.py,
/// transformer_hunyuan_video15.py).
namespace vram::models::hunyuan {

struct Sizes {
    std::int64_t dim, heads, head_dim, mlp_dim;
    bool square_mask = false;  // the text's mask comes as it is; attention makes [B, 1, S+T, S+T] of it
};

/// HunyuanVideoAttnProcessor2_0, HunyuanVideo15AttnProcessor2_0: {hidden_states, encoder_hidden_states}, the video's
/// tokens and the text's.
class Attention {
  public:
    /// Not `joint`: pre_only, the block projects the output itself.
    Attention(const nn::Builder& builder, const Sizes& sizes, bool joint);
    [[nodiscard]] nn::Tensors operator()(nn::Tensor hidden_states, nn::Tensor encoder_hidden_states,
                                         const nn::Tensor& attention_mask, const nn::Tensor& cos,
                                         const nn::Tensor& sin) const;

  private:
    std::int64_t heads_;
    bool joint_, square_mask_;
    PlainRmsNorm norm_q, norm_k;
    nn::Linear to_q, to_k, to_v, add_k_proj, add_v_proj, add_q_proj, to_out, to_add_out;
    PlainRmsNorm norm_added_q, norm_added_k;
};

/// args: hidden_states, encoder_hidden_states, temb, attention_mask [B, 1, 1, S+T] (or the text's [B, T]), cos, sin →
/// hidden_states, encoder_hidden_states
class TransformerBlock : public nn::Block {
  public:
    TransformerBlock(const nn::Builder& parent, const Sizes& sizes) : TransformerBlock(parent.block(*this), sizes) {}
    [[nodiscard]] nn::Tensors forward(const nn::Tensors& args) const override;

  private:
    TransformerBlock(const nn::BlockBuilder& builder, const Sizes& sizes);

    AdaLayerNormZero norm1, norm1_context;
    Attention attn;
    nn::LayerNorm norm2;
    FeedForward ff;
    nn::LayerNorm norm2_context;
    FeedForward ff_context;
};

/// args: hidden_states, temb, attention_mask [B, 1, T, T] → hidden_states
class TokenRefinerBlock : public nn::Block {
  public:
    TokenRefinerBlock(const nn::Builder& parent, const Sizes& sizes) : TokenRefinerBlock(parent.block(*this), sizes) {}
    [[nodiscard]] nn::Tensors forward(const nn::Tensors& args) const override;

  private:
    TokenRefinerBlock(const nn::BlockBuilder& builder, const Sizes& sizes);

    nn::LayerNorm norm1;
    models::Attention attn;
    nn::LayerNorm norm2;
    FeedForward ff;
    nn::Linear norm_out;  // HunyuanVideoAdaNorm
};

/// HunyuanVideoTokenRefiner: text [B, T, in] with attention_mask [B, T] → [B, T, D]. Never checkpointed.
class TokenRefiner {
  public:
    TokenRefiner() = default;
    TokenRefiner(const nn::Builder& builder, std::int64_t in, const Sizes& sizes, std::int64_t layers);
    [[nodiscard]] nn::Tensor operator()(nn::Tensor hidden_states, const nn::Tensor& timestep,
                                        const nn::Tensor& attention_mask) const;

  private:
    [[nodiscard]] nn::Tensor time_text_embed(const nn::Tensor& timestep, const nn::Tensor& pooled_projection) const;
    [[nodiscard]] nn::Tensor refine(nn::Tensor hidden_states, const nn::Tensor& temb,
                                    const nn::Tensor& attention_mask) const;

    TimestepEmbedding timestep_embedder;
    TextProjection text_embedder;
    nn::Linear proj_in;
    std::deque<TokenRefinerBlock> refiner_blocks;
};

/// HunyuanVideoRotaryPosEmbed: frames, height and width in patches → cos, sin [S, head_dim].
[[nodiscard]] nn::Tensors rotary_pos_embed(nn::Run& run, const std::array<std::int64_t, 3>& sizes,
                                           const std::vector<std::int64_t>& axes_dim);
/// The same of a grid [3, F, H, W].
[[nodiscard]] nn::Tensors rotary_of(nn::Tensor grid, const std::vector<std::int64_t>& axes_dim);

/// FramePack, frames of its history as pipeline and trainer hand them over: a picture and the last frame, then two and
/// sixteen older ones.
inline constexpr std::int64_t clean_frames = 2, frames_2x = 2, frames_4x = 16;
/// Tokens of its picture: SigLIP at 384 pixels.
inline constexpr std::int64_t image_tokens = 729;
/// FramePack's _pad_for_3d_conv: [.., F, H, W] up to a multiple of the kernel, each way.
[[nodiscard]] nn::Tensor pad_for_3d_conv(const nn::Tensor& x, const nn::Dims& kernel_size);

/// [B, S, patch · channels] → [B, channels, F, H, W]; `grid` in patches, `patch` of time and space.
[[nodiscard]] nn::Tensor unpatchify(nn::Tensor hidden_states, const std::array<std::int64_t, 3>& grid,
                                    std::int64_t patch_size_t, std::int64_t patch_size);

}  // namespace vram::models::hunyuan
