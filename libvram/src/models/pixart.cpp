// Mirrors PixArtTransformer2DModel (diffusers 0.42.1, models/transformers/pixart_transformer_2d.py; AdaLayerNormSingle
// of models/normalization.py, BasicTransformerBlock with "ada_norm_single" of models/attention.py): PixArt-Sigma. The
// sizes that PixArt-Alpha's timestep is told (use_additional_conditions) are not in it.
#include <deque>

#include "models/families.hpp"
#include "models/normalization.hpp"
#include "models/patch_embed.hpp"
#include "models/transformer_2d.hpp"

namespace vram::models::pixart {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;

/// args: hidden_states, encoder_hidden_states, encoder_attention_mask [B, 1, T], timestep [B, 6 D] → hidden_states
class PixArtTransformerBlock : public Block {
  public:
    PixArtTransformerBlock(const Builder& parent, std::int64_t dim, std::int64_t cross_dim, std::int64_t heads)
        : PixArtTransformerBlock(parent.block(*this), dim, cross_dim, heads) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0];
        const Tensor &encoder_hidden_states = args[1], &encoder_attention_mask = args[2], &timestep = args[3];
        // 0. Self-Attention
        const std::int64_t batch_size = hidden_states.size(0);
        // shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp
        const Tensors modulation =
            chunk(add(unsqueeze(scale_shift_table.value, 0), reshape(timestep, {batch_size, 6, -1})), 6, 1);
        Tensor norm_hidden_states = norm1(hidden_states);
        norm_hidden_states = modulate(norm_hidden_states, modulation[1], modulation[0]);
        Tensor attn_output = attn1(norm_hidden_states, {});
        attn_output = mul(modulation[2], attn_output);
        hidden_states = add(attn_output, hidden_states);

        // 3. Cross-Attention
        norm_hidden_states = hidden_states;
        attn_output = attn2(norm_hidden_states, encoder_hidden_states, encoder_attention_mask);
        hidden_states = add(attn_output, hidden_states);

        // 4. Feed-forward
        norm_hidden_states = norm2(hidden_states);
        norm_hidden_states = modulate(norm_hidden_states, modulation[4], modulation[3]);
        Tensor ff_output = ff(norm_hidden_states);
        ff_output = mul(modulation[5], ff_output);
        hidden_states = add(ff_output, hidden_states);
        return {hidden_states};
    }

  private:
    PixArtTransformerBlock(const BlockBuilder& builder, std::int64_t dim, std::int64_t cross_dim, std::int64_t heads)
        : scale_shift_table(builder.parameter("scale_shift_table", {6, dim})),
          norm1(builder.layer_norm("norm1", dim, false)),
          attn1(builder["attn1"], dim, dim, heads, true),
          norm2(builder.layer_norm("norm2", dim, false)),
          attn2(builder["attn2"], dim, cross_dim, heads, true),
          ff(builder["ff"], dim, 4 * dim, FeedForward::Activation::gelu) {
        builder.finish(*this, "PixArtTransformerBlock", {heads});
    }

    Parameter& scale_shift_table;
    nn::LayerNorm norm1;
    Attention attn1;
    nn::LayerNorm norm2;
    Attention attn2;
    FeedForward ff;
};

class PixArtTransformer2DModel : public Model {
  public:
    PixArtTransformer2DModel(nn::Weights& weights, const profile::Config& config)
        : PixArtTransformer2DModel(Builder(weights), config) {}

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        return {{"hidden_states", latents(request, in_channels_), request.dtype},
                {"encoder_hidden_states", {request.batch, request.text_tokens, caption_channels_}, request.dtype},
                {"encoder_attention_mask", {request.batch, request.text_tokens}, request.dtype},
                {"timestep", {request.batch}, Dtype::i64}};
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {latents(request, out_channels_)};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        Run& run = args[0].run();
        Tensor hidden_states = args[0], encoder_hidden_states = args[1], encoder_attention_mask = args[2];
        encoder_attention_mask = rsub_scalar(to(encoder_attention_mask, hidden_states.dtype()));
        encoder_attention_mask = mul_scalar(std::move(encoder_attention_mask));
        encoder_attention_mask = unsqueeze(encoder_attention_mask, 1);  // [B, 1, T]

        // 1. Input
        const std::int64_t batch_size = hidden_states.size(0), height = hidden_states.size(2),
                           width = hidden_states.size(3);
        hidden_states = pos_embed(hidden_states);  // [B, S, D]
        const Tensor embedded_timestep = embed(args[3], hidden_states.dtype());
        const Tensor timestep = linear(silu(embedded_timestep));
        encoder_hidden_states = caption_projection(encoder_hidden_states);
        encoder_hidden_states = view(encoder_hidden_states, {batch_size, -1, hidden_states.size(-1)});

        // 2. Blocks
        const Caller call(run, gradient_checkpointing);
        for (const PixArtTransformerBlock& block : transformer_blocks)
            hidden_states = call(block, {hidden_states, encoder_hidden_states, encoder_attention_mask, timestep})[0];

        // 3. Output
        // shift, scale
        const Tensors modulation =
            chunk(add(unsqueeze(scale_shift_table->value, 0), unsqueeze(embedded_timestep, 1)), 2, 1);
        hidden_states = norm_out(hidden_states);
        hidden_states = modulate(hidden_states, modulation[1], modulation[0]);
        hidden_states = proj_out(hidden_states);
        return {unpatchify(hidden_states, height, width, patch_size_, out_channels_)};
    }

  private:
    PixArtTransformer2DModel(const Builder& builder, const profile::Config& config)
        : in_channels_(config.integer("in_channels")),
          out_channels_(config.integer("out_channels", in_channels_)),
          caption_channels_(config.integer("caption_channels")),
          patch_size_(config.integer("patch_size")) {
        const std::int64_t heads = config.integer("num_attention_heads"),
                           dim = heads * config.integer("attention_head_dim");
        scale_shift_table = &builder.parameter("scale_shift_table", {2, dim});
        pos_embed = PatchEmbed(builder["pos_embed"], {patch_size_, in_channels_, dim, config.integer("sample_size")});
        for (std::int64_t i = 0; i < config.integer("num_layers"); ++i)
            transformer_blocks.emplace_back(builder["transformer_blocks"][i], dim,
                                            config.integer("cross_attention_dim"), heads);
        norm_out = builder.layer_norm("norm_out", dim, false);
        proj_out = builder.linear("proj_out", dim, patch_size_ * patch_size_ * out_channels_);
        const Builder adaln_single = builder["adaln_single"];
        timestep_embedder = TimestepEmbedding(adaln_single["emb"]["timestep_embedder"], 256, dim);
        linear = adaln_single.linear("linear", dim, 6 * dim);
        caption_projection = TextProjection(builder["caption_projection"], caption_channels_, dim,
                                            TextProjection::Activation::gelu_tanh);
    }

    [[nodiscard]] static Dims latents(const Request& request, std::int64_t channels) {
        return {request.batch, channels, request.height / 8, request.width / 8};
    }

    // PixArtAlphaCombinedTimestepSizeEmbeddings
    [[nodiscard]] Tensor embed(const Tensor& timestep, Dtype hidden_dtype) const {
        const Tensor timesteps_proj = timestep_embedding(timestep, 256, true);
        return timestep_embedder(to(timesteps_proj, hidden_dtype));
    }

    std::int64_t in_channels_, out_channels_, caption_channels_, patch_size_;
    Parameter* scale_shift_table = nullptr;
    PatchEmbed pos_embed;
    std::deque<PixArtTransformerBlock> transformer_blocks;
    nn::LayerNorm norm_out;
    Linear proj_out, linear;  // `linear` is adaln_single's
    TimestepEmbedding timestep_embedder;
    TextProjection caption_projection;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<PixArtTransformer2DModel>(weights, profile.config);
}

}  // namespace vram::models::pixart
