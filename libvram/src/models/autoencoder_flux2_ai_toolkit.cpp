// Mirrors AutoEncoder (ai-toolkit 27a03a91, extensions_built_in/diffusion_models/flux2/src/autoencoder.py), the VAE
// that ai-toolkit decodes FLUX.2 with. Its weights are those of diffusers' AutoencoderKLFlux2; its encoder holds every
// layer's output to the end, its swish is a product, attention projects by convolutions, and the batch norm is part of
// encode and decode: latents are packed, 16 pixels each.
#include <deque>

#include "models/bfl_autoencoder.hpp"
#include "models/families.hpp"

namespace vram::models::autoencoder_flux2_ai_toolkit {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Conv;
using nn::GroupNorm;

using namespace bfl_autoencoder;  // NOLINT: the blocks

constexpr std::string_view tree = "autoencoder_flux2_ai_toolkit";

struct Level {
    std::deque<ResnetBlock> blocks;
    Conv conv;  // of the sampling layer; none on the last level
};

class Encoder {
  public:
    Encoder(const Builder& builder, std::int64_t z_channels, const std::vector<std::int64_t>& channels,
            std::int64_t num_res_blocks)
        : quant_conv(builder.conv2d("quant_conv", 2 * z_channels, 2 * z_channels, 1)),
          conv_in(builder.conv2d("conv_in", 3, channels.front(), 3, 1, 1)) {
        std::int64_t block_in = channels.front();
        for (std::size_t i = 0; i < channels.size(); ++i) {
            const Builder level = builder["down"][static_cast<std::int64_t>(i)];
            Level& made = down.emplace_back();
            for (std::int64_t j = 0; j < num_res_blocks; ++j) {
                made.blocks.emplace_back(level["block"][j], tree, block_in, channels[i]);
                block_in = channels[i];
            }
            if (i + 1 < channels.size()) made.conv = level["downsample"].conv2d("conv", block_in, block_in, 3, 2);
        }
        mid = std::make_unique<Middle>(builder["mid"], tree, block_in);
        norm_out = builder.group_norm("norm_out", groups, block_in);
        conv_out = builder.conv2d("conv_out", block_in, 2 * z_channels, 3, 1, 1);
    }

    [[nodiscard]] Tensor operator()(const Tensor& x) const {
        const Caller call(x.run(), false);
        Tensors hs{conv_in(x)};
        Tensor h;
        for (std::size_t i = 0; i < down.size(); ++i) {
            for (const ResnetBlock& block : down[i].blocks) {
                h = call(block, {hs.back()})[0];
                hs.push_back(h);
            }
            if (i + 1 == down.size()) continue;
            const Tensor padded = pad(hs.back(), {0, 1, 0, 1});
            hs.push_back(down[i].conv(padded));
        }
        h = (*mid)(call, hs.back());
        h = norm_out(h);
        h = swish(h);
        h = conv_out(h);
        h = quant_conv(h);
        return h;
    }

  private:
    Conv quant_conv, conv_in;
    std::deque<Level> down;
    std::unique_ptr<Middle> mid;
    GroupNorm norm_out;
    Conv conv_out;
};

class Decoder {
  public:
    Decoder(const Builder& builder, std::int64_t z_channels, const std::vector<std::int64_t>& channels,
            std::int64_t num_res_blocks)
        : post_quant_conv(builder.conv2d("post_quant_conv", z_channels, z_channels, 1)),
          conv_in(builder.conv2d("conv_in", z_channels, channels.back(), 3, 1, 1)),
          mid(builder["mid"], tree, channels.back()) {
        std::int64_t block_in = channels.back();
        for (std::size_t i = channels.size(); i-- > 0;) {
            const Builder level = builder["up"][static_cast<std::int64_t>(i)];
            Level& made = up.emplace_back();
            for (std::int64_t j = 0; j <= num_res_blocks; ++j) {
                made.blocks.emplace_back(level["block"][j], tree, block_in, channels[i]);
                block_in = channels[i];
            }
            if (i > 0) made.conv = level["upsample"].conv2d("conv", block_in, block_in, 3, 1, 1);
        }
        norm_out = builder.group_norm("norm_out", groups, block_in);
        conv_out = builder.conv2d("conv_out", block_in, 3, 3, 1, 1);
    }

    [[nodiscard]] Tensor operator()(const Tensor& z_in) const {
        const Caller call(z_in.run(), false);
        const Tensor z = post_quant_conv(z_in);
        Tensor h = conv_in(z);
        h = mid(call, std::move(h));
        for (std::size_t i = 0; i < up.size(); ++i) {
            for (const ResnetBlock& block : up[i].blocks) h = call(block, {h})[0];
            if (i + 1 == up.size()) continue;
            const Tensor larger = upsample_nearest(h, 2);
            h = up[i].conv(larger);
        }
        h = norm_out(h);
        h = swish(h);
        h = conv_out(h);
        return h;
    }

  private:
    Conv post_quant_conv, conv_in;
    Middle mid;
    std::deque<Level> up;  // from the smallest pictures on
    GroupNorm norm_out;
    Conv conv_out;
};

class AutoEncoder : public Model {
  public:
    AutoEncoder(const Builder& builder, const profile::Config& config)
        : packed_(4 * config.integer("latent_channels")),
          factor_(std::int64_t{2} << (config.integers("block_out_channels").size() - 1)),
          encoder(builder["encoder"], config.integer("latent_channels"), config.integers("block_out_channels"),
                  config.integer("layers_per_block")),
          decoder(builder["decoder"], config.integer("latent_channels"), config.integers("block_out_channels"),
                  config.integer("layers_per_block")),
          running_mean(builder["bn"].buffer("running_mean", {packed_}, Dtype::f32)),
          running_var(builder["bn"].buffer("running_var", {packed_}, Dtype::f32)) {
        // The trainer casts every tensor of the file, this count among them.
        (void)builder["bn"].buffer("num_batches_tracked", {}, Dtype::f32);
    }

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        if (request.operation == Request::Operation::encode) return {{"x", pictures(request), request.dtype}};
        return {{"z", latents(request), request.dtype}};
    }
    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {request.operation == Request::Operation::encode ? latents(request) : pictures(request)};
    }

    /// encode: {z}, without a distribution; decode: {dec}
    [[nodiscard]] Tensors forward(const Tensors& args, const Request& request) const override {
        return {request.operation == Request::Operation::encode ? encode(args[0]) : decode(args[0])};
    }

  private:
    [[nodiscard]] static Dims pictures(const Request& request) {
        return {request.batch, 3, request.height, request.width};
    }
    [[nodiscard]] Dims latents(const Request& request) const {
        return {request.batch, packed_, request.height / factor_, request.width / factor_};
    }

    [[nodiscard]] Tensor encode(const Tensor& x) const {
        const Tensor moments = encoder(x);
        const Tensor mean = chunk(moments, 2, 1)[0];
        // "c (i pi) (j pj) -> (c pi pj) i j"
        Tensor z = unflatten(mean, 3, {-1, 2});
        z = unflatten(std::move(z), 2, {-1, 2});
        z = permute(std::move(z), {0, 1, 3, 5, 2, 4});
        z = reshape(std::move(z), {x.size(0), packed_, x.size(2) / factor_, x.size(3) / factor_});
        // normalize: native_batch_norm in eval, whose statistics are two more results
        Run& run = x.run();
        Tensor normed = run.empty_like(z, Op::group_norm);
        const Tensor save_mean = run.empty({packed_}, Dtype::f32, Op::group_norm);
        const Tensor save_invstd = run.empty({packed_}, Dtype::f32, Op::group_norm);
        return normed;
    }

    [[nodiscard]] Tensor decode(const Tensor& z_in) const {
        Tensor z;
        {
            // inv_normalize
            const Tensor s = sqrt(add_scalar(view(running_var.value, {1, -1, 1, 1})));
            const Tensor m = view(running_mean.value, {1, -1, 1, 1});
            z = add(mul(z_in, s), m);
        }
        // "(c pi pj) i j -> c (i pi) (j pj)"
        const std::int64_t batch = z.size(0), height = z.size(2), width = z.size(3);
        z = view(std::move(z), {batch, packed_ / 4, 2, 2, height, width});
        z = permute(std::move(z), {0, 1, 4, 2, 5, 3});
        z = reshape(std::move(z), {batch, packed_ / 4, 2 * height, 2 * width});
        return decoder(z);
    }

    std::int64_t packed_, factor_;
    Encoder encoder;
    Decoder decoder;
    nn::Parameter &running_mean, &running_var;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<AutoEncoder>(Builder(weights), profile.config);
}

}  // namespace vram::models::autoencoder_flux2_ai_toolkit
