// Mirrors LTX2Vocoder and LTX2VocoderWithBWE (diffusers 0.42.1, pipelines/ltx2/vocoder.py): a mel spectrogram becomes a
// waveform, and with `bwe_hidden_channels` in its config one of three times as many samples. It is called, not trained:
// its ops keep nothing for a backward.
#include <deque>
#include <optional>

#include "models/families.hpp"
#include "models/ltx2.hpp"

namespace vram::models::ltx2_vocoder {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Parameter;

/// F.conv_transpose1d of as many groups as channels or of one, without padding of the output.
Tensor conv_transpose1d(const Tensor& x, std::int64_t channels, std::int64_t kernel, std::int64_t stride,
                        std::int64_t padding) {
    const std::int64_t length = (x.size(2) - 1) * stride + kernel - 2 * padding;
    return x.run().empty({x.size(0), channels, length}, x.dtype(), Op::conv);
}

Tensor leaky_relu(const Tensor& x) { return x.run().empty_like(x, Op::relu); }

/// UpSample1d: samples are put between, and smoothed by one filter for all channels.
class UpSample1d {
  public:
    /// The Kaiser window's, or the Hann window's.
    UpSample1d(const Builder& builder, std::int64_t ratio, bool hann) : ratio_(ratio) {
        if (hann) {
            constexpr std::int64_t width = 7;  // ceil(6 / 0.99)
            kernel_ = 2 * width * ratio + 1;
            pad_ = width;
            pad_left_ = 2 * width * ratio;
            pad_right_ = kernel_ - ratio;
        } else {
            kernel_ = 6 * ratio / 2 * 2;
            pad_ = kernel_ / ratio - 1;
            pad_left_ = pad_ * ratio + (kernel_ - ratio) / 2;
            pad_right_ = pad_ * ratio + (kernel_ - ratio + 1) / 2;
        }
        (void)builder.buffer("filter", {1, 1, kernel_}, Dtype::f32);
    }

    [[nodiscard]] Tensor operator()(Tensor x_in) const {
        const Tensor held = std::move(x_in);
        Tensor x = replication_pad(held, {pad_, pad_});
        {
            Tensor spread = conv_transpose1d(x, x.size(1), kernel_, ratio_, 0);
            x = mul_scalar(std::move(spread), false);
        }
        return slice(x, 2, pad_left_, x.size(2) - pad_right_);
    }

  private:
    std::int64_t ratio_, kernel_ = 0, pad_ = 0, pad_left_ = 0, pad_right_ = 0;
};

/// AntiAliasAct1d around SnakeBeta: twice as many samples while they are bent.
class AntiAliasAct1d {
  public:
    AntiAliasAct1d(const Builder& builder, std::int64_t channels)
        : upsample(builder["upsample"], ratio, false),
          alpha(builder["act"].parameter("alpha", {channels})),
          beta(builder["act"].parameter("beta", {channels})),
          filter(builder["downsample"].buffer("filter", {1, 1, kernel}, Dtype::f32)) {}

    [[nodiscard]] Tensor operator()(Tensor x_in) const {
        const Tensor held = std::move(x_in);
        Tensor x = upsample(held);
        x = snake_beta(x);
        x = downsample(x);
        return x;
    }

  private:
    [[nodiscard]] Tensor snake_beta(Tensor hidden_states_in) const {
        const Tensor hidden_states = std::move(hidden_states_in);
        const Tensor alpha_exp = exp(view(alpha.value, {1, -1, 1}));
        const Tensor amplitude = exp(view(beta.value, {1, -1, 1}));
        Tensor scale = rdiv_scalar(add_scalar(amplitude, true));
        Tensor waves = sin(mul(hidden_states, alpha_exp));
        waves = pow_scalar(std::move(waves));
        Tensor bent = mul(std::move(scale), std::move(waves));
        return add(hidden_states, std::move(bent));
    }

    // DownSample1d
    [[nodiscard]] Tensor downsample(Tensor x_in) const {
        const Tensor held = std::move(x_in);
        const Tensor x = replication_pad(held, {kernel / 2 - 1, kernel / 2});
        return shadow::conv(x, expand(filter.value, {x.size(1), -1, -1}), {}, {{ratio}, {0}, {1}, x.size(1)});
    }

    static constexpr std::int64_t ratio = 2, kernel = 12;
    UpSample1d upsample;
    Parameter &alpha, &beta, &filter;
};

/// ResBlock: {x} → {x}.
class ResBlock : public nn::Block {
  public:
    ResBlock(const Builder& parent, std::int64_t channels, std::int64_t kernel,
             const std::vector<std::int64_t>& dilations, bool antialias)
        : ResBlock(parent.block(*this), channels, kernel, dilations, antialias) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor x = args[0], xt;
        for (std::size_t i = 0; i < convs1.size(); ++i) {
            xt = acts1.empty() ? leaky_relu(x) : acts1[i](x);
            xt = convs1[i](xt);
            xt = acts2.empty() ? leaky_relu(xt) : acts2[i](xt);
            xt = convs2[i](xt);
            x = add(x, xt);
        }
        return {x};
    }

  private:
    ResBlock(const BlockBuilder& builder, std::int64_t channels, std::int64_t kernel,
             const std::vector<std::int64_t>& dilations, bool antialias) {
        gemms = false;
        for (std::size_t i = 0; i < dilations.size(); ++i) {
            const std::int64_t dilation = dilations[i], at = static_cast<std::int64_t>(i);
            nn::Conv conv = builder["convs1"].conv(std::to_string(at), channels, channels, {kernel}, {1},
                                                   {dilation * (kernel / 2)});
            conv.how.dilation = {dilation};
            convs1.push_back(std::move(conv));
            convs2.push_back(
                builder["convs2"].conv(std::to_string(at), channels, channels, {kernel}, {1}, {kernel / 2}));
            if (!antialias) continue;
            acts1.emplace_back(builder["acts1"][at], channels);
            acts2.emplace_back(builder["acts2"][at], channels);
        }
        builder.finish(*this, "ResBlock", {antialias});
    }

    std::deque<nn::Conv> convs1, convs2;
    std::deque<AntiAliasAct1d> acts1, acts2;  // empty: leaky_relu
};

struct Settings {
    std::int64_t in_channels, hidden_channels, out_channels;
    std::vector<std::int64_t> upsample_kernel_sizes, upsample_factors;
    bool antialias, final_bias, ends;  // `ends`: tanh or clamp at the end
};

/// LTX2Vocoder: mel spectrogram [B, C, T, bins] → waveform [B, C', samples].
class Vocoder {
  public:
    Vocoder(const Builder& builder, const Settings& settings)
        : settings_(settings),
          conv_in(builder.conv("conv_in", settings.in_channels, settings.hidden_channels, {7}, {1}, {3})) {
        std::int64_t channels = settings.hidden_channels;
        for (std::size_t i = 0; i < settings.upsample_factors.size(); ++i) {
            const std::int64_t kernel = settings.upsample_kernel_sizes[i], out = channels / 2;
            const Builder upsampler = builder["upsamplers"][static_cast<std::int64_t>(i)];
            (void)upsampler.parameter("weight", {channels, out, kernel});
            (void)upsampler.parameter("bias", {out});
            for (const std::int64_t size : {3, 7, 11}) {
                const Builder place = builder["resnets"][static_cast<std::int64_t>(resnets.size())];
                resnets.emplace_back(place, out, size, std::vector<std::int64_t>{1, 3, 5}, settings.antialias);
            }
            channels = out;
        }
        if (settings.antialias) act_out.emplace(builder["act_out"], channels);
        conv_out = builder.conv("conv_out", channels, settings.out_channels, {7}, {1}, {3}, settings.final_bias);
    }

    [[nodiscard]] Tensor operator()(Tensor hidden_states_in) const {
        const Tensor held = std::move(hidden_states_in);
        Tensor hidden_states = flatten(transpose(held, 2, 3), 1, 2);
        hidden_states = conv_in(hidden_states);
        const Caller call(hidden_states.run(), false);
        Tensor resnet_outputs;
        for (std::size_t i = 0; i < settings_.upsample_factors.size(); ++i) {
            if (!settings_.antialias) hidden_states = leaky_relu(hidden_states);
            const std::int64_t kernel = settings_.upsample_kernel_sizes[i], stride = settings_.upsample_factors[i];
            hidden_states =
                conv_transpose1d(hidden_states, hidden_states.size(1) / 2, kernel, stride, (kernel - stride) / 2);
            {
                std::vector<Tensor> outputs;
                for (std::size_t j = 3 * i; j < 3 * i + 3; ++j) outputs.push_back(call(resnets[j], {hidden_states})[0]);
                resnet_outputs = stack(outputs, 0);
            }
            hidden_states = mean(resnet_outputs, 0, false);
        }
        hidden_states = act_out ? (*act_out)(hidden_states) : leaky_relu(hidden_states);
        hidden_states = conv_out(hidden_states);
        if (settings_.ends) hidden_states = tanh(hidden_states);
        return hidden_states;
    }

  private:
    Settings settings_;
    nn::Conv conv_in, conv_out;
    std::deque<ResBlock> resnets;
    std::optional<AntiAliasAct1d> act_out;
};

/// MelSTFT: waveform [N, samples] → log-mel spectrogram [N, bins, T].
class MelStft {
  public:
    MelStft(const Builder& builder, std::int64_t filter_length, std::int64_t hop_length, std::int64_t bins)
        : filter_length_(filter_length), hop_length_(hop_length) {
        const std::int64_t frequencies = filter_length / 2 + 1;
        forward_basis = &builder["stft_fn"].buffer("forward_basis", {2 * frequencies, 1, filter_length}, Dtype::f32);
        (void)builder["stft_fn"].buffer("inverse_basis", {2 * frequencies, 1, filter_length}, Dtype::f32);
        mel_basis = &builder.buffer("mel_basis", {bins, frequencies}, Dtype::f32);
    }

    /// {log_mel, magnitude, phase, energy}
    [[nodiscard]] Tensors operator()(Tensor waveform_in) const {
        const Tensor held = std::move(waveform_in);
        Run& run = held.run();
        Tensor magnitude, phase;
        {
            Tensor waveform = unsqueeze(held, 1);
            waveform = pad(waveform, {filter_length_ - hop_length_, 0});
            const Tensor spec = shadow::conv(waveform, forward_basis->value, {}, {{hop_length_}, {0}, {1}, 1});
            const Tensors parts = chunk(spec, 2, 1);  // real, imag
            {
                Tensor real = pow_scalar(parts[0]);
                Tensor imag = pow_scalar(parts[1]);
                Tensor sum = add(std::move(real), std::move(imag));
                magnitude = sqrt(std::move(sum));
            }
            {
                const Tensor imag = to_float(parts[1]);
                const Tensor real = to_float(parts[0]);
                phase = run.empty(imag.sizes(), Dtype::f32, Op::custom);  // atan2
            }
            phase = to(phase, magnitude.dtype());
        }
        const Tensor energy = run.empty({magnitude.size(0), magnitude.size(2)}, magnitude.dtype(), Op::norm);
        const Tensor mel = matmul(mel_basis->value, magnitude);
        const Tensor log_mel = log(clamp(mel));
        return {log_mel, magnitude, phase, energy};
    }

  private:
    std::int64_t filter_length_, hop_length_;
    Parameter *forward_basis, *mel_basis;
};

Settings settings_of(const profile::Config& config, const std::string& prefix) {
    const std::string final_act_fn = config.text(prefix + "final_act_fn", "");
    return {config.integer(prefix + "in_channels", 128),  config.integer(prefix + "hidden_channels"),
            config.integer(prefix + "out_channels", 2),   config.integers(prefix + "upsample_kernel_sizes"),
            config.integers(prefix + "upsample_factors"), config.boolean(prefix + "antialias", false),
            config.boolean(prefix + "final_bias", true),  !final_act_fn.empty()};
}

class LTX2Vocoder : public Model {
  public:
    LTX2Vocoder(const Builder& builder, const profile::Config& config)
        : out_channels_(config.integer("out_channels", 2)),
          extends_(config.values.contains("bwe_hidden_channels")),
          vocoder(extends_ ? builder["vocoder"] : builder, settings_of(config, "")) {
        for (const std::int64_t factor : config.integers("upsample_factors")) samples_a_frame_ *= factor;
        if (!extends_) return;
        bwe_generator.emplace(builder["bwe_generator"], settings_of(config, "bwe_"));
        mel_stft.emplace(builder["mel_stft"], config.integer("filter_length"), config.integer("hop_length"),
                         config.integer("num_mel_channels"));
        ratio_ = config.integer("output_sampling_rate") / config.integer("input_sampling_rate");
        resampler.emplace(builder["resampler"], ratio_, true);
    }

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        return {{"hidden_states", {request.batch, out_channels_, mel_frames(request), mel_bins}, request.dtype}};
    }
    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {{request.batch, out_channels_, mel_frames(request) * samples_a_frame_ * ratio_}};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        if (!extends_) return {vocoder(args[0])};
        const Tensor x = vocoder(args[0]);
        Tensor mel, unused;
        {
            Tensors spectrum = (*mel_stft)(flatten(x, 0, 1));
            mel = spectrum[0];
            unused = spectrum[3];  // `_`, the last one
        }
        mel = unflatten(mel, 0, {-1, x.size(1)});
        const Tensor mel_for_bwe = transpose(mel, 2, 3);
        const Tensor residual = (*bwe_generator)(mel_for_bwe);
        const Tensor skip = (*resampler)(x);
        const Tensor waveform = clamp(add(residual, skip));
        return {waveform};
    }

  private:
    static constexpr std::int64_t mel_bins = 64;
    /// What the audio VAE makes of the sound of so many frames, at 24 a second.
    [[nodiscard]] static std::int64_t mel_frames(const Request& request) {
        return 4 * (ltx2::audio_latents_of(request.frames, 24) - 1) + 1;
    }

    std::int64_t out_channels_, samples_a_frame_ = 1, ratio_ = 1;
    bool extends_;
    Vocoder vocoder;
    std::optional<Vocoder> bwe_generator;
    std::optional<MelStft> mel_stft;
    std::optional<UpSample1d> resampler;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<LTX2Vocoder>(Builder(weights), profile.config);
}

}  // namespace vram::models::ltx2_vocoder
