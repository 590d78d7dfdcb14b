// Mirrors AutoencoderKLCogVideoX (diffusers 0.42.1, models/autoencoders/autoencoder_kl_cogvideox.py;
// CogVideoXUpsample3D of models/upsampling.py, CogVideoXDownsample3D of models/downsampling.py).
//
// A video goes through in pieces of eight frames, or two latent ones, the first with one more; each causal convolution
// keeps the last frames of its input for the next piece. Pieces repeat, so encoder and decoder are one block each,
// which is handed what was kept and returns what is kept.
#include <algorithm>
#include <bit>
#include <deque>
#include <optional>

#include "models/families.hpp"
#include "models/safe_conv3d.hpp"
#include "models/vae.hpp"

namespace vram::models::autoencoder_kl_cogvideox {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::GroupNorm;

/// conv_cache and new_conv_cache, in the order of the convolutions' calls: the old entries stay until the piece is
/// done.
class ConvCache {
  public:
    /// args: a piece, then what was kept of the one before, if there was one.
    explicit ConvCache(const Tensors& args) : args_(args) {}
    [[nodiscard]] Tensor old() {
        ++at_;
        return args_.size() > 1 ? args_[at_] : Tensor();
    }
    void keep(Tensor entry) { kept_.push_back(std::move(entry)); }
    [[nodiscard]] Tensors with(Tensor x) && {
        Tensors out{std::move(x)};
        for (Tensor& entry : kept_) out.push_back(std::move(entry));
        return out;
    }

  private:
    const Tensors& args_;
    std::size_t at_ = 0;
    std::vector<Tensor> kept_;
};

/// CogVideoXCausalConv3d.
class CausalConv3d {
  public:
    CausalConv3d(const Builder& builder, std::string_view name, std::int64_t in, std::int64_t out, std::int64_t kernel)
        : time_kernel_size_(kernel),
          conv(builder[name], "conv", in, out, {kernel, kernel, kernel}, {1, 1, 1},
               {0, (kernel - 1) / 2, (kernel - 1) / 2}) {}

    [[nodiscard]] Tensor operator()(Tensor inputs_in, ConvCache& conv_cache) const {
        const Tensor held = std::move(inputs_in);
        Tensor inputs = held;
        const Tensor old = conv_cache.old();
        if (time_kernel_size_ > 1) {
            const Tensor first = slice(inputs, 2, 0, 1);
            std::vector<Tensor> parts;
            if (old.defined())
                parts.push_back(old);
            else
                parts.assign(static_cast<std::size_t>(time_kernel_size_ - 1), first);
            parts.push_back(inputs);
            inputs = cat(parts, 2);
        }
        // inputs[:, :, -kernel + 1 :]: all of it for a kernel of one frame
        const std::int64_t start = time_kernel_size_ > 1 ? 1 - time_kernel_size_ : 0;
        conv_cache.keep(clone(slice(inputs, 2, start, inputs.size(2))));
        return conv(inputs);
    }

  private:
    std::int64_t time_kernel_size_;
    SafeConv3d conv;
};

/// nn.GroupNorm in the encoder, CogVideoXSpatialNorm3D in the decoder: conditioned on the latents.
class Norm {
  public:
    Norm(const Builder& builder, std::string_view name, std::int64_t channels, std::int64_t zq_channels,
         std::int64_t groups)
        : norm_layer(zq_channels > 0 ? builder[name].group_norm("norm_layer", groups, channels)
                                     : builder.group_norm(name, groups, channels)) {
        if (zq_channels == 0) return;
        conv_y.emplace(builder[name], "conv_y", zq_channels, channels, 1);
        conv_b.emplace(builder[name], "conv_b", zq_channels, channels, 1);
    }

    [[nodiscard]] Tensor operator()(Tensor f_in, const Tensor& latents, ConvCache& conv_cache) const {
        const Tensor f = std::move(f_in);
        if (!conv_y) return norm_layer(f);
        Tensor zq = latents;
        Tensor z_first, z_rest;
        if (f.size(2) > 1 && f.size(2) % 2 == 1) {
            z_first = slice(zq, 2, 0, 1);
            z_rest = slice(zq, 2, 1, zq.size(2));
            z_first = upsample_nearest_to(z_first, {1, f.size(3), f.size(4)});
            z_rest = upsample_nearest_to(z_rest, {f.size(2) - 1, f.size(3), f.size(4)});
            zq = cat({z_first, z_rest}, 2);
        } else {
            zq = upsample_nearest_to(zq, {f.size(2), f.size(3), f.size(4)});
        }
        const Tensor y = (*conv_y)(zq, conv_cache);
        const Tensor b = (*conv_b)(zq, conv_cache);
        const Tensor norm_f = norm_layer(f);
        return add(mul(norm_f, y), b);
    }

  private:
    GroupNorm norm_layer;
    std::optional<CausalConv3d> conv_y, conv_b;
};

/// What encoder and decoder are built from.
struct Settings {
    std::vector<std::int64_t> block_out_channels;
    std::int64_t latent_channels, layers_per_block, groups, temporal_levels;
};

/// CogVideoXResnetBlock3D without a time embedding.
class ResnetBlock3D {
  public:
    ResnetBlock3D(const Builder& builder, std::int64_t in, std::int64_t out, std::int64_t zq_channels,
                  std::int64_t groups)
        : norm1(builder, "norm1", in, zq_channels, groups),
          norm2(builder, "norm2", out, zq_channels, groups),
          conv1(builder, "conv1", in, out, 3),
          conv2(builder, "conv2", out, out, 3) {
        if (in != out)
            conv_shortcut.emplace(builder, "conv_shortcut", in, out, Dims{1, 1, 1}, Dims{1, 1, 1}, Dims{0, 0, 0});
    }

    [[nodiscard]] Tensor operator()(Tensor inputs_in, const Tensor& zq, ConvCache& conv_cache) const {
        const Tensor held = std::move(inputs_in);
        Tensor inputs = held;
        Tensor hidden_states = norm1(inputs, zq, conv_cache);
        hidden_states = silu(hidden_states);
        hidden_states = conv1(hidden_states, conv_cache);
        hidden_states = norm2(hidden_states, zq, conv_cache);
        hidden_states = silu(hidden_states);
        hidden_states = conv2(hidden_states, conv_cache);
        if (conv_shortcut) inputs = (*conv_shortcut)(inputs);
        hidden_states = add(hidden_states, inputs);
        return hidden_states;
    }

  private:
    Norm norm1, norm2;
    CausalConv3d conv1, conv2;
    std::optional<SafeConv3d> conv_shortcut;
};

// [B, C, T, H, W] → [B T, C, H, W] and back
Tensor as_pictures(const Tensor& x) {
    return reshape(permute(x, {0, 2, 1, 3, 4}), {x.size(0) * x.size(2), x.size(1), x.size(3), x.size(4)});
}
Tensor as_video(const Tensor& x, std::int64_t batch, std::int64_t frames) {
    return permute(reshape(x, {batch, frames, x.size(1), x.size(2), x.size(3)}), {0, 2, 1, 3, 4});
}

/// CogVideoXDownsample3D: pairs of frames are averaged, where it compresses time, then a strided convolution.
class Downsample3D {
  public:
    Downsample3D(const Builder& builder, std::int64_t channels, bool compress_time)
        : compress_time_(compress_time), conv(builder.conv2d("conv", channels, channels, 3, 2)) {}

    [[nodiscard]] Tensor operator()(Tensor x_in) const {
        const Tensor held = std::move(x_in);
        Tensor x = held;
        Tensor x_first, x_rest;
        if (compress_time_) {
            const std::int64_t batch_size = x.size(0), channels = x.size(1), frames = x.size(2), height = x.size(3),
                               width = x.size(4);
            x = reshape(permute(x, {0, 3, 4, 1, 2}), {batch_size * height * width, channels, frames});
            if (frames % 2 == 1) {
                x_first = select(x, 2, 0);
                x_rest = slice(x, 2, 1, frames);
                if (x_rest.size(2) > 0) x_rest = avg_pool1d(x_rest, 2, 2);
                x = cat({unsqueeze(x_first, 2), x_rest}, 2);
            } else {
                x = avg_pool1d(x, 2, 2);
            }
            x = permute(reshape(x, {batch_size, height, width, channels, x.size(2)}), {0, 3, 4, 1, 2});
        }
        x = pad(x, {0, 1, 0, 1});
        const std::int64_t batch_size = x.size(0), frames = x.size(2);
        x = as_pictures(x);
        x = conv(x);
        x = as_video(x, batch_size, frames);
        return x;
    }

  private:
    bool compress_time_;
    nn::Conv conv;
};

/// CogVideoXUpsample3D: a first frame that stands alone stays one frame.
class Upsample3D {
  public:
    Upsample3D(const Builder& builder, std::int64_t channels, bool compress_time)
        : compress_time_(compress_time), conv(builder.conv2d("conv", channels, channels, 3, 1, 1)) {}

    [[nodiscard]] Tensor operator()(Tensor inputs_in) const {
        const Tensor held = std::move(inputs_in);
        Tensor inputs = held;
        Tensor x_first, x_rest;
        const std::int64_t frames = inputs.size(2);
        if (!compress_time_) {
            const std::int64_t batch = inputs.size(0);
            inputs = as_pictures(inputs);
            inputs = upsample_nearest(inputs, 2);
            inputs = as_video(inputs, batch, frames);
        } else if (frames > 1 && frames % 2 == 1) {
            x_first = select(inputs, 2, 0);
            x_rest = slice(inputs, 2, 1, frames);
            x_first = upsample_nearest(x_first, 2);
            x_rest = upsample_nearest(x_rest, 2);
            x_first = unsqueeze(x_first, 2);
            inputs = cat({x_first, x_rest}, 2);
        } else if (frames > 1) {
            inputs = upsample_nearest(inputs, 2);
        } else {
            inputs = squeeze(inputs, 2);
            inputs = upsample_nearest(inputs, 2);
            inputs = unsqueeze(inputs, 2);
        }
        const std::int64_t batch = inputs.size(0), length = inputs.size(2);
        inputs = as_pictures(inputs);
        inputs = conv(inputs);
        inputs = as_video(inputs, batch, length);
        return inputs;
    }

  private:
    bool compress_time_;
    nn::Conv conv;
};

/// CogVideoXDownBlock3D, CogVideoXMidBlock3D, CogVideoXUpBlock3D: resnets, then a sampling layer or none.
struct Stage {
    Stage(const Builder& builder, std::int64_t in, std::int64_t out, std::int64_t layers, std::int64_t zq_channels,
          std::int64_t groups) {
        for (std::int64_t i = 0; i < layers; ++i)
            resnets.emplace_back(builder["resnets"][i], i == 0 ? in : out, out, zq_channels, groups);
    }

    [[nodiscard]] Tensor operator()(Tensor hidden_states_in, const Tensor& zq, ConvCache& conv_cache) const {
        const Tensor held = std::move(hidden_states_in);
        Tensor hidden_states = held;
        for (const ResnetBlock3D& resnet : resnets) hidden_states = resnet(hidden_states, zq, conv_cache);
        if (downsampler) hidden_states = (*downsampler)(hidden_states);
        if (upsampler) hidden_states = (*upsampler)(hidden_states);
        return hidden_states;
    }

    std::deque<ResnetBlock3D> resnets;
    std::optional<Downsample3D> downsampler;
    std::optional<Upsample3D> upsampler;
};

/// CogVideoXEncoder3D and CogVideoXDecoder3D: {sample, what was kept} → {hidden_states, what is kept}.
class Coder : public nn::Block {
  public:
    Coder(const Builder& parent, const Settings& settings, bool encodes)
        : Coder(parent.block(*this), settings, encodes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        ConvCache conv_cache(args);
        const Tensor& sample = args[0];
        const Tensor zq = encodes_ ? Tensor() : sample;
        Tensor hidden_states = conv_in(sample, conv_cache);
        for (const Stage& stage : stages) hidden_states = stage(hidden_states, zq, conv_cache);
        hidden_states = (*norm_out)(hidden_states, zq, conv_cache);
        hidden_states = silu(hidden_states);
        hidden_states = (*conv_out)(hidden_states, conv_cache);
        return std::move(conv_cache).with(hidden_states);
    }

  private:
    Coder(const BlockBuilder& builder, const Settings& settings, bool encodes)
        : encodes_(encodes),
          conv_in(builder, "conv_in", encodes ? 3 : settings.latent_channels,
                  encodes ? settings.block_out_channels.front() : settings.block_out_channels.back(), 3) {
        gemms = false;
        const std::vector<std::int64_t>& channels = settings.block_out_channels;
        const std::int64_t zq = encodes ? 0 : settings.latent_channels, groups = settings.groups;
        const auto last = static_cast<std::int64_t>(channels.size()) - 1;
        if (!encodes) stages.emplace_back(builder["mid_block"], channels.back(), channels.back(), 2, zq, groups);
        std::int64_t in = encodes ? channels.front() : channels.back();
        for (std::int64_t i = 0; i <= last; ++i) {
            const Builder block = builder[encodes ? "down_blocks" : "up_blocks"][i];
            const std::int64_t out = channels[static_cast<std::size_t>(encodes ? i : last - i)];
            Stage& stage =
                stages.emplace_back(block, in, out, settings.layers_per_block + (encodes ? 0 : 1), zq, groups);
            const bool compress_time = i < settings.temporal_levels;
            if (i < last && encodes) stage.downsampler.emplace(block["downsamplers"][0], out, compress_time);
            if (i < last && !encodes) stage.upsampler.emplace(block["upsamplers"][0], out, compress_time);
            in = out;
        }
        if (encodes) stages.emplace_back(builder["mid_block"], in, in, 2, zq, groups);
        norm_out.emplace(builder, "norm_out", in, zq, groups);
        conv_out.emplace(builder, "conv_out", in, encodes ? 2 * settings.latent_channels : 3, 3);
        builder.finish(*this, "CogVideoXCoder3D", {encodes, settings.layers_per_block, settings.temporal_levels});
    }

    bool encodes_;
    CausalConv3d conv_in;
    std::deque<Stage> stages;
    std::optional<Norm> norm_out;
    std::optional<CausalConv3d> conv_out;
};

/// Height and width of something about tiles.
struct Extent {
    std::int64_t height, width;
};
// int(extent.height * height), int(extent.width * width)
Extent scaled(const Extent& extent, double height, double width) {
    return {static_cast<std::int64_t>(static_cast<double>(extent.height) * height),
            static_cast<std::int64_t>(static_cast<double>(extent.width) * width)};
}

class AutoencoderKLCogVideoX : public VideoAutoencoder {
  public:
    AutoencoderKLCogVideoX(const Builder& builder, const Settings& settings, const Extent& sample)
        : VideoAutoencoder({settings.latent_channels, std::int64_t{1} << (settings.block_out_channels.size() - 1),
                            std::int64_t{1} << settings.temporal_levels}),
          tile_sample_min_{sample.height / 2, sample.width / 2},
          tile_latent_min_{tile_sample_min_.height / spatial_, tile_sample_min_.width / spatial_},
          encoder(builder["encoder"], settings, true),
          decoder(builder["decoder"], settings, false),
          blend_encoded(builder, blended(tile_latent_min_).height, blended(tile_latent_min_).width),
          blend_decoded(builder, blended(tile_sample_min_).height, blended(tile_sample_min_).width) {}

  private:
    static constexpr double overlap_factor_height = 1.0 / 6, overlap_factor_width = 1.0 / 5;
    [[nodiscard]] static Extent blended(const Extent& tile) {
        return scaled(tile, overlap_factor_height, overlap_factor_width);
    }

    /// The pieces of a video through encoder or decoder. `part`, `conv_cache` and `parts` are names of the caller's,
    /// which live on.
    [[nodiscard]] Tensor pieces(const Caller& call, const Tensor& x, bool encodes, Tensor& part, Tensors& conv_cache,
                                std::vector<Tensor>& parts) const {
        const std::int64_t frame_batch_size = encodes ? 8 : 2, num_frames = x.size(2);
        const std::int64_t remaining_frames = num_frames % frame_batch_size;
        conv_cache.clear();
        parts.clear();
        for (std::int64_t i = 0; i < std::max<std::int64_t>(num_frames / frame_batch_size, 1); ++i) {
            const std::int64_t start = frame_batch_size * i + (i == 0 ? 0 : remaining_frames),
                               end = frame_batch_size * (i + 1) + remaining_frames;
            part = slice(x, 2, start, end);
            Tensors inputs{part};
            for (const Tensor& entry : conv_cache) inputs.push_back(entry);
            Tensors results = call(encodes ? encoder : decoder, std::move(inputs));
            part = results[0];
            conv_cache.clear();
            for (std::size_t k = 1; k < results.size(); ++k) conv_cache.push_back(std::move(results[k]));
            parts.push_back(part);
        }
        return cat(parts, 2);
    }

    // _encode, _decode
    [[nodiscard]] Tensor whole(const Caller& call, const Tensor& x, bool encodes, bool tiling) const override {
        const Extent& most = encodes ? tile_sample_min_ : tile_latent_min_;
        if (tiling && (x.size(4) > most.width || x.size(3) > most.height)) return tiled(call, x, encodes);
        Tensor part;
        Tensors conv_cache;
        std::vector<Tensor> parts;
        return pieces(call, x, encodes, part, conv_cache, parts);
    }

    // tiled_encode, tiled_decode: overlapping tiles, blended into each other in place, cut and joined.
    [[nodiscard]] Tensor tiled(const Caller& call, const Tensor& x, bool encodes) const {
        const Extent &min = encodes ? tile_sample_min_ : tile_latent_min_,
                     &out = encodes ? tile_latent_min_ : tile_sample_min_;
        const Extent overlap = scaled(min, 1 - overlap_factor_height, 1 - overlap_factor_width);
        const Extent limit{out.height - blended(out).height, out.width - blended(out).width};
        const Blend& blend = encodes ? blend_encoded : blend_decoded;
        std::vector<std::vector<Tensor>> rows;
        Tensor tile;
        Tensors conv_cache;
        std::vector<Tensor> time;
        for (std::int64_t i = 0; i < x.size(3); i += tile_step(overlap.height)) {
            std::vector<Tensor> row;
            for (std::int64_t j = 0; j < x.size(4); j += tile_step(overlap.width)) {
                const Tensor part = slice(slice(x, 3, i, i + min.height), 4, j, j + min.width);
                row.push_back(pieces(call, part, encodes, tile, conv_cache, time));
            }
            rows.push_back(std::move(row));
        }
        std::vector<Tensor> result_rows;
        return join_tiles(call, rows, tile, result_rows, blend, limit.height, limit.width);
    }

    Extent tile_sample_min_, tile_latent_min_;
    Coder encoder, decoder;
    Blend blend_encoded, blend_decoded;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    const profile::Config& config = profile.config;
    const auto ratio = static_cast<std::uint64_t>(config.integer("temporal_compression_ratio", 4));
    return std::make_unique<AutoencoderKLCogVideoX>(
        Builder(weights),
        Settings{config.integers("block_out_channels"), config.integer("latent_channels"),
                 config.integer("layers_per_block"), config.integer("norm_num_groups", 32),
                 static_cast<std::int64_t>(std::bit_width(ratio)) - 1},
        Extent{config.integer("sample_height", 480), config.integer("sample_width", 720)});
}

}  // namespace vram::models::autoencoder_kl_cogvideox
