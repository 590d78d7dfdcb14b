// Mirrors AutoencoderKLLTXVideo (diffusers 0.42.1, models/autoencoders/autoencoder_kl_ltx.py): the VAEs of LTX-Video
// 0.9.0 to 0.9.8; and AutoencoderKLLTX2Video (autoencoder_kl_ltx2.py), which is the same but for what `Settings` tells
// apart.
//
// A clip goes through in one piece unless it is tiled. Encoder and decoder are one block each, so that tiles of a size
// are copied.
#include <algorithm>
#include <array>
#include <deque>
#include <optional>

#include "models/embeddings.hpp"
#include "models/families.hpp"
#include "models/normalization.hpp"
#include "models/vae.hpp"

namespace vram::models {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Parameter;

/// How a coder's convolutions and norms are.
struct Style {
    bool ltx2;             // norms over channels as they lie, a plain convolution as shortcut
    bool causal;           // time is padded at its front only
    bool reflect = false;  // places are padded by reflection instead of zeros
};

using Stride = std::array<std::int64_t, 3>;

class LTXVideoCausalConv3d {
  public:
    LTXVideoCausalConv3d(const Builder& builder, std::string_view name, std::int64_t in, std::int64_t out,
                         std::int64_t kernel, const Style& style, std::int64_t stride = 1)
        : time_kernel_size_(kernel),
          style_(style),
          conv(builder[name].conv("conv", in, out, {kernel, kernel, kernel}, {stride, stride, stride},
                                  style.reflect ? Dims{0, 0, 0} : Dims{0, kernel / 2, kernel / 2})) {}

    [[nodiscard]] Tensor operator()(Tensor hidden_states_in) const {
        const Tensor held = std::move(hidden_states_in);
        Tensor hidden_states = held;
        const std::int64_t frames = hidden_states.size(2);
        Tensor pad_left, pad_right;
        if (style_.causal) {
            pad_left = repeat(slice(hidden_states, 2, 0, 1), {1, 1, time_kernel_size_ - 1, 1, 1});
            hidden_states = cat({pad_left, hidden_states}, 2);
        } else {
            const std::int64_t half = (time_kernel_size_ - 1) / 2;
            pad_left = repeat(slice(hidden_states, 2, 0, 1), {1, 1, half, 1, 1});
            pad_right = repeat(slice(hidden_states, 2, frames - 1, frames), {1, 1, half, 1, 1});
            hidden_states = cat({pad_left, hidden_states, pad_right}, 2);
        }
        // nn.Conv3d pads by reflection itself, before its convolution
        if (style_.reflect) return conv(reflection_pad(hidden_states, {1, 1, 1, 1, 0, 0}));
        return conv(hidden_states);
    }

  private:
    std::int64_t time_kernel_size_;
    Style style_;
    nn::Conv conv;
};

/// RMSNorm over channels that are moved last; PerChannelRMSNorm takes them where they are.
struct ChannelNorm {
    bool ltx2;
    [[nodiscard]] Tensor operator()(Tensor hidden_states) const {
        const Tensor x = std::move(hidden_states);
        if (!ltx2) return permute(PlainRmsNorm()(permute(x, {0, 2, 3, 4, 1})), {0, 4, 1, 2, 3});
        const Tensor mean_sq = mean(pow_scalar(x), 1, true);
        const Tensor rms = sqrt(add_scalar(mean_sq));
        return div(x, rms);
    }
};

/// What timestep conditioning makes of temb [N] for the resnets of a block: [B, C, 1, 1, 1].
class TimeEmbedder {
  public:
    TimeEmbedder(const Builder& builder, std::int64_t size) : time_embedder(builder["time_embedder"], size) {}
    [[nodiscard]] Tensor operator()(Tensor temb_in, const Tensor& hidden_states) const {
        const Tensor temb = std::move(temb_in);
        const Tensor embedded = time_embedder(temb, hidden_states.dtype());
        return view(embedded, {hidden_states.size(0), -1, 1, 1, 1});
    }

  private:
    CombinedTimestepEmbeddings time_embedder;
};

// table[None, ..., None, None, None]: [1, N, C, 1, 1, 1]
[[nodiscard]] Tensor spread(const Parameter& table) {
    return view(table.value, {1, table.value.size(0), table.value.size(1), 1, 1, 1});
}
class LTXVideoResnetBlock3d {
  public:
    LTXVideoResnetBlock3d(const Builder& builder, std::int64_t in, std::int64_t out, const Style& style,
                          bool inject_noise = false, bool timestep_conditioning = false)
        : norm{style.ltx2},
          per_channel_scale1(inject_noise ? &builder.parameter("per_channel_scale1", {in, 1, 1}) : nullptr),
          per_channel_scale2(inject_noise ? &builder.parameter("per_channel_scale2", {in, 1, 1}) : nullptr),
          scale_shift_table(timestep_conditioning ? &builder.parameter("scale_shift_table", {4, in}) : nullptr),
          conv1(builder, "conv1", in, out, 3, style),
          conv2(builder, "conv2", out, out, 3, style) {
        if (in == out) return;
        norm3 = builder.layer_norm("norm3", in);
        if (style.ltx2)
            conv_shortcut = builder.conv("conv_shortcut", in, out, {1, 1, 1}, {1, 1, 1}, {0, 0, 0});
        else
            causal_shortcut.emplace(builder, "conv_shortcut", in, out, 1, style);
    }

    [[nodiscard]] Tensor operator()(Tensor inputs_in, const Tensor& temb_in = {}) const {
        const Tensor held = std::move(inputs_in);
        Tensor inputs = held, hidden_states = held, temb = temb_in;
        Tensors modulation;  // shift_1, scale_1, shift_2, scale_2
        hidden_states = norm(hidden_states);
        if (scale_shift_table != nullptr) {
            temb = add(unflatten(temb, 1, {4, -1}), spread(*scale_shift_table));
            modulation = unbind(temb, 1);
            hidden_states = modulate(hidden_states, modulation[1], modulation[0]);
        }
        hidden_states = silu(hidden_states);
        hidden_states = conv1(hidden_states);
        Tensor spatial_noise;
        if (per_channel_scale1 != nullptr) add_noise(hidden_states, spatial_noise, *per_channel_scale1);
        hidden_states = norm(hidden_states);
        if (scale_shift_table != nullptr) hidden_states = modulate(hidden_states, modulation[3], modulation[2]);
        hidden_states = silu(hidden_states);
        hidden_states = conv2(hidden_states);
        if (per_channel_scale2 != nullptr) add_noise(hidden_states, spatial_noise, *per_channel_scale2);

        if (norm3) inputs = permute((*norm3)(permute(inputs, {0, 2, 3, 4, 1})), {0, 4, 1, 2, 3});
        if (causal_shortcut) inputs = (*causal_shortcut)(inputs);
        if (conv_shortcut) inputs = (*conv_shortcut)(inputs);
        return add(hidden_states, inputs);
    }

  private:
    static void add_noise(Tensor& hidden_states, Tensor& spatial_noise, const Parameter& per_channel_scale) {
        const Dims shape{hidden_states.size(-2), hidden_states.size(-1)};
        spatial_noise = unsqueeze(hidden_states.run().empty(shape, hidden_states.dtype(), Op::noise), 0);
        const Tensor scaled = mul(spatial_noise, per_channel_scale.value);
        hidden_states = add(hidden_states, unsqueeze(unsqueeze(scaled, 0), 2));
    }

    ChannelNorm norm;
    Parameter *per_channel_scale1, *per_channel_scale2, *scale_shift_table;
    LTXVideoCausalConv3d conv1, conv2;
    std::optional<nn::LayerNorm> norm3;
    std::optional<LTXVideoCausalConv3d> causal_shortcut;
    std::optional<nn::Conv> conv_shortcut;
};

// Places and frames that fall together become channels.
[[nodiscard]] Tensor fold(Tensor x_in, const Stride& stride) {
    const Tensor held = std::move(x_in);
    Tensor x = unflatten(held, 4, {-1, stride[2]});
    x = unflatten(x, 3, {-1, stride[1]});
    x = unflatten(x, 2, {-1, stride[0]});
    return flatten(permute(x, {0, 1, 3, 5, 7, 2, 4, 6}), 1, 4);
}

class LTXVideoDownsampler3d {
  public:
    LTXVideoDownsampler3d(const Builder& builder, std::int64_t in, std::int64_t out, const Stride& stride,
                          const Style& style)
        : stride_(stride),
          group_size_(in * stride[0] * stride[1] * stride[2] / out),
          conv(builder, "conv", in, out / (stride[0] * stride[1] * stride[2]), 3, style) {}

    [[nodiscard]] Tensor operator()(Tensor hidden_states_in) const {
        const Tensor held = std::move(hidden_states_in);
        Tensor hidden_states = held;
        hidden_states = cat({slice(hidden_states, 2, 0, stride_[0] - 1), hidden_states}, 2);
        Tensor residual = fold(hidden_states, stride_);
        residual = unflatten(residual, 1, {-1, group_size_});
        residual = mean(residual, 2, false);

        hidden_states = conv(hidden_states);
        hidden_states = fold(hidden_states, stride_);
        return add(hidden_states, residual);
    }

  private:
    Stride stride_;
    std::int64_t group_size_;
    LTXVideoCausalConv3d conv;
};

class LTXVideoUpsampler3d {
  public:
    LTXVideoUpsampler3d(const Builder& builder, std::int64_t in, const Stride& stride, bool residual,
                        std::int64_t upscale_factor, const Style& style)
        : stride_(stride),
          residual_(residual),
          upscale_factor_(upscale_factor),
          conv(builder, "conv", in, in * stride[0] * stride[1] * stride[2] / upscale_factor, 3, style) {}

    [[nodiscard]] Tensor operator()(Tensor hidden_states_in) const {
        const Tensor held = std::move(hidden_states_in);
        Tensor hidden_states = held, residual;
        if (residual_) {
            residual = unfold(hidden_states, held);
            residual = repeat(residual, {1, stride_[0] * stride_[1] * stride_[2] / upscale_factor_, 1, 1, 1});
            residual = slice(residual, 2, stride_[0] - 1, residual.size(2));
        }
        hidden_states = conv(hidden_states);
        hidden_states = unfold(hidden_states, held);
        hidden_states = slice(hidden_states, 2, stride_[0] - 1, hidden_states.size(2));
        if (residual_) hidden_states = add(hidden_states, residual);
        return hidden_states;
    }

  private:
    // Channels are spread over frames and places; `like` has the sizes.
    [[nodiscard]] Tensor unfold(Tensor x_in, const Tensor& like) const {
        const Tensor held = std::move(x_in);
        Tensor x = reshape(
            held, {like.size(0), -1, stride_[0], stride_[1], stride_[2], like.size(2), like.size(3), like.size(4)});
        x = flatten(permute(x, {0, 1, 5, 2, 6, 3, 7, 4}), 6, 7);
        return flatten(flatten(x, 4, 5), 2, 3);
    }

    Stride stride_;
    bool residual_;
    std::int64_t upscale_factor_;
    LTXVideoCausalConv3d conv;
};

/// LTXVideoDownBlock3D, LTXVideo095DownBlock3D, LTX2VideoDownBlock3D.
class LTXVideoDownBlock3D {
  public:
    LTXVideoDownBlock3D(const Builder& builder, std::int64_t in, std::int64_t out, std::int64_t layers,
                        const std::optional<Stride>& stride, bool convolves, bool resnet_out, const Style& style) {
        for (std::int64_t i = 0; i < layers; ++i) resnets.emplace_back(builder["resnets"][i], in, in, style);
        if (stride && convolves) conv.emplace(builder["downsamplers"], "0", in, in, 3, style, 2);
        if (stride && !convolves) downsampler.emplace(builder["downsamplers"][0], in, out, *stride, style);
        if (resnet_out && in != out) conv_out.emplace(builder["conv_out"], in, out, style);
    }

    [[nodiscard]] Tensor operator()(Tensor hidden_states_in) const {
        const Tensor held = std::move(hidden_states_in);
        Tensor hidden_states = held;
        for (const LTXVideoResnetBlock3d& resnet : resnets) hidden_states = resnet(hidden_states);
        if (conv) hidden_states = (*conv)(hidden_states);
        if (downsampler) hidden_states = (*downsampler)(hidden_states);
        if (conv_out) hidden_states = (*conv_out)(hidden_states);
        return hidden_states;
    }

  private:
    std::deque<LTXVideoResnetBlock3d> resnets;
    std::optional<LTXVideoCausalConv3d> conv;
    std::optional<LTXVideoDownsampler3d> downsampler;
    std::optional<LTXVideoResnetBlock3d> conv_out;
};

class LTXVideoMidBlock3d {
  public:
    LTXVideoMidBlock3d(const Builder& builder, std::int64_t channels, std::int64_t layers, const Style& style,
                       bool inject_noise = false, bool timestep_conditioning = false) {
        if (timestep_conditioning) time_embedder.emplace(builder, channels * 4);
        for (std::int64_t i = 0; i < layers; ++i)
            resnets.emplace_back(builder["resnets"][i], channels, channels, style, inject_noise, timestep_conditioning);
    }

    [[nodiscard]] Tensor operator()(Tensor hidden_states_in, const Tensor& temb_in = {}) const {
        const Tensor held = std::move(hidden_states_in);
        Tensor hidden_states = held, temb = temb_in;
        if (time_embedder) temb = (*time_embedder)(temb, hidden_states);
        for (const LTXVideoResnetBlock3d& resnet : resnets) hidden_states = resnet(hidden_states, temb);
        return hidden_states;
    }

  private:
    std::optional<TimeEmbedder> time_embedder;
    std::deque<LTXVideoResnetBlock3d> resnets;
};

struct UpBlockSizes {
    std::int64_t in, out, layers;
    std::optional<Stride> stride;
    bool inject_noise, residual;
    std::int64_t upscale_factor;
};

class LTXVideoUpBlock3d {
  public:
    LTXVideoUpBlock3d(const Builder& builder, const UpBlockSizes& sizes, const Style& style,
                      bool timestep_conditioning) {
        if (timestep_conditioning) time_embedder.emplace(builder, sizes.in * 4);
        if (sizes.in != sizes.out)
            conv_in.emplace(builder["conv_in"], sizes.in, sizes.out, style, sizes.inject_noise, timestep_conditioning);
        if (sizes.stride)
            upsampler.emplace(builder["upsamplers"][0], sizes.out * sizes.upscale_factor, *sizes.stride, sizes.residual,
                              sizes.upscale_factor, style);
        for (std::int64_t i = 0; i < sizes.layers; ++i)
            resnets.emplace_back(builder["resnets"][i], sizes.out, sizes.out, style, sizes.inject_noise,
                                 timestep_conditioning);
    }

    [[nodiscard]] Tensor operator()(Tensor hidden_states_in, const Tensor& temb_in) const {
        const Tensor held = std::move(hidden_states_in);
        Tensor hidden_states = held, temb = temb_in;
        if (conv_in) hidden_states = (*conv_in)(hidden_states, temb);
        if (time_embedder) temb = (*time_embedder)(temb, hidden_states);
        if (upsampler) hidden_states = (*upsampler)(hidden_states);
        for (const LTXVideoResnetBlock3d& resnet : resnets) hidden_states = resnet(hidden_states, temb);
        return hidden_states;
    }

  private:
    std::optional<TimeEmbedder> time_embedder;
    std::optional<LTXVideoResnetBlock3d> conv_in;
    std::optional<LTXVideoUpsampler3d> upsampler;
    std::deque<LTXVideoResnetBlock3d> resnets;
};

/// What the two classes are told or take for granted.
struct Settings {
    bool ltx2;
    std::int64_t channels, latent_channels, patch_size, patch_size_t;
    bool encoder_causal, decoder_causal;
    bool encoder_reflects, decoder_reflects;
    std::int64_t encoder_in;  // channels after conv_in
    struct Down {
        std::int64_t out, layers;
        std::optional<Stride> stride;
        bool convolves, resnet_out;
    };
    std::vector<Down> down;
    std::int64_t encoder_mid_layers;
    std::int64_t decoder_in, decoder_mid_layers;
    bool decoder_mid_noise, timestep_conditioning;
    std::vector<UpBlockSizes> up;
    std::int64_t spatial, temporal;    // what encoding divides by
    std::int64_t spatial_compression;  // what the class takes that to be when it tiles
};

/// {pixels} → {twice the latents}
class LTXVideoEncoder3d : public nn::Block {
  public:
    LTXVideoEncoder3d(const Builder& parent, const Settings& settings)
        : LTXVideoEncoder3d(parent.block(*this), settings,
                            Style{settings.ltx2, settings.encoder_causal, settings.encoder_reflects}) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0];
        hidden_states =
            reshape(hidden_states, {hidden_states.size(0), hidden_states.size(1), hidden_states.size(2) / patch_size_t_,
                                    patch_size_t_, hidden_states.size(3) / patch_size_, patch_size_,
                                    hidden_states.size(4) / patch_size_, patch_size_});
        hidden_states = flatten(permute(hidden_states, {0, 1, 3, 7, 5, 2, 4, 6}), 1, 4);
        hidden_states = conv_in(hidden_states);
        for (const LTXVideoDownBlock3D& down_block : down_blocks) hidden_states = down_block(hidden_states);
        hidden_states = (*mid_block)(hidden_states);
        hidden_states = norm_out(hidden_states);
        hidden_states = silu(hidden_states);
        hidden_states = (*conv_out)(hidden_states);

        const std::int64_t channels = hidden_states.size(1);
        Tensor last_channel = slice(hidden_states, 1, channels - 1, channels);
        last_channel = repeat(last_channel, {1, channels - 2, 1, 1, 1});
        hidden_states = cat({hidden_states, last_channel}, 1);
        return {hidden_states};
    }

  private:
    LTXVideoEncoder3d(const Builder& builder, const Settings& settings, const Style& style)
        : patch_size_(settings.patch_size),
          patch_size_t_(settings.patch_size_t),
          conv_in(builder, "conv_in", settings.channels * patch_size_ * patch_size_, settings.encoder_in, 3, style),
          norm_out{settings.ltx2} {
        gemms = false;
        std::int64_t in = settings.encoder_in;
        for (const Settings::Down& down : settings.down) {
            down_blocks.emplace_back(builder["down_blocks"][static_cast<std::int64_t>(down_blocks.size())], in,
                                     down.out, down.layers, down.stride, down.convolves, down.resnet_out, style);
            in = down.out;
        }
        mid_block.emplace(builder["mid_block"], in, settings.encoder_mid_layers, style);
        conv_out.emplace(builder, "conv_out", in, settings.latent_channels + 1, 3, style);
        builder.finish(*this, "LTXVideoEncoder3d",
                       {settings.ltx2, style.causal, style.reflect, patch_size_, patch_size_t_});
    }

    std::int64_t patch_size_, patch_size_t_;
    LTXVideoCausalConv3d conv_in;
    std::deque<LTXVideoDownBlock3D> down_blocks;
    std::optional<LTXVideoMidBlock3d> mid_block;
    ChannelNorm norm_out;
    std::optional<LTXVideoCausalConv3d> conv_out;
};

/// {latents} or {latents, temb} → {pixels}
class LTXVideoDecoder3d : public nn::Block {
  public:
    LTXVideoDecoder3d(const Builder& parent, const Settings& settings)
        : LTXVideoDecoder3d(parent.block(*this), settings,
                            Style{settings.ltx2, settings.decoder_causal, settings.decoder_reflects}) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0], temb = args.size() > 1 ? args[1] : Tensor();
        hidden_states = conv_in(hidden_states);
        if (timestep_scale_multiplier != nullptr) temb = mul(temb, timestep_scale_multiplier->value);
        hidden_states = mid_block(hidden_states, temb);
        for (const LTXVideoUpBlock3d& up_block : up_blocks) hidden_states = up_block(hidden_states, temb);
        hidden_states = norm_out(hidden_states);
        Tensors modulation;  // shift, scale
        if (time_embedder) {
            temb = (*time_embedder)(temb, hidden_states);
            temb = unflatten(temb, 1, {2, -1});
            temb = add(temb, spread(*scale_shift_table));
            modulation = unbind(temb, 1);
            hidden_states = modulate(hidden_states, modulation[1], modulation[0]);
        }
        hidden_states = silu(hidden_states);
        hidden_states = (*conv_out)(hidden_states);

        const std::int64_t batch_size = hidden_states.size(0), num_frames = hidden_states.size(2),
                           height = hidden_states.size(3), width = hidden_states.size(4);
        hidden_states = reshape(hidden_states,
                                {batch_size, -1, patch_size_t_, patch_size_, patch_size_, num_frames, height, width});
        hidden_states = flatten(permute(hidden_states, {0, 1, 5, 2, 6, 4, 7, 3}), 6, 7);
        hidden_states = flatten(flatten(hidden_states, 4, 5), 2, 3);
        return {hidden_states};
    }

  private:
    LTXVideoDecoder3d(const Builder& builder, const Settings& settings, const Style& style)
        : patch_size_(settings.patch_size),
          patch_size_t_(settings.patch_size_t),
          timestep_scale_multiplier(settings.timestep_conditioning ? &builder.parameter("timestep_scale_multiplier", {})
                                                                   : nullptr),
          scale_shift_table(settings.timestep_conditioning
                                ? &builder.parameter("scale_shift_table", {2, settings.up.back().out})
                                : nullptr),
          conv_in(builder, "conv_in", settings.latent_channels, settings.decoder_in, 3, style),
          mid_block(builder["mid_block"], settings.decoder_in, settings.decoder_mid_layers, style,
                    settings.decoder_mid_noise, settings.timestep_conditioning),
          norm_out{settings.ltx2} {
        for (const UpBlockSizes& up : settings.up)
            up_blocks.emplace_back(builder["up_blocks"][static_cast<std::int64_t>(up_blocks.size())], up, style,
                                   settings.timestep_conditioning);
        const std::int64_t out = settings.up.back().out;
        conv_out.emplace(builder, "conv_out", out, settings.channels * patch_size_ * patch_size_, 3, style);
        if (settings.timestep_conditioning) time_embedder.emplace(builder, 2 * out);
        gemms = settings.timestep_conditioning;
        builder.finish(*this, "LTXVideoDecoder3d",
                       {settings.ltx2, style.causal, style.reflect, patch_size_, patch_size_t_});
    }

    std::int64_t patch_size_, patch_size_t_;
    Parameter *timestep_scale_multiplier, *scale_shift_table;
    LTXVideoCausalConv3d conv_in;
    LTXVideoMidBlock3d mid_block;
    std::deque<LTXVideoUpBlock3d> up_blocks;
    ChannelNorm norm_out;
    std::optional<LTXVideoCausalConv3d> conv_out;
    std::optional<TimeEmbedder> time_embedder;
};

// tile_sample_min_height and _width, tile_sample_stride_height and _width
constexpr std::int64_t tile_size = 512, tile_stride = 448;

class AutoencoderKLLTXVideo : public Model {
  public:
    AutoencoderKLLTXVideo(const Builder& builder, const Settings& settings)
        : settings_(settings),
          builder_(builder),
          latents_mean(builder.buffer("latents_mean", {settings.latent_channels}, Dtype::f32)),
          latents_std(builder.buffer("latents_std", {settings.latent_channels}, Dtype::f32)),
          encoder(builder["encoder"], settings),
          decoder(builder["decoder"], settings),
          blend_encoded(builder, tile_size / settings.spatial_compression - tile_stride / settings.spatial_compression),
          blend_decoded(builder, tile_size - tile_stride) {}

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        if (request.operation == Request::Operation::encode) return {{"x", pictures(request), request.dtype}};
        std::vector<Value> out{{"z", latents(request), request.dtype}};
        if (settings_.timestep_conditioning) out.push_back({"temb", {request.batch}, request.dtype});
        return out;
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {request.operation == Request::Operation::encode ? latents(request) : pictures(request)};
    }

    /// encode: the distribution {parameters, mean, logvar, std, var}; decode: {sample}.
    [[nodiscard]] Tensors forward(const Tensors& args, const Request& request) const override {
        const Tensor& x = args[0];
        const Caller call(x.run(), false);
        const bool encodes = request.operation == Request::Operation::encode;
        const auto one = [&](const Tensors& sample) {
            if (in_pieces(sample[0], request)) return framewise(call, sample, request);
            return encodes ? encode(call, sample, request.tiling) : decode(call, sample, request.tiling);
        };
        Tensor out;
        Tensors slices;
        if (request.slicing && x.size(0) > 1) {
            const Tensors samples = split(x, 1, 0);
            const Tensors tembs = args.size() > 1 ? split(args[1], 1, 0) : Tensors();
            for (std::size_t i = 0; i < samples.size(); ++i)
                slices.push_back(one(tembs.empty() ? Tensors{samples[i]} : Tensors{samples[i], tembs[i]}));
            out = cat(slices, 0);
        } else {
            out = one(args);
        }
        return encodes ? diagonal_gaussian(out) : Tensors{out};
    }

  private:
    [[nodiscard]] Dims pictures(const Request& request) const {
        return {request.batch, settings_.channels, request.frames, request.height, request.width};
    }
    [[nodiscard]] Dims latents(const Request& request) const {
        return {request.batch, settings_.latent_channels, (request.frames - 1) / settings_.temporal + 1,
                request.height / settings_.spatial, request.width / settings_.spatial};
    }

    // _encode
    [[nodiscard]] Tensor encode(const Caller& call, const Tensors& args, bool tiling) const {
        const std::int64_t height = args[0].size(3), width = args[0].size(4), ratio = settings_.spatial_compression;
        if (!tiling || (width <= tile_size && height <= tile_size)) return call(encoder, args)[0];
        const Tensor enc = tiled(call, encoder, args, {tile_size, tile_stride}, blend_encoded, tile_stride / ratio);
        return slice(slice(enc, 3, 0, height / ratio), 4, 0, width / ratio);
    }

    // _decode
    [[nodiscard]] Tensor decode(const Caller& call, const Tensors& args, bool tiling) const {
        const std::int64_t height = args[0].size(3), width = args[0].size(4), ratio = settings_.spatial_compression;
        if (!tiling || (width <= tile_size / ratio && height <= tile_size / ratio)) return call(decoder, args)[0];
        const Tensor dec =
            tiled(call, decoder, args, {tile_size / ratio, tile_stride / ratio}, blend_decoded, tile_stride);
        return slice(slice(dec, 3, 0, height * ratio), 4, 0, width * ratio);
    }

    /// use_framewise_decoding, which AutoencoderKLLTX2Video asks in encoding, too.
    [[nodiscard]] bool in_pieces(const Tensor& x, const Request& request) const {
        const bool encodes = request.operation == Request::Operation::encode;
        return request.tile_frames > 0 && x.size(2) > request.tile_frames / (encodes ? 1 : settings_.temporal);
    }

    /// _temporal_tiled_encode, _temporal_tiled_decode: pieces of one frame more than they count, but for the first one
    /// without it; mixed where they overlap.
    [[nodiscard]] Tensor framewise(const Caller& call, const Tensors& args, const Request& request) const {
        const bool encodes = request.operation == Request::Operation::encode;
        const std::int64_t ratio = settings_.temporal, frames = args[0].size(2);
        const std::int64_t size = request.tile_frames / (encodes ? 1 : ratio),
                           stride = request.tile_frames_stride / (encodes ? 1 : ratio),
                           kept = request.tile_frames_stride / (encodes ? ratio : 1),
                           overlap = request.tile_frames / (encodes ? ratio : 1) - kept;
        const Blend blend(builder_, 0, 0, overlap);
        const auto frames_of = [](const Tensor& x, std::int64_t from, std::int64_t to) {
            return slice(x, 2, std::min(from, x.size(2)), std::min(to, x.size(2)));
        };
        std::vector<Tensor> row;
        for (std::int64_t i = 0; i < frames; i += tile_step(stride)) {
            Tensors tile = args;
            tile[0] = frames_of(args[0], i, i + size + 1);
            Tensor coded = encodes ? encode(call, tile, request.tiling) : decode(call, tile, request.tiling);
            if (i > 0) coded = encodes ? frames_of(coded, 1, coded.size(2)) : frames_of(coded, 0, coded.size(2) - 1);
            row.push_back(std::move(coded));
        }
        std::vector<Tensor> result_row;
        for (std::size_t i = 0; i < row.size(); ++i) {
            if (i > 0 && row[i].size(2) > 0) blend.t(call, row[i - 1], row[i]);
            result_row.push_back(frames_of(row[i], 0, i > 0 ? kept : kept + 1));
        }
        const Tensor whole = cat(result_row, 2);
        return frames_of(whole, 0, encodes ? (frames - 1) / ratio + 1 : (frames - 1) * ratio + 1);
    }

    struct Tile {
        std::int64_t size, stride;
    };
    /// tiled_encode, tiled_decode: tiles of x through the coder, cut to `cut` and put together.
    [[nodiscard]] static Tensor tiled(const Caller& call, const nn::Block& coder, const Tensors& args, const Tile& tile,
                                      const Blend& blend, std::int64_t cut) {
        const Tensor& x = args[0];
        std::vector<std::vector<Tensor>> rows;
        for (std::int64_t i = 0; i < x.size(3); i += tile_step(tile.stride)) {
            std::vector<Tensor> row;
            for (std::int64_t j = 0; j < x.size(4); j += tile_step(tile.stride)) {
                Tensors piece = args;
                piece[0] = slice(slice(x, 3, i, i + tile.size), 4, j, j + tile.size);
                row.push_back(call(coder, std::move(piece))[0]);
            }
            rows.push_back(std::move(row));
        }
        Tensor last;
        std::vector<Tensor> result_rows;
        return join_tiles(call, rows, last, result_rows, blend, cut);
    }

    Settings settings_;
    Builder builder_;
    Parameter &latents_mean, &latents_std;
    LTXVideoEncoder3d encoder;
    LTXVideoDecoder3d decoder;
    Blend blend_encoded, blend_decoded;
};

[[nodiscard]] Stride stride_of(std::string_view type) {
    if (type == "spatial") return {1, 2, 2};
    if (type == "temporal") return {2, 1, 1};
    return {2, 2, 2};  // conv, spatiotemporal
}

/// What both classes are told in the same words. `down.out` is left to them.
[[nodiscard]] Settings settings_of(const profile::Config& config, bool ltx2) {
    Settings out{};
    out.ltx2 = ltx2;
    out.channels = config.integer("in_channels", 3);
    out.latent_channels = config.integer("latent_channels", 128);
    out.patch_size = config.integer("patch_size", 4);
    out.patch_size_t = config.integer("patch_size_t", 1);
    out.encoder_causal = config.boolean("encoder_causal", true);
    out.decoder_causal = config.boolean("decoder_causal", ltx2);
    out.encoder_reflects = ltx2 && config.text("encoder_spatial_padding_mode", "zeros") == "reflect";
    out.decoder_reflects = ltx2 && config.text("decoder_spatial_padding_mode", "reflect") == "reflect";
    out.timestep_conditioning = config.boolean("timestep_conditioning", false);

    const std::vector<std::int64_t>&scaling = config.integers("spatio_temporal_scaling"),
          &layers = config.integers("layers_per_block");
    const std::vector<std::string>&types = config.texts("downsample_type"), &blocks = config.texts("down_block_types");
    out.spatial = out.patch_size;
    out.temporal = out.patch_size_t;
    std::int64_t scalings = 0;
    for (std::size_t i = 0; i < scaling.size(); ++i) {
        Settings::Down down{};
        down.layers = layers[i];
        down.resnet_out = blocks[i] == "LTXVideoDownBlock3D";
        down.convolves = down.resnet_out || types[i] == "conv";
        if (scaling[i] != 0) {
            down.stride = down.convolves ? Stride{2, 2, 2} : stride_of(types[i]);
            out.temporal *= (*down.stride)[0];
            out.spatial *= (*down.stride)[1];
            ++scalings;
        }
        out.down.push_back(down);
    }
    out.encoder_mid_layers = layers.back();
    out.spatial_compression = config.integer("spatial_compression_ratio", out.patch_size << scalings);

    const std::vector<std::int64_t>&channels = config.integers("decoder_block_out_channels"),
          &decoder_layers = config.integers("decoder_layers_per_block"),
          &decoder_scaling = config.integers("decoder_spatio_temporal_scaling");
    const std::size_t count = channels.size();
    const std::vector<std::int64_t> noise = config.integers("decoder_inject_noise", {}),
                                    residual = config.integers("upsample_residual", {}),
                                    factor = config.integers("upsample_factor", {});
    out.decoder_in = channels.back();
    out.decoder_mid_layers = decoder_layers.back();
    out.decoder_mid_noise = !noise.empty() && noise.back() != 0;
    std::int64_t in = out.decoder_in;
    for (std::size_t i = 0; i < count; ++i) {  // the lists stand in the encoder's order
        const std::size_t at = count - 1 - i;
        UpBlockSizes up{};
        up.upscale_factor = factor.empty() ? 1 : factor[at];
        up.in = in / up.upscale_factor;
        up.out = channels[at] / up.upscale_factor;
        up.layers = decoder_layers[at];
        up.inject_noise = !noise.empty() && noise[at] != 0;
        up.residual = !residual.empty() && residual[at] != 0;
        if (decoder_scaling[at] != 0)
            up.stride = config.has("upsample_type") ? stride_of(config.texts("upsample_type")[i]) : Stride{2, 2, 2};
        out.up.push_back(up);
        in = up.out;
    }
    return out;
}

}  // namespace

std::unique_ptr<Model> autoencoder_kl_ltx::build(nn::Weights& weights, const profile::ModelProfile& profile) {
    const profile::Config& config = profile.config;
    Settings settings = settings_of(config, false);
    const std::vector<std::int64_t>& channels = config.integers("block_out_channels");
    settings.encoder_in = channels[0];
    for (std::size_t i = 0; i < settings.down.size(); ++i)
        settings.down[i].out = channels[std::min(i + 1, channels.size() - 1)];
    return std::make_unique<AutoencoderKLLTXVideo>(Builder(weights), settings);
}

std::unique_ptr<Model> autoencoder_kl_ltx2::build(nn::Weights& weights, const profile::ModelProfile& profile) {
    const profile::Config& config = profile.config;
    Settings settings = settings_of(config, true);
    const std::vector<std::int64_t>& channels = config.integers("block_out_channels");
    settings.encoder_in = settings.latent_channels;
    for (std::size_t i = 0; i < settings.down.size(); ++i) settings.down[i].out = channels[i];
    return std::make_unique<AutoencoderKLLTXVideo>(Builder(weights), settings);
}

}  // namespace vram::models
