// Mirrors AutoencoderKL (diffusers 0.42.1, models/autoencoders/autoencoder_kl.py, vae.py): the VAEs of SD, SDXL, SD 3,
// FLUX.1; and AutoencoderKLFlux2 (autoencoder_kl_flux2.py), which adds a batch norm that its pipelines read.
#include <algorithm>
#include <deque>
#include <optional>

#include "models/families.hpp"
#include "models/resnet.hpp"
#include "models/vae.hpp"

namespace vram::models::autoencoder_kl {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::GroupNorm;
using nn::Linear;

constexpr std::int64_t groups = 32;

/// Attention with a group norm and a residual, one head over the picture's places: AttnProcessor2_0. args:
/// hidden_states
class MidAttention : public nn::Block {
  public:
    MidAttention(const Builder& parent, std::int64_t channels) : MidAttention(parent.block(*this), channels) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0];  // [B, C, H, W]
        const Tensor residual = hidden_states;
        const std::int64_t batch = hidden_states.size(0), channels = hidden_states.size(1),
                           height = hidden_states.size(2), width = hidden_states.size(3);
        hidden_states = transpose(view(hidden_states, {batch, channels, height * width}), 1, 2);  // [B, HW, C]
        hidden_states = transpose(group_norm(transpose(hidden_states, 1, 2)), 1, 2);
        Tensor query = to_q(hidden_states);
        const Tensor encoder_hidden_states = hidden_states;
        Tensor key = to_k(encoder_hidden_states);
        Tensor value = to_v(encoder_hidden_states);
        query = transpose(view(query, {batch, -1, 1, channels}), 1, 2);
        key = transpose(view(key, {batch, -1, 1, channels}), 1, 2);
        value = transpose(view(value, {batch, -1, 1, channels}), 1, 2);
        hidden_states = scaled_dot_product_attention(query, key, value);
        hidden_states = reshape(transpose(hidden_states, 1, 2), {batch, -1, channels});
        hidden_states = to(hidden_states, query.dtype());
        hidden_states = to_out(hidden_states);
        hidden_states = reshape(transpose(hidden_states, -1, -2), {batch, channels, height, width});
        hidden_states = add(hidden_states, residual);
        hidden_states = div_scalar(hidden_states);
        return {hidden_states};
    }

  private:
    MidAttention(const BlockBuilder& builder, std::int64_t channels)
        : group_norm(builder.group_norm("group_norm", groups, channels)),
          to_q(builder.linear("to_q", channels, channels)),
          to_k(builder.linear("to_k", channels, channels)),
          to_v(builder.linear("to_v", channels, channels)),
          to_out(builder["to_out"].linear("0", channels, channels)) {
        builder.finish(*this, "MidAttention", {});
    }

    GroupNorm group_norm;
    Linear to_q, to_k, to_v, to_out;
};

/// UNetMidBlock2D of a VAE: resnet, attention, resnet.
class MidBlock {
  public:
    MidBlock(const Builder& builder, std::int64_t channels)
        : attention(builder["attentions"][0], channels),
          first(builder["resnets"][0], channels, channels, 0, groups),
          second(builder["resnets"][1], channels, channels, 0, groups) {}

    [[nodiscard]] Tensor operator()(const Caller& call, Tensor sample) const {
        const Tensor held = std::move(sample);
        Tensor hidden_states = call(first, {held})[0];
        hidden_states = call(attention, {hidden_states})[0];
        hidden_states = call(second, {hidden_states})[0];
        return hidden_states;
    }

  private:
    MidAttention attention;
    ResnetBlock2D first, second;
};

/// DownEncoderBlock2D and UpDecoderBlock2D: resnets, then a sampling layer on all but the last.
struct Stage {
    std::deque<ResnetBlock2D> resnets;
    Downsample2D down;
    Upsample2D up;
    bool downs = false, ups = false;

    [[nodiscard]] Tensor operator()(const Caller& call, Tensor sample) const {
        const Tensor held = std::move(sample);
        Tensor hidden_states = held;
        for (const ResnetBlock2D& resnet : resnets) hidden_states = call(resnet, {hidden_states})[0];
        if (downs) hidden_states = down(hidden_states);
        if (ups) hidden_states = up(hidden_states);
        return hidden_states;
    }
};

class Encoder {
  public:
    Encoder(const Builder& builder, std::int64_t latent_channels, const std::vector<std::int64_t>& channels,
            std::int64_t layers)
        : conv_in(builder.conv2d("conv_in", 3, channels.front(), 3, 1, 1)) {
        std::int64_t in = channels.front();
        for (std::size_t i = 0; i < channels.size(); ++i) {
            const Builder block = builder["down_blocks"][static_cast<std::int64_t>(i)];
            Stage& stage = down_blocks.emplace_back();
            for (std::int64_t j = 0; j < layers; ++j)
                stage.resnets.emplace_back(block["resnets"][j], j == 0 ? in : channels[i], channels[i], 0, groups);
            in = channels[i];
            stage.downs = i + 1 < channels.size();
            if (stage.downs) stage.down = Downsample2D(block["downsamplers"][0], in, 0);
        }
        mid_block.emplace(builder["mid_block"], in);
        conv_norm_out = builder.group_norm("conv_norm_out", groups, in);
        conv_out = builder.conv2d("conv_out", in, 2 * latent_channels, 3, 1, 1);
    }

    [[nodiscard]] Tensor operator()(Tensor sample_in) const {
        const Tensor held = std::move(sample_in);
        const Caller call(held.run(), false);
        Tensor sample = conv_in(held);
        for (const Stage& down_block : down_blocks) sample = down_block(call, sample);
        sample = (*mid_block)(call, sample);
        sample = conv_norm_out(sample);
        sample = silu(sample);
        sample = conv_out(sample);
        return sample;
    }

  private:
    nn::Conv conv_in;
    std::deque<Stage> down_blocks;
    std::optional<MidBlock> mid_block;
    GroupNorm conv_norm_out;
    nn::Conv conv_out;
};

class Decoder {
  public:
    Decoder(const Builder& builder, std::int64_t latent_channels, std::vector<std::int64_t> channels,
            std::int64_t layers)
        : conv_in(builder.conv2d("conv_in", latent_channels, channels.back(), 3, 1, 1)) {
        std::reverse(channels.begin(), channels.end());
        std::int64_t in = channels.front();
        for (std::size_t i = 0; i < channels.size(); ++i) {
            const Builder block = builder["up_blocks"][static_cast<std::int64_t>(i)];
            Stage& stage = up_blocks.emplace_back();
            for (std::int64_t j = 0; j <= layers; ++j)
                stage.resnets.emplace_back(block["resnets"][j], j == 0 ? in : channels[i], channels[i], 0, groups);
            in = channels[i];
            stage.ups = i + 1 < channels.size();
            if (stage.ups) stage.up = Upsample2D(block["upsamplers"][0], in);
        }
        mid_block.emplace(builder["mid_block"], channels.front());
        conv_norm_out = builder.group_norm("conv_norm_out", groups, in);
        conv_out = builder.conv2d("conv_out", in, 3, 3, 1, 1);
    }

    [[nodiscard]] Tensor operator()(Tensor sample_in) const {
        const Tensor held = std::move(sample_in);
        const Caller call(held.run(), false);
        Tensor sample = conv_in(held);
        sample = (*mid_block)(call, sample);
        for (const Stage& up_block : up_blocks) sample = up_block(call, sample);
        sample = conv_norm_out(sample);
        sample = silu(sample);
        sample = conv_out(sample);
        return sample;
    }

  private:
    nn::Conv conv_in;
    std::deque<Stage> up_blocks;
    std::optional<MidBlock> mid_block;
    GroupNorm conv_norm_out;
    nn::Conv conv_out;
};

class AutoencoderKL : public SlicingAutoencoder {
  public:
    AutoencoderKL(const Builder& builder, const profile::Config& config)
        : latent_channels_(config.integer("latent_channels")),
          use_quant_conv_(config.boolean("use_quant_conv")),
          use_post_quant_conv_(config.boolean("use_post_quant_conv")),
          tile_sample_min_size_(config.integer("sample_size")),
          factor_(std::int64_t{1} << (config.integers("block_out_channels").size() - 1)),
          tile_latent_min_size_(tile_sample_min_size_ / factor_),
          encoder(builder["encoder"], latent_channels_, config.integers("block_out_channels"),
                  config.integer("layers_per_block")),
          decoder(builder["decoder"], latent_channels_,
                  config.integers("decoder_block_out_channels", config.integers("block_out_channels")),
                  config.integer("layers_per_block")),
          blend_encoded(builder, tile_latent_min_size_ / 4),
          blend_decoded(builder, tile_sample_min_size_ / 4) {
        if (use_quant_conv_) quant_conv = builder.conv2d("quant_conv", 2 * latent_channels_, 2 * latent_channels_, 1);
        if (use_post_quant_conv_)
            post_quant_conv = builder.conv2d("post_quant_conv", latent_channels_, latent_channels_, 1);
        // AutoencoderKLFlux2: nn.BatchNorm2d without affine over the packed latents; no forward calls it.
        if (!config.has("patch_size")) return;
        std::int64_t packed = latent_channels_;
        for (std::int64_t side : config.integers("patch_size")) packed *= side;
        (void)builder["bn"].buffer("running_mean", {packed}, Dtype::f32);
        (void)builder["bn"].buffer("running_var", {packed}, Dtype::f32);
        (void)builder["bn"].buffer("num_batches_tracked", {}, Dtype::i64);
    }

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

  private:
    [[nodiscard]] Tensor whole(const Caller&, const Tensor& x, bool encodes, bool tiling) const override {
        return encodes ? encode(x, tiling) : decode(x, tiling);
    }
    [[nodiscard]] Tensor encode(const Tensor& x, bool tiling) const {
        if (tiling && (x.size(3) > tile_sample_min_size_ || x.size(2) > tile_sample_min_size_)) return tiled(x, true);
        return encode_tile(x);
    }
    [[nodiscard]] Tensor decode(const Tensor& z, bool tiling) const {
        if (tiling && (z.size(3) > tile_latent_min_size_ || z.size(2) > tile_latent_min_size_)) return tiled(z, false);
        return decode_tile(z);
    }
    [[nodiscard]] Tensor encode_tile(const Tensor& x) const {
        Tensor enc = encoder(x);
        if (use_quant_conv_) enc = quant_conv(enc);
        return enc;
    }
    [[nodiscard]] Tensor decode_tile(const Tensor& latent) const {
        Tensor z = latent;
        if (use_post_quant_conv_) z = post_quant_conv(z);
        return decoder(z);
    }

    // _tiled_encode, tiled_decode: overlapping tiles, blended into each other in place, cut and joined.
    [[nodiscard]] Tensor tiled(const Tensor& x, bool encodes) const {
        const std::int64_t tile_in = encodes ? tile_sample_min_size_ : tile_latent_min_size_;
        const std::int64_t tile_out = encodes ? tile_latent_min_size_ : tile_sample_min_size_;
        // int(size * (1 - 0.25)) and int(size * 0.25)
        const std::int64_t overlap_size = tile_step(tile_in * 3 / 4), row_limit = tile_out - tile_out / 4;
        const Blend& blend = encodes ? blend_encoded : blend_decoded;
        const Caller call(x.run(), false);
        std::vector<std::vector<Tensor>> rows;
        Tensor tile, decoded;
        for (std::int64_t i = 0; i < x.size(2); i += overlap_size) {
            std::vector<Tensor> row;
            for (std::int64_t j = 0; j < x.size(3); j += overlap_size) {
                tile = slice(slice(x, 2, i, i + tile_in), 3, j, j + tile_in);
                if (encodes) {
                    tile = encoder(tile);
                    if (use_quant_conv_) tile = quant_conv(tile);
                    row.push_back(tile);
                } else {
                    if (use_post_quant_conv_) tile = post_quant_conv(tile);
                    decoded = decoder(tile);
                    row.push_back(decoded);
                }
            }
            rows.push_back(std::move(row));
        }
        std::vector<Tensor> result_rows;
        return join_tiles(call, rows, tile, result_rows, blend, row_limit);
    }

    std::int64_t latent_channels_;
    bool use_quant_conv_, use_post_quant_conv_;
    std::int64_t tile_sample_min_size_, factor_, tile_latent_min_size_;
    Encoder encoder;
    Decoder decoder;
    nn::Conv quant_conv, post_quant_conv;
    Blend blend_encoded, blend_decoded;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<AutoencoderKL>(Builder(weights), profile.config);
}

}  // namespace vram::models::autoencoder_kl
