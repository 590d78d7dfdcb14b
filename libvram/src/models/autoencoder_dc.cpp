// Mirrors AutoencoderDC (diffusers 0.42.1, models/autoencoders/autoencoder_dc.py; SanaMultiscaleLinearAttention of
// models/attention_processor.py): the deep compression VAE of Sana.
#include <deque>
#include <memory>
#include <stdexcept>

#include "models/families.hpp"
#include "models/glumb_conv.hpp"
#include "models/vae.hpp"

namespace vram::models::autoencoder_dc {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;

// norm(x.movedim(1, -1)).movedim(-1, 1)
Tensor over_channels(const PlainRmsNorm& norm, const Tensor& x) {
    return permute(norm(permute(x, {0, 2, 3, 1})), {0, 3, 1, 2});
}

/// args: hidden_states [B, C, H, W], as for all blocks here
class ResBlock : public Block {
  public:
    ResBlock(const Builder& parent, std::int64_t channels) : ResBlock(parent.block(*this), channels) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        const Tensor& residual = args[0];
        Tensor hidden_states = conv1(residual);
        hidden_states = silu(hidden_states);
        hidden_states = conv2(hidden_states);
        hidden_states = over_channels(norm, hidden_states);
        return {add(hidden_states, residual)};
    }

  private:
    ResBlock(const BlockBuilder& builder, std::int64_t channels)
        : conv1(builder.conv2d("conv1", channels, channels, 3, 1, 1)),
          conv2(builder.conv2d("conv2", channels, channels, 3, 1, 1, false)),
          norm(builder["norm"], channels, true) {
        builder.finish(*this, "ResBlock", {});
    }

    nn::Conv conv1, conv2;
    PlainRmsNorm norm;
};

/// SanaMultiscaleAttentionProjection
struct MultiscaleProjection {
    MultiscaleProjection(const Builder& builder, std::int64_t channels, std::int64_t heads, std::int64_t kernel)
        : proj_in(builder.conv2d("proj_in", 1, channels, kernel, 1, kernel / 2, false)),
          proj_out(builder.conv2d("proj_out", channels / (3 * heads), channels, 1, 1, 0, false)) {
        proj_in.how.groups = channels;
        proj_out.how.groups = 3 * heads;
    }
    [[nodiscard]] Tensor operator()(Tensor hidden_states_in) const {
        const Tensor held = std::move(hidden_states_in);
        Tensor hidden_states = proj_in(held);
        hidden_states = proj_out(hidden_states);
        return hidden_states;
    }
    nn::Conv proj_in, proj_out;
};

/// SanaMultiscaleLinearAttention with SanaMultiscaleAttnProcessor2_0.
class MultiscaleAttention {
  public:
    MultiscaleAttention(const Builder& builder, std::int64_t channels, std::int64_t head_dim, std::int64_t kernel)
        : head_dim_(head_dim),
          to_q(builder.linear("to_q", channels, channels / head_dim * head_dim, false)),
          to_k(builder.linear("to_k", channels, channels / head_dim * head_dim, false)),
          to_v(builder.linear("to_v", channels, channels / head_dim * head_dim, false)) {
        if (channels < head_dim) throw std::logic_error("a stage has fewer channels than a head");
        const std::int64_t heads = channels / head_dim, inner = heads * head_dim;
        if (kernel > 0) to_qkv_multiscale.emplace_back(builder["to_qkv_multiscale"][0], 3 * inner, heads, kernel);
        to_out = builder.linear("to_out", inner * (kernel > 0 ? 2 : 1), channels, false);
        norm_out = PlainRmsNorm(builder["norm_out"], channels, true);
    }

    [[nodiscard]] Tensor operator()(Tensor hidden_states_in) const {
        Tensor hidden_states = std::move(hidden_states_in);
        const Tensor residual = hidden_states;
        const std::int64_t batch_size = hidden_states.size(0), height = hidden_states.size(2),
                           width = hidden_states.size(3);
        const bool use_linear_attention = checked_mul(height, width) > head_dim_;
        const Dtype original_dtype = hidden_states.dtype();

        hidden_states = permute(hidden_states, {0, 2, 3, 1});
        Tensor query = to_q(hidden_states);
        Tensor key = to_k(hidden_states);
        Tensor value = to_v(hidden_states);
        hidden_states = cat({query, key, value}, 3);
        hidden_states = permute(hidden_states, {0, 3, 1, 2});
        Tensors multi_scale_qkv{hidden_states};
        for (const MultiscaleProjection& block : to_qkv_multiscale) multi_scale_qkv.push_back(block(hidden_states));
        hidden_states = cat(multi_scale_qkv, 1);
        if (use_linear_attention) hidden_states = to_float(hidden_states);
        hidden_states = reshape(hidden_states, {batch_size, -1, 3 * head_dim_, height * width});
        {
            Tensors parts = chunk(hidden_states, 3, 2);
            query = parts[0];
            key = parts[1];
            value = parts[2];
        }
        query = relu(query);
        key = relu(key);
        if (use_linear_attention) {
            hidden_states = linear_attention(query, key, value);
            hidden_states = to(hidden_states, original_dtype);
        } else {
            hidden_states = quadratic_attention(query, key, value);
        }
        hidden_states = reshape(hidden_states, {batch_size, -1, height, width});
        hidden_states = permute(to_out(permute(hidden_states, {0, 2, 3, 1})), {0, 3, 1, 2});
        hidden_states = over_channels(norm_out, hidden_states);
        hidden_states = add(hidden_states, residual);
        return hidden_states;
    }

  private:
    static Tensor linear_attention(const Tensor& query, const Tensor& key, const Tensor& held_value) {
        const Tensor value = pad(held_value, {0, 0, 0, 1});
        const Tensor scores = matmul(value, transpose(key, -1, -2));
        Tensor hidden_states = matmul(scores, query);
        hidden_states = to_float(hidden_states);
        Tensor products = slice(hidden_states, 2, 0, -1);
        Tensor sums = slice(hidden_states, 2, -1, hidden_states.size(2));
        hidden_states = div(std::move(products), add_scalar(std::move(sums), true));
        return hidden_states;
    }

    static Tensor quadratic_attention(const Tensor& query, const Tensor& key, const Tensor& value) {
        Tensor scores = matmul(transpose(key, -1, -2), query);
        scores = to_float(scores);
        scores = div(scores, add_scalar(sum(scores, 2, true), true));
        return matmul(value, to(scores, value.dtype()));
    }

    std::int64_t head_dim_;
    Linear to_q, to_k, to_v;
    std::deque<MultiscaleProjection> to_qkv_multiscale;  // one or none
    Linear to_out;
    PlainRmsNorm norm_out;
};

class EfficientViTBlock : public Block {
  public:
    EfficientViTBlock(const Builder& parent, std::int64_t channels, std::int64_t head_dim, std::int64_t kernel)
        : EfficientViTBlock(parent.block(*this), channels, head_dim, kernel) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor x = attn(args[0]);
        x = conv_out(x);
        return {x};
    }

  private:
    EfficientViTBlock(const BlockBuilder& builder, std::int64_t channels, std::int64_t head_dim, std::int64_t kernel)
        : attn(builder["attn"], channels, head_dim, kernel),
          conv_out(builder["conv_out"], channels, 4 * channels, true) {
        builder.finish(*this, "EfficientViTBlock", {head_dim, kernel});
    }

    MultiscaleAttention attn;
    GluMbConv conv_out;
};

/// DCDownBlock2d: a strided convolution, or one whose output is unshuffled; beside it the input's unshuffled mean.
class DownBlock : public Block {
  public:
    DownBlock(const Builder& parent, std::int64_t in, std::int64_t out, bool downsample)
        : DownBlock(parent.block(*this), in, out, downsample) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        const Tensor& hidden_states = args[0];
        Tensor x = conv(hidden_states);
        if (downsample_) x = pixel_unshuffle(x, 2);
        Tensor y = pixel_unshuffle(hidden_states, 2);
        y = unflatten(y, 1, {-1, group_size_});
        y = mean(y, 2, false);
        return {add(x, y)};
    }

  private:
    DownBlock(const BlockBuilder& builder, std::int64_t in, std::int64_t out, bool downsample)
        : downsample_(downsample),
          group_size_(4 * in / out),
          conv(builder.conv2d("conv", in, downsample ? out / 4 : out, 3, downsample ? 1 : 2, 1)) {
        builder.finish(*this, "DCDownBlock2d", {downsample, group_size_});
    }

    bool downsample_;
    std::int64_t group_size_;
    nn::Conv conv;
};

/// DCUpBlock2d: interpolated and convolved, or convolved and shuffled; beside it the input's copies shuffled.
class UpBlock : public Block {
  public:
    UpBlock(const Builder& parent, std::int64_t in, std::int64_t out, bool interpolate)
        : UpBlock(parent.block(*this), in, out, interpolate) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        const Tensor& hidden_states = args[0];
        Tensor x;
        if (interpolate_) {
            x = upsample_nearest(hidden_states, 2);
            x = conv(x);
        } else {
            x = conv(hidden_states);
            x = pixel_shuffle(x, 2);
        }
        Tensor y = repeat_interleave(hidden_states, repeats_, 1);
        y = pixel_shuffle(y, 2);
        return {add(x, y)};
    }

  private:
    UpBlock(const BlockBuilder& builder, std::int64_t in, std::int64_t out, bool interpolate)
        : interpolate_(interpolate),
          repeats_(4 * out / in),
          conv(builder.conv2d("conv", in, interpolate ? out : 4 * out, 3, 1, 1)) {
        builder.finish(*this, "DCUpBlock2d", {interpolate, repeats_});
    }

    bool interpolate_;
    std::int64_t repeats_;
    nn::Conv conv;
};

/// nn.Sequential: its input is held until it returns.
using Sequential = std::vector<std::unique_ptr<Block>>;
Tensor play(const Caller& call, const Sequential& blocks, Tensor input) {
    const Tensor held = std::move(input);
    Tensor hidden_states = held;
    for (const auto& block : blocks) hidden_states = call(*block, {hidden_states})[0];
    return hidden_states;
}

/// What encoder and decoder are built from.
struct Stages {
    std::vector<std::string> types;
    std::vector<std::int64_t> channels, layers, kernels;
    std::int64_t head_dim;

    [[nodiscard]] std::unique_ptr<Block> block(const Builder& builder, std::size_t stage) const {
        if (types[stage] == "ResBlock") return std::make_unique<ResBlock>(builder, channels[stage]);
        if (types[stage] == "EfficientViTBlock")
            return std::make_unique<EfficientViTBlock>(builder, channels[stage], head_dim, kernels[stage]);
        throw std::logic_error("autoencoder_dc: no block " + types[stage]);
    }
};

class Encoder {
  public:
    Encoder(const Builder& builder, std::int64_t latent_channels, const Stages& stages, bool downsample)
        : conv_in(builder.conv2d("conv_in", 3, stages.channels.front(), 3, 1, 1)),
          conv_out(builder.conv2d("conv_out", stages.channels.back(), latent_channels, 3, 1, 1)),
          group_size_(stages.channels.back() / latent_channels) {
        for (std::size_t i = 0; i < stages.channels.size(); ++i) {
            const Builder list = builder["down_blocks"][static_cast<std::int64_t>(i)];
            Sequential& blocks = down_blocks.emplace_back();
            for (std::int64_t j = 0; j < stages.layers[i]; ++j) blocks.push_back(stages.block(list[j], i));
            if (i + 1 < stages.channels.size())
                blocks.push_back(std::make_unique<DownBlock>(list[stages.layers[i]], stages.channels[i],
                                                             stages.channels[i + 1], downsample));
        }
    }

    [[nodiscard]] Tensor operator()(Tensor sample) const {
        const Tensor held = std::move(sample);
        const Caller call(held.run(), false);
        Tensor hidden_states = conv_in(held);
        for (const Sequential& down_block : down_blocks) hidden_states = play(call, down_block, hidden_states);
        Tensor x = unflatten(hidden_states, 1, {-1, group_size_});
        x = mean(x, 2, false);
        hidden_states = add(conv_out(hidden_states), x);
        return hidden_states;
    }

  private:
    nn::Conv conv_in;
    std::vector<Sequential> down_blocks;
    nn::Conv conv_out;
    std::int64_t group_size_;
};

class Decoder {
  public:
    Decoder(const Builder& builder, std::int64_t latent_channels, const Stages& stages, bool interpolate)
        : conv_in(builder.conv2d("conv_in", latent_channels, stages.channels.back(), 3, 1, 1)),
          repeats_(stages.channels.back() / latent_channels),
          norm_out(builder["norm_out"], stages.channels.front(), true),
          conv_out(builder.conv2d("conv_out", stages.channels.front(), 3, 3, 1, 1)) {
        for (std::size_t i = stages.channels.size(); i-- > 0;) {
            const Builder list = builder["up_blocks"][static_cast<std::int64_t>(i)];
            Sequential& blocks = up_blocks.emplace_back();
            std::int64_t at = 0;
            if (i + 1 < stages.channels.size())
                blocks.push_back(
                    std::make_unique<UpBlock>(list[at++], stages.channels[i + 1], stages.channels[i], interpolate));
            for (std::int64_t j = 0; j < stages.layers[i]; ++j) blocks.push_back(stages.block(list[at++], i));
        }
    }

    [[nodiscard]] Tensor operator()(Tensor sample) const {
        const Tensor held = std::move(sample);
        const Caller call(held.run(), false);
        const Tensor x = repeat_interleave(held, repeats_, 1);
        Tensor hidden_states = add(conv_in(held), x);
        for (const Sequential& up_block : up_blocks) hidden_states = play(call, up_block, hidden_states);
        hidden_states = over_channels(norm_out, hidden_states);
        hidden_states = relu(hidden_states);
        hidden_states = conv_out(hidden_states);
        return hidden_states;
    }

  private:
    nn::Conv conv_in;
    std::int64_t repeats_;
    std::vector<Sequential> up_blocks;  // in the order of calling
    PlainRmsNorm norm_out;
    nn::Conv conv_out;
};

class AutoencoderDC : public Model {
  public:
    AutoencoderDC(const Builder& builder, const profile::Config& config)
        : latent_channels_(config.integer("latent_channels")),
          factor_(std::int64_t{1} << (config.integers("encoder_block_out_channels").size() - 1)),
          encoder(builder["encoder"], latent_channels_, stages(config, "encoder"),
                  config.text("downsample_block_type") == "pixel_unshuffle"),
          decoder(builder["decoder"], latent_channels_, stages(config, "decoder"),
                  config.text("upsample_block_type") == "interpolate"),
          blend_encoded(builder, tile_sample_min / factor_ - tile_sample_stride / factor_),
          blend_decoded(builder, tile_sample_min - tile_sample_stride) {}

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        if (request.operation == Request::Operation::encode)
            return {{"x", {request.batch, 3, request.height, request.width}, request.dtype}};
        return {{"z", latents(request), request.dtype}};
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        if (request.operation == Request::Operation::encode) return {latents(request)};
        return {{request.batch, 3, request.height, request.width}};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request& request) const override {
        const Tensor& x = args[0];
        const bool encodes = request.operation == Request::Operation::encode;
        if (!request.slicing || x.size(0) == 1) return {whole(x, encodes, request.tiling)};
        Tensors slices;
        for (const Tensor& slice : split(x, 1, 0)) slices.push_back(whole(slice, encodes, request.tiling));
        return {cat(slices, 0)};
    }

  private:
    static constexpr std::int64_t tile_sample_min = 512, tile_sample_stride = 448;

    [[nodiscard]] static Stages stages(const profile::Config& config, const std::string& side) {
        return {config.texts(side + "_block_types"), config.integers(side + "_block_out_channels"),
                config.integers(side + "_layers_per_block"), config.integers(side + "_qkv_multiscales"),
                config.integer("attention_head_dim")};
    }

    [[nodiscard]] Dims latents(const Request& request) const {
        return {request.batch, latent_channels_, request.height / factor_, request.width / factor_};
    }

    // _encode, _decode
    [[nodiscard]] Tensor whole(const Tensor& x, bool encodes, bool tiling) const {
        const std::int64_t most = encodes ? tile_sample_min : tile_sample_min / factor_;
        if (tiling && (x.size(3) > most || x.size(2) > most)) return tiled(x, encodes);
        return encodes ? encoder(x) : decoder(x);
    }

    // tiled_encode, tiled_decode: overlapping tiles, blended into each other in place, cut and joined.
    [[nodiscard]] Tensor tiled(const Tensor& x, bool encodes) const {
        const std::int64_t min = encodes ? tile_sample_min : tile_sample_min / factor_,
                           stride = encodes ? tile_sample_stride : tile_sample_stride / factor_,
                           limit = encodes ? tile_sample_stride / factor_ : tile_sample_stride;
        const Blend& blend = encodes ? blend_encoded : blend_decoded;
        const Caller call(x.run(), false);
        std::vector<std::vector<Tensor>> rows;
        Tensor tile, decoded;
        for (std::int64_t i = 0; i < x.size(2); i += stride) {
            std::vector<Tensor> row;
            for (std::int64_t j = 0; j < x.size(3); j += stride) {
                tile = slice(slice(x, 2, i, i + min), 3, j, j + min);
                if (encodes) {
                    tile = encoder(tile);
                    row.push_back(tile);
                } else {
                    decoded = decoder(tile);
                    row.push_back(decoded);
                }
            }
            rows.push_back(std::move(row));
        }
        std::vector<Tensor> result_rows;
        return join_tiles(call, rows, tile, result_rows, blend, limit);
    }

    std::int64_t latent_channels_, factor_;
    Encoder encoder;
    Decoder decoder;
    Blend blend_encoded, blend_decoded;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<AutoencoderDC>(Builder(weights), profile.config);
}

}  // namespace vram::models::autoencoder_dc
