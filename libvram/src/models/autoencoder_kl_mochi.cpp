// Mirrors AutoencoderKLMochi (diffusers 0.42.1, models/autoencoders/autoencoder_kl_mochi.py; MochiVaeAttnProcessor2_0
// of models/attention_processor.py): the whole clip at once, as the class does unless told otherwise. Frame by frame it
// cannot encode.
#include <algorithm>
#include <deque>
#include <optional>

#include "models/families.hpp"
#include "models/safe_conv3d.hpp"
#include "models/vae.hpp"

namespace vram::models::autoencoder_kl_mochi {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;

// Places that attention takes at a time: the chunk_size of MochiDownBlock3D, and the mid block's, which has none.
constexpr std::int64_t down_block_chunk_size = std::int64_t{1} << 15, no_chunk_size = std::int64_t{1} << 62;

/// CogVideoXCausalConv3d with pad_mode "replicate".
class CausalConv3d {
  public:
    CausalConv3d(const Builder& builder, std::string_view name, std::int64_t in, std::int64_t out, const Dims& kernel,
                 const Dims& stride)
        : time_pad_(kernel[0] - 1),
          height_pad_((kernel[1] - 1) / 2),
          width_pad_((kernel[2] - 1) / 2),
          conv(builder[name], "conv", in, out, kernel, stride, {0, 0, 0}) {}

    [[nodiscard]] Tensor operator()(Tensor inputs_in) const {
        const Tensor held = std::move(inputs_in);
        const Tensor inputs = replication_pad(held, {width_pad_, width_pad_, height_pad_, height_pad_, time_pad_, 0});
        return conv(inputs);
    }

  private:
    std::int64_t time_pad_, height_pad_, width_pad_;
    SafeConv3d conv;
};

/// MochiChunkedGroupNorm3D: each frame by itself, eight a kernel.
class ChunkedGroupNorm3D {
  public:
    ChunkedGroupNorm3D(const Builder& builder, std::string_view name, std::int64_t channels)
        : norm_layer(builder[name].group_norm("norm_layer", 32, channels)) {}

    [[nodiscard]] Tensor operator()(Tensor x_in) const {
        const Tensor held = std::move(x_in);
        const Tensor x = flatten(permute(held, {0, 2, 1, 3, 4}), 0, 1);
        Tensor output;
        {
            std::vector<Tensor> chunks;
            for (const Tensor& chunk : split(x, 8, 0)) chunks.push_back(norm_layer(chunk));
            output = cat(chunks, 0);
        }
        return permute(unflatten(output, 0, {held.size(0), -1}), {0, 2, 1, 3, 4});
    }

  private:
    nn::GroupNorm norm_layer;
};

/// MochiResnetBlock3D.
class ResnetBlock3D {
  public:
    ResnetBlock3D(const Builder& builder, std::int64_t channels)
        : norm1(builder, "norm1", channels),
          conv1(builder, "conv1", channels, channels, {3, 3, 3}, {1, 1, 1}),
          norm2(builder, "norm2", channels),
          conv2(builder, "conv2", channels, channels, {3, 3, 3}, {1, 1, 1}) {}

    [[nodiscard]] Tensor operator()(Tensor inputs_in) const {
        const Tensor inputs = std::move(inputs_in);
        Tensor hidden_states = norm1(inputs);
        hidden_states = silu(hidden_states);
        hidden_states = conv1(hidden_states);
        hidden_states = norm2(hidden_states);
        hidden_states = silu(hidden_states);
        hidden_states = conv2(hidden_states);
        hidden_states = add(hidden_states, inputs);
        return hidden_states;
    }

  private:
    ChunkedGroupNorm3D norm1;
    CausalConv3d conv1;
    ChunkedGroupNorm3D norm2;
    CausalConv3d conv2;
};

/// Attention over the frames of a place, MochiVaeAttnProcessor2_0.
class FrameAttention {
  public:
    FrameAttention(const Builder& builder, std::int64_t dim)
        : heads_(dim / head_dim),
          to_q(builder.linear("to_q", dim, dim, false)),
          to_k(builder.linear("to_k", dim, dim, false)),
          to_v(builder.linear("to_v", dim, dim, false)),
          to_out(builder["to_out"].linear("0", dim, dim)) {}

    [[nodiscard]] Tensor operator()(Tensor hidden_states_in) const {
        const Tensor residual = std::move(hidden_states_in);
        Tensor hidden_states = residual;
        if (hidden_states.size(1) == 1) {
            hidden_states = to_v(hidden_states);
            hidden_states = to_out(hidden_states);
            return div_scalar(hidden_states);
        }
        const std::int64_t batch_size = hidden_states.size(0);
        Tensor query = to_q(hidden_states);
        Tensor key = to_k(hidden_states);
        Tensor value = to_v(hidden_states);
        query = transpose(view(query, {batch_size, -1, heads_, head_dim}), 1, 2);
        key = transpose(view(key, {batch_size, -1, heads_, head_dim}), 1, 2);
        value = transpose(view(value, {batch_size, -1, heads_, head_dim}), 1, 2);
        query = normalize(query, -1);
        key = normalize(key, -1);
        hidden_states = scaled_dot_product_attention(query, key, value, {}, true);
        hidden_states = reshape(transpose(hidden_states, 1, 2), {batch_size, -1, heads_ * head_dim});
        hidden_states = to_out(hidden_states);
        hidden_states = div_scalar(hidden_states);
        return hidden_states;
    }

  private:
    static constexpr std::int64_t head_dim = 32;
    std::int64_t heads_;
    Linear to_q, to_k, to_v, to_out;
};

/// MochiMidBlock3D, and what MochiDownBlock3D is behind its convolution: there attention takes places in chunks.
class Layers {
  public:
    Layers(const Builder& builder, std::int64_t channels, std::int64_t layers, bool add_attention,
           std::int64_t chunk_size = no_chunk_size)
        : chunk_size_(chunk_size) {
        for (std::int64_t i = 0; i < layers; ++i) resnets.emplace_back(builder["resnets"][i], channels);
        if (!add_attention) return;
        for (std::int64_t i = 0; i < layers; ++i) norms.emplace_back(builder["norms"], std::to_string(i), channels);
        for (std::int64_t i = 0; i < layers; ++i) attentions.emplace_back(builder["attentions"][i], channels);
    }

    [[nodiscard]] Tensor operator()(Tensor hidden_states_in) const {
        const Tensor held = std::move(hidden_states_in);
        Tensor hidden_states = held;
        Tensor residual, hidden_states_chunk;
        std::vector<Tensor> hidden_states_chunks;
        for (std::size_t i = 0; i < resnets.size(); ++i) {
            hidden_states = resnets[i](hidden_states);
            if (attentions.empty()) continue;
            residual = hidden_states;
            hidden_states = norms[i](hidden_states);
            const std::int64_t batch_size = hidden_states.size(0), height = hidden_states.size(3),
                               width = hidden_states.size(4);
            hidden_states = flatten(permute(hidden_states, {0, 3, 4, 2, 1}), 0, 2);
            hidden_states = contiguous(hidden_states);
            if (hidden_states.size(0) <= chunk_size_) {
                hidden_states = attentions[i](hidden_states);
            } else {
                hidden_states_chunks.clear();
                for (std::int64_t start = 0; start < hidden_states.size(0); start += chunk_size_) {
                    hidden_states_chunk = slice(hidden_states, 0, start, start + chunk_size_);
                    hidden_states_chunk = attentions[i](hidden_states_chunk);
                    hidden_states_chunks.push_back(hidden_states_chunk);
                }
                hidden_states = cat(hidden_states_chunks, 0);
            }
            hidden_states = permute(unflatten(hidden_states, 0, {batch_size, height, width}), {0, 4, 3, 1, 2});
            hidden_states = add(residual, hidden_states);
        }
        return hidden_states;
    }

  private:
    std::int64_t chunk_size_;
    std::deque<ResnetBlock3D> resnets;
    std::deque<ChunkedGroupNorm3D> norms;
    std::deque<FrameAttention> attentions;
};

/// MochiDownBlock3D.
class DownBlock3D {
  public:
    DownBlock3D(const Builder& builder, std::int64_t in, std::int64_t out, std::int64_t layers, std::int64_t time,
                std::int64_t space, bool add_attention)
        : conv_in(builder, "conv_in", in, out, {time, space, space}, {time, space, space}),
          resnets(builder, out, layers, add_attention, down_block_chunk_size) {}

    [[nodiscard]] Tensor operator()(Tensor hidden_states_in) const {
        const Tensor held = std::move(hidden_states_in);
        return resnets(conv_in(held));
    }

  private:
    CausalConv3d conv_in;
    Layers resnets;
};

// A linear over the channels of [B, C, T, H, W]: a permuted view comes back.
Tensor over_channels(const Linear& linear, Tensor hidden_states) {
    hidden_states = permute(hidden_states, {0, 2, 3, 4, 1});
    hidden_states = linear(hidden_states);
    return permute(hidden_states, {0, 4, 1, 2, 3});
}

/// MochiUpBlock3D.
class UpBlock3D {
  public:
    UpBlock3D(const Builder& builder, std::int64_t in, std::int64_t out, std::int64_t layers, std::int64_t time,
              std::int64_t space)
        : time_(time),
          space_(space),
          resnets(builder, in, layers, false),
          proj(builder.linear("proj", in, out * time * space * space)) {}

    [[nodiscard]] Tensor operator()(Tensor hidden_states_in) const {
        const Tensor held = std::move(hidden_states_in);
        Tensor hidden_states = resnets(held);
        hidden_states = over_channels(proj, std::move(hidden_states));
        const std::int64_t batch_size = hidden_states.size(0), num_frames = hidden_states.size(2),
                           height = hidden_states.size(3), width = hidden_states.size(4);
        hidden_states = view(hidden_states, {batch_size, -1, time_, space_, space_, num_frames, height, width});
        hidden_states = contiguous(permute(hidden_states, {0, 1, 5, 2, 6, 3, 7, 4}));
        return view(hidden_states, {batch_size, -1, num_frames * time_, height * space_, width * space_});
    }

  private:
    std::int64_t time_, space_;
    Layers resnets;
    Linear proj;
};

struct Settings {
    std::vector<std::int64_t> channels, layers, time, space, add_attention;
    std::int64_t in, out;
};

/// MochiEncoder3D: {hidden_states} → {hidden_states}.
class Encoder : public Block {
  public:
    Encoder(const Builder& parent, const Settings& settings) : Encoder(parent.block(*this), settings) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = fourier_features(args[0]);
        hidden_states = over_channels(proj_in, std::move(hidden_states));
        hidden_states = (*block_in)(hidden_states);
        for (const DownBlock3D& down_block : down_blocks) hidden_states = down_block(hidden_states);
        hidden_states = (*block_out)(hidden_states);
        hidden_states = (*norm_out)(hidden_states);
        hidden_states = silu(hidden_states);
        return {over_channels(proj_out, std::move(hidden_states))};
    }

  private:
    Encoder(const BlockBuilder& builder, const Settings& settings)
        : proj_in(builder.linear("proj_in", settings.in, settings.channels.front())) {
        const std::vector<std::int64_t>& channels = settings.channels;
        block_in.emplace(builder["block_in"], channels.front(), settings.layers.front(),
                         settings.add_attention.front() != 0);
        for (std::size_t i = 0; i + 1 < channels.size(); ++i)
            down_blocks.emplace_back(builder["down_blocks"][static_cast<std::int64_t>(i)], channels[i], channels[i + 1],
                                     settings.layers[i + 1], settings.time[i], settings.space[i],
                                     settings.add_attention[i + 1] != 0);
        block_out.emplace(builder["block_out"], channels.back(), settings.layers.back(),
                          settings.add_attention.back() != 0);
        norm_out.emplace(builder, "norm_out", channels.back());
        proj_out = builder.linear("proj_out", channels.back(), 2 * settings.out, false);
        builder.finish(*this, "MochiEncoder3D", {});
    }

    // FourierFeatures from 2^6 to 2^7
    [[nodiscard]] static Tensor fourier_features(const Tensor& held) {
        constexpr std::int64_t num_freqs = 2;
        Run& run = held.run();
        const Tensor inputs = to_float(held);
        const Tensor freqs = arange(run, num_freqs, Dtype::f32);
        Tensor w = mul_scalar(scalar_pow(freqs));
        w = view(repeat(w, {inputs.size(1)}), {1, inputs.size(1) * num_freqs, 1, 1, 1});
        Tensor h = repeat_interleave(inputs, num_freqs, 1);
        h = mul(w, h);
        Tensor out;
        {
            Tensor sine = sin(h);
            Tensor cosine = cos(h);
            out = cat({inputs, std::move(sine), std::move(cosine)}, 1);
        }
        return to(std::move(out), held.dtype());
    }

    Linear proj_in;
    std::optional<Layers> block_in;
    std::deque<DownBlock3D> down_blocks;
    std::optional<Layers> block_out;
    std::optional<ChunkedGroupNorm3D> norm_out;
    Linear proj_out;
};

/// MochiDecoder3D: {hidden_states} → {hidden_states}.
class Decoder : public Block {
  public:
    Decoder(const Builder& parent, const Settings& settings) : Decoder(parent.block(*this), settings) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = conv_in(args[0]);
        hidden_states = (*block_in)(hidden_states);
        for (const UpBlock3D& up_block : up_blocks) hidden_states = up_block(hidden_states);
        hidden_states = (*block_out)(hidden_states);
        hidden_states = silu(hidden_states);
        return {over_channels(proj_out, std::move(hidden_states))};
    }

  private:
    Decoder(const BlockBuilder& builder, const Settings& settings)
        : conv_in(builder.conv("conv_in", settings.in, settings.channels.back(), {1, 1, 1}, {1, 1, 1}, {0, 0, 0})) {
        const std::vector<std::int64_t>& channels = settings.channels;
        block_in.emplace(builder["block_in"], channels.back(), settings.layers.back(), false);
        const std::size_t count = channels.size() - 1;
        for (std::size_t i = 0; i < count; ++i)
            up_blocks.emplace_back(builder["up_blocks"][static_cast<std::int64_t>(i)], channels[count - i],
                                   channels[count - i - 1], settings.layers[settings.layers.size() - i - 2],
                                   settings.time[settings.time.size() - i - 1],
                                   settings.space[settings.space.size() - i - 1]);
        block_out.emplace(builder["block_out"], channels.front(), settings.layers.front(), false);
        proj_out = builder.linear("proj_out", channels.front(), settings.out);
        builder.finish(*this, "MochiDecoder3D", {});
    }

    nn::Conv conv_in;
    std::optional<Layers> block_in;
    std::deque<UpBlock3D> up_blocks;
    std::optional<Layers> block_out;
    Linear proj_out;
};

constexpr std::int64_t tile_sample_min = 256, tile_sample_stride = 192;

class AutoencoderKLMochi : public VideoAutoencoder {
  public:
    AutoencoderKLMochi(const Builder& builder, const Settings& encodes, const Settings& decodes)
        : VideoAutoencoder({decodes.in, product(decodes.space), product(decodes.time)}),
          encoder(builder["encoder"], encodes),
          decoder(builder["decoder"], decodes),
          blend_encoded(builder, tile_sample_min / spatial_ - tile_sample_stride / spatial_),
          blend_decoded(builder, tile_sample_min - tile_sample_stride) {}

  private:
    [[nodiscard]] static std::int64_t product(const std::vector<std::int64_t>& factors) {
        std::int64_t out = 1;
        for (std::int64_t factor : factors) out *= factor;
        return out;
    }

    // drop_last_temporal_frames
    [[nodiscard]] Tensor dropped(const Tensor& decoded) const {
        if (decoded.size(2) < temporal_) return decoded;
        return slice(decoded, 2, temporal_ - 1, decoded.size(2));
    }

    // _encode, _decode
    [[nodiscard]] Tensor whole(const Caller& call, const Tensor& x, bool encodes, bool tiling) const override {
        const std::int64_t most = encodes ? tile_sample_min : tile_sample_min / spatial_;
        if (tiling && (x.size(4) > most || x.size(3) > most)) return tiled(call, x, encodes);
        if (encodes) return call(encoder, {x})[0];
        return dropped(call(decoder, {x})[0]);
    }

    // tiled_encode, tiled_decode
    [[nodiscard]] Tensor tiled(const Caller& call, const Tensor& x, bool encodes) const {
        const std::int64_t latent_min = tile_sample_min / spatial_, latent_stride = tile_sample_stride / spatial_;
        const std::int64_t min = encodes ? tile_sample_min : latent_min,
                           stride = tile_step(encodes ? tile_sample_stride : latent_stride);
        std::vector<std::vector<Tensor>> rows;
        for (std::int64_t i = 0; i < x.size(3); i += stride) {
            std::vector<Tensor> row;
            for (std::int64_t j = 0; j < x.size(4); j += stride) {
                const Tensor part = slice(slice(x, 3, i, i + min), 4, j, j + min);
                row.push_back(encodes ? call(encoder, {part})[0] : dropped(call(decoder, {part})[0]));
            }
            rows.push_back(std::move(row));
        }
        Tensor tile;
        std::vector<Tensor> result_rows;
        const Tensor joined = join_tiles(call, rows, tile, result_rows, encodes ? blend_encoded : blend_decoded,
                                         encodes ? latent_stride : tile_sample_stride);
        const std::int64_t height = encodes ? x.size(3) / spatial_ : x.size(3) * spatial_,
                           width = encodes ? x.size(4) / spatial_ : x.size(4) * spatial_;
        return slice(slice(joined, 3, 0, height), 4, 0, width);
    }

    Encoder encoder;
    Decoder decoder;
    Blend blend_encoded, blend_decoded;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    const profile::Config& config = profile.config;
    Settings settings{config.integers("encoder_block_out_channels"),
                      config.integers("layers_per_block"),
                      config.integers("temporal_expansions"),
                      config.integers("spatial_expansions"),
                      config.integers("add_attention_block"),
                      config.integer("in_channels"),
                      config.integer("latent_channels")};
    const Settings encodes = settings;
    settings.channels = config.integers("decoder_block_out_channels");
    settings.in = config.integer("latent_channels");
    settings.out = config.integer("out_channels");
    return std::make_unique<AutoencoderKLMochi>(Builder(weights), encodes, settings);
}

}  // namespace vram::models::autoencoder_kl_mochi
