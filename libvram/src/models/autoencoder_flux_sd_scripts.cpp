// Mirrors AutoEncoder (sd-scripts 48d368f, library/flux_models.py), which sd-scripts encodes and decodes pictures of
// FLUX.1 with: the module tree of Black Forest Labs. A file of its own, since its encoder keeps what every layer
// returns, its swish makes a tensor more than silu does, and scale and shift are its own.
#include <deque>
#include <optional>

#include "models/bfl_autoencoder.hpp"
#include "models/families.hpp"

namespace vram::models::autoencoder_flux_sd_scripts {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::GroupNorm;

using namespace bfl_autoencoder;  // NOLINT: the blocks

constexpr std::string_view tree = "autoencoder_flux_sd_scripts";

/// One resolution: blocks, then a convolution to the next one.
struct Level {
    std::deque<ResnetBlock> block;
    std::optional<nn::Conv> sample;
};

class Encoder {
  public:
    Encoder(const Builder& builder, const std::vector<std::int64_t>& channels, std::int64_t layers,
            std::int64_t latents)
        : conv_in(builder.conv2d("conv_in", 3, channels.front(), 3, 1, 1)) {
        std::int64_t in = channels.front();
        for (std::size_t i = 0; i < channels.size(); ++i) {
            const Builder at = builder["down"][static_cast<std::int64_t>(i)];
            Level& level = down.emplace_back();
            for (std::int64_t j = 0; j < layers; ++j) {
                level.block.emplace_back(at["block"][j], tree, in, channels[i]);
                in = channels[i];
            }
            if (i + 1 < channels.size()) level.sample = at["downsample"].conv2d("conv", in, in, 3, 2, 0);
        }
        mid.emplace(builder["mid"], tree, in);
        norm_out = builder.group_norm("norm_out", groups, in);
        conv_out = builder.conv2d("conv_out", in, 2 * latents, 3, 1, 1);
    }

    [[nodiscard]] Tensor operator()(const Tensor& x) const {
        const Caller call(x.run(), false);
        std::vector<Tensor> hs{conv_in(x)};
        Tensor h;
        for (const Level& level : down) {
            for (const ResnetBlock& block : level.block) {
                h = call(block, {hs.back()})[0];
                hs.push_back(h);
            }
            if (!level.sample) continue;
            Tensor padded = pad(hs.back(), {0, 1, 0, 1});
            padded = (*level.sample)(padded);
            hs.push_back(std::move(padded));
        }
        h = hs.back();
        h = (*mid)(call, std::move(h));
        h = norm_out(h);
        h = swish(h);
        return conv_out(h);
    }

  private:
    nn::Conv conv_in;
    std::deque<Level> down;
    std::optional<Middle> mid;
    GroupNorm norm_out;
    nn::Conv conv_out;
};

class Decoder {
  public:
    Decoder(const Builder& builder, const std::vector<std::int64_t>& channels, std::int64_t layers,
            std::int64_t latents)
        : conv_in(builder.conv2d("conv_in", latents, channels.back(), 3, 1, 1)),
          mid(builder["mid"], tree, channels.back()) {
        for (std::size_t i = 0; i < channels.size(); ++i) {
            const Builder at = builder["up"][static_cast<std::int64_t>(i)];
            const std::int64_t before = i + 1 < channels.size() ? channels[i + 1] : channels[i];
            Level& level = up.emplace_back();
            for (std::int64_t j = 0; j <= layers; ++j)
                level.block.emplace_back(at["block"][j], tree, j == 0 ? before : channels[i], channels[i]);
            if (i > 0) level.sample = at["upsample"].conv2d("conv", channels[i], channels[i], 3, 1, 1);
        }
        norm_out = builder.group_norm("norm_out", groups, channels.front());
        conv_out = builder.conv2d("conv_out", channels.front(), 3, 3, 1, 1);
    }

    [[nodiscard]] Tensor operator()(const Tensor& z) const {
        const Caller call(z.run(), false);
        Tensor h = conv_in(z);
        h = mid(call, std::move(h));
        for (auto level = up.rbegin(); level != up.rend(); ++level) {
            for (const ResnetBlock& block : level->block) h = call(block, {h})[0];
            if (!level->sample) continue;
            Tensor larger = upsample_nearest(h, 2);
            larger = (*level->sample)(larger);
            h = std::move(larger);
        }
        h = norm_out(h);
        h = swish(h);
        return conv_out(h);
    }

  private:
    nn::Conv conv_in;
    Middle mid;
    std::deque<Level> up;
    GroupNorm norm_out;
    nn::Conv conv_out;
};

class AutoEncoder : public Model {
  public:
    AutoEncoder(const Builder& builder, const profile::Config& config)
        : latent_channels_(config.integer("latent_channels")),
          factor_(std::int64_t{1} << (config.integers("block_out_channels").size() - 1)),
          encoder(builder["encoder"], config.integers("block_out_channels"), config.integer("layers_per_block"),
                  latent_channels_),
          decoder(builder["decoder"], config.integers("block_out_channels"), config.integer("layers_per_block"),
                  latent_channels_) {}

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        if (request.operation == Request::Operation::encode)
            return {{"x", {request.batch, 3, request.height, request.width}, request.dtype}};
        return {
            {"z", {request.batch, latent_channels_, request.height / factor_, request.width / factor_}, request.dtype}};
    }
    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        if (request.operation == Request::Operation::encode)
            return {{request.batch, latent_channels_, request.height / factor_, request.width / factor_}};
        return {{request.batch, 3, request.height, request.width}};
    }

    /// encode → {z}, drawn, shifted and scaled; decode → {sample}
    [[nodiscard]] Tensors forward(const Tensors& args, const Request& request) const override {
        return {request.operation == Request::Operation::encode ? encode(args[0]) : decode(args[0])};
    }

  private:
    [[nodiscard]] Tensor encode(const Tensor& x) const {
        Tensor z;
        {
            Tensor moments = encoder(x);
            z = reg(moments);
        }
        Tensor shifted = add_scalar(z);
        return mul_scalar(std::move(shifted));
    }

    // DiagonalGaussian
    [[nodiscard]] static Tensor reg(const Tensor& z) {
        const Tensors parts = chunk(z, 2, 1);  // mean, logvar
        Tensor std = mul_scalar(parts[1]);
        std = exp(std);
        Tensor noise = z.run().empty(parts[0].sizes(), z.dtype(), Op::noise);
        Tensor spread = mul(std, std::move(noise));
        return add(parts[0], std::move(spread));
    }

    [[nodiscard]] Tensor decode(const Tensor& z_in) const {
        Tensor z = div_scalar(z_in);
        z = add_scalar(std::move(z));
        return decoder(z);
    }

    std::int64_t latent_channels_, factor_;
    Encoder encoder;
    Decoder decoder;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<AutoEncoder>(Builder(weights), profile.config);
}

}  // namespace vram::models::autoencoder_flux_sd_scripts
