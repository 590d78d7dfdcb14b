// Mirrors AutoencoderKLLTX2Audio (diffusers 0.42.1, models/autoencoders/autoencoder_kl_ltx2_audio.py) as published:
// pixel norms, causal in time, no attention. What goes in are mel spectrograms of the video's length.
#include <deque>
#include <optional>

#include "models/families.hpp"
#include "models/ltx2.hpp"
#include "models/vae.hpp"

namespace vram::models::autoencoder_kl_ltx2_audio {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward

/// LTX2AudioCausalConv2d along the height, which is time. A kernel of one is padded by nothing: a copy.
class CausalConv2d {
  public:
    CausalConv2d(const Builder& builder, std::string_view name, std::int64_t in, std::int64_t out, std::int64_t kernel)
        : pad_(kernel - 1), conv(builder[name].conv2d("conv", in, out, kernel)) {}

    [[nodiscard]] Tensor operator()(Tensor x_in) const {
        const Tensor held = std::move(x_in);
        const Tensor x = pad(held, {pad_ / 2, pad_ - pad_ / 2, pad_, 0});
        return conv(x);
    }

  private:
    std::int64_t pad_;
    nn::Conv conv;
};

/// LTX2AudioPixelNorm over the channels.
Tensor pixel_norm(Tensor x_in) {
    const Tensor x = std::move(x_in);
    const Tensor mean_sq = mean(pow_scalar(x), 1, true);
    const Tensor rms = sqrt(add_scalar(mean_sq, true));
    return div(x, rms);
}

/// LTX2AudioResnetBlock.
class ResnetBlock {
  public:
    ResnetBlock(const Builder& builder, std::int64_t in, std::int64_t out)
        : conv1(builder, "conv1", in, out, 3), conv2(builder, "conv2", out, out, 3) {
        if (in != out) nin_shortcut.emplace(builder, "nin_shortcut", in, out, 1);
    }

    [[nodiscard]] Tensor operator()(Tensor x_in) const {
        const Tensor held = std::move(x_in);
        Tensor x = held;
        Tensor h = pixel_norm(x);
        h = silu(h);
        h = conv1(h);
        h = pixel_norm(h);
        h = silu(h);
        h = conv2(h);
        if (nin_shortcut) x = (*nin_shortcut)(x);
        return add(x, h);
    }

  private:
    CausalConv2d conv1, conv2;
    std::optional<CausalConv2d> nin_shortcut;
};

/// LTX2AudioDownsample.
Tensor downsample(const nn::Conv& conv, Tensor x_in) {
    const Tensor held = std::move(x_in);
    const Tensor x = pad(held, {0, 1, 2, 0});
    return conv(x);
}

/// LTX2AudioUpsample: of the first frame one copy.
Tensor upsample(const CausalConv2d& conv, Tensor x_in) {
    const Tensor held = std::move(x_in);
    Tensor x = upsample_nearest(held, 2);
    x = conv(x);
    return slice(x, 2, 1, x.size(2));
}

/// A resolution: resnets, then a sampling layer or none.
struct Stage {
    std::deque<ResnetBlock> block;
    std::optional<nn::Conv> downsampler;
    std::optional<CausalConv2d> upsampler;
};

struct Settings {
    std::int64_t base_channels, num_res_blocks, in_channels, out_channels, latent_channels;
    std::vector<std::int64_t> ch_mult;
    [[nodiscard]] std::int64_t channels(std::size_t level) const { return base_channels * ch_mult[level]; }
};

/// LTX2AudioEncoder and LTX2AudioDecoder: {hidden_states} → {hidden_states}.
class Coder : public nn::Block {
  public:
    Coder(const Builder& parent, const Settings& settings, bool encodes)
        : Coder(parent.block(*this), settings, encodes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = conv_in(args[0]);
        if (!encodes_) hidden_states = mid(std::move(hidden_states));
        for (const Stage& stage : stages) {
            for (const ResnetBlock& block : stage.block) hidden_states = block(hidden_states);
            if (stage.downsampler) hidden_states = downsample(*stage.downsampler, hidden_states);
            if (stage.upsampler) hidden_states = upsample(*stage.upsampler, hidden_states);
        }
        if (encodes_) hidden_states = mid(std::move(hidden_states));
        const Tensor hidden_features = encodes_ ? Tensor() : hidden_states;  // the decoder's name lives on
        hidden_states = pixel_norm(std::move(hidden_states));
        hidden_states = silu(hidden_states);
        hidden_states = (*conv_out)(hidden_states);
        return {hidden_states};
    }

  private:
    Coder(const BlockBuilder& builder, const Settings& settings, bool encodes)
        : encodes_(encodes),
          conv_in(builder, "conv_in", encodes ? settings.in_channels : settings.latent_channels,
                  encodes ? settings.base_channels : settings.channels(settings.ch_mult.size() - 1), 3) {
        gemms = false;
        const std::size_t levels = settings.ch_mult.size();
        std::int64_t in = encodes ? settings.base_channels : settings.channels(levels - 1);
        if (!encodes) make_mid(builder, in);
        for (std::size_t i = 0; i < levels; ++i) {
            const std::size_t level = encodes ? i : levels - 1 - i;
            const Builder place = builder[encodes ? "down" : "up"][static_cast<std::int64_t>(level)];
            Stage& stage = stages.emplace_back();
            for (std::int64_t k = 0; k < settings.num_res_blocks + (encodes ? 0 : 1); ++k) {
                stage.block.emplace_back(place["block"][k], in, settings.channels(level));
                in = settings.channels(level);
            }
            if (encodes && level + 1 < levels) stage.downsampler = place["downsample"].conv2d("conv", in, in, 3, 2);
            if (!encodes && level > 0) stage.upsampler.emplace(place["upsample"], "conv", in, in, 3);
        }
        if (encodes) make_mid(builder, in);
        conv_out.emplace(builder, "conv_out", in, encodes ? 2 * settings.latent_channels : settings.out_channels, 3);
        builder.finish(*this, "LTX2AudioCoder", {encodes});
    }
    void make_mid(const Builder& builder, std::int64_t channels) {
        block_1.emplace(builder["mid"]["block_1"], channels, channels);
        block_2.emplace(builder["mid"]["block_2"], channels, channels);
    }
    [[nodiscard]] Tensor mid(Tensor hidden_states) const {
        hidden_states = (*block_1)(hidden_states);
        return (*block_2)(std::move(hidden_states));
    }

    bool encodes_;
    CausalConv2d conv_in;
    std::optional<ResnetBlock> block_1, block_2;
    std::deque<Stage> stages;
    std::optional<CausalConv2d> conv_out;
};

constexpr std::int64_t downsample_factor = 4;

class AutoencoderKLLTX2Audio : public SlicingAutoencoder {
  public:
    AutoencoderKLLTX2Audio(const Builder& builder, const Settings& settings, std::int64_t mel_bins)
        : settings_(settings),
          mel_bins_(mel_bins),
          encoder(builder["encoder"], settings, true),
          decoder(builder["decoder"], settings, false) {
        (void)builder.buffer("latents_mean", {settings.base_channels}, Dtype::f32);
        (void)builder.buffer("latents_std", {settings.base_channels}, Dtype::f32);
    }

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        if (request.operation == Request::Operation::encode)
            return {{"x", spectrograms(request, settings_.in_channels), request.dtype}};
        return {{"z", latents(request), request.dtype}};
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        if (request.operation == Request::Operation::encode) return {latents(request)};
        return {spectrograms(request, settings_.out_channels)};
    }

  private:
    [[nodiscard]] Tensor whole(const Caller& call, const Tensor& x, bool encodes, bool) const override {
        return call(encodes ? encoder : decoder, {x})[0];
    }

    /// At 24 pictures a second.
    [[nodiscard]] static std::int64_t length(const Request& request) {
        return ltx2::audio_latents_of(request.frames, 24);
    }
    [[nodiscard]] Dims latents(const Request& request) const {
        return {request.batch, settings_.latent_channels, length(request), mel_bins_ / downsample_factor};
    }
    [[nodiscard]] Dims spectrograms(const Request& request, std::int64_t channels) const {
        return {request.batch, channels, downsample_factor * (length(request) - 1) + 1, mel_bins_};
    }

    Settings settings_;
    std::int64_t mel_bins_;
    Coder encoder, decoder;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    const profile::Config& config = profile.config;
    return std::make_unique<AutoencoderKLLTX2Audio>(
        Builder(weights),
        Settings{config.integer("base_channels"), config.integer("num_res_blocks"), config.integer("in_channels"),
                 config.integer("output_channels"), config.integer("latent_channels"), config.integers("ch_mult")},
        config.integer("mel_bins"));
}

}  // namespace vram::models::autoencoder_kl_ltx2_audio
