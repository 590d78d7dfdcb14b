#pragma once

#include <string_view>

#include "nn/module.hpp"

/// The blocks of the autoencoder that Black Forest Labs wrote for FLUX.1 and FLUX.2 (src/flux/modules/autoencoder.py
/// there), which trainers' own classes have kept. `tree`: the file of the class that they stand in, for their names.
namespace vram::models::bfl_autoencoder {

constexpr std::int64_t groups = 32;

/// x * sigmoid(x), a tensor more than silu makes
[[nodiscard]] nn::Tensor swish(const nn::Tensor& x);

/// args: x [B, C, H, W]
class ResnetBlock : public nn::Block {
  public:
    ResnetBlock(const nn::Builder& parent, std::string_view tree, std::int64_t in, std::int64_t out);
    [[nodiscard]] nn::Tensors forward(const nn::Tensors& args) const override;

  private:
    ResnetBlock(const nn::BlockBuilder& builder, std::string_view tree, std::int64_t in, std::int64_t out);
    nn::GroupNorm norm1;
    nn::Conv conv1;
    nn::GroupNorm norm2;
    nn::Conv conv2, nin_shortcut;
    bool has_shortcut_;
};

/// Attention whose projections are convolutions. args: x [B, C, H, W]
class AttnBlock : public nn::Block {
  public:
    AttnBlock(const nn::Builder& parent, std::string_view tree, std::int64_t channels);
    [[nodiscard]] nn::Tensors forward(const nn::Tensors& args) const override;

  private:
    AttnBlock(const nn::BlockBuilder& builder, std::string_view tree, std::int64_t channels);
    [[nodiscard]] nn::Tensor attention(const nn::Tensor& x) const;
    nn::GroupNorm norm;
    nn::Conv q, k, v, proj_out;
};

/// The `mid` of both halves.
class Middle {
  public:
    Middle(const nn::Builder& builder, std::string_view tree, std::int64_t channels);
    [[nodiscard]] nn::Tensor operator()(const nn::Caller& call, nn::Tensor h) const;

  private:
    ResnetBlock block_1;
    AttnBlock attn_1;
    ResnetBlock block_2;
};

}  // namespace vram::models::bfl_autoencoder
