// Mirrors AutoencoderKLHunyuanVideo15 (diffusers 0.42.1, models/autoencoders/autoencoder_kl_hunyuanvideo15.py). The
// whole clip goes through at once. Its attention takes one video at a time: of a batch the mask fits no kernel, unless
// slicing is on.
#include <bit>
#include <deque>
#include <optional>
#include <stdexcept>

#include "models/families.hpp"
#include "models/vae.hpp"

namespace vram::models::autoencoder_kl_hunyuanvideo15 {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward

/// HunyuanVideo15ResnetBlock.
class ResnetBlock {
  public:
    ResnetBlock(const Builder& builder, std::int64_t in, std::int64_t out)
        : norm1(builder, "norm1", in, false),
          conv1(builder, "conv1", in, out, 3),
          norm2(builder, "norm2", out, false),
          conv2(builder, "conv2", out, out, 3) {
        if (in != out) conv_shortcut = builder.conv("conv_shortcut", in, out, {1, 1, 1}, {1, 1, 1}, {0, 0, 0});
    }

    [[nodiscard]] Tensor operator()(Tensor hidden_states_in) const {
        const Tensor held = std::move(hidden_states_in);
        Tensor residual = held;
        Tensor hidden_states = norm1(held);
        hidden_states = silu(hidden_states);
        hidden_states = conv1(hidden_states);
        hidden_states = norm2(hidden_states);
        hidden_states = silu(hidden_states);
        hidden_states = conv2(hidden_states);
        if (conv_shortcut) residual = (*conv_shortcut)(residual);
        return add(hidden_states, residual);
    }

  private:
    ChannelRmsNorm norm1;
    ReplicationCausalConv3d conv1;
    ChannelRmsNorm norm2;
    ReplicationCausalConv3d conv2;
    std::optional<nn::Conv> conv_shortcut;
};

/// HunyuanVideo15AttnBlock: one head over all places, a frame sees itself and those before it.
class AttnBlock {
  public:
    AttnBlock(const Builder& builder, std::int64_t channels)
        : norm(builder, "norm", channels, false),
          to_q(point(builder, "to_q", channels)),
          to_k(point(builder, "to_k", channels)),
          to_v(point(builder, "to_v", channels)),
          proj_out(point(builder, "proj_out", channels)) {}

    [[nodiscard]] Tensor operator()(Tensor x_in) const {
        const Tensor identity = std::move(x_in);
        Tensor x = norm(identity);
        Tensor query = to_q(x);
        Tensor key = to_k(x);
        Tensor value = to_v(x);
        const Dims sizes = query.sizes();
        query = places(query);
        key = places(key);
        value = places(value);
        const Tensor attention_mask = causal_mask(query, sizes[0]);
        x = scaled_dot_product_attention(query, key, value, attention_mask);
        x = reshape(squeeze(x, 1), {sizes[0], sizes[2], sizes[3], sizes[4], sizes[1]});
        x = permute(x, {0, 4, 1, 2, 3});
        x = proj_out(x);
        return add(x, identity);
    }

  private:
    static nn::Conv point(const Builder& builder, std::string_view name, std::int64_t channels) {
        return builder.conv(name, channels, channels, {1, 1, 1}, {1, 1, 1}, {0, 0, 0});
    }
    // [B, C, T, H, W] → [B, 1, T H W, C]
    static Tensor places(const Tensor& x) {
        Tensor out = reshape(x, {x.size(0), x.size(1), x.size(2) * x.size(3) * x.size(4)});
        return contiguous(unsqueeze(permute(std::move(out), {0, 2, 1}), 1));
    }
    // prepare_causal_attention_mask, which fills it row by row with a zero that is made for each
    static Tensor causal_mask(const Tensor& query, std::int64_t batch_size) {
        Run& run = query.run();
        const std::int64_t seq_len = query.size(2);
        const Tensor mask = run.empty({seq_len, seq_len}, query.dtype(), Op::full);
        (void)run.empty({}, query.dtype(), Op::full);
        return expand(unsqueeze(unsqueeze(mask, 0), 0), {batch_size, 1, seq_len, seq_len});
    }

    ChannelRmsNorm norm;
    nn::Conv to_q, to_k, to_v, proj_out;
};

// _dcae_upsample_rearrange: channels become frames, lines and columns
Tensor spread(Tensor tensor, std::int64_t r1) {
    const std::int64_t b = tensor.size(0), c = tensor.size(1) / (r1 * 4), f = tensor.size(2), h = tensor.size(3),
                       w = tensor.size(4);
    tensor = view(tensor, {b, r1, 2, 2, c, f, h, w});
    tensor = permute(tensor, {0, 4, 5, 1, 6, 2, 7, 3});
    return reshape(tensor, {b, c, f * r1, h * 2, w * 2});
}
// _dcae_downsample_rearrange: the other way round
Tensor packed(Tensor tensor, std::int64_t r1) {
    const std::int64_t b = tensor.size(0), c = tensor.size(1), f = tensor.size(2) / r1, h = tensor.size(3) / 2,
                       w = tensor.size(4) / 2;
    tensor = view(tensor, {b, c, f, r1, h, 2, w, 2});
    tensor = permute(tensor, {0, 3, 5, 7, 1, 2, 4, 6});
    return reshape(tensor, {b, r1 * 4 * c, f, h, w});
}
Tensor first_frame(const Tensor& x) { return slice(x, 2, 0, 1); }
Tensor next_frames(const Tensor& x) { return slice(x, 2, 1, x.size(2)); }

/// HunyuanVideo15Upsample: the first frame stays one frame.
class Upsample {
  public:
    Upsample(const Builder& builder, std::int64_t in, std::int64_t out, bool temporal)
        : temporal_(temporal),
          repeats_((temporal ? 8 : 4) * out / in),
          conv(builder, "conv", in, out * (temporal ? 8 : 4), 3) {}

    [[nodiscard]] Tensor operator()(Tensor x_in) const {
        const Tensor x = std::move(x_in);
        Tensor h = conv(x), h_first, h_next, x_first, x_next, shortcut;
        if (temporal_) {
            h_first = first_frame(h);
            h_first = spread(h_first, 1);
            h_first = slice(h_first, 1, 0, h_first.size(1) / 2);
            h_next = next_frames(h);
            h_next = spread(h_next, 2);
            h = cat({h_first, h_next}, 2);

            x_first = first_frame(x);
            x_first = spread(x_first, 1);
            x_first = repeat_interleave(x_first, repeats_ / 2, 1);
            x_next = next_frames(x);
            x_next = spread(x_next, 2);
            x_next = repeat_interleave(x_next, repeats_, 1);
            shortcut = cat({x_first, x_next}, 2);
        } else {
            h = spread(h, 1);
            shortcut = repeat_interleave(x, repeats_, 1);
            shortcut = spread(shortcut, 1);
        }
        return add(h, shortcut);
    }

  private:
    bool temporal_;
    std::int64_t repeats_;
    ReplicationCausalConv3d conv;
};

/// HunyuanVideo15Downsample.
class Downsample {
  public:
    Downsample(const Builder& builder, std::int64_t in, std::int64_t out, bool temporal)
        : temporal_(temporal),
          group_size_((temporal ? 8 : 4) * in / out),
          conv(builder, "conv", in, out / (temporal ? 8 : 4), 3) {}

    [[nodiscard]] Tensor operator()(Tensor x_in) const {
        const Tensor x = std::move(x_in);
        Tensor h = conv(x), h_first, h_next, x_first, x_next, shortcut;
        if (temporal_) {
            h_first = first_frame(h);
            h_first = packed(h_first, 1);
            h_first = cat({h_first, h_first}, 1);
            h_next = next_frames(h);
            h_next = packed(h_next, 2);
            h = cat({h_first, h_next}, 2);

            x_first = first_frame(x);
            x_first = packed(x_first, 1);
            x_first = averaged(x_first, h.size(1), group_size_ / 2);
            x_next = next_frames(x);
            x_next = packed(x_next, 2);
            x_next = averaged(x_next, h.size(1), group_size_);
            shortcut = cat({x_first, x_next}, 2);
        } else {
            h = packed(h, 1);
            shortcut = packed(x, 1);
            shortcut = averaged(shortcut, h.size(1), group_size_);
        }
        return add(h, shortcut);
    }

    /// Of groups of channels.
    [[nodiscard]] static Tensor averaged(const Tensor& x, std::int64_t groups, std::int64_t group_size) {
        return mean(view(x, {x.size(0), groups, group_size, x.size(2), x.size(3), x.size(4)}), 2, false);
    }

  private:
    bool temporal_;
    std::int64_t group_size_;
    ReplicationCausalConv3d conv;
};

/// HunyuanVideo15MidBlock: resnet, attention, resnet.
class MidBlock {
  public:
    MidBlock(const Builder& builder, std::int64_t channels)
        : attention(builder["attentions"][0], channels),
          first(builder["resnets"][0], channels, channels),
          second(builder["resnets"][1], channels, channels) {}

    [[nodiscard]] Tensor operator()(Tensor hidden_states_in) const {
        const Tensor held = std::move(hidden_states_in);
        Tensor hidden_states = first(held);
        hidden_states = attention(hidden_states);
        return second(hidden_states);
    }

  private:
    AttnBlock attention;
    ResnetBlock first, second;
};

/// HunyuanVideo15DownBlock3D, HunyuanVideo15UpBlock3D: resnets, then a sampling layer or none.
struct Stage {
    Stage(const Builder& builder, std::int64_t in, std::int64_t out, std::int64_t layers) {
        for (std::int64_t i = 0; i < layers; ++i) resnets.emplace_back(builder["resnets"][i], i == 0 ? in : out, out);
    }

    [[nodiscard]] Tensor operator()(Tensor hidden_states_in) const {
        const Tensor held = std::move(hidden_states_in);
        Tensor hidden_states = held;
        for (const ResnetBlock& resnet : resnets) hidden_states = resnet(hidden_states);
        if (downsampler) hidden_states = (*downsampler)(hidden_states);
        if (upsampler) hidden_states = (*upsampler)(hidden_states);
        return hidden_states;
    }

    std::deque<ResnetBlock> resnets;
    std::optional<Downsample> downsampler;
    std::optional<Upsample> upsampler;
};

struct Settings {
    std::vector<std::int64_t> block_out_channels;  // from the pictures on
    std::int64_t latent_channels, layers_per_block, spatial, temporal;
    [[nodiscard]] std::int64_t spatial_levels() const { return levels(spatial); }
    [[nodiscard]] std::int64_t temporal_levels() const { return levels(temporal); }

  private:
    static std::int64_t levels(std::int64_t ratio) {
        return static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(ratio))) - 1;
    }
};

/// HunyuanVideo15Encoder3D: {sample} → {hidden_states}.
class Encoder : public nn::Block {
  public:
    Encoder(const Builder& parent, const Settings& settings) : Encoder(parent.block(*this), settings) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = conv_in(args[0]);
        for (const Stage& down_block : down_blocks) hidden_states = down_block(hidden_states);
        hidden_states = (*mid_block)(hidden_states);
        const Tensor short_cut =
            Downsample::averaged(hidden_states, out_channels_, hidden_states.size(1) / out_channels_);
        hidden_states = (*norm_out)(hidden_states);
        hidden_states = silu(hidden_states);
        hidden_states = (*conv_out)(hidden_states);
        add_(hidden_states, short_cut);
        return {hidden_states};
    }

  private:
    Encoder(const BlockBuilder& builder, const Settings& settings)
        : out_channels_(2 * settings.latent_channels),
          conv_in(builder, "conv_in", 3, settings.block_out_channels.front(), 3) {
        gemms = false;
        const std::vector<std::int64_t>& channels = settings.block_out_channels;
        std::int64_t in = channels.front();
        for (std::int64_t i = 0; i < static_cast<std::int64_t>(channels.size()); ++i) {
            const Builder block = builder["down_blocks"][i];
            const std::int64_t out = channels[static_cast<std::size_t>(i)];
            Stage& stage = down_blocks.emplace_back(block, in, out, settings.layers_per_block);
            in = out;
            if (i >= settings.spatial_levels()) continue;
            in = channels[static_cast<std::size_t>(i) + 1];
            stage.downsampler.emplace(block["downsamplers"][0], out, in,
                                      i >= settings.spatial_levels() - settings.temporal_levels());
        }
        mid_block.emplace(builder["mid_block"], channels.back());
        norm_out.emplace(builder, "norm_out", channels.back(), false);
        conv_out.emplace(builder, "conv_out", channels.back(), out_channels_, 3);
        builder.finish(*this, "HunyuanVideo15Encoder3D", {out_channels_});
    }

    std::int64_t out_channels_;
    ReplicationCausalConv3d conv_in;
    std::deque<Stage> down_blocks;
    std::optional<MidBlock> mid_block;
    std::optional<ChannelRmsNorm> norm_out;
    std::optional<ReplicationCausalConv3d> conv_out;
};

/// HunyuanVideo15Decoder3D: {latents} → {sample}.
class Decoder : public nn::Block {
  public:
    Decoder(const Builder& parent, const Settings& settings) : Decoder(parent.block(*this), settings) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states;
        {
            Tensor convolved = conv_in(args[0]);
            Tensor repeated = repeat_interleave(args[0], repeat_, 1);
            hidden_states = add(std::move(convolved), std::move(repeated));
        }
        hidden_states = (*mid_block)(hidden_states);
        for (const Stage& up_block : up_blocks) hidden_states = up_block(hidden_states);
        hidden_states = (*norm_out)(hidden_states);
        hidden_states = silu(hidden_states);
        return {(*conv_out)(hidden_states)};
    }

  private:
    Decoder(const BlockBuilder& builder, const Settings& settings)
        : repeat_(settings.block_out_channels.back() / settings.latent_channels),
          conv_in(builder, "conv_in", settings.latent_channels, settings.block_out_channels.back(), 3) {
        gemms = false;
        const std::vector<std::int64_t> channels(settings.block_out_channels.rbegin(),
                                                 settings.block_out_channels.rend());
        mid_block.emplace(builder["mid_block"], channels.front());
        std::int64_t in = channels.front();
        for (std::int64_t i = 0; i < static_cast<std::int64_t>(channels.size()); ++i) {
            const Builder block = builder["up_blocks"][i];
            const std::int64_t out = channels[static_cast<std::size_t>(i)];
            Stage& stage = up_blocks.emplace_back(block, in, out, settings.layers_per_block + 1);
            in = out;
            if (i >= settings.spatial_levels()) continue;
            in = channels[static_cast<std::size_t>(i) + 1];
            stage.upsampler.emplace(block["upsamplers"][0], out, in, i < settings.temporal_levels());
        }
        norm_out.emplace(builder, "norm_out", channels.back(), false);
        conv_out.emplace(builder, "conv_out", channels.back(), 3, 3);
        builder.finish(*this, "HunyuanVideo15Decoder3D", {repeat_});
    }

    std::int64_t repeat_;
    ReplicationCausalConv3d conv_in;
    std::optional<MidBlock> mid_block;
    std::deque<Stage> up_blocks;
    std::optional<ChannelRmsNorm> norm_out;
    std::optional<ReplicationCausalConv3d> conv_out;
};

constexpr std::int64_t tile_sample_min = 256;

class AutoencoderKLHunyuanVideo15 : public VideoAutoencoder {
  public:
    AutoencoderKLHunyuanVideo15(const Builder& builder, const Settings& settings)
        : VideoAutoencoder({settings.latent_channels, settings.spatial, settings.temporal}),
          tile_latent_min_(tile_sample_min / settings.spatial),
          encoder(builder["encoder"], settings),
          decoder(builder["decoder"], settings),
          blend_encoded(builder, tile_latent_min_ / 4),
          blend_decoded(builder, tile_sample_min / 4) {}

  private:
    // _encode, _decode
    [[nodiscard]] Tensor whole(const Caller& call, const Tensor& x, bool encodes, bool tiling) const override {
        const std::int64_t min = encodes ? tile_sample_min : tile_latent_min_;
        if (!tiling || (x.size(4) <= min && x.size(3) <= min))
            return encodes ? call(encoder, {x})[0] : call(decoder, {x})[0];

        // tiled_encode, tiled_decode: tiles overlap by a quarter
        const std::int64_t stride = tile_step(min - min / 4), limit = encodes ? tile_latent_min_ - tile_latent_min_ / 4
                                                                              : tile_sample_min - tile_sample_min / 4;
        std::vector<std::vector<Tensor>> rows;
        Tensor tile;
        for (std::int64_t i = 0; i < x.size(3); i += stride) {
            std::vector<Tensor> row;
            for (std::int64_t j = 0; j < x.size(4); j += stride) {
                tile = slice(slice(x, 3, i, i + min), 4, j, j + min);
                row.push_back(encodes ? call(encoder, {tile})[0] : call(decoder, {tile})[0]);
            }
            rows.push_back(std::move(row));
        }
        std::vector<Tensor> result_rows;
        return join_tiles(call, rows, tile, result_rows, encodes ? blend_encoded : blend_decoded, limit);
    }

    std::int64_t tile_latent_min_;
    Encoder encoder;
    Decoder decoder;
    Blend blend_encoded, blend_decoded;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    const profile::Config& config = profile.config;
    const Settings settings{config.integers("block_out_channels"), config.integer("latent_channels"),
                            config.integer("layers_per_block"), config.integer("spatial_compression_ratio"),
                            config.integer("temporal_compression_ratio")};
    if (settings.spatial_levels() >= static_cast<std::int64_t>(settings.block_out_channels.size()))
        throw std::logic_error("spatial_compression_ratio halves more often than block_out_channels has stages for");
    return std::make_unique<AutoencoderKLHunyuanVideo15>(Builder(weights), settings);
}

}  // namespace vram::models::autoencoder_kl_hunyuanvideo15
