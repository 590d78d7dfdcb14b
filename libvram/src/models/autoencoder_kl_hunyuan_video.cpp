// Mirrors AutoencoderKLHunyuanVideo (diffusers 0.42.1, models/autoencoders/autoencoder_kl_hunyuan_video.py;
// AttnProcessor2_0 of models/attention_processor.py).
//
// A clip longer than a tile in time goes through in tiles of frames even where tiling is off; tiling adds tiles of
// places within them. Encoder and decoder are one block each, so that tiles of a size are copied.
#include <array>
#include <bit>
#include <deque>
#include <optional>

#include "models/families.hpp"
#include "models/vae.hpp"

namespace vram::models::autoencoder_kl_hunyuan_video {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::GroupNorm;
using nn::Linear;

using Stride = std::array<std::int64_t, 3>;

/// HunyuanVideoUpsampleCausal3D: the first frame stays one frame.
class HunyuanVideoUpsampleCausal3D {
  public:
    HunyuanVideoUpsampleCausal3D(const Builder& builder, std::int64_t channels, const Stride& upsample_factor)
        : upsample_factor_(upsample_factor), conv(builder, "conv", channels, channels, 3) {}

    [[nodiscard]] Tensor operator()(Tensor hidden_states_in) const {
        const Tensor held = std::move(hidden_states_in);
        Tensor hidden_states = held;
        const std::int64_t num_frames = hidden_states.size(2), height = hidden_states.size(3) * upsample_factor_[1],
                           width = hidden_states.size(4) * upsample_factor_[2];
        Tensors frames = split(hidden_states, Dims{1, num_frames - 1}, 2);
        Tensor first_frame = std::move(frames[0]), other_frames = std::move(frames[1]);
        frames.clear();
        first_frame = unsqueeze(upsample_nearest_to(squeeze(first_frame, 2), {height, width}), 2);
        if (num_frames > 1) {
            other_frames = contiguous(other_frames);
            other_frames = upsample_nearest_to(other_frames, {(num_frames - 1) * upsample_factor_[0], height, width});
            hidden_states = cat({first_frame, other_frames}, 2);
        } else {
            hidden_states = first_frame;
        }
        hidden_states = conv(hidden_states);
        return hidden_states;
    }

  private:
    Stride upsample_factor_;
    ReplicationCausalConv3d conv;
};

class HunyuanVideoResnetBlockCausal3D {
  public:
    HunyuanVideoResnetBlockCausal3D(const Builder& builder, std::int64_t in, std::int64_t out, std::int64_t groups)
        : norm1(builder.group_norm("norm1", groups, in)),
          norm2(builder.group_norm("norm2", groups, out)),
          conv1(builder, "conv1", in, out, 3),
          conv2(builder, "conv2", out, out, 3) {
        if (in != out) conv_shortcut.emplace(builder, "conv_shortcut", in, out, 1);
    }

    [[nodiscard]] Tensor operator()(Tensor hidden_states_in) const {
        const Tensor held = std::move(hidden_states_in);
        Tensor hidden_states = contiguous(held);
        Tensor residual = hidden_states;

        hidden_states = norm1(hidden_states);
        hidden_states = silu(hidden_states);
        hidden_states = conv1(hidden_states);

        hidden_states = norm2(hidden_states);
        hidden_states = silu(hidden_states);
        hidden_states = conv2(hidden_states);

        if (conv_shortcut) residual = (*conv_shortcut)(residual);
        hidden_states = add(hidden_states, residual);
        return hidden_states;
    }

  private:
    GroupNorm norm1, norm2;
    ReplicationCausalConv3d conv1, conv2;
    std::optional<ReplicationCausalConv3d> conv_shortcut;
};

/// [B, T H W, T H W]: a frame sees itself and those before it.
[[nodiscard]] Tensor prepare_causal_attention_mask(Run& run, std::int64_t num_frames, std::int64_t height_width,
                                                   Dtype dtype, std::int64_t batch_size) {
    const std::int64_t places = num_frames * height_width;
    const Tensor indices = arange(run, num_frames, Dtype::i32);
    const Tensor indices_blocks = repeat_interleave(indices, height_width, 0);
    const Tensor x = expand(view(indices_blocks, {1, places}), {places, places});
    const Tensor y = expand(view(indices_blocks, {places, 1}), {places, places});
    Tensor mask;
    {
        const Tensor visible = compare(x, y);
        mask = where_scalars(visible, Dtype::f32);
    }
    mask = to(mask, dtype);
    mask = expand(unsqueeze(mask, 0), {batch_size, -1, -1});
    return mask;
}

/// Attention of one head over all places, with a group norm and a residual: AttnProcessor2_0.
class MidAttention {
  public:
    MidAttention(const Builder& builder, std::int64_t channels, std::int64_t groups)
        : channels_(channels),
          group_norm(builder.group_norm("group_norm", groups, channels)),
          to_q(builder.linear("to_q", channels, channels)),
          to_k(builder.linear("to_k", channels, channels)),
          to_v(builder.linear("to_v", channels, channels)),
          to_out(builder["to_out"].linear("0", channels, channels)) {}

    [[nodiscard]] Tensor operator()(Tensor hidden_states_in, Tensor attention_mask_in) const {
        const Tensor residual = std::move(hidden_states_in);  // [B, T H W, C]
        Tensor attention_mask = std::move(attention_mask_in);
        Tensor hidden_states = residual;
        const std::int64_t batch_size = hidden_states.size(0);
        attention_mask = view(attention_mask, {batch_size, 1, -1, attention_mask.size(-1)});
        hidden_states = transpose(group_norm(transpose(hidden_states, 1, 2)), 1, 2);
        Tensor query = to_q(hidden_states);
        const Tensor encoder_hidden_states = hidden_states;
        Tensor key = to_k(encoder_hidden_states);
        Tensor value = to_v(encoder_hidden_states);
        query = transpose(view(query, {batch_size, -1, 1, channels_}), 1, 2);
        key = transpose(view(key, {batch_size, -1, 1, channels_}), 1, 2);
        value = transpose(view(value, {batch_size, -1, 1, channels_}), 1, 2);
        hidden_states = scaled_dot_product_attention(query, key, value, attention_mask);
        hidden_states = reshape(transpose(hidden_states, 1, 2), {batch_size, -1, channels_});
        hidden_states = to(hidden_states, query.dtype());
        hidden_states = to_out(hidden_states);
        hidden_states = add(hidden_states, residual);
        hidden_states = div_scalar(hidden_states);
        return hidden_states;
    }

  private:
    std::int64_t channels_;
    GroupNorm group_norm;
    Linear to_q, to_k, to_v, to_out;
};

/// HunyuanVideoMidBlock3D: resnet, attention, resnet.
class HunyuanVideoMidBlock3D {
  public:
    HunyuanVideoMidBlock3D(const Builder& builder, std::int64_t channels, std::int64_t groups, bool add_attention)
        : first(builder["resnets"][0], channels, channels, groups),
          second(builder["resnets"][1], channels, channels, groups) {
        if (add_attention) attention.emplace(builder["attentions"][0], channels, groups);
    }

    [[nodiscard]] Tensor operator()(Tensor hidden_states_in) const {
        const Tensor held = std::move(hidden_states_in);
        Tensor hidden_states = first(held), attention_mask;
        if (attention) {
            const std::int64_t batch_size = hidden_states.size(0), num_frames = hidden_states.size(2),
                               height = hidden_states.size(3), width = hidden_states.size(4);
            hidden_states = flatten(permute(hidden_states, {0, 2, 3, 4, 1}), 1, 3);
            attention_mask = prepare_causal_attention_mask(hidden_states.run(), num_frames, height * width,
                                                           hidden_states.dtype(), batch_size);
            hidden_states = (*attention)(hidden_states, attention_mask);
            hidden_states = permute(unflatten(hidden_states, 1, {num_frames, height, width}), {0, 4, 1, 2, 3});
        }
        hidden_states = second(hidden_states);
        return hidden_states;
    }

  private:
    HunyuanVideoResnetBlockCausal3D first, second;
    std::optional<MidAttention> attention;
};

/// HunyuanVideoDownBlock3D, HunyuanVideoUpBlock3D: resnets, then a sampling layer or none.
struct Stage {
    Stage(const Builder& builder, std::int64_t in, std::int64_t out, std::int64_t layers, std::int64_t groups) {
        for (std::int64_t i = 0; i < layers; ++i)
            resnets.emplace_back(builder["resnets"][i], i == 0 ? in : out, out, groups);
    }

    [[nodiscard]] Tensor operator()(Tensor hidden_states_in) const {
        const Tensor held = std::move(hidden_states_in);
        Tensor hidden_states = held;
        for (const HunyuanVideoResnetBlockCausal3D& resnet : resnets) hidden_states = resnet(hidden_states);
        if (downsampler) hidden_states = (*downsampler)(hidden_states);
        if (upsampler) hidden_states = (*upsampler)(hidden_states);
        return hidden_states;
    }

    std::deque<HunyuanVideoResnetBlockCausal3D> resnets;
    std::optional<ReplicationCausalConv3d> downsampler;
    std::optional<HunyuanVideoUpsampleCausal3D> upsampler;
};

/// What encoder and decoder are built from.
struct Settings {
    std::int64_t in_channels, out_channels, latent_channels;
    std::vector<std::int64_t> block_out_channels;
    std::int64_t layers_per_block, groups;
    std::int64_t spatial, temporal;  // compression ratios
    bool mid_block_add_attention;
};

std::int64_t log2_of(std::int64_t power) {
    return static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(power))) - 1;
}

/// By how much the i-th block of encoder or decoder samples: places in the first blocks, frames in the last but one.
Stride sampling(const Settings& settings, std::int64_t i) {
    const auto blocks = static_cast<std::int64_t>(settings.block_out_channels.size());
    const bool spatial = i < log2_of(settings.spatial),
               temporal = i >= blocks - 1 - log2_of(settings.temporal) && i < blocks - 1;
    return {temporal ? 2 : 1, spatial ? 2 : 1, spatial ? 2 : 1};
}
bool samples(const Stride& stride) { return stride != Stride{1, 1, 1}; }

class HunyuanVideoEncoder3D : public nn::Block {
  public:
    HunyuanVideoEncoder3D(const Builder& parent, const Settings& settings)
        : HunyuanVideoEncoder3D(parent.block(*this), settings) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0];
        hidden_states = conv_in(hidden_states);
        for (const Stage& down_block : down_blocks) hidden_states = down_block(hidden_states);
        hidden_states = (*mid_block)(hidden_states);
        hidden_states = conv_norm_out(hidden_states);
        hidden_states = silu(hidden_states);
        hidden_states = (*conv_out)(hidden_states);
        return {hidden_states};
    }

  private:
    HunyuanVideoEncoder3D(const BlockBuilder& builder, const Settings& settings)
        : conv_in(builder, "conv_in", settings.in_channels, settings.block_out_channels.front(), 3) {
        const std::vector<std::int64_t>& channels = settings.block_out_channels;
        std::int64_t in = channels.front();
        for (std::size_t i = 0; i < channels.size(); ++i) {
            const Builder block = builder["down_blocks"][static_cast<std::int64_t>(i)];
            Stage& stage = down_blocks.emplace_back(block, in, channels[i], settings.layers_per_block, settings.groups);
            in = channels[i];
            const Stride stride = sampling(settings, static_cast<std::int64_t>(i));
            if (samples(stride)) stage.downsampler.emplace(block["downsamplers"][0], "conv", in, in, 3, stride);
        }
        mid_block.emplace(builder["mid_block"], in, settings.groups, settings.mid_block_add_attention);
        conv_norm_out = builder.group_norm("conv_norm_out", settings.groups, in);
        conv_out.emplace(builder, "conv_out", in, 2 * settings.latent_channels, 3);
        gemms = settings.mid_block_add_attention;
        builder.finish(*this, "HunyuanVideoEncoder3D", {settings.layers_per_block, settings.mid_block_add_attention});
    }

    ReplicationCausalConv3d conv_in;
    std::deque<Stage> down_blocks;
    std::optional<HunyuanVideoMidBlock3D> mid_block;
    GroupNorm conv_norm_out;
    std::optional<ReplicationCausalConv3d> conv_out;
};

class HunyuanVideoDecoder3D : public nn::Block {
  public:
    HunyuanVideoDecoder3D(const Builder& parent, const Settings& settings)
        : HunyuanVideoDecoder3D(parent.block(*this), settings) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0];
        hidden_states = conv_in(hidden_states);
        hidden_states = mid_block(hidden_states);
        for (const Stage& up_block : up_blocks) hidden_states = up_block(hidden_states);
        hidden_states = conv_norm_out(hidden_states);
        hidden_states = silu(hidden_states);
        hidden_states = (*conv_out)(hidden_states);
        return {hidden_states};
    }

  private:
    HunyuanVideoDecoder3D(const BlockBuilder& builder, const Settings& settings)
        : conv_in(builder, "conv_in", settings.latent_channels, settings.block_out_channels.back(), 3),
          mid_block(builder["mid_block"], settings.block_out_channels.back(), settings.groups,
                    settings.mid_block_add_attention) {
        const std::vector<std::int64_t>& channels = settings.block_out_channels;
        std::int64_t in = channels.back();
        std::int64_t factors = 0;  // of the upsamplers: no module tells them
        for (std::size_t i = 0; i < channels.size(); ++i) {
            const Builder block = builder["up_blocks"][static_cast<std::int64_t>(i)];
            const std::int64_t out = channels[channels.size() - 1 - i];
            Stage& stage = up_blocks.emplace_back(block, in, out, settings.layers_per_block + 1, settings.groups);
            in = out;
            const Stride factor = sampling(settings, static_cast<std::int64_t>(i));
            factors = factors * 4 + (factor[0] - 1) * 2 + factor[1] - 1;
            if (samples(factor)) stage.upsampler.emplace(block["upsamplers"][0], in, factor);
        }
        conv_norm_out = builder.group_norm("conv_norm_out", settings.groups, in);
        conv_out.emplace(builder, "conv_out", in, settings.out_channels, 3);
        gemms = settings.mid_block_add_attention;
        builder.finish(*this, "HunyuanVideoDecoder3D",
                       {settings.layers_per_block, settings.mid_block_add_attention, factors});
    }

    ReplicationCausalConv3d conv_in;
    HunyuanVideoMidBlock3D mid_block;
    std::deque<Stage> up_blocks;
    GroupNorm conv_norm_out;
    std::optional<ReplicationCausalConv3d> conv_out;
};

// tile_sample_min_height and _width, tile_sample_stride_height and _width; the same of num_frames
constexpr std::int64_t tile_size = 256, tile_stride = 192, tile_frames = 16, tile_stride_frames = 12;

class AutoencoderKLHunyuanVideo : public VideoAutoencoder {
  public:
    AutoencoderKLHunyuanVideo(const Builder& builder, const Settings& settings)
        : VideoAutoencoder({settings.latent_channels, settings.spatial, settings.temporal, settings.in_channels,
                            settings.out_channels}),
          encoded_{tile_size / settings.spatial, tile_stride / settings.spatial, tile_frames / settings.temporal,
                   tile_stride_frames / settings.temporal},
          encoder(builder["encoder"], settings),
          decoder(builder["decoder"], settings),
          quant_conv(builder.conv("quant_conv", 2 * settings.latent_channels, 2 * settings.latent_channels, {1, 1, 1},
                                  {1, 1, 1}, {0, 0, 0})),
          post_quant_conv(builder.conv("post_quant_conv", settings.latent_channels, settings.latent_channels, {1, 1, 1},
                                       {1, 1, 1}, {0, 0, 0})),
          blend_encoded(builder, encoded_.overlap(), encoded_.overlap(), encoded_.overlap_frames()),
          blend_decoded(builder, decoded_.overlap(), decoded_.overlap(), decoded_.overlap_frames()) {}

  private:
    /// Tiles of pixels, or of latents.
    struct Tiles {
        std::int64_t size, stride, frames, stride_frames;
        [[nodiscard]] std::int64_t overlap() const { return size - stride; }
        [[nodiscard]] std::int64_t overlap_frames() const { return frames - stride_frames; }
        [[nodiscard]] bool exceeded_by(const Tensor& x) const { return x.size(4) > size || x.size(3) > size; }
    };

    /// A tile through the coder and its pointwise convolution. `tile` and `decoded` are names of the caller's, which
    /// live on; encoding has but the first.
    [[nodiscard]] Tensor piece(const Caller& call, Tensor& tile, Tensor& decoded, bool encodes) const {
        if (encodes) {
            tile = call(encoder, {tile})[0];
            tile = quant_conv(tile);
            return tile;
        }
        tile = post_quant_conv(tile);
        decoded = call(decoder, {tile})[0];
        return decoded;
    }

    // _encode, _decode
    [[nodiscard]] Tensor whole(const Caller& call, const Tensor& x, bool encodes, bool tiling) const override {
        const Tiles& tiles = encodes ? decoded_ : encoded_;
        if (x.size(2) > tiles.frames) return temporal_tiled(call, x, encodes, tiling);
        if (tiling && tiles.exceeded_by(x)) return tiled(call, x, encodes);
        Tensor z = x, dec;
        return piece(call, z, dec, encodes);
    }

    // tiled_encode, tiled_decode
    [[nodiscard]] Tensor tiled(const Caller& call, const Tensor& x, bool encodes) const {
        const Tiles &in = encodes ? decoded_ : encoded_, &out = encodes ? encoded_ : decoded_;
        const std::int64_t height = scaled(x.size(3), encodes), width = scaled(x.size(4), encodes);
        std::vector<std::vector<Tensor>> rows;
        Tensor tile, decoded;
        for (std::int64_t i = 0; i < x.size(3); i += tile_step(in.stride)) {
            std::vector<Tensor> row;
            for (std::int64_t j = 0; j < x.size(4); j += tile_step(in.stride)) {
                tile = slice(slice(x, 3, i, i + in.size), 4, j, j + in.size);
                row.push_back(piece(call, tile, decoded, encodes));
            }
            rows.push_back(std::move(row));
        }
        std::vector<Tensor> result_rows;
        const Tensor joined =
            join_tiles(call, rows, tile, result_rows, encodes ? blend_encoded : blend_decoded, out.stride);
        return slice(slice(joined, 3, 0, height), 4, 0, width);
    }

    // _temporal_tiled_encode, _temporal_tiled_decode: overlapping tiles of frames, each with one more before it.
    [[nodiscard]] Tensor temporal_tiled(const Caller& call, const Tensor& x, bool encodes, bool tiling) const {
        const Tiles &in = encodes ? decoded_ : encoded_, &out = encodes ? encoded_ : decoded_;
        const Blend& blend = encodes ? blend_encoded : blend_decoded;
        const std::int64_t num_frames = encodes ? (x.size(2) - 1) / temporal_ + 1 : (x.size(2) - 1) * temporal_ + 1;
        std::vector<Tensor> row;
        Tensor tile, decoded;
        for (std::int64_t i = 0; i < x.size(2); i += tile_step(in.stride_frames)) {
            tile = slice(x, 2, i, i + in.frames + 1);
            Tensor& result = encodes ? tile : decoded;
            if (tiling && in.exceeded_by(tile))
                result = tiled(call, tile, encodes);
            else
                result = piece(call, tile, decoded, encodes);
            if (i > 0) result = slice(result, 2, 1, result.size(2));
            row.push_back(result);
        }
        std::vector<Tensor> result_row;
        for (std::size_t i = 0; i < row.size(); ++i) {
            tile = row[i];
            if (i > 0) blend.t(call, row[i - 1], tile);
            result_row.push_back(slice(tile, 2, 0, out.stride_frames + (i > 0 ? 0 : 1)));
        }
        return slice(cat(result_row, 2), 2, 0, num_frames);
    }

    [[nodiscard]] std::int64_t scaled(std::int64_t side, bool encodes) const {
        return encodes ? side / spatial_ : side * spatial_;
    }

    static constexpr Tiles decoded_{tile_size, tile_stride, tile_frames, tile_stride_frames};
    Tiles encoded_;
    HunyuanVideoEncoder3D encoder;
    HunyuanVideoDecoder3D decoder;
    nn::Conv quant_conv, post_quant_conv;
    Blend blend_encoded, blend_decoded;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    const profile::Config& config = profile.config;
    return std::make_unique<AutoencoderKLHunyuanVideo>(
        Builder(weights), Settings{.in_channels = config.integer("in_channels", 3),
                                   .out_channels = config.integer("out_channels", 3),
                                   .latent_channels = config.integer("latent_channels", 16),
                                   .block_out_channels = config.integers("block_out_channels"),
                                   .layers_per_block = config.integer("layers_per_block", 2),
                                   .groups = config.integer("norm_num_groups", 32),
                                   .spatial = config.integer("spatial_compression_ratio", 8),
                                   .temporal = config.integer("temporal_compression_ratio", 4),
                                   .mid_block_add_attention = config.boolean("mid_block_add_attention", true)});
}

}  // namespace vram::models::autoencoder_kl_hunyuan_video
