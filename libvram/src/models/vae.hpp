#pragma once

#include <array>

#include "models/model.hpp"

/// What the VAEs of diffusers share (diffusers 0.42.1, models/autoencoders/vae.py and the classes' own blend_v,
/// blend_h).
namespace vram::models {

/// DiagonalGaussianDistribution of an encoder's output: what it holds, {parameters, mean, logvar, std, var}.
[[nodiscard]] nn::Tensors diagonal_gaussian(nn::Tensor parameters);

/// A VAE whose encode and decode take one sample after the other where slicing is on.
class SlicingAutoencoder : public Model {
  public:
    /// encode: the distribution {parameters, mean, logvar, std, var}; decode: {sample}.
    [[nodiscard]] Tensors forward(const Tensors& args, const Request& request) const final;

  private:
    /// _encode → the distribution's parameters, _decode → the sample; tiled if it is asked for and x is larger than a
    /// tile.
    [[nodiscard]] virtual Tensor whole(const Caller& call, const Tensor& x, bool encodes, bool tiling) const = 0;
};

/// One of videos: [B, C, F, H, W] and latents [B, latent_channels, (F - 1) / temporal + 1, H / spatial, W / spatial].
class VideoAutoencoder : public SlicingAutoencoder {
  public:
    [[nodiscard]] std::vector<Value> inputs(const Request& request) const final;
    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const final;

  protected:
    struct Sizes {
        std::int64_t latent_channels, spatial, temporal;
        std::int64_t in_channels = 3, out_channels = 3;  // of what is encoded, and of what is decoded
    };
    explicit VideoAutoencoder(const Sizes& sizes) : spatial_(sizes.spatial), temporal_(sizes.temporal), sizes_(sizes) {}

    std::int64_t spatial_, temporal_;  // compression ratios

  private:
    [[nodiscard]] Dims latents(const Request& request) const;

    Sizes sizes_;
};

/// WanRMS_norm, HunyuanVideo15RMS_norm, channels first: normalized in fp32 over the channels.
class ChannelRmsNorm {
  public:
    ChannelRmsNorm(const nn::Builder& builder, std::string_view name, std::int64_t channels, bool images);
    [[nodiscard]] nn::Tensor operator()(nn::Tensor x) const;

  private:
    nn::Parameter& gamma;
};

/// HunyuanVideoCausalConv3d, HunyuanVideo15CausalConv3d: a cube, padded by replication, in time in front only.
class ReplicationCausalConv3d {
  public:
    ReplicationCausalConv3d(const nn::Builder& builder, std::string_view name, std::int64_t in, std::int64_t out,
                            std::int64_t kernel_size, const std::array<std::int64_t, 3>& stride = {1, 1, 1});
    [[nodiscard]] nn::Tensor operator()(nn::Tensor hidden_states) const;

  private:
    std::int64_t kernel_size_;
    nn::Conv conv;
};

/// How neighbouring tiles are joined: b's first `extent` lines become a mixture with a's last ones, a line at a time
/// and in place. Tiles end with height and width, those of videos with frames, height and width.
class Blend {
  public:
    Blend(const nn::Builder& builder, std::int64_t extent) : Blend(builder, extent, extent) {}
    Blend(const nn::Builder& builder, std::int64_t height, std::int64_t width, std::int64_t time = 0)
        : rows(builder, -2, height), columns(builder, -1, width), frames(builder, -3, time) {}
    void v(const nn::Caller& call, const nn::Tensor& a, const nn::Tensor& b) const { (void)call(rows, {a, b}); }
    void h(const nn::Caller& call, const nn::Tensor& a, const nn::Tensor& b) const { (void)call(columns, {a, b}); }
    void t(const nn::Caller& call, const nn::Tensor& a, const nn::Tensor& b) const { (void)call(frames, {a, b}); }

  private:
    class Lines : public nn::Block {
      public:
        Lines(const nn::Builder& builder, int dim, std::int64_t extent);
        [[nodiscard]] nn::Tensors forward(const nn::Tensors& args) const override;

      private:
        int dim_;
        std::int64_t extent_;
    };
    Lines rows, columns, frames;
};

/// The step of a loop over tiles, in what it counts. Refused where a tile's stride is less than one latent:
/// Python's range refuses a step of 0.
[[nodiscard]] std::int64_t tile_step(std::int64_t stride);

/// The tiles of a tiled_encode or tiled_decode, blended, cut to the strides and put together. `tile` and `result_rows`
/// are names of the caller's, which live on.
[[nodiscard]] nn::Tensor join_tiles(const nn::Caller& call, const std::vector<std::vector<nn::Tensor>>& rows,
                                    nn::Tensor& tile, std::vector<nn::Tensor>& result_rows, const Blend& blend,
                                    std::int64_t stride_height, std::int64_t stride_width);
[[nodiscard]] nn::Tensor join_tiles(const nn::Caller& call, const std::vector<std::vector<nn::Tensor>>& rows,
                                    nn::Tensor& tile, std::vector<nn::Tensor>& result_rows, const Blend& blend,
                                    std::int64_t stride);

}  // namespace vram::models
