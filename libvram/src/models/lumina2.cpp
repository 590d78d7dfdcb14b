// Mirrors Lumina2Transformer2DModel (diffusers 0.42.1, models/transformers/transformer_lumina2.py): Lumina-Image 2.0.
// The class reads each caption's length from the attention mask; here every caption has the request's text_tokens, and
// what the caller pads them to is as wide as the mask.
#include <algorithm>
#include <deque>
#include <stdexcept>

#include "models/embeddings.hpp"
#include "models/families.hpp"
#include "models/lumina.hpp"
#include "models/normalization.hpp"

namespace vram::models::lumina2 {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Linear;

/// LuminaFeedForward
class FeedForward : public LuminaFeedForward {
  public:
    using LuminaFeedForward::LuminaFeedForward;

    Tensor operator()(Tensor x_in) const {
        const Tensor x = std::move(x_in);
        Tensor gate = fp32_silu(linear_1(x));
        Tensor up = linear_3(x);
        return linear_2(mul(std::move(gate), std::move(up)));
    }

  private:
    // FP32SiLU
    static Tensor fp32_silu(Tensor inputs_in) {
        const Tensor inputs = std::move(inputs_in);
        Tensor out = silu(to_float(inputs));
        return to(std::move(out), inputs.dtype());
    }
};

/// Attention with Lumina2AttnProcessor2_0.
class Lumina2Attention : public LuminaAttention {
  public:
    using LuminaAttention::LuminaAttention;

    /// attention_mask [B, T] of numbers or bool, or undefined
    Tensor operator()(Tensor hidden_states_in, Tensor attention_mask_in, const Tensor& image_rotary_emb) const {
        const Tensor held = std::move(hidden_states_in);
        Tensor attention_mask = std::move(attention_mask_in);
        Tensors projected = rotated(held, image_rotary_emb);
        Tensor query = std::move(projected[0]), key = std::move(projected[1]), value = std::move(projected[2]);

        // perform Grouped-query Attention
        key = for_every_head(key);
        value = for_every_head(value);
        if (attention_mask.defined())
            attention_mask = view(to(attention_mask, Dtype::boolean), {held.size(0), 1, 1, -1});

        query = transpose(query, 1, 2);
        key = transpose(key, 1, 2);
        value = transpose(value, 1, 2);
        return attended(query, key, value, attention_mask);
    }

  private:
    [[nodiscard]] Tensor for_every_head(const Tensor& x) const {
        return flatten(repeat(unsqueeze(x, 3), {1, 1, 1, heads_ / kv_heads_, 1}), 2, 3);
    }
};

class Norm : public PlainRmsNorm {
  public:
    Norm() = default;
    Norm(const Builder& builder, std::string_view name, std::int64_t size) : PlainRmsNorm(builder[name], size) {}
};

using Lumina2TransformerBlock = LuminaTransformerBlock<Norm, Lumina2Attention, FeedForward>;

class Lumina2Transformer2DModel : public Model {
  public:
    Lumina2Transformer2DModel(nn::Weights& weights, const profile::Config& config)
        : Lumina2Transformer2DModel(Builder(weights), config) {}

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        return {{"hidden_states", latents(request, in_channels_), request.dtype},
                {"encoder_hidden_states", {request.batch, request.text_tokens, cap_feat_dim_}, request.dtype},
                {"encoder_attention_mask", {request.batch, request.text_tokens}, Dtype::boolean},
                {"timestep", {request.batch}, request.dtype}};
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {latents(request, out_channels_)};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request& request) const override {
        // 1. Condition, positional & patch embedding
        Run& run = args[0].run();
        Tensor hidden_states = args[0];
        const Tensor encoder_attention_mask = args[2];
        const std::int64_t batch_size = hidden_states.size(0), height = hidden_states.size(2),
                           width = hidden_states.size(3);
        Tensor temb, encoder_hidden_states;
        time_caption_embed(args[3], args[1], hidden_states.dtype(), temb, encoder_hidden_states);
        Tensor context_rotary_emb, noise_rotary_emb, rotary_emb;
        hidden_states = rope_embedder(hidden_states, encoder_attention_mask, request.text_tokens, context_rotary_emb,
                                      noise_rotary_emb, rotary_emb);
        hidden_states = x_embedder(hidden_states);

        // 2. Context & noise refinement
        const Caller plain(run, false), call(run, gradient_checkpointing);
        for (const Lumina2TransformerBlock& layer : context_refiner)
            encoder_hidden_states =
                plain(layer, {encoder_hidden_states, encoder_attention_mask, context_rotary_emb})[0];
        for (const Lumina2TransformerBlock& layer : noise_refiner)
            hidden_states = plain(layer, {hidden_states, {}, noise_rotary_emb, temb})[0];

        // 3. Joint Transformer blocks
        const std::int64_t encoder_seq_len = request.text_tokens, seq_len = encoder_seq_len + hidden_states.size(1);
        const Tensor attention_mask = run.empty({batch_size, seq_len}, Dtype::boolean, Op::zeros);
        Tensor joint_hidden_states =
            run.empty({batch_size, seq_len, hidden_states.size(2)}, hidden_states.dtype(), Op::zeros);
        for (std::int64_t i = 0; i < batch_size; ++i) {
            const Tensor row = select(joint_hidden_states.detach(), 0, i);
            Tensor caption = select(encoder_hidden_states, 0, i);
            if (encoder_seq_len < caption.size(0)) caption = slice(std::move(caption), 0, 0, encoder_seq_len);
            copy_into_view(joint_hidden_states, slice(row, 0, 0, encoder_seq_len), std::move(caption));
            copy_into_view(joint_hidden_states, slice(row, 0, encoder_seq_len, seq_len), select(hidden_states, 0, i));
        }
        hidden_states = joint_hidden_states;
        for (const Lumina2TransformerBlock& layer : layers)
            hidden_states = call(layer, {hidden_states, {}, rotary_emb, temb})[0];

        // 4. Output norm & projection
        hidden_states = norm_out(hidden_states, temb);

        // 5. Unpatchify
        const std::int64_t p = patch_size_;
        Tensors output;
        for (std::int64_t i = 0; i < batch_size; ++i) {
            Tensor sample = slice(select(hidden_states, 0, i), 0, encoder_seq_len, seq_len);
            sample = view(std::move(sample), {height / p, width / p, p, p, out_channels_});
            sample = permute(std::move(sample), {4, 0, 2, 1, 3});
            output.push_back(flatten(flatten(std::move(sample), 3, 4), 1, 2));
        }
        return {stack(output, 0)};
    }

  private:
    Lumina2Transformer2DModel(const Builder& builder, const profile::Config& config)
        : in_channels_(config.integer("in_channels")),
          out_channels_(config.integer("out_channels", in_channels_)),
          cap_feat_dim_(config.integer("cap_feat_dim")),
          patch_size_(config.integer("patch_size")),
          axes_dim_(config.integers("axes_dim_rope")),
          axes_lens_(config.integers("axes_lens")) {
        const std::int64_t dim = config.integer("hidden_size"), refiners = config.integer("num_refiner_layers");
        const std::int64_t time_embed_dim = std::min<std::int64_t>(dim, 1024), patch = patch_size_ * patch_size_;
        const auto inner_dim =
            static_cast<std::int64_t>(config.number("ffn_dim_multiplier", 1) * 4 * static_cast<double>(dim));
        if (config.integer("num_attention_heads") % config.integer("num_kv_heads") != 0)
            throw std::logic_error("num_attention_heads is no multiple of num_kv_heads");
        const LuminaSizes sizes{dim, config.integer("num_attention_heads"), config.integer("num_kv_heads"),
                                round_up(inner_dim, config.integer("multiple_of"))};
        constexpr std::string_view block = "Lumina2TransformerBlock";
        x_embedder = builder.linear("x_embedder", patch * in_channels_, dim);
        const Builder embed = builder["time_caption_embed"];
        timestep_embedder = TimestepEmbedding(embed["timestep_embedder"], frequency_embedding_size, time_embed_dim);
        caption_norm = PlainRmsNorm(embed["caption_embedder"]["0"], cap_feat_dim_);
        caption_embedder = embed["caption_embedder"].linear("1", cap_feat_dim_, dim);
        for (std::int64_t i = 0; i < refiners; ++i)
            noise_refiner.emplace_back(builder["noise_refiner"][i], block, sizes, true);
        for (std::int64_t i = 0; i < refiners; ++i)
            context_refiner.emplace_back(builder["context_refiner"][i], block, sizes, false);
        for (std::int64_t i = 0; i < config.integer("num_layers"); ++i)
            layers.emplace_back(builder["layers"][i], block, sizes, true);
        norm_out = LuminaLayerNormContinuous(builder["norm_out"], dim, time_embed_dim, patch * out_channels_);
    }

    [[nodiscard]] Dims latents(const Request& request, std::int64_t channels) const {
        return {request.batch, channels, request.height / 8, request.width / 8};
    }

    // Lumina2CombinedTimestepCaptionEmbedding
    void time_caption_embed(const Tensor& timestep, const Tensor& encoder_hidden_states, Dtype dtype,
                            Tensor& time_embed, Tensor& caption_embed) const {
        Tensor timestep_proj = timestep_embedding(timestep, frequency_embedding_size, true);
        timestep_proj = to(timestep_proj, dtype);
        time_embed = timestep_embedder(timestep_proj);
        caption_embed = caption_norm(encoder_hidden_states);
        caption_embed = caption_embedder(caption_embed);
    }

    // Lumina2RotaryPosEmbed: returns the patches [B, S, p * p * C], fills tables [B, .., head_dim / 2] complex128.
    Tensor rope_embedder(const Tensor& hidden_states_in, const Tensor& attention_mask, std::int64_t cap_seq_len,
                         Tensor& cap_freqs_cis, Tensor& img_freqs_cis, Tensor& freqs_cis) const {
        Run& run = hidden_states_in.run();
        const std::int64_t batch_size = hidden_states_in.size(0), channels = hidden_states_in.size(1), p = patch_size_;
        const std::int64_t post_patch_height = hidden_states_in.size(2) / p,
                           post_patch_width = hidden_states_in.size(3) / p;
        const std::int64_t image_seq_len = post_patch_height * post_patch_width,
                           encoder_seq_len = attention_mask.size(1);
        // l_effective_cap_len = attention_mask.sum(dim=1).tolist(): a sum of booleans is int64
        static_cast<void>(run.empty({batch_size}, Dtype::i64, Op::sum));

        // Create position IDs
        const Tensor position_ids = run.empty({batch_size, cap_seq_len + image_seq_len, 3}, Dtype::i32, Op::zeros);
        Tensor row_ids, col_ids;
        for (std::int64_t i = 0; i < batch_size; ++i) {
            static_cast<void>(arange(run, cap_seq_len, Dtype::i32));  // copied into the caption's positions
            Tensor ids = view(arange(run, post_patch_height, Dtype::i32), {-1, 1});
            row_ids = flatten(repeat(std::move(ids), {1, post_patch_width}), 0, 1);
            ids = view(arange(run, post_patch_width, Dtype::i32), {1, -1});
            col_ids = flatten(repeat(std::move(ids), {post_patch_height, 1}), 0, 1);
        }

        // Get combined rotary embeddings
        freqs_cis = get_freqs_cis(position_ids);
        // create separate rotary embeddings for captions and images
        cap_freqs_cis = run.empty({batch_size, encoder_seq_len, freqs_cis.size(2)}, freqs_cis.dtype(), Op::zeros);
        img_freqs_cis = run.empty({batch_size, image_seq_len, freqs_cis.size(2)}, freqs_cis.dtype(), Op::zeros);

        // image patch embeddings
        Tensor hidden_states =
            view(hidden_states_in, {batch_size, channels, post_patch_height, p, post_patch_width, p});
        hidden_states = permute(std::move(hidden_states), {0, 2, 4, 3, 5, 1});
        hidden_states = flatten(std::move(hidden_states), 3, 5);
        return flatten(std::move(hidden_states), 1, 2);
    }

    // The tables go to the GPU in the first call and stay, as they are recorded (tests/reference/models.py). The
    // class's own line copies each anew in every call: the difference is the tables, 331 KiB.
    [[nodiscard]] Tensor get_freqs_cis(const Tensor& ids) const {
        Run& run = ids.run();
        if (freqs_cis_.empty()) {
            const ComponentScope scope(run, run.trace.tags[run.activation_tag].component, Category::model_cache);
            for (std::size_t i = 0; i < axes_dim_.size(); ++i)
                freqs_cis_.push_back(run.empty({axes_lens_[i], axes_dim_[i] / 2}, Dtype::complex128, Op::to_copy));
        }
        Tensors result;
        Tensor index;
        for (const Tensor& freqs : freqs_cis_) {
            Tensor axis = slice(ids, 2, 0, 1);
            index = to(repeat(std::move(axis), {1, 1, freqs.size(1)}), Dtype::i64);
            const Tensor repeated = repeat(unsqueeze(freqs, 0), {index.size(0), 1, 1});
            result.push_back(run.empty(index.sizes(), freqs.dtype(), Op::gather));
        }
        return cat(result, -1);
    }

    static constexpr std::int64_t frequency_embedding_size = 256;
    std::int64_t in_channels_, out_channels_, cap_feat_dim_, patch_size_;
    std::vector<std::int64_t> axes_dim_, axes_lens_;
    Linear x_embedder, caption_embedder;
    TimestepEmbedding timestep_embedder;
    PlainRmsNorm caption_norm;
    LuminaLayerNormContinuous norm_out;
    std::deque<Lumina2TransformerBlock> noise_refiner, context_refiner, layers;
    mutable Tensors freqs_cis_;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<Lumina2Transformer2DModel>(weights, profile.config);
}

}  // namespace vram::models::lumina2
