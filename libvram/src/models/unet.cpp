// Mirrors UNet2DConditionModel (diffusers 0.42.1, models/unets/unet_2d_condition.py, unet_2d_blocks.py): SD 1.x,
// SD 2.x, SDXL, Kolors. And the class of that name which sd-scripts trains SD 1.x and 2.x with (48d368f,
// library/original_unet.py): the same modules and blocks, made of other parts.
#include <algorithm>
#include <deque>

#include "models/embeddings.hpp"
#include "models/families.hpp"
#include "models/resnet.hpp"
#include "models/sd_scripts_unet.hpp"
#include "models/transformer_2d.hpp"

namespace vram::models::unet {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward

constexpr std::int64_t groups = 32;

/// diffusers' parts. A transformer checkpoints its blocks, itself never; the middle's first resnet is not checkpointed.
struct Diffusers {
    class Transformer : public Transformer2DModel {
      public:
        using Sizes = Transformer2DModel::Sizes;
        Transformer(const Builder& builder, const Sizes& sizes) : Transformer2DModel(builder, sizes, groups) {}
    };
    using Upsampler = Upsample2D;
    static constexpr bool divides = true, checkpoints_first_of_middle = false;
    static Transformer::Sizes told(const Transformer::Sizes& sizes, const profile::Config&) { return sizes; }
    /// Of the timestep's embedding.
    static Dtype time_dtype(const Tensor& sample, const nn::Conv&) { return sample.dtype(); }
};

/// Those of sd-scripts, attention as with --sdpa. A transformer is a checkpoint.
struct SdScripts {
    class Transformer {
      public:
        using Sizes = sd_scripts::Transformer2DModel::Sizes;
        Transformer(const Builder& builder, const Sizes& sizes) : block(builder, sizes) {}
        [[nodiscard]] Tensor operator()(const Caller& call, Tensor hidden_states,
                                        const Tensor& encoder_hidden_states) const {
            return call(block, {std::move(hidden_states), encoder_hidden_states})[0];
        }

      private:
        sd_scripts::Transformer2DBlock block;
    };
    class Upsampler {
      public:
        Upsampler() = default;
        Upsampler(const Builder& builder, std::int64_t channels)
            : conv(builder.conv2d("conv", channels, channels, 3, 1, 1)) {}
        [[nodiscard]] Tensor operator()(Tensor hidden_states) const {
            return sd_scripts::upsample(conv, std::move(hidden_states));
        }
        [[nodiscard]] Tensor operator()(Tensor hidden_states, std::int64_t height, std::int64_t width) const {
            return sd_scripts::upsample(conv, std::move(hidden_states), {height, width});
        }

      private:
        nn::Conv conv;
    };
    static constexpr bool divides = false, checkpoints_first_of_middle = true;
    static Transformer::Sizes told(Transformer::Sizes sizes, const profile::Config& config) {
        sizes.attention = sd_scripts::attention_named(config.text("attention", ""));
        return sizes;
    }
    /// ModelMixin.dtype, that of its first parameter.
    static Dtype time_dtype(const Tensor&, const nn::Conv& conv_in) { return conv_in.weight->value.dtype(); }
};

/// What the blocks share in one forward.
struct Context {
    const Caller& call;
    const Tensor& temb;
    const Tensor& encoder_hidden_states;
};

/// CrossAttnDownBlock2D and DownBlock2D.
template <class Parts>
class DownBlock {
  public:
    /// `sizes.heads` 0: without attention.
    DownBlock(const Builder& builder, std::int64_t in, std::int64_t temb_channels, std::int64_t layers,
              const typename Parts::Transformer::Sizes& sizes, bool downsamples)
        : downsamples_(downsamples) {
        const std::int64_t channels = sizes.channels;
        if (sizes.heads > 0)
            for (std::int64_t i = 0; i < layers; ++i) attentions.emplace_back(builder["attentions"][i], sizes);
        for (std::int64_t i = 0; i < layers; ++i)
            resnets.emplace_back(builder["resnets"][i], i == 0 ? in : channels, channels, temb_channels, groups,
                                 Parts::divides);
        if (downsamples) downsampler = Downsample2D(builder["downsamplers"][0], channels, 1);
    }

    /// Module.__call__: appends each layer's output to `output_states` and returns the last.
    [[nodiscard]] Tensor operator()(const Context& context, Tensor sample, std::vector<Tensor>& output_states) const {
        const Tensor held = std::move(sample);
        Tensor hidden_states = held;
        for (std::size_t i = 0; i < resnets.size(); ++i) {
            hidden_states = context.call(resnets[i], {hidden_states, context.temb})[0];
            if (!attentions.empty())
                hidden_states = attentions[i](context.call, hidden_states, context.encoder_hidden_states);
            output_states.push_back(hidden_states);
        }
        if (downsamples_) {
            hidden_states = downsampler(hidden_states);
            output_states.push_back(hidden_states);
        }
        return hidden_states;
    }

  private:
    std::deque<typename Parts::Transformer> attentions;
    std::deque<ResnetBlock2D> resnets;
    Downsample2D downsampler;
    bool downsamples_;
};

/// UNetMidBlock2DCrossAttn.
template <class Parts>
class MidBlock {
  public:
    MidBlock(const Builder& builder, std::int64_t temb_channels, const typename Parts::Transformer::Sizes& sizes)
        : attention(builder["attentions"][0], sizes),
          first(builder["resnets"][0], sizes.channels, sizes.channels, temb_channels, groups, Parts::divides),
          second(builder["resnets"][1], sizes.channels, sizes.channels, temb_channels, groups, Parts::divides) {}

    [[nodiscard]] Tensor operator()(const Context& context, Tensor sample) const {
        const Tensor held = std::move(sample);
        const Caller plain(held.run(), false);
        const Caller& call_first = Parts::checkpoints_first_of_middle ? context.call : plain;
        Tensor hidden_states = call_first(first, {held, context.temb})[0];
        hidden_states = attention(context.call, hidden_states, context.encoder_hidden_states);
        hidden_states = context.call(second, {hidden_states, context.temb})[0];
        return hidden_states;
    }

  private:
    typename Parts::Transformer attention;
    ResnetBlock2D first, second;
};

/// CrossAttnUpBlock2D and UpBlock2D.
template <class Parts>
class UpBlock {
  public:
    /// `in` channels come from the block below, `skip` from the last of the states that are joined.
    UpBlock(const Builder& builder, std::int64_t in, std::int64_t skip, std::int64_t temb_channels, std::int64_t layers,
            const typename Parts::Transformer::Sizes& sizes, bool upsamples)
        : upsamples_(upsamples) {
        const std::int64_t channels = sizes.channels;
        if (sizes.heads > 0)
            for (std::int64_t i = 0; i < layers; ++i) attentions.emplace_back(builder["attentions"][i], sizes);
        for (std::int64_t i = 0; i < layers; ++i)
            resnets.emplace_back(builder["resnets"][i], (i == 0 ? in : channels) + (i == layers - 1 ? skip : channels),
                                 channels, temb_channels, groups, Parts::divides);
        if (upsamples) upsampler = typename Parts::Upsampler(builder["upsamplers"][0], channels);
    }

    [[nodiscard]] std::size_t layers() const noexcept { return resnets.size(); }

    /// Module.__call__. `upsample_size` of rank 0: twice the size.
    [[nodiscard]] Tensor operator()(const Context& context, Tensor sample, const std::vector<Tensor>& res_samples,
                                    const Dims& upsample_size) const {
        const Tensor held = std::move(sample);
        Tensor hidden_states = held;
        for (std::size_t i = 0; i < resnets.size(); ++i) {
            const Tensor& res_hidden_states = res_samples[resnets.size() - 1 - i];
            hidden_states = cat({hidden_states, res_hidden_states}, 1);
            hidden_states = context.call(resnets[i], {hidden_states, context.temb})[0];
            if (!attentions.empty())
                hidden_states = attentions[i](context.call, hidden_states, context.encoder_hidden_states);
        }
        if (upsamples_)
            hidden_states = upsample_size.rank() == 0 ? upsampler(hidden_states)
                                                      : upsampler(hidden_states, upsample_size[0], upsample_size[1]);
        return hidden_states;
    }

  private:
    std::deque<typename Parts::Transformer> attentions;
    std::deque<ResnetBlock2D> resnets;
    typename Parts::Upsampler upsampler;
    bool upsamples_;
};

/// A number for every block, or a list with one each.
std::vector<std::int64_t> per_block(const profile::Config& config, std::string_view key, std::size_t blocks) {
    const auto found = config.values.find(key);
    if (found != config.values.end() && std::holds_alternative<std::int64_t>(found->second))
        return std::vector<std::int64_t>(blocks, std::get<std::int64_t>(found->second));
    return config.integers(key);
}

template <class Parts>
class UNet2DConditionModel : public Model {
  public:
    UNet2DConditionModel(const Builder& builder, const profile::Config& config)
        : in_channels_(config.integer("in_channels")),
          out_channels_(config.integer("out_channels")),
          cross_attention_dim_(config.integer("cross_attention_dim")),
          encoder_hid_dim_(config.integer("encoder_hid_dim", 0)) {
        const std::vector<std::int64_t>& channels = config.integers("block_out_channels");
        const std::vector<std::string>& down_types = config.texts("down_block_types");
        const std::vector<std::string>& up_types = config.texts("up_block_types");
        const std::size_t count = channels.size();
        const std::vector<std::int64_t> heads =
            per_block(config, "attention_head_dim", count);  // heads, whatever its name says
        const std::vector<std::int64_t> depth = per_block(config, "transformer_layers_per_block", count);
        const std::int64_t layers = config.integer("layers_per_block");
        const bool linear = config.boolean("use_linear_projection");
        const auto sizes = [&](std::size_t i, bool attention) {
            using Sizes = typename Parts::Transformer::Sizes;
            return Parts::told(Sizes{channels[i], cross_attention_dim_, attention ? heads[i] : 0, depth[i], linear},
                               config);
        };

        time_channels_ = channels.front();
        const std::int64_t temb_channels = 4 * time_channels_;
        conv_in = builder.conv2d("conv_in", in_channels_, channels.front(), 3, 1, 1);
        time_embedding = TimestepEmbedding(builder["time_embedding"], time_channels_, temb_channels);
        if (encoder_hid_dim_ > 0)
            encoder_hid_proj = builder.linear("encoder_hid_proj", encoder_hid_dim_, cross_attention_dim_);
        if (config.text("addition_embed_type", "none") == "text_time") {
            addition_time_embed_dim_ = config.integer("addition_time_embed_dim");
            projection_input_dim_ = config.integer("projection_class_embeddings_input_dim");
            add_embedding = TimestepEmbedding(builder["add_embedding"], projection_input_dim_, temb_channels);
        }
        for (std::size_t i = 0; i < count; ++i)
            down_blocks.emplace_back(builder["down_blocks"][static_cast<std::int64_t>(i)], channels[i == 0 ? 0 : i - 1],
                                     temb_channels, layers, sizes(i, down_types[i] == "CrossAttnDownBlock2D"),
                                     i + 1 < count);
        for (std::size_t i = 0; i < count; ++i) {
            const std::size_t at = count - 1 - i;  // of the block on the way down
            up_blocks.emplace_back(builder["up_blocks"][static_cast<std::int64_t>(i)],
                                   channels[std::min(at + 1, count - 1)], channels[at == 0 ? 0 : at - 1], temb_channels,
                                   layers + 1, sizes(at, up_types[i] == "CrossAttnUpBlock2D"), i + 1 < count);
        }
        mid_block.emplace_back(builder["mid_block"], temb_channels, sizes(count - 1, true));
        conv_norm_out = builder.group_norm("conv_norm_out", groups, channels.front());
        conv_out = builder.conv2d("conv_out", channels.front(), out_channels_, 3, 1, 1);
    }

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        std::vector<Value> out{
            {"sample", {request.batch, in_channels_, request.height / 8, request.width / 8}, request.dtype},
            {"timestep", {request.batch}, Dtype::i64},
            {"encoder_hidden_states",
             {request.batch, request.text_tokens, encoder_hid_dim_ > 0 ? encoder_hid_dim_ : cross_attention_dim_},
             request.dtype}};
        if (projection_input_dim_ > 0) {
            out.push_back({"added_cond_kwargs.text_embeds",
                           {request.batch, projection_input_dim_ - 6 * addition_time_embed_dim_},
                           request.dtype});
            out.push_back({"added_cond_kwargs.time_ids", {request.batch, 6}, request.dtype});
        }
        return out;
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {{request.batch, out_channels_, request.height / 8, request.width / 8}};
    }

    /// {sample [B, C, H, W], timestep [B], encoder_hidden_states [B, T, D], SDXL: text_embeds, time_ids [B, 6]} →
    /// {sample}
    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        Tensor sample = args[0];
        const std::int64_t factor = std::int64_t{1} << (up_blocks.size() - 1);
        const bool forward_upsample_size = sample.size(2) % factor != 0 || sample.size(3) % factor != 0;

        // 1. time
        const Tensor t_emb = get_time_embed(sample, args[1]);
        Tensor emb = time_embedding(t_emb);
        Tensor aug_emb;
        if (projection_input_dim_ > 0) {
            aug_emb = get_aug_embed(emb, args[3], args[4]);
            emb = add(emb, aug_emb);
        }

        Tensor encoder_hidden_states = args[2];
        if (encoder_hid_dim_ > 0) encoder_hidden_states = encoder_hid_proj(encoder_hidden_states);

        // 2. pre-process
        sample = conv_in(sample);

        // 3. down
        const Caller call(sample.run(), gradient_checkpointing);
        const Context context{call, emb, encoder_hidden_states};
        std::vector<Tensor> down_block_res_samples{sample}, res_samples;
        for (const DownBlock<Parts>& downsample_block : down_blocks) {
            std::vector<Tensor> output_states;
            sample = downsample_block(context, sample, output_states);
            res_samples = std::move(output_states);
            down_block_res_samples.insert(down_block_res_samples.end(), res_samples.begin(), res_samples.end());
        }

        // 4. mid
        sample = mid_block.front()(context, sample);

        // 5. up
        Dims upsample_size;
        for (const UpBlock<Parts>& upsample_block : up_blocks) {
            const auto from = down_block_res_samples.end() - static_cast<std::ptrdiff_t>(upsample_block.layers());
            res_samples.assign(from, down_block_res_samples.end());
            down_block_res_samples.erase(from, down_block_res_samples.end());
            if (&upsample_block != &up_blocks.back() && forward_upsample_size)
                upsample_size = {down_block_res_samples.back().size(2), down_block_res_samples.back().size(3)};
            sample = upsample_block(context, sample, res_samples, upsample_size);
        }

        // 6. post-process
        sample = conv_norm_out(sample);
        sample = silu(sample);
        sample = conv_out(sample);
        return {sample};
    }

  private:
    [[nodiscard]] Tensor get_time_embed(const Tensor& sample, const Tensor& timestep) const {
        const Tensor timesteps = expand(timestep, {sample.size(0)});
        Tensor t_emb = timestep_embedding(timesteps, time_channels_, true);
        t_emb = to(t_emb, Parts::time_dtype(sample, conv_in));
        return t_emb;
    }

    [[nodiscard]] Tensor get_aug_embed(const Tensor& emb, const Tensor& text_embeds, const Tensor& time_ids) const {
        Tensor time_embeds = timestep_embedding(flatten(time_ids, 0, 1), addition_time_embed_dim_, true);
        time_embeds = reshape(time_embeds, {text_embeds.size(0), -1});
        Tensor add_embeds = cat({text_embeds, time_embeds}, -1);
        add_embeds = to(add_embeds, emb.dtype());
        return add_embedding(add_embeds);
    }

    std::int64_t in_channels_, out_channels_, cross_attention_dim_, encoder_hid_dim_,
        time_channels_ = 0, addition_time_embed_dim_ = 0, projection_input_dim_ = 0;
    nn::Conv conv_in;
    nn::Linear encoder_hid_proj;
    TimestepEmbedding time_embedding, add_embedding;
    std::deque<DownBlock<Parts>> down_blocks;
    std::deque<UpBlock<Parts>> up_blocks;
    std::deque<MidBlock<Parts>> mid_block;  // one
    nn::GroupNorm conv_norm_out;
    nn::Conv conv_out;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    if (profile.config.text("forward", "diffusers") == "sd_scripts")
        return std::make_unique<UNet2DConditionModel<SdScripts>>(Builder(weights), profile.config);
    return std::make_unique<UNet2DConditionModel<Diffusers>>(Builder(weights), profile.config);
}

}  // namespace vram::models::unet
