// Mirrors SdxlUNet2DConditionModel (sd-scripts 48d368f, library/sdxl_original_unet.py), which sd-scripts trains SDXL
// with: the module tree of Stability AI. A file of its own, since the modules lie in another tree than diffusers' and
// each resnet, transformer block, down- and upsampler is checkpointed by itself, reentrantly.
#include <deque>

#include "models/families.hpp"
#include "models/sd_scripts_unet.hpp"

namespace vram::models::sdxl_sd_scripts {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using sd_scripts::Transformer2DModel;

/// args: x [B, C, H, W], emb [B, E] → x
class ResnetBlock2D : public Block {
  public:
    ResnetBlock2D(const Builder& parent, std::int64_t in, std::int64_t out, std::int64_t embed)
        : ResnetBlock2D(parent.block(*this), in, out, embed) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor x = args[0];
        Tensor h = in_norm(x);
        h = silu(h);
        h = in_conv(h);
        const Tensor emb_out = to(emb_linear(silu(args[1])), h.dtype());
        h = add(h, unsqueeze(unsqueeze(emb_out, 2), 3));
        {
            Tensor input = out_norm(h);  // of the Sequential, which holds h
            input = silu(input);
            input = out_conv(input);
            h = std::move(input);
        }
        if (has_skip_) x = skip_connection(x);
        return {add(x, h)};
    }

  private:
    ResnetBlock2D(const nn::BlockBuilder& builder, std::int64_t in, std::int64_t out, std::int64_t embed)
        : in_norm(builder["in_layers"].group_norm("0", 32, in)),
          in_conv(builder["in_layers"].conv2d("2", in, out, 3, 1, 1)),
          emb_linear(builder["emb_layers"].linear("1", embed, out)),
          out_norm(builder["out_layers"].group_norm("0", 32, out)),
          out_conv(builder["out_layers"].conv2d("3", out, out, 3, 1, 1)),
          skip_connection(in != out ? builder.conv2d("skip_connection", in, out, 1) : nn::Conv()),
          has_skip_(in != out) {
        builder.finish(*this, "sdxl_sd_scripts.ResnetBlock2D", {has_skip_});
    }

    nn::GroupNorm in_norm;
    nn::Conv in_conv;
    nn::Linear emb_linear;
    nn::GroupNorm out_norm;
    nn::Conv out_conv, skip_connection;
    bool has_skip_;
};

/// Downsample2D and Upsample2D. args: hidden_states [B, C, H, W]
class Sampler : public Block {
  public:
    enum class Way : std::uint8_t { down, up };
    Sampler(const Builder& parent, std::int64_t channels, Way way) : Sampler(parent.block(*this), channels, way) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        return {way_ == Way::up ? sd_scripts::upsample(conv, args[0]) : conv(args[0])};
    }

  private:
    Sampler(const nn::BlockBuilder& builder, std::int64_t channels, Way way)
        : conv(way == Way::up ? builder.conv2d("conv", channels, channels, 3, 1, 1)
                              : builder.conv2d("op", channels, channels, 3, 2, 1)),
          way_(way) {
        builder.finish(*this, "sdxl_sd_scripts.Sampler", {way == Way::up});
    }

    nn::Conv conv;
    Way way_;
};

/// One of input_blocks, middle_block and output_blocks: a resnet, then what there is of the rest, in this order.
class Layers {
  public:
    struct Parts {
        std::int64_t in = 0, out = 0;  // of the resnet; 0: none
        Transformer2DModel::Sizes transformer{};
        bool second_resnet = false, down = false, up = false;
    };
    Layers(const Builder& builder, const Parts& parts, std::int64_t embed) {
        std::int64_t at = 0;
        if (parts.in > 0) resnets.emplace_back(builder[at++], parts.in, parts.out, embed);
        if (parts.transformer.layers > 0) transformers.emplace_back(builder[at++], parts.transformer);
        if (parts.second_resnet) resnets.emplace_back(builder[at++], parts.out, parts.out, embed);
        if (parts.down || parts.up)
            samplers.emplace_back(builder[at++], parts.out, parts.up ? Sampler::Way::up : Sampler::Way::down);
    }

    /// call_module, which holds h.
    [[nodiscard]] Tensor operator()(const Caller& call, const Tensor& h, const Tensor& emb,
                                    const Tensor& context) const {
        Tensor x = h;
        if (!resnets.empty()) x = call(resnets.front(), {x, emb})[0];
        for (const Transformer2DModel& transformer : transformers) x = transformer(call, x, context);
        if (resnets.size() > 1) x = call(resnets.back(), {x, emb})[0];
        for (const Sampler& sampler : samplers) x = call(sampler, {x})[0];
        return x;
    }

  private:
    std::deque<ResnetBlock2D> resnets;
    std::deque<Transformer2DModel> transformers;
    std::deque<Sampler> samplers;
};

/// Sequential of two linears around a silu.
class Embedder {
  public:
    Embedder() = default;
    Embedder(const Builder& builder, std::int64_t in, std::int64_t out)
        : first(builder.linear("0", in, out)), second(builder.linear("2", out, out)) {}
    Tensor operator()(const Tensor& x) const {
        Tensor input = first(x);
        input = silu(input);
        return second(input);
    }

  private:
    nn::Linear first, second;
};

class SdxlUNet2DConditionModel : public Model {
  public:
    SdxlUNet2DConditionModel(const Builder& builder, const profile::Config& config)
        : in_channels_(config.integer("in_channels")),
          out_channels_(config.integer("out_channels")),
          model_channels_(config.integers("block_out_channels").front()),
          adm_in_channels_(config.integer("projection_class_embeddings_input_dim")),
          context_dim_(config.integer("cross_attention_dim")) {
        const std::vector<std::int64_t>& channels = config.integers("block_out_channels");
        const std::vector<std::int64_t>& depth = config.integers("transformer_layers_per_block");
        const std::vector<std::string>& types = config.texts("down_block_types");
        const std::int64_t embed = 4 * model_channels_, per_level = config.integer("layers_per_block");
        const std::size_t levels = channels.size();
        const auto transformer = [&](std::size_t level) {
            const std::int64_t layers = types[level] == "CrossAttnDownBlock2D" ? depth[level] : 0;
            return Transformer2DModel::Sizes{
                channels[level], context_dim_, channels[level] / 64,
                layers,          true,         sd_scripts::attention_named(config.text("attention", ""))};
        };

        time_embed = Embedder(builder["time_embed"], model_channels_, embed);
        label_emb = Embedder(builder["label_emb"][0], adm_in_channels_, embed);
        const Builder input = builder["input_blocks"];
        conv_in = input[0].conv2d("0", in_channels_, model_channels_, 3, 1, 1);
        std::int64_t now = model_channels_, at = 1;
        std::vector<std::int64_t> skips{now};
        for (std::size_t level = 0; level < levels; ++level) {
            for (std::int64_t i = 0; i < per_level; ++i) {
                input_blocks.emplace_back(
                    input[at++], Layers::Parts{now, channels[level], transformer(level), false, false, false}, embed);
                now = channels[level];
                skips.push_back(now);
            }
            if (level + 1 == levels) break;
            input_blocks.emplace_back(input[at++], Layers::Parts{0, now, {}, false, true, false}, embed);
            skips.push_back(now);
        }
        middle_block.emplace_back(builder["middle_block"],
                                  Layers::Parts{now, now, transformer(levels - 1), true, false, false}, embed);
        at = 0;
        for (std::size_t level = levels; level-- > 0;) {
            for (std::int64_t i = 0; i <= per_level; ++i) {
                const std::int64_t skip = skips.back();
                skips.pop_back();
                output_blocks.emplace_back(builder["output_blocks"][at++],
                                           Layers::Parts{now + skip, channels[level], transformer(level), false, false,
                                                         i == per_level && level > 0},
                                           embed);
                now = channels[level];
            }
        }
        norm_out = builder["out"].group_norm("0", 32, model_channels_);
        conv_out = builder["out"].conv2d("2", model_channels_, out_channels_, 3, 1, 1);
    }

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        return {{"x", {request.batch, in_channels_, request.height / 8, request.width / 8}, request.dtype},
                {"timesteps", {request.batch}, Dtype::i64},
                {"context", {request.batch, request.text_tokens, context_dim_}, request.dtype},
                {"y", {request.batch, adm_in_channels_}, request.dtype}};
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {{request.batch, out_channels_, request.height / 8, request.width / 8}};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        const Tensor &x = args[0], &context = args[2];
        const Caller call(x.run(),
                          gradient_checkpointing ? Caller::Checkpointing::reentrant : Caller::Checkpointing::none);
        const Tensor timesteps = expand(args[1], {x.size(0)});
        Tensor t_emb = timestep_embedding(timesteps, model_channels_, false);
        t_emb = to(t_emb, x.dtype());
        Tensor emb = time_embed(t_emb);
        {
            Tensor label = label_emb(args[3]);
            emb = add(emb, std::move(label));
        }

        Tensor h = conv_in(x);
        std::vector<Tensor> hs{h};
        for (const Layers& module : input_blocks) {
            h = module(call, h, emb, context);
            hs.push_back(h);
        }
        h = middle_block.front()(call, h, emb, context);
        for (const Layers& module : output_blocks) {
            Tensor skip = std::move(hs.back());
            hs.pop_back();
            h = cat({h, std::move(skip)}, 1);
            h = module(call, h, emb, context);
        }
        h = to(h, x.dtype());
        Tensor out = norm_out(h);  // call_module holds h
        out = silu(out);
        return {conv_out(out)};
    }

  private:
    std::int64_t in_channels_, out_channels_, model_channels_, adm_in_channels_, context_dim_;
    Embedder time_embed, label_emb;
    nn::Conv conv_in;
    std::deque<Layers> input_blocks, middle_block, output_blocks;  // one in the middle
    nn::GroupNorm norm_out;
    nn::Conv conv_out;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<SdxlUNet2DConditionModel>(Builder(weights), profile.config);
}

}  // namespace vram::models::sdxl_sd_scripts
