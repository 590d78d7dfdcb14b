// Mirrors HunyuanVideo15Transformer3DModel (diffusers 0.42.1, models/transformers/transformer_hunyuan_video15.py). Each
// caption fills its tokens; a picture's tokens are always there, all valid or, from text to video, all padding.
#include <deque>

#include "models/families.hpp"
#include "models/hunyuan_blocks.hpp"

namespace vram::models::hunyuan_video15 {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::LayerNorm;
using nn::Linear;

constexpr std::int64_t glyph_tokens = 256;  // ByT5's, as the pipelines pad them
constexpr std::int64_t image_tokens = 729;  // SigLIP's at 384 pixels
constexpr std::int64_t byt5_hidden_size = 2048, frequency_embedding_size = 256, condition_types = 3;

/// HunyuanVideo15ByT5TextProjection.
class ByT5TextProjection {
  public:
    ByT5TextProjection() = default;
    ByT5TextProjection(const Builder& builder, std::int64_t in, std::int64_t hidden, std::int64_t out)
        : norm(builder.layer_norm("norm", in)),
          linear_1(builder.linear("linear_1", in, hidden)),
          linear_2(builder.linear("linear_2", hidden, hidden)),
          linear_3(builder.linear("linear_3", hidden, out)) {}

    [[nodiscard]] Tensor operator()(const Tensor& encoder_hidden_states) const {
        Tensor hidden_states = norm(encoder_hidden_states);
        hidden_states = linear_1(hidden_states);
        hidden_states = gelu(hidden_states);
        hidden_states = linear_2(hidden_states);
        hidden_states = gelu(hidden_states);
        hidden_states = linear_3(hidden_states);
        return hidden_states;
    }

  private:
    LayerNorm norm;
    Linear linear_1, linear_2, linear_3;
};

/// HunyuanVideo15ImageProjection.
class ImageProjection {
  public:
    ImageProjection() = default;
    ImageProjection(const Builder& builder, std::int64_t in, std::int64_t out)
        : norm_in(builder.layer_norm("norm_in", in)),
          linear_1(builder.linear("linear_1", in, in)),
          linear_2(builder.linear("linear_2", in, out)),
          norm_out(builder.layer_norm("norm_out", out)) {}

    [[nodiscard]] Tensor operator()(const Tensor& image_embeds) const {
        Tensor hidden_states = norm_in(image_embeds);
        hidden_states = linear_1(hidden_states);
        hidden_states = gelu(hidden_states);
        hidden_states = linear_2(hidden_states);
        hidden_states = norm_out(hidden_states);
        return hidden_states;
    }

  private:
    LayerNorm norm_in;
    Linear linear_1, linear_2;
    LayerNorm norm_out;
};

class HunyuanVideo15Transformer3DModel : public Model {
  public:
    HunyuanVideo15Transformer3DModel(const Builder& builder, const profile::Config& config)
        : in_channels_(config.integer("in_channels")),
          out_channels_(config.integer("out_channels")),
          patch_size_(config.integer("patch_size")),
          patch_size_t_(config.integer("patch_size_t")),
          text_embed_dim_(config.integer("text_embed_dim")),
          text_embed_2_dim_(config.integer("text_embed_2_dim")),
          image_embed_dim_(config.integer("image_embed_dim")),
          is_t2v_(config.text("task_type") == "t2v"),
          rope_axes_dim_(config.integers("rope_axes_dim")) {
        const std::int64_t heads = config.integer("num_attention_heads"),
                           head_dim = config.integer("attention_head_dim"), dim = heads * head_dim;
        const hunyuan::Sizes sizes{dim, heads, head_dim,
                                   static_cast<std::int64_t>(static_cast<double>(dim) * config.number("mlp_ratio")),
                                   true};
        const Dims patch{patch_size_t_, patch_size_, patch_size_};
        x_embedder = builder["x_embedder"].conv("proj", in_channels_, dim, patch, patch, {0, 0, 0});
        image_embedder = ImageProjection(builder["image_embedder"], image_embed_dim_, dim);
        context_embedder = hunyuan::TokenRefiner(builder["context_embedder"], text_embed_dim_, sizes,
                                                 config.integer("num_refiner_layers"));
        context_embedder_2 =
            ByT5TextProjection(builder["context_embedder_2"], text_embed_2_dim_, byt5_hidden_size, dim);
        timestep_embedder =
            TimestepEmbedding(builder["time_embed"]["timestep_embedder"], frequency_embedding_size, dim);
        cond_type_embed = builder.embedding("cond_type_embed", condition_types, dim);
        for (std::int64_t i = 0; i < config.integer("num_layers"); ++i)
            transformer_blocks.emplace_back(builder["transformer_blocks"][i], sizes);
        // Nobody reads the text that the last block returns, so part of its graph dies with the forward: it is played,
        // never copied.
        if (!transformer_blocks.empty()) transformer_blocks.back().spec = -1;
        norm_out = AdaLayerNormContinuous(builder["norm_out"], dim, dim);
        proj_out = builder.linear("proj_out", dim, patch.product() * out_channels_);
    }

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        return {{"hidden_states", latents(request, in_channels_), request.dtype},
                {"timestep", {request.batch}, request.dtype},
                {"encoder_hidden_states", {request.batch, request.text_tokens, text_embed_dim_}, request.dtype},
                {"encoder_attention_mask", {request.batch, request.text_tokens}, request.dtype},
                {"encoder_hidden_states_2", {request.batch, glyph_tokens, text_embed_2_dim_}, request.dtype},
                {"encoder_attention_mask_2", {request.batch, glyph_tokens}, request.dtype},
                {"image_embeds", {request.batch, image_tokens, image_embed_dim_}, request.dtype}};
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {latents(request, out_channels_)};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        Run& run = args[0].run();
        Tensor hidden_states = args[0];
        const Tensor &timestep = args[1], &image_embeds = args[6];
        const std::int64_t batch_size = hidden_states.size(0);
        const std::array<std::int64_t, 3> grid{hidden_states.size(2) / patch_size_t_,
                                               hidden_states.size(3) / patch_size_,
                                               hidden_states.size(4) / patch_size_};

        // 1. RoPE
        const Tensors image_rotary_emb = hunyuan::rotary_pos_embed(run, grid, rope_axes_dim_);

        // 2. Conditional embeddings
        const Tensor temb = time_embed(timestep);
        hidden_states = x_embedder(hidden_states);
        hidden_states = transpose(flatten(hidden_states, 2, 4), 1, 2);  // [B, S, D]

        // qwen text embedding
        Tensor encoder_hidden_states = context_embedder(args[2], timestep, args[3]);
        const Tensor cond_emb = cond_type(encoder_hidden_states, Op::zeros);
        encoder_hidden_states = add(encoder_hidden_states, cond_emb);

        // byt5 text embedding
        Tensor encoder_hidden_states_2 = context_embedder_2(args[4]);
        const Tensor cond_emb_2 = cond_type(encoder_hidden_states_2, Op::ones);
        encoder_hidden_states_2 = add(encoder_hidden_states_2, cond_emb_2);

        // image embed
        Tensor encoder_hidden_states_3 = image_embedder(image_embeds);
        Tensor is_t2v;
        {
            const Tensor zero = compare_scalar(image_embeds);
            is_t2v = run.empty({}, Dtype::boolean, Op::any);
        }
        if (is_t2v_) encoder_hidden_states_3 = mul_scalar(encoder_hidden_states_3);
        Tensor encoder_attention_mask_3 =
            run.empty({batch_size, image_tokens}, args[3].dtype(), is_t2v_ ? Op::zeros : Op::ones);
        Tensor cond_emb_3;
        {
            Tensor ids = run.empty({batch_size, image_tokens}, Dtype::i64, Op::ones);
            ids = mul_scalar(std::move(ids), false);
            cond_emb_3 = cond_type_embed(std::move(ids));
        }
        encoder_hidden_states_3 = add(encoder_hidden_states_3, cond_emb_3);

        // reorder and combine text tokens: combine valid tokens first, then padding
        Tensor encoder_attention_mask = to(args[3], Dtype::boolean);
        const Tensor encoder_attention_mask_2 = to(args[5], Dtype::boolean);
        encoder_attention_mask_3 = to(encoder_attention_mask_3, Dtype::boolean);
        std::vector<Tensor> new_encoder_hidden_states, new_encoder_attention_mask;
        // The loop's names outlive it, and with them what they are views of.
        const Tensors texts = unbind(encoder_hidden_states, 0), text_masks = unbind(encoder_attention_mask, 0),
                      texts_2 = unbind(encoder_hidden_states_2, 0), text_masks_2 = unbind(encoder_attention_mask_2, 0),
                      images = unbind(encoder_hidden_states_3, 0), image_masks = unbind(encoder_attention_mask_3, 0);
        const std::int64_t valid = is_t2v_ ? 0 : image_tokens;
        for (std::size_t i = 0; i < texts.size(); ++i) {
            const Tensor &text = texts[i], &text_mask = text_masks[i], &text_2 = texts_2[i],
                         &text_mask_2 = text_masks_2[i], &image = images[i], &image_mask = image_masks[i];
            new_encoder_hidden_states.push_back(
                reordered({Part{image, image_mask, valid}, Part{text_2, text_mask_2, text_2.size(0)},
                           Part{text, text_mask, text.size(0)}},
                          true));
            new_encoder_attention_mask.push_back(
                reordered({Part{image_mask, image_mask, valid}, Part{text_mask_2, text_mask_2, text_2.size(0)},
                           Part{text_mask, text_mask, text.size(0)}},
                          false));
        }
        encoder_hidden_states = stack(new_encoder_hidden_states, 0);
        encoder_attention_mask = stack(new_encoder_attention_mask, 0);

        // 4. Transformer blocks
        const Caller call(run, gradient_checkpointing);
        for (const hunyuan::TransformerBlock& block : transformer_blocks) {
            Tensors out = call(block, {hidden_states, encoder_hidden_states, temb, encoder_attention_mask,
                                       image_rotary_emb[0], image_rotary_emb[1]});
            hidden_states = std::move(out[0]);
            encoder_hidden_states = std::move(out[1]);
        }

        // 5. Output projection
        hidden_states = norm_out(hidden_states, temb);
        hidden_states = proj_out(hidden_states);
        return {hunyuan::unpatchify(std::move(hidden_states), grid, patch_size_t_, patch_size_)};
    }

  private:
    [[nodiscard]] static Dims latents(const Request& request, std::int64_t channels) {
        return {request.batch, channels, (request.frames - 1) / 4 + 1, request.height / 16, request.width / 16};
    }

    // HunyuanVideo15TimeEmbedding
    [[nodiscard]] Tensor time_embed(const Tensor& timestep) const {
        const Tensor timesteps_proj = timestep_embedding(timestep, frequency_embedding_size, true);
        return timestep_embedder(to(timesteps_proj, timestep.dtype()));
    }

    // cond_type_embed of zeros or ones, one a token
    [[nodiscard]] Tensor cond_type(const Tensor& tokens, Op fill) const {
        return cond_type_embed(tokens.run().empty({tokens.size(0), tokens.size(1)}, Dtype::i64, fill));
    }

    struct Part {
        const Tensor &x, &mask;
        std::int64_t valid;
    };
    // cat of x[mask] of all parts, then of their x[~mask]; what pads a text becomes zeros.
    [[nodiscard]] static Tensor reordered(std::initializer_list<Part> parts, bool with_zeros) {
        std::vector<Tensor> pieces;
        for (const auto& [x, mask, valid] : parts) pieces.push_back(index_mask(x, mask, valid));
        for (const auto& [x, mask, valid] : parts) {
            const bool zeros = with_zeros && &x != &parts.begin()->x;
            Tensor inverted = compare_scalar(mask);
            Tensor padding = index_mask(x, std::move(inverted), x.size(0) - valid);
            if (zeros) padding = x.run().empty(padding.sizes(), padding.dtype(), Op::zeros);
            pieces.push_back(std::move(padding));
        }
        return cat(pieces, 0);
    }

    std::int64_t in_channels_, out_channels_, patch_size_, patch_size_t_, text_embed_dim_, text_embed_2_dim_,
        image_embed_dim_;
    bool is_t2v_;
    std::vector<std::int64_t> rope_axes_dim_;
    nn::Conv x_embedder;
    ImageProjection image_embedder;
    hunyuan::TokenRefiner context_embedder;
    ByT5TextProjection context_embedder_2;
    TimestepEmbedding timestep_embedder;
    nn::Embedding cond_type_embed;
    std::deque<hunyuan::TransformerBlock> transformer_blocks;
    AdaLayerNormContinuous norm_out;
    Linear proj_out;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<HunyuanVideo15Transformer3DModel>(Builder(weights), profile.config);
}

}  // namespace vram::models::hunyuan_video15
