// Mirrors HunyuanVideoTransformer3DModel (diffusers 0.42.1, models/transformers/transformer_hunyuan_video.py): text to
// video, and image to video by latents that stand in more input channels or in the first frame's place; and
// HunyuanVideoFramepackTransformer3DModel (transformer_hunyuan_video_framepack.py), which puts a history of frames
// before the video's tokens and a picture's before the text's.
#include <array>
#include <optional>

#include "models/families.hpp"
#include "models/hunyuan_blocks.hpp"

namespace vram::models {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;

/// args and outputs as of hunyuan::TransformerBlock
class HunyuanVideoSingleTransformerBlock : public Block {
  public:
    HunyuanVideoSingleTransformerBlock(const Builder& parent, const hunyuan::Sizes& sizes)
        : HunyuanVideoSingleTransformerBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0], encoder_hidden_states = args[1];
        const std::int64_t text = encoder_hidden_states.size(1), video = hidden_states.size(1);
        hidden_states = cat({hidden_states, encoder_hidden_states}, 1);
        const Tensor residual = hidden_states;

        // 1. Input normalization
        Tensors modulated = norm(hidden_states, args[2]);
        const Tensor norm_hidden_states = modulated[0];
        const Tensor gate = modulated[1];
        modulated.clear();
        const Tensor mlp_hidden_states = gelu(proj_mlp(norm_hidden_states));
        const Tensor norm_video = slice(norm_hidden_states, 1, 0, video);
        const Tensor norm_text = slice(norm_hidden_states, 1, video, video + text);

        // 2. Attention
        Tensors attn_outputs = attn(norm_video, norm_text, args[3], args[4], args[5]);
        const Tensor context_attn_output = attn_outputs[1];
        Tensor attn_output = attn_outputs[0];
        attn_outputs.clear();
        attn_output = cat({attn_output, context_attn_output}, 1);

        // 3. Modulation and residual connection
        hidden_states = cat({attn_output, mlp_hidden_states}, 2);
        hidden_states = mul(unsqueeze(gate, 1), proj_out(hidden_states));
        hidden_states = add(hidden_states, residual);
        const Tensor video_out = slice(hidden_states, 1, 0, video);
        const Tensor text_out = slice(hidden_states, 1, video, video + text);
        return {video_out, text_out};
    }

  private:
    HunyuanVideoSingleTransformerBlock(const BlockBuilder& builder, const hunyuan::Sizes& sizes)
        : attn(builder["attn"], sizes, false),
          norm(builder["norm"], sizes.dim),
          proj_mlp(builder.linear("proj_mlp", sizes.dim, sizes.mlp_dim)),
          proj_out(builder.linear("proj_out", sizes.dim + sizes.mlp_dim, sizes.dim)) {
        builder.finish(*this, "HunyuanVideoSingleTransformerBlock", {sizes.heads, sizes.head_dim});
    }

    hunyuan::Attention attn;
    AdaLayerNormZeroSingle norm;
    Linear proj_mlp, proj_out;
};

/// A norm of the token replacing blocks: the first frame's tokens are modulated by an embedding of their own.
class TokenReplaceNorm {
  public:
    /// HunyuanVideoTokenReplaceAdaLayerNormZero with six vectors, ...Single with three.
    TokenReplaceNorm(const Builder& builder, std::int64_t size, std::int64_t vectors)
        : vectors_(vectors),
          linear(builder.linear("linear", size, vectors * size)),
          norm(builder.layer_norm("norm", size, false)) {}

    /// {hidden_states, what is left of emb's vectors after shift and scale, and of token_replace_emb's}
    [[nodiscard]] Tensors operator()(Tensor hidden_states_in, const Tensor& emb_in, const Tensor& token_replace_emb_in,
                                     std::int64_t first_frame_num_tokens) const {
        const Tensor held = std::move(hidden_states_in);
        const Tensor emb = linear(silu(emb_in));
        const Tensor token_replace_emb = linear(silu(token_replace_emb_in));
        const Tensors parts = chunk(emb, vectors_, 1);  // shift_msa, scale_msa, gate_msa, ...
        const Tensors tr_parts = chunk(token_replace_emb, vectors_, 1);

        const Tensor norm_hidden_states = norm(held);
        const Tensor hidden_states_zero =
            scale_and_shift(slice(norm_hidden_states, 1, 0, first_frame_num_tokens), tr_parts[1], tr_parts[0]);
        const Tensor hidden_states_orig = scale_and_shift(
            slice(norm_hidden_states, 1, first_frame_num_tokens, norm_hidden_states.size(1)), parts[1], parts[0]);
        Tensors out{cat({hidden_states_zero, hidden_states_orig}, 1)};
        for (std::size_t i = 2; i < parts.size(); ++i) out.push_back(parts[i]);
        for (std::size_t i = 2; i < tr_parts.size(); ++i) out.push_back(tr_parts[i]);
        return out;
    }

  private:
    std::int64_t vectors_;
    Linear linear;
    nn::LayerNorm norm;
};

/// args: as of hunyuan::TransformerBlock, then token_replace_emb and a tensor without elements, [0, tokens of the first
/// frame]
class HunyuanVideoTokenReplaceTransformerBlock : public Block {
  public:
    HunyuanVideoTokenReplaceTransformerBlock(const Builder& parent, const hunyuan::Sizes& sizes)
        : HunyuanVideoTokenReplaceTransformerBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0], encoder_hidden_states = args[1];
        const std::int64_t num_tokens = args[7].size(1), tokens = hidden_states.size(1);
        // 1. Input normalization
        Tensors modulated = norm1(hidden_states, args[2], args[6], num_tokens);
        Tensor norm_hidden_states = modulated[0];
        const Tensor gate_msa = modulated[1], shift_mlp = modulated[2], scale_mlp = modulated[3],
                     gate_mlp = modulated[4];
        const Tensor tr_gate_msa = modulated[5], tr_shift_mlp = modulated[6], tr_scale_mlp = modulated[7],
                     tr_gate_mlp = modulated[8];
        modulated = norm1_context(encoder_hidden_states, args[2]);
        Tensor norm_encoder_hidden_states = modulated[0];
        const Tensor c_gate_msa = modulated[1], c_shift_mlp = modulated[2], c_scale_mlp = modulated[3],
                     c_gate_mlp = modulated[4];
        modulated.clear();

        // 2. Joint attention
        const Tensors attn_outputs = attn(norm_hidden_states, norm_encoder_hidden_states, args[3], args[4], args[5]);

        // 3. Modulation and residual connection
        Tensor hidden_states_zero = add_gated(hidden_states, attn_outputs[0], tr_gate_msa, 0, num_tokens);
        Tensor hidden_states_orig = add_gated(hidden_states, attn_outputs[0], gate_msa, num_tokens, tokens);
        hidden_states = cat({hidden_states_zero, hidden_states_orig}, 1);
        encoder_hidden_states = add(encoder_hidden_states, mul(attn_outputs[1], unsqueeze(c_gate_msa, 1)));
        norm_hidden_states = norm2(hidden_states);
        norm_encoder_hidden_states = norm2_context(encoder_hidden_states);
        hidden_states_zero = scale_and_shift(slice(norm_hidden_states, 1, 0, num_tokens), tr_scale_mlp, tr_shift_mlp);
        hidden_states_orig = scale_and_shift(slice(norm_hidden_states, 1, num_tokens, tokens), scale_mlp, shift_mlp);
        norm_hidden_states = cat({hidden_states_zero, hidden_states_orig}, 1);
        norm_encoder_hidden_states = scale_and_shift(norm_encoder_hidden_states, c_scale_mlp, c_shift_mlp);

        // 4. Feed-forward
        const Tensor ff_output = ff(norm_hidden_states);
        const Tensor context_ff_output = ff_context(norm_encoder_hidden_states);
        hidden_states_zero = add_gated(hidden_states, ff_output, tr_gate_mlp, 0, num_tokens);
        hidden_states_orig = add_gated(hidden_states, ff_output, gate_mlp, num_tokens, tokens);
        hidden_states = cat({hidden_states_zero, hidden_states_orig}, 1);
        encoder_hidden_states = add(encoder_hidden_states, mul(unsqueeze(c_gate_mlp, 1), context_ff_output));
        return {hidden_states, encoder_hidden_states};
    }

  private:
    HunyuanVideoTokenReplaceTransformerBlock(const BlockBuilder& builder, const hunyuan::Sizes& sizes)
        : norm1(builder["norm1"], sizes.dim, 6),
          norm1_context(builder["norm1_context"], sizes.dim),
          attn(builder["attn"], sizes, true),
          norm2(builder.layer_norm("norm2", sizes.dim, false)),
          ff(builder["ff"], sizes.dim, sizes.mlp_dim, FeedForward::Activation::gelu),
          norm2_context(builder.layer_norm("norm2_context", sizes.dim, false)),
          ff_context(builder["ff_context"], sizes.dim, sizes.mlp_dim, FeedForward::Activation::gelu) {
        builder.finish(*this, "HunyuanVideoTokenReplaceTransformerBlock", {sizes.heads, sizes.head_dim});
    }

    // x + y * gate, of the tokens from..to
    [[nodiscard]] static Tensor add_gated(const Tensor& x, const Tensor& y, const Tensor& gate, std::int64_t from,
                                          std::int64_t to) {
        Tensor part = slice(x, 1, from, to);
        Tensor gated = slice(y, 1, from, to);
        gated = mul(std::move(gated), unsqueeze(gate, 1));
        return add(std::move(part), std::move(gated));
    }

    TokenReplaceNorm norm1;
    AdaLayerNormZero norm1_context;
    hunyuan::Attention attn;
    nn::LayerNorm norm2;
    FeedForward ff;
    nn::LayerNorm norm2_context;
    FeedForward ff_context;
};

/// args and outputs as in the double block
class HunyuanVideoTokenReplaceSingleTransformerBlock : public Block {
  public:
    HunyuanVideoTokenReplaceSingleTransformerBlock(const Builder& parent, const hunyuan::Sizes& sizes)
        : HunyuanVideoTokenReplaceSingleTransformerBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0], encoder_hidden_states = args[1];
        const std::int64_t text = encoder_hidden_states.size(1), video = hidden_states.size(1),
                           num_tokens = args[7].size(1);
        hidden_states = cat({hidden_states, encoder_hidden_states}, 1);
        const Tensor residual = hidden_states;

        // 1. Input normalization
        Tensors modulated = norm(hidden_states, args[2], args[6], num_tokens);
        const Tensor norm_hidden_states = modulated[0];
        const Tensor gate = modulated[1], tr_gate = modulated[2];
        modulated.clear();
        const Tensor mlp_hidden_states = gelu(proj_mlp(norm_hidden_states));
        const Tensor norm_video = slice(norm_hidden_states, 1, 0, video);
        const Tensor norm_text = slice(norm_hidden_states, 1, video, video + text);

        // 2. Attention
        Tensors attn_outputs = attn(norm_video, norm_text, args[3], args[4], args[5]);
        const Tensor context_attn_output = attn_outputs[1];
        Tensor attn_output = attn_outputs[0];
        attn_outputs.clear();
        attn_output = cat({attn_output, context_attn_output}, 1);

        // 3. Modulation and residual connection
        hidden_states = cat({attn_output, mlp_hidden_states}, 2);
        const Tensor proj_output = proj_out(hidden_states);
        Tensor hidden_states_zero = slice(proj_output, 1, 0, num_tokens);
        hidden_states_zero = mul(std::move(hidden_states_zero), unsqueeze(tr_gate, 1));
        Tensor hidden_states_orig = slice(proj_output, 1, num_tokens, video + text);
        hidden_states_orig = mul(std::move(hidden_states_orig), unsqueeze(gate, 1));
        hidden_states = cat({hidden_states_zero, hidden_states_orig}, 1);
        hidden_states = add(hidden_states, residual);
        const Tensor video_out = slice(hidden_states, 1, 0, video);
        const Tensor text_out = slice(hidden_states, 1, video, video + text);
        return {video_out, text_out};
    }

  private:
    HunyuanVideoTokenReplaceSingleTransformerBlock(const BlockBuilder& builder, const hunyuan::Sizes& sizes)
        : attn(builder["attn"], sizes, false),
          norm(builder["norm"], sizes.dim, 3),
          proj_mlp(builder.linear("proj_mlp", sizes.dim, sizes.mlp_dim)),
          proj_out(builder.linear("proj_out", sizes.dim + sizes.mlp_dim, sizes.dim)) {
        builder.finish(*this, "HunyuanVideoTokenReplaceSingleTransformerBlock", {sizes.heads, sizes.head_dim});
    }

    hunyuan::Attention attn;
    TokenReplaceNorm norm;
    Linear proj_mlp, proj_out;
};

/// HunyuanVideoHistoryPatchEmbed: the older, the coarser.
class HunyuanVideoHistoryPatchEmbed {
  public:
    HunyuanVideoHistoryPatchEmbed(const Builder& builder, std::int64_t in, std::int64_t dim)
        : proj(builder.conv("proj", in, dim, {1, 2, 2}, {1, 2, 2}, {0, 0, 0})),
          proj_2x(builder.conv("proj_2x", in, dim, {2, 4, 4}, {2, 4, 4}, {0, 0, 0})),
          proj_4x(builder.conv("proj_4x", in, dim, {4, 8, 8}, {4, 8, 8}, {0, 0, 0})) {}

    [[nodiscard]] Tensors operator()(Tensor latents_clean, Tensor latents_clean_2x, Tensor latents_clean_4x) const {
        latents_clean = proj(latents_clean);
        latents_clean = transpose(flatten(latents_clean, 2, 4), 1, 2);
        latents_clean_2x = hunyuan::pad_for_3d_conv(latents_clean_2x, {2, 4, 4});
        latents_clean_2x = proj_2x(latents_clean_2x);
        latents_clean_2x = transpose(flatten(latents_clean_2x, 2, 4), 1, 2);
        latents_clean_4x = hunyuan::pad_for_3d_conv(latents_clean_4x, {4, 8, 8});
        latents_clean_4x = proj_4x(latents_clean_4x);
        latents_clean_4x = transpose(flatten(latents_clean_4x, 2, 4), 1, 2);
        return {latents_clean, latents_clean_2x, latents_clean_4x};
    }

  private:
    nn::Conv proj, proj_2x, proj_4x;
};

class FramepackClipVisionProjection {
  public:
    FramepackClipVisionProjection(const Builder& builder, std::int64_t in, std::int64_t out)
        : up(builder.linear("up", in, 3 * out)), down(builder.linear("down", 3 * out, out)) {}

    [[nodiscard]] Tensor operator()(Tensor hidden_states_in) const {
        const Tensor held = std::move(hidden_states_in);
        Tensor hidden_states = up(held);
        hidden_states = silu(hidden_states);
        hidden_states = down(hidden_states);
        return hidden_states;
    }

  private:
    Linear up, down;
};

class HunyuanVideoTransformer3DModel : public Model {
  public:
    HunyuanVideoTransformer3DModel(nn::Weights& weights, const profile::Config& config)
        : HunyuanVideoTransformer3DModel(Builder(weights), config) {}

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        std::vector<Value> out{
            {"hidden_states", latents(request, in_channels_), request.dtype},
            {"timestep", {request.batch}, Dtype::i64},
            {"encoder_hidden_states", {request.batch, request.text_tokens, text_embed_dim_}, request.dtype},
            {"encoder_attention_mask", {request.batch, request.text_tokens}, Dtype::boolean},
            {"pooled_projections", {request.batch, pooled_projection_dim_}, request.dtype}};
        if (guidance_embeds_) out.push_back({"guidance", {request.batch}, request.dtype});
        return out;
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {latents(request, out_channels_)};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        Run& run = args[0].run();
        Tensor hidden_states = args[0];
        const std::int64_t batch_size = hidden_states.size(0), p = patch_size_, p_t = patch_size_t_;
        const std::array<std::int64_t, 3> grid{hidden_states.size(2) / p_t, hidden_states.size(3) / p,
                                               hidden_states.size(4) / p};

        // 1. RoPE
        const Tensors image_rotary_emb = hunyuan::rotary_pos_embed(run, grid, rope_axes_dim_);

        // 2. Conditional embeddings
        Tensor token_replace_emb;  // [B, D], where the first frame is a picture's
        const Tensor temb =
            time_text_embed(args[1], args[4], guidance_embeds_ ? args[5] : Tensor(), token_replace_emb);  // [B, D]
        hidden_states = x_embedder(hidden_states);
        hidden_states = transpose(flatten(hidden_states, 2, 4), 1, 2);               // [B, S, D]
        Tensor encoder_hidden_states = context_embedder(args[2], args[1], args[3]);  // [B, T, D]

        // 3. Attention mask preparation
        const std::int64_t latent_sequence_length = hidden_states.size(1),
                           sequence_length = latent_sequence_length + encoder_hidden_states.size(1);
        Tensor attention_mask = run.empty({batch_size, sequence_length}, Dtype::boolean, Op::ones);
        const Tensor effective_condition_sequence_length = run.empty({batch_size}, Dtype::i32, Op::sum);
        const Tensor effective_sequence_length = add_scalar(effective_condition_sequence_length);
        const Tensor indices = unsqueeze(arange(run, sequence_length, Dtype::i64), 0);
        const Tensor mask_indices = compare(indices, unsqueeze(effective_sequence_length, 1));
        attention_mask = masked_fill(attention_mask, mask_indices);
        attention_mask = unsqueeze(unsqueeze(attention_mask, 1), 1);

        // 4. Transformer blocks
        const Caller call(run, gradient_checkpointing);
        const Tensor first_frame = token_replace_ ? run.on_cpu({0, grid[1] * grid[2]}, temb.dtype()) : Tensor();
        const auto run_block = [&](const Block& block) {
            Tensors block_args{hidden_states,  encoder_hidden_states, temb,
                               attention_mask, image_rotary_emb[0],   image_rotary_emb[1]};
            if (token_replace_) {
                block_args.push_back(token_replace_emb);
                block_args.push_back(first_frame);
            }
            Tensors out = call(block, std::move(block_args));
            hidden_states = std::move(out[0]);
            encoder_hidden_states = std::move(out[1]);
        };
        for (const std::unique_ptr<Block>& block : transformer_blocks) run_block(*block);
        for (const std::unique_ptr<Block>& block : single_transformer_blocks) run_block(*block);

        // 5. Output projection
        hidden_states = norm_out(hidden_states, temb);
        hidden_states = proj_out(hidden_states);
        return {hunyuan::unpatchify(std::move(hidden_states), grid, p_t, p)};
    }

  protected:
    HunyuanVideoTransformer3DModel(const Builder& builder, const profile::Config& config)
        : in_channels_(config.integer("in_channels")),
          out_channels_(config.integer("out_channels", in_channels_)),
          patch_size_(config.integer("patch_size")),
          patch_size_t_(config.integer("patch_size_t")),
          text_embed_dim_(config.integer("text_embed_dim")),
          pooled_projection_dim_(config.integer("pooled_projection_dim")),
          guidance_embeds_(config.boolean("guidance_embeds")),
          token_replace_(config.text("image_condition_type", "none") == "token_replace"),
          rope_axes_dim_(config.integers("rope_axes_dim")) {
        const std::int64_t heads = config.integer("num_attention_heads"),
                           head_dim = config.integer("attention_head_dim"), dim = heads * head_dim;
        const hunyuan::Sizes sizes{dim, heads, head_dim,
                                   static_cast<std::int64_t>(static_cast<double>(dim) * config.number("mlp_ratio"))};
        const Dims patch{patch_size_t_, patch_size_, patch_size_};
        x_embedder = builder["x_embedder"].conv("proj", in_channels_, dim, patch, patch, {0, 0, 0});

        if (config.boolean("has_clean_x_embedder", false))
            clean_x_embedder.emplace(builder["clean_x_embedder"], in_channels_, dim);

        context_embedder = hunyuan::TokenRefiner(builder["context_embedder"], text_embed_dim_, sizes,
                                                 config.integer("num_refiner_layers"));

        if (config.boolean("has_image_proj", false))
            image_projection.emplace(builder["image_projection"], config.integer("image_proj_dim"), dim);

        const Builder embed = builder["time_text_embed"];
        timestep_embedder = TimestepEmbedding(embed["timestep_embedder"], 256, dim);
        text_embedder =
            TextProjection(embed["text_embedder"], pooled_projection_dim_, dim, TextProjection::Activation::silu);
        if (guidance_embeds_) guidance_embedder = TimestepEmbedding(embed["guidance_embedder"], 256, dim);

        const std::int64_t layers = config.integer("num_layers"), single_layers = config.integer("num_single_layers");
        const Builder double_list = builder["transformer_blocks"], single_list = builder["single_transformer_blocks"];
        if (token_replace_) {
            add_blocks<HunyuanVideoTokenReplaceTransformerBlock>(transformer_blocks, double_list, layers, sizes);
            add_blocks<HunyuanVideoTokenReplaceSingleTransformerBlock>(single_transformer_blocks, single_list,
                                                                       single_layers, sizes);
        } else {
            add_blocks<hunyuan::TransformerBlock>(transformer_blocks, double_list, layers, sizes);
            add_blocks<HunyuanVideoSingleTransformerBlock>(single_transformer_blocks, single_list, single_layers,
                                                           sizes);
        }
        norm_out = AdaLayerNormContinuous(builder["norm_out"], dim, dim);
        proj_out = builder.linear("proj_out", dim, patch.product() * out_channels_);
    }

    template <typename Kind>
    static void add_blocks(std::vector<std::unique_ptr<Block>>& list, const Builder& builder, std::int64_t count,
                           const hunyuan::Sizes& sizes) {
        for (std::int64_t i = 0; i < count; ++i) list.push_back(std::make_unique<Kind>(builder[i], sizes));
    }

    [[nodiscard]] static Dims latents(const Request& request, std::int64_t channels) {
        return {request.batch, channels, (request.frames - 1) / 4 + 1, request.height / 8, request.width / 8};
    }

    // HunyuanVideoConditionEmbedding
    [[nodiscard]] Tensor time_text_embed(const Tensor& timestep, const Tensor& pooled_projection,
                                         const Tensor& guidance, Tensor& token_replace_emb) const {
        const Tensor timesteps_proj = timestep_embedding(timestep, 256, true);
        const Tensor timesteps_emb = timestep_embedder(to(timesteps_proj, pooled_projection.dtype()));
        const Tensor pooled_projections = text_embedder(pooled_projection);
        Tensor token_replace_timestep, token_replace_proj;
        if (token_replace_) {
            token_replace_timestep = timestep.run().empty_like(timestep, Op::zeros);
            token_replace_proj = timestep_embedding(token_replace_timestep, 256, true);
            token_replace_emb = timestep_embedder(to(token_replace_proj, pooled_projection.dtype()));
            token_replace_emb = add(token_replace_emb, pooled_projections);
        }
        if (!guidance.defined()) return add(timesteps_emb, pooled_projections);
        const Tensor guidance_proj = timestep_embedding(guidance, 256, true);
        const Tensor guidance_emb = guidance_embedder(to(guidance_proj, pooled_projection.dtype()));
        return add(add(timesteps_emb, guidance_emb), pooled_projections);
    }

    std::int64_t in_channels_, out_channels_, patch_size_, patch_size_t_, text_embed_dim_, pooled_projection_dim_;
    bool guidance_embeds_, token_replace_;
    std::vector<std::int64_t> rope_axes_dim_;
    nn::Conv x_embedder;
    std::optional<HunyuanVideoHistoryPatchEmbed> clean_x_embedder;
    hunyuan::TokenRefiner context_embedder;
    std::optional<FramepackClipVisionProjection> image_projection;
    TimestepEmbedding timestep_embedder;
    TextProjection text_embedder;
    TimestepEmbedding guidance_embedder;
    std::vector<std::unique_ptr<Block>> transformer_blocks, single_transformer_blocks;
    AdaLayerNormContinuous norm_out;
    Linear proj_out;
};

class HunyuanVideoFramepackTransformer3DModel : public HunyuanVideoTransformer3DModel {
  public:
    HunyuanVideoFramepackTransformer3DModel(nn::Weights& weights, const profile::Config& config)
        : HunyuanVideoTransformer3DModel(Builder(weights), config), image_proj_dim_(config.integer("image_proj_dim")) {}

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        const auto history = [&](std::int64_t frames) {
            Dims sizes = latents(request, in_channels_);
            sizes[2] = frames;
            return sizes;
        };
        std::vector<Value> out{
            {"hidden_states", latents(request, in_channels_), request.dtype},
            {"timestep", {request.batch}, Dtype::i64},
            {"encoder_hidden_states", {request.batch, request.text_tokens, text_embed_dim_}, request.dtype},
            {"encoder_attention_mask", {request.batch, request.text_tokens}, Dtype::boolean},
            {"pooled_projections", {request.batch, pooled_projection_dim_}, request.dtype},
            {"image_embeds", {request.batch, hunyuan::image_tokens, image_proj_dim_}, request.dtype},
            {"indices_latents", {latents(request, in_channels_)[2]}, Dtype::i64},
            {"latents_clean", history(hunyuan::clean_frames), request.dtype},
            {"indices_latents_clean", {hunyuan::clean_frames}, Dtype::i64},
            {"latents_history_2x", history(hunyuan::frames_2x), request.dtype},
            {"indices_latents_history_2x", {hunyuan::frames_2x}, Dtype::i64},
            {"latents_history_4x", history(hunyuan::frames_4x), request.dtype},
            {"indices_latents_history_4x", {hunyuan::frames_4x}, Dtype::i64}};
        if (guidance_embeds_) out.push_back({"guidance", {request.batch}, request.dtype});
        return out;
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        Run& run = args[0].run();
        Tensor hidden_states = args[0];
        const std::int64_t batch_size = hidden_states.size(0), p = patch_size_, p_t = patch_size_t_;
        const std::int64_t frames = hidden_states.size(2) / p_t, height = hidden_states.size(3) / p,
                           width = hidden_states.size(4) / p, original_context_length = frames * height * width;

        hidden_states = x_embedder(hidden_states);
        hidden_states = transpose(flatten(hidden_states, 2, 4), 1, 2);
        Tensors image_rotary_emb = frames_rope(args[6], height, width);
        const Tensors history = (*clean_x_embedder)(args[7], args[9], args[11]);
        const Tensors image_rotary_emb_clean = frames_rope(args[8], height, width);
        const Tensors image_rotary_emb_history_2x = frames_rope(args[10], height, width);
        const Tensors image_rotary_emb_history_4x = frames_rope(args[12], height, width);
        {  // _pack_history_states
            const Tensor held = hidden_states;
            const Tensors held_emb = image_rotary_emb;
            Tensors padded_2x, padded_4x;
            hidden_states = cat({history[0], hidden_states}, 1);
            prepend(image_rotary_emb_clean, image_rotary_emb);
            hidden_states = cat({history[1], hidden_states}, 1);
            padded_2x = pad_rotary_emb(image_rotary_emb_history_2x, height, width, {2, 2, 2});
            prepend(padded_2x, image_rotary_emb);
            hidden_states = cat({history[2], hidden_states}, 1);
            padded_4x = pad_rotary_emb(image_rotary_emb_history_4x, height, width, {4, 4, 4});
            prepend(padded_4x, image_rotary_emb);
        }

        Tensor token_replace_emb;  // its class knows none
        const Tensor temb =
            time_text_embed(args[1], args[4], guidance_embeds_ ? args[13] : Tensor(), token_replace_emb);
        Tensor encoder_hidden_states = context_embedder(args[2], args[1], args[3]);
        const Tensor encoder_hidden_states_image = (*image_projection)(args[5]);
        const Tensor attention_mask_image = run.empty({batch_size, hunyuan::image_tokens}, args[3].dtype(), Op::ones);
        encoder_hidden_states = cat({encoder_hidden_states_image, encoder_hidden_states}, 1);
        const Tensor encoder_attention_mask = cat({attention_mask_image, args[3]}, 1);

        const std::int64_t sequence_length = hidden_states.size(1) + encoder_hidden_states.size(1);
        Tensor attention_mask = run.empty({batch_size, sequence_length}, Dtype::boolean, Op::zeros);
        const Tensor effective_condition_sequence_length = run.empty({batch_size}, Dtype::i32, Op::sum);
        const Tensor effective_sequence_length = add_scalar(effective_condition_sequence_length);
        if (batch_size == 1) {  // a text that fills its places is cut nowhere: the tensor itself
            attention_mask = Tensor();
        } else {
            attention_mask = unsqueeze(unsqueeze(attention_mask, 1), 1);
        }

        const Caller call(run, gradient_checkpointing);
        const auto run_block = [&](const Block& block) {
            Tensors out = call(block, {hidden_states, encoder_hidden_states, temb, attention_mask, image_rotary_emb[0],
                                       image_rotary_emb[1]});
            hidden_states = std::move(out[0]);
            encoder_hidden_states = std::move(out[1]);
        };
        for (const std::unique_ptr<Block>& block : transformer_blocks) run_block(*block);
        for (const std::unique_ptr<Block>& block : single_transformer_blocks) run_block(*block);

        hidden_states = slice(hidden_states, 1, hidden_states.size(1) - original_context_length, hidden_states.size(1));
        hidden_states = norm_out(hidden_states, temb);
        hidden_states = proj_out(hidden_states);
        return {hunyuan::unpatchify(std::move(hidden_states), {frames, height, width}, p_t, p)};
    }

  private:
    // HunyuanVideoFramepackRotaryPosEmbed: the frames' places in time are handed over.
    [[nodiscard]] Tensors frames_rope(const Tensor& frame_indices, std::int64_t h, std::int64_t w) const {
        Run& run = frame_indices.run();
        Tensor grid;
        {
            const Tensor time = to_float(frame_indices);
            const Tensor rows = arange(run, h, Dtype::f32), columns = arange(run, w, Dtype::f32);
            grid = stack(meshgrid(time, rows, columns), 0);
        }
        return hunyuan::rotary_of(std::move(grid), rope_axes_dim_);
    }

    static void prepend(const Tensors& part, Tensors& image_rotary_emb) {
        image_rotary_emb[0] = cat({part[0], image_rotary_emb[0]}, 0);
        image_rotary_emb[1] = cat({part[1], image_rotary_emb[1]}, 0);
    }

    // _pad_rotary_emb
    [[nodiscard]] static Tensors pad_rotary_emb(const Tensors& image_rotary_emb, std::int64_t height,
                                                std::int64_t width, const Dims& kernel_size) {
        Tensor freqs_cos = spread(image_rotary_emb[0], height, width);
        Tensor freqs_sin = spread(image_rotary_emb[1], height, width);
        freqs_cos = hunyuan::pad_for_3d_conv(freqs_cos, kernel_size);
        freqs_sin = hunyuan::pad_for_3d_conv(freqs_sin, kernel_size);
        freqs_cos = avg_pool3d(freqs_cos, kernel_size);
        freqs_sin = avg_pool3d(freqs_sin, kernel_size);
        freqs_cos = squeeze(permute(flatten(freqs_cos, 2, 4), {0, 2, 1}), 0);
        freqs_sin = squeeze(permute(flatten(freqs_sin, 2, 4), {0, 2, 1}), 0);
        return {freqs_cos, freqs_sin};
    }
    [[nodiscard]] static Tensor spread(const Tensor& freqs, std::int64_t height, std::int64_t width) {
        return unflatten(permute(unsqueeze(freqs, 0), {0, 2, 1}), 2, {-1, height, width});
    }

    std::int64_t image_proj_dim_;
};

}  // namespace

std::unique_ptr<Model> hunyuan_video::build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<HunyuanVideoTransformer3DModel>(weights, profile.config);
}

std::unique_ptr<Model> hunyuan_video_framepack::build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<HunyuanVideoFramepackTransformer3DModel>(weights, profile.config);
}

}  // namespace vram::models
