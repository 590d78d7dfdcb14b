// Mirrors AutoencoderKLWan (diffusers 0.42.1, models/autoencoders/autoencoder_kl_wan.py): the VAEs of Wan 2.1 and, with
// residual blocks and patches, Wan 2.2; and AutoencoderKLQwenImage (autoencoder_kl_qwenimage.py), which is the first of
// them under other names but for what `Settings` tells apart.
//
// Both work on pieces of a video: encode takes a frame and then four at a time, decode a latent frame at a time, and
// each causal convolution keeps the last frames of its input for the next piece. Pieces repeat, so encoder and decoder
// are one block each, which is handed what was kept.
#include <array>
#include <deque>
#include <optional>
#include <stdexcept>
#include <string>
#include <variant>

#include "models/families.hpp"
#include "models/vae.hpp"

namespace vram::models {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward

constexpr std::int64_t cache_t = 2;

class WanCausalConv3d {
  public:
    WanCausalConv3d(const Builder& builder, std::string_view name, std::int64_t in, std::int64_t out,
                    const Dims& kernel, const Dims& stride = {1, 1, 1}, const Dims& padding = {0, 0, 0})
        : conv(builder.conv(name, in, out, kernel, stride, {0, 0, 0})), padding_(padding) {}

    [[nodiscard]] Tensor operator()(Tensor x_in, Tensor cache_x = {}) const {
        const Tensor held = std::move(x_in);
        Tensor x = held;
        std::int64_t front = 2 * padding_[0];
        if (cache_x.defined() && front > 0) {
            x = cat({cache_x, x}, 2);
            front -= cache_x.size(2);
        }
        x = pad(x, {padding_[2], padding_[2], padding_[1], padding_[1], front, 0});
        return conv(x);
    }

  private:
    nn::Conv conv;
    Dims padding_;
};

[[nodiscard]] WanCausalConv3d cube(const Builder& builder, std::string_view name, std::int64_t in, std::int64_t out) {
    return {builder, name, in, out, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}};
}
[[nodiscard]] WanCausalConv3d point(const Builder& builder, std::string_view name, std::int64_t in, std::int64_t out) {
    return {builder, name, in, out, {1, 1, 1}};
}

/// feat_cache and feat_idx: what the causal convolutions keep, in the order of their calls. An entry is None in the
/// first piece of a video; one that is undefined in a later piece is an upsampler's "Rep".
class FeatureCache {
  public:
    /// Takes over all but the first.
    explicit FeatureCache(Tensors& args) : first_chunk(args.size() == 1) {
        for (std::size_t i = 1; i < args.size(); ++i) entries_.push_back(std::move(args[i]));
    }
    [[nodiscard]] Tensor& next() {
        if (first_chunk) entries_.emplace_back();
        return entries_[at_++];
    }
    /// `x` and what is kept for the next piece.
    [[nodiscard]] Tensors with(Tensor x) && {
        Tensors out{std::move(x)};
        for (Tensor& entry : entries_) out.push_back(std::move(entry));
        return out;
    }

    const bool first_chunk;

  private:
    std::vector<Tensor> entries_;
    std::size_t at_ = 0;
};

[[nodiscard]] Tensor last_frames(const Tensor& x, std::int64_t frames) { return slice(x, 2, -frames, x.size(2)); }

/// x = conv(x), after the frames kept from the piece before; x's last ones are kept for the next.
void convolve(const WanCausalConv3d& conv, Tensor& x, FeatureCache& feat_cache) {
    Tensor& entry = feat_cache.next();
    Tensor cache_x = clone(last_frames(x, cache_t));
    if (cache_x.size(2) < 2 && entry.defined()) cache_x = cat({last_frames(entry, 1), cache_x}, 2);
    x = conv(x, entry);
    entry = std::move(cache_x);
}

/// WanResample: "upsample2d", "upsample3d", "downsample2d", "downsample3d".
class WanResample {
  public:
    enum class Way : std::uint8_t { up, down };
    WanResample(const Builder& builder, std::int64_t dim, Way way, bool temporal, std::int64_t out)
        : way_(way),
          conv(way == Way::up ? builder["resample"].conv2d("1", dim, out, 3, 1, 1)
                              : builder["resample"].conv2d("1", dim, dim, 3, 2)) {
        if (!temporal) return;
        time_conv = way == Way::up
                        ? WanCausalConv3d(builder, "time_conv", dim, 2 * dim, {3, 1, 1}, {1, 1, 1}, {1, 0, 0})
                        : WanCausalConv3d(builder, "time_conv", dim, dim, {3, 1, 1}, {2, 1, 1});
    }

    [[nodiscard]] Tensor operator()(Tensor x_in, FeatureCache& feat_cache) const {
        const Tensor held = std::move(x_in);
        Tensor x = held;
        const std::int64_t b = x.size(0), c = x.size(1), h = x.size(3), w = x.size(4);
        std::int64_t t = x.size(2);
        Tensor cache_x;
        if (way_ == Way::up && time_conv) {
            Tensor& entry = feat_cache.next();
            if (!feat_cache.first_chunk) {
                cache_x = clone(last_frames(x, cache_t));
                if (cache_x.size(2) < 2 && entry.defined()) cache_x = cat({last_frames(entry, 1), cache_x}, 2);
                if (cache_x.size(2) < 2 && !entry.defined())
                    cache_x = cat({x.run().empty_like(cache_x, Op::zeros), cache_x}, 2);
                x = (*time_conv)(x, entry);
                entry = cache_x;

                x = reshape(x, {b, 2, c, t, h, w});
                const Tensor first = select(x, 1, 0), second = select(x, 1, 1);
                x = stack(std::array{first, second}, 3);
                x = reshape(x, {b, c, 2 * t, h, w});
            }
        }
        t = x.size(2);
        x = reshape(permute(x, {0, 2, 1, 3, 4}), {b * t, c, h, w});
        x = resample(x);
        x = view(x, {b, t, x.size(1), x.size(2), x.size(3)});
        x = permute(x, {0, 2, 1, 3, 4});

        if (way_ == Way::down && time_conv) {
            Tensor& entry = feat_cache.next();
            if (feat_cache.first_chunk) {
                entry = clone(x);
            } else {
                cache_x = clone(last_frames(x, 1));
                x = (*time_conv)(cat({last_frames(entry, 1), x}, 2));
                entry = cache_x;
            }
        }
        return x;
    }

  private:
    // nn.Sequential: WanUpsample or nn.ZeroPad2d, then a convolution
    [[nodiscard]] Tensor resample(Tensor input_in) const {
        const Tensor held = std::move(input_in);
        Tensor input = held;
        if (way_ == Way::up) {
            const Tensor upsampled = upsample_nearest(to_float(input), 2);
            input = to(upsampled, input.dtype());
        } else {
            input = pad(input, {0, 1, 0, 1});
        }
        return conv(input);
    }

    Way way_;
    nn::Conv conv;
    std::optional<WanCausalConv3d> time_conv;
};

class WanResidualBlock {
  public:
    WanResidualBlock(const Builder& builder, std::int64_t in, std::int64_t out)
        : norm1(builder, "norm1", in, false),
          conv1(cube(builder, "conv1", in, out)),
          norm2(builder, "norm2", out, false),
          conv2(cube(builder, "conv2", out, out)) {
        if (in != out) conv_shortcut = point(builder, "conv_shortcut", in, out);
    }

    [[nodiscard]] Tensor operator()(Tensor x_in, FeatureCache& feat_cache) const {
        const Tensor held = std::move(x_in);
        Tensor x = held;
        const Tensor h = conv_shortcut ? (*conv_shortcut)(x) : x;
        x = norm1(x);
        x = silu(x);
        convolve(conv1, x, feat_cache);
        x = norm2(x);
        x = silu(x);
        convolve(conv2, x, feat_cache);
        return add(x, h);
    }

  private:
    ChannelRmsNorm norm1;
    WanCausalConv3d conv1;
    ChannelRmsNorm norm2;
    WanCausalConv3d conv2;
    std::optional<WanCausalConv3d> conv_shortcut;
};

/// One head over the places of each frame.
class WanAttentionBlock {
  public:
    WanAttentionBlock(const Builder& builder, std::int64_t dim)
        : norm(builder, "norm", dim, true),
          to_qkv(builder.conv2d("to_qkv", dim, 3 * dim, 1)),
          proj(builder.conv2d("proj", dim, dim, 1)) {}

    [[nodiscard]] Tensor operator()(Tensor x_in) const {
        const Tensor identity = std::move(x_in);
        Tensor x = identity;
        const std::int64_t batch_size = x.size(0), channels = x.size(1), time = x.size(2), height = x.size(3),
                           width = x.size(4);
        x = reshape(permute(x, {0, 2, 1, 3, 4}), {batch_size * time, channels, height, width});
        x = norm(x);

        Tensor qkv = to_qkv(x);
        qkv = reshape(qkv, {batch_size * time, 1, 3 * channels, -1});
        qkv = contiguous(permute(qkv, {0, 1, 3, 2}));
        const Tensors parts = chunk(qkv, 3, -1);  // q, k, v
        x = scaled_dot_product_attention(parts[0], parts[1], parts[2]);

        x = permute(squeeze(x, 1), {0, 2, 1});
        x = reshape(x, {batch_size * time, channels, height, width});
        x = proj(x);
        x = view(x, {batch_size, time, channels, height, width});
        x = permute(x, {0, 2, 1, 3, 4});
        return add(x, identity);
    }

  private:
    ChannelRmsNorm norm;
    nn::Conv to_qkv, proj;
};

class WanMidBlock {
  public:
    WanMidBlock(const Builder& builder, std::int64_t dim)
        : first(builder["resnets"][0], dim, dim),
          attention(builder["attentions"][0], dim),
          second(builder["resnets"][1], dim, dim) {}

    [[nodiscard]] Tensor operator()(Tensor x_in, FeatureCache& feat_cache) const {
        const Tensor held = std::move(x_in);
        Tensor x = first(held, feat_cache);
        x = attention(x);
        return second(x, feat_cache);
    }

  private:
    WanResidualBlock first;
    WanAttentionBlock attention;
    WanResidualBlock second;
};

/// AvgDown3D: means over the places and channels that fall together.
struct AvgDown3D {
    std::int64_t out_channels, factor_t, factor_s;

    [[nodiscard]] Tensor operator()(Tensor x_in) const {
        const Tensor held = std::move(x_in);
        Tensor x = held;
        const std::int64_t pad_t = (factor_t - x.size(2) % factor_t) % factor_t;
        x = pad(x, {0, 0, 0, 0, pad_t, 0});
        const std::int64_t b = x.size(0), c = x.size(1), t = x.size(2) / factor_t, h = x.size(3) / factor_s,
                           w = x.size(4) / factor_s;
        x = view(x, {b, c, t, factor_t, h, factor_s, w, factor_s});
        x = contiguous(permute(x, {0, 1, 3, 5, 7, 2, 4, 6}));
        x = view(x, {b, out_channels, -1, t, h, w});
        return mean(x, 2, false);
    }
};

/// DupUp3D: repeats channels and spreads them over places.
struct DupUp3D {
    std::int64_t in_channels, out_channels, factor_t, factor_s;

    [[nodiscard]] Tensor operator()(Tensor x_in, bool first_chunk) const {
        const Tensor held = std::move(x_in);
        Tensor x = held;
        const std::int64_t b = x.size(0), t = x.size(2), h = x.size(3), w = x.size(4);
        x = repeat_interleave(x, out_channels * factor_t * factor_s * factor_s / in_channels, 1);
        x = view(x, {b, out_channels, factor_t, factor_s, factor_s, t, h, w});
        x = contiguous(permute(x, {0, 1, 5, 2, 6, 3, 7, 4}));
        x = view(x, {b, out_channels, t * factor_t, h * factor_s, w * factor_s});
        if (first_chunk) x = slice(x, 2, factor_t - 1, x.size(2));
        return x;
    }
};

class WanResidualDownBlock {
  public:
    WanResidualDownBlock(const Builder& builder, std::int64_t in, std::int64_t out, std::int64_t layers, bool temporal,
                         bool down)
        : avg_shortcut{out, temporal ? 2 : 1, down ? 2 : 1} {
        for (std::int64_t i = 0; i < layers; ++i) resnets.emplace_back(builder["resnets"][i], i == 0 ? in : out, out);
        if (down) downsampler.emplace(builder["downsampler"], out, WanResample::Way::down, temporal, out);
    }

    [[nodiscard]] Tensor operator()(Tensor x_in, FeatureCache& feat_cache) const {
        const Tensor held = std::move(x_in);
        Tensor x = held;
        const Tensor x_copy = clone(x);
        for (const WanResidualBlock& resnet : resnets) x = resnet(x, feat_cache);
        if (downsampler) x = (*downsampler)(x, feat_cache);
        return add(x, avg_shortcut(x_copy));
    }

  private:
    AvgDown3D avg_shortcut;
    std::deque<WanResidualBlock> resnets;
    std::optional<WanResample> downsampler;
};

/// WanUpBlock; with a shortcut WanResidualUpBlock.
class WanUpBlock {
  public:
    WanUpBlock(const Builder& builder, std::int64_t in, std::int64_t out, std::int64_t layers, bool temporal, bool up,
               bool residual)
        : residual_(residual) {
        for (std::int64_t i = 0; i <= layers; ++i) resnets.emplace_back(builder["resnets"][i], i == 0 ? in : out, out);
        if (!up) return;
        if (residual) avg_shortcut = DupUp3D{in, out, temporal ? 2 : 1, 2};
        upsampler.emplace(residual ? builder["upsampler"] : builder["upsamplers"][0], out, WanResample::Way::up,
                          temporal, residual ? out : out / 2);
    }

    [[nodiscard]] Tensor operator()(Tensor x_in, FeatureCache& feat_cache) const {
        const Tensor held = std::move(x_in);
        Tensor x = held;
        const Tensor x_copy = residual_ ? clone(x) : Tensor();
        for (const WanResidualBlock& resnet : resnets) x = resnet(x, feat_cache);
        if (upsampler) x = (*upsampler)(x, feat_cache);
        if (avg_shortcut) x = add(x, (*avg_shortcut)(x_copy, feat_cache.first_chunk));
        return x;
    }

  private:
    bool residual_;
    std::deque<WanResidualBlock> resnets;
    std::optional<DupUp3D> avg_shortcut;
    std::optional<WanResample> upsampler;
};

/// What the two classes are told or take for granted.
struct Settings {
    std::int64_t encoder_dim, decoder_dim, z_dim, in_channels, out_channels;
    std::vector<std::int64_t> dim_mult, temperal_downsample;
    std::int64_t num_res_blocks;
    bool is_residual;
    std::int64_t patch_size;  // 1: none
    std::int64_t spatial, temporal;
    bool clamps_tiles;  // what tiled_decode returns
};

/// Encoder and decoder: {x, what was kept} → {x, what is kept}.
class Coder : public nn::Block {
  public:
    Coder() { gemms = false; }
    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensors own = args;
        return take(own);
    }
};

class WanEncoder3d : public Coder {
  public:
    WanEncoder3d(const Builder& parent, const Settings& settings) : WanEncoder3d(parent.block(*this), settings) {}

    [[nodiscard]] Tensors take(Tensors& args) const override {
        FeatureCache feat_cache(args);
        Tensor x = args[0];
        convolve(conv_in, x, feat_cache);
        for (const auto& down_block : down_blocks)
            x = std::visit([&](const auto& layer) { return layer(x, feat_cache); }, down_block);
        x = (*mid_block)(x, feat_cache);
        x = (*norm_out)(x);
        x = silu(x);
        convolve(*conv_out, x, feat_cache);
        return std::move(feat_cache).with(x);
    }

  private:
    WanEncoder3d(const BlockBuilder& builder, const Settings& settings)
        : conv_in(cube(builder, "conv_in", settings.in_channels, settings.encoder_dim)) {
        const Builder blocks = builder["down_blocks"];
        const auto next = [&] { return blocks[static_cast<std::int64_t>(down_blocks.size())]; };
        std::int64_t in = settings.encoder_dim;
        for (std::size_t i = 0; i < settings.dim_mult.size(); ++i) {
            const std::int64_t out = settings.encoder_dim * settings.dim_mult[i];
            const bool down = i + 1 < settings.dim_mult.size(), temporal = down && settings.temperal_downsample[i] != 0;
            if (settings.is_residual) {
                down_blocks.emplace_back(std::in_place_type<WanResidualDownBlock>, next(), in, out,
                                         settings.num_res_blocks, temporal, down);
            } else {
                for (std::int64_t j = 0; j < settings.num_res_blocks; ++j)
                    down_blocks.emplace_back(std::in_place_type<WanResidualBlock>, next(), j == 0 ? in : out, out);
                if (down)
                    down_blocks.emplace_back(std::in_place_type<WanResample>, next(), out, WanResample::Way::down,
                                             temporal, out);
            }
            in = out;
        }
        mid_block.emplace(builder["mid_block"], in);
        norm_out.emplace(builder, "norm_out", in, false);
        conv_out = cube(builder, "conv_out", in, 2 * settings.z_dim);
        builder.finish(*this, "WanEncoder3d", {settings.is_residual});
    }

    WanCausalConv3d conv_in;
    std::deque<std::variant<WanResidualBlock, WanResample, WanResidualDownBlock>> down_blocks;
    std::optional<WanMidBlock> mid_block;
    std::optional<ChannelRmsNorm> norm_out;
    std::optional<WanCausalConv3d> conv_out;
};

class WanDecoder3d : public Coder {
  public:
    WanDecoder3d(const Builder& parent, const Settings& settings) : WanDecoder3d(parent.block(*this), settings) {}

    [[nodiscard]] Tensors take(Tensors& args) const override {
        FeatureCache feat_cache(args);
        Tensor x = args[0];
        convolve(conv_in, x, feat_cache);
        x = mid_block(x, feat_cache);
        for (const WanUpBlock& up_block : up_blocks) x = up_block(x, feat_cache);
        x = (*norm_out)(x);
        x = silu(x);
        convolve(*conv_out, x, feat_cache);
        return std::move(feat_cache).with(x);
    }

  private:
    WanDecoder3d(const BlockBuilder& builder, const Settings& settings)
        : conv_in(cube(builder, "conv_in", settings.z_dim, settings.decoder_dim * settings.dim_mult.back())),
          mid_block(builder["mid_block"], settings.decoder_dim * settings.dim_mult.back()) {
        const std::size_t count = settings.dim_mult.size();
        std::int64_t in = settings.decoder_dim * settings.dim_mult.back();
        for (std::size_t i = 0; i < count; ++i) {
            const std::int64_t out = settings.decoder_dim * settings.dim_mult[count - 1 - i];
            const bool up = i + 1 < count, temporal = up && settings.temperal_downsample[count - 2 - i] != 0;
            if (i > 0 && !settings.is_residual) in /= 2;
            up_blocks.emplace_back(builder["up_blocks"][static_cast<std::int64_t>(i)], in, out, settings.num_res_blocks,
                                   temporal, up, settings.is_residual);
            in = out;
        }
        norm_out.emplace(builder, "norm_out", in, false);
        conv_out = cube(builder, "conv_out", in, settings.out_channels);
        builder.finish(*this, "WanDecoder3d", {settings.is_residual});
    }

    WanCausalConv3d conv_in;
    WanMidBlock mid_block;
    std::deque<WanUpBlock> up_blocks;
    std::optional<ChannelRmsNorm> norm_out;
    std::optional<WanCausalConv3d> conv_out;
};

// [B, C, F, H, W] → [B, C p p, F, H / p, W / p] and back
[[nodiscard]] Tensor patchify(Tensor x_in, std::int64_t p) {
    const Tensor held = std::move(x_in);
    if (p == 1) return held;
    const std::int64_t b = held.size(0), c = held.size(1), f = held.size(2), h = held.size(3) / p, w = held.size(4) / p;
    Tensor x = view(held, {b, c, f, h, p, w, p});
    x = contiguous(permute(x, {0, 1, 6, 4, 2, 3, 5}));
    return view(x, {b, c * p * p, f, h, w});
}
[[nodiscard]] Tensor unpatchify(Tensor x_in, std::int64_t p) {
    const Tensor held = std::move(x_in);
    if (p == 1) return held;
    const std::int64_t b = held.size(0), c = held.size(1) / (p * p), f = held.size(2), h = held.size(3),
                       w = held.size(4);
    Tensor x = view(held, {b, c, p, p, f, h, w});
    x = contiguous(permute(x, {0, 1, 4, 5, 3, 6, 2}));
    return view(x, {b, c, f, h * p, w * p});
}

// tile_sample_min_height and _width, tile_sample_stride_height and _width
constexpr std::int64_t tile_size = 256, tile_stride = 192;

class AutoencoderKLWan : public VideoAutoencoder {
  public:
    AutoencoderKLWan(const Builder& builder, const Settings& settings)
        : VideoAutoencoder({settings.z_dim, settings.spatial, settings.temporal,
                            pictures(settings.in_channels, settings), pictures(settings.out_channels, settings)}),
          settings_(settings),
          encoder(builder["encoder"], settings),
          quant_conv(point(builder, "quant_conv", 2 * settings.z_dim, 2 * settings.z_dim)),
          post_quant_conv(point(builder, "post_quant_conv", settings.z_dim, settings.z_dim)),
          decoder(builder["decoder"], settings),
          blend_encoded(builder, (tile_size - tile_stride) * settings.patch_size / settings.spatial),
          blend_decoded(builder, (tile_size - tile_stride) / settings.patch_size) {
        if (settings.spatial % settings.patch_size != 0 || settings.spatial > tile_stride)
            throw std::logic_error("scale_factor_spatial is no multiple of patch_size up to " +
                                   std::to_string(tile_stride));
    }

  private:
    /// Channels before patchify.
    [[nodiscard]] static std::int64_t pictures(std::int64_t channels, const Settings& settings) {
        return channels / (settings.patch_size * settings.patch_size);
    }

    [[nodiscard]] Tensor whole(const Caller& call, const Tensor& x, bool encodes, bool tiling) const override {
        return encodes ? encode(call, x, tiling) : decode(call, x, tiling);
    }

    /// One piece through encoder or decoder; feat_map is empty before the first.
    [[nodiscard]] static Tensor piece(const Caller& call, const Coder& coder, Tensor x, Tensors& feat_map) {
        Tensors args{std::move(x)};
        for (Tensor& entry : feat_map) args.push_back(std::move(entry));
        feat_map.clear();
        Tensors results = call(coder, std::move(args));
        for (std::size_t i = 1; i < results.size(); ++i) feat_map.push_back(std::move(results[i]));
        return std::move(results[0]);
    }
    /// The frames of the encoder's k-th piece.
    [[nodiscard]] static Tensor frames_of(const Tensor& x, std::int64_t k) {
        return k == 0 ? slice(x, 2, 0, 1) : slice(x, 2, 1 + 4 * (k - 1), 1 + 4 * k);
    }

    // _encode
    [[nodiscard]] Tensor encode(const Caller& call, Tensor x_in, bool tiling) const {
        Tensor x = std::move(x_in);
        const std::int64_t num_frame = x.size(2), height = x.size(3), width = x.size(4);
        x = patchify(x, settings_.patch_size);
        if (tiling && (width > tile_size || height > tile_size)) return tiled_encode(call, x);
        Tensors feat_map;
        Tensor out, out_;
        for (std::int64_t i = 0; i < 1 + (num_frame - 1) / 4; ++i) {
            if (i == 0) {
                out = piece(call, encoder, frames_of(x, 0), feat_map);
            } else {
                out_ = piece(call, encoder, frames_of(x, i), feat_map);
                out = cat({out, out_}, 2);
            }
        }
        return quant_conv(out);
    }

    // _decode
    [[nodiscard]] Tensor decode(const Caller& call, const Tensor& z, bool tiling) const {
        const std::int64_t num_frame = z.size(2), height = z.size(3), width = z.size(4);
        const std::int64_t tile_latent_min = tile_size / spatial_;
        if (tiling && (width > tile_latent_min || height > tile_latent_min)) return tiled_decode(call, z);
        Tensors feat_map;
        const Tensor x = post_quant_conv(z);
        Tensor out, out_;
        for (std::int64_t i = 0; i < num_frame; ++i) {
            if (i == 0) {
                out = piece(call, decoder, slice(x, 2, 0, 1), feat_map);
            } else {
                out_ = piece(call, decoder, slice(x, 2, i, i + 1), feat_map);
                out = cat({out, out_}, 2);
            }
        }
        out = unpatchify(out, settings_.patch_size);
        out = clamp(out);
        return out;
    }

    // x is patchified already, and its sides count as pixels
    [[nodiscard]] Tensor tiled_encode(const Caller& call, const Tensor& x) const {
        const std::int64_t num_frames = x.size(2), height = x.size(3), width = x.size(4);
        const std::int64_t ratio = spatial_ / settings_.patch_size;
        std::vector<std::vector<Tensor>> rows;
        Tensors feat_map;
        std::vector<Tensor> time;
        Tensor tile;
        for (std::int64_t i = 0; i < height; i += tile_stride) {
            std::vector<Tensor> row;
            for (std::int64_t j = 0; j < width; j += tile_stride) {
                feat_map.clear();
                time.clear();
                for (std::int64_t k = 0; k < 1 + (num_frames - 1) / 4; ++k) {
                    tile = slice(slice(frames_of(x, k), 3, i, i + tile_size), 4, j, j + tile_size);
                    tile = piece(call, encoder, tile, feat_map);
                    tile = quant_conv(tile);
                    time.push_back(tile);
                }
                row.push_back(cat(time, 2));
            }
            rows.push_back(std::move(row));
        }
        feat_map.clear();
        std::vector<Tensor> result_rows;
        const Tensor enc = join_tiles(call, rows, tile, result_rows, blend_encoded, tile_stride / ratio);
        return slice(slice(enc, 3, 0, height / ratio), 4, 0, width / ratio);
    }

    [[nodiscard]] Tensor tiled_decode(const Caller& call, const Tensor& z) const {
        const std::int64_t num_frames = z.size(2), height = z.size(3), width = z.size(4);
        const std::int64_t ratio = spatial_, patch_size = settings_.patch_size;
        std::vector<std::vector<Tensor>> rows;
        Tensors feat_map;
        std::vector<Tensor> time;
        Tensor tile, decoded;
        for (std::int64_t i = 0; i < height; i += tile_stride / ratio) {
            std::vector<Tensor> row;
            for (std::int64_t j = 0; j < width; j += tile_stride / ratio) {
                feat_map.clear();
                time.clear();
                for (std::int64_t k = 0; k < num_frames; ++k) {
                    tile = slice(slice(z, 2, k, k + 1), 3, i, i + tile_size / ratio);
                    tile = slice(tile, 4, j, j + tile_size / ratio);
                    tile = post_quant_conv(tile);
                    decoded = piece(call, decoder, tile, feat_map);
                    time.push_back(decoded);
                }
                row.push_back(cat(time, 2));
            }
            rows.push_back(std::move(row));
        }
        feat_map.clear();
        std::vector<Tensor> result_rows;
        Tensor dec = join_tiles(call, rows, tile, result_rows, blend_decoded, tile_stride / patch_size);
        dec = slice(slice(dec, 3, 0, height * ratio / patch_size), 4, 0, width * ratio / patch_size);
        dec = unpatchify(dec, patch_size);
        if (settings_.clamps_tiles) dec = clamp(dec);
        return dec;
    }

    Settings settings_;
    WanEncoder3d encoder;
    WanCausalConv3d quant_conv, post_quant_conv;
    WanDecoder3d decoder;
    Blend blend_encoded, blend_decoded;
};

}  // namespace

std::unique_ptr<Model> autoencoder_kl_wan::build(nn::Weights& weights, const profile::ModelProfile& profile) {
    const profile::Config& config = profile.config;
    const std::int64_t base_dim = config.integer("base_dim");
    return std::make_unique<AutoencoderKLWan>(Builder(weights),
                                              Settings{.encoder_dim = base_dim,
                                                       .decoder_dim = config.integer("decoder_base_dim", base_dim),
                                                       .z_dim = config.integer("z_dim"),
                                                       .in_channels = config.integer("in_channels", 3),
                                                       .out_channels = config.integer("out_channels", 3),
                                                       .dim_mult = config.integers("dim_mult"),
                                                       .temperal_downsample = config.integers("temperal_downsample"),
                                                       .num_res_blocks = config.integer("num_res_blocks"),
                                                       .is_residual = config.boolean("is_residual", false),
                                                       .patch_size = config.integer("patch_size", 1),
                                                       .spatial = config.integer("scale_factor_spatial", 8),
                                                       .temporal = config.integer("scale_factor_temporal", 4),
                                                       .clamps_tiles = true});
}

std::unique_ptr<Model> autoencoder_kl_qwenimage::build(nn::Weights& weights, const profile::ModelProfile& profile) {
    const profile::Config& config = profile.config;
    const std::int64_t base_dim = config.integer("base_dim");
    const std::int64_t channels = config.integer("input_channels", 3);
    const std::vector<std::int64_t>& temperal_downsample = config.integers("temperal_downsample");
    return std::make_unique<AutoencoderKLWan>(Builder(weights),
                                              Settings{.encoder_dim = base_dim,
                                                       .decoder_dim = base_dim,
                                                       .z_dim = config.integer("z_dim"),
                                                       .in_channels = channels,
                                                       .out_channels = channels,
                                                       .dim_mult = config.integers("dim_mult"),
                                                       .temperal_downsample = temperal_downsample,
                                                       .num_res_blocks = config.integer("num_res_blocks"),
                                                       .is_residual = false,
                                                       .patch_size = 1,
                                                       .spatial = std::int64_t{1} << temperal_downsample.size(),
                                                       .temporal = 4,
                                                       .clamps_tiles = false});
}

}  // namespace vram::models
