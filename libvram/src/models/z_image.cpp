// Mirrors ZImageTransformer2DModel (diffusers 0.42.1, models/transformers/transformer_z_image.py) in its basic mode:
// one picture a sample, no SigLIP features. Z-Image, Z-Image-Turbo.
#include <algorithm>
#include <array>
#include <deque>

#include "models/attention.hpp"
#include "models/families.hpp"
#include "models/normalization.hpp"
#include "models/z_image_parts.hpp"
#include "shadow/ops.hpp"

namespace vram::models::z_image {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;

constexpr std::int64_t seq_multi_of = 32;

struct Sizes {
    std::int64_t dim, heads;
    bool qk_norm;
};

/// Attention with ZSingleStreamAttnProcessor.
class ZImageAttention {
  public:
    ZImageAttention(const Builder& builder, const Sizes& sizes) : heads_(sizes.heads) {
        const std::int64_t dim = sizes.dim;
        if (sizes.qk_norm) {
            norm_q = PlainRmsNorm(builder["norm_q"], dim / sizes.heads);
            norm_k = PlainRmsNorm(builder["norm_k"], dim / sizes.heads);
        }
        qk_norm_ = sizes.qk_norm;
        to_q = builder.linear("to_q", dim, dim, false);
        to_k = builder.linear("to_k", dim, dim, false);
        to_v = builder.linear("to_v", dim, dim, false);
        to_out = builder["to_out"].linear("0", dim, dim, false);
    }

    Tensor operator()(Tensor hidden_states_in, const Tensor& attention_mask, const Tensor& freqs_cis) const {
        const Tensor held = std::move(hidden_states_in);
        Tensor query = to_q(held);
        Tensor key = to_k(held);
        Tensor value = to_v(held);
        query = unflatten(query, -1, {heads_, -1});
        key = unflatten(key, -1, {heads_, -1});
        value = unflatten(value, -1, {heads_, -1});
        if (qk_norm_) {
            query = norm_q(query);
            key = norm_k(key);
        }
        query = z_image_rotary_emb(query, freqs_cis);
        key = z_image_rotary_emb(key, freqs_cis);

        Tensor hidden_states = dispatch_attention(
            query, key, value, attention_mask.defined() ? unsqueeze(unsqueeze(attention_mask, 1), 1) : attention_mask);
        hidden_states = flatten(std::move(hidden_states), 2, 3);
        hidden_states = to(std::move(hidden_states), query.dtype());
        return to_out(hidden_states);
    }

  private:
    std::int64_t heads_;
    bool qk_norm_;
    PlainRmsNorm norm_q, norm_k;
    Linear to_q, to_k, to_v, to_out;
};

class FeedForward {
  public:
    FeedForward(const Builder& builder, std::int64_t dim, std::int64_t hidden_dim)
        : w1(builder.linear("w1", dim, hidden_dim, false)),
          w2(builder.linear("w2", hidden_dim, dim, false)),
          w3(builder.linear("w3", dim, hidden_dim, false)) {}

    Tensor operator()(Tensor x_in) const {
        const Tensor x = std::move(x_in);
        Tensor x1 = w1(x);
        Tensor x3 = w3(x);
        return w2(silu_gating(std::move(x1), std::move(x3)));
    }

  private:
    static Tensor silu_gating(Tensor x1_in, Tensor x3_in) {
        const Tensor x1 = std::move(x1_in), x3 = std::move(x3_in);
        return mul(silu(x1), x3);
    }

    Linear w1, w2, w3;
};

/// args: x [B, S, D], attn_mask [B, S] or undefined, freqs_cis [B, S, head_dim / 2], with modulation adaln_input
/// [B, 256] → x
class ZImageTransformerBlock : public Block {
  public:
    ZImageTransformerBlock(const Builder& parent, const Sizes& sizes, bool modulation)
        : ZImageTransformerBlock(parent.block(*this), sizes, modulation) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor x = args[0];
        const Tensor &attn_mask = args[1], &freqs_cis = args[2];
        if (!modulation_) {
            const Tensor attn_out = attention(attention_norm1(x), attn_mask, freqs_cis);
            x = add(x, attention_norm2(attn_out));
            x = add(x, ffn_norm2(feed_forward(ffn_norm1(x))));
            return {x};
        }

        const Tensor mod = adaLN_modulation(args[3]);
        Tensors parts = chunk(unsqueeze(mod, 1), 4, 2);
        Tensor scale_msa = parts[0], gate_msa = parts[1], scale_mlp = parts[2], gate_mlp = parts[3];
        parts.clear();
        gate_msa = tanh(gate_msa);
        gate_mlp = tanh(gate_mlp);
        scale_msa = add_scalar(scale_msa, true);
        scale_mlp = add_scalar(scale_mlp, true);

        // Attention block
        Tensor normed = attention_norm1(x);
        normed = mul(std::move(normed), scale_msa);
        const Tensor attn_out = attention(std::move(normed), attn_mask, freqs_cis);
        Tensor update = attention_norm2(attn_out);
        update = mul(gate_msa, std::move(update));
        x = add(x, std::move(update));

        // FFN block
        normed = ffn_norm1(x);
        normed = mul(std::move(normed), scale_mlp);
        update = feed_forward(std::move(normed));
        update = ffn_norm2(std::move(update));
        update = mul(gate_mlp, std::move(update));
        x = add(x, std::move(update));
        return {x};
    }

  private:
    ZImageTransformerBlock(const BlockBuilder& builder, const Sizes& sizes, bool modulation)
        : modulation_(modulation),
          attention(builder["attention"], sizes),
          feed_forward(builder["feed_forward"], sizes.dim,
                       static_cast<std::int64_t>(static_cast<double>(sizes.dim) / 3 * 8)),
          attention_norm1(builder["attention_norm1"], sizes.dim),
          ffn_norm1(builder["ffn_norm1"], sizes.dim),
          attention_norm2(builder["attention_norm2"], sizes.dim),
          ffn_norm2(builder["ffn_norm2"], sizes.dim) {
        if (modulation)
            adaLN_modulation =
                builder["adaLN_modulation"].linear("0", std::min(sizes.dim, z_image_adaln_embed_dim), 4 * sizes.dim);
        builder.finish(*this, "ZImageTransformerBlock", {sizes.heads, sizes.qk_norm, modulation});
    }

    bool modulation_;
    ZImageAttention attention;
    FeedForward feed_forward;
    PlainRmsNorm attention_norm1, ffn_norm1, attention_norm2, ffn_norm2;
    Linear adaLN_modulation;
};

class ZImageTransformer2DModel : public Model {
  public:
    ZImageTransformer2DModel(nn::Weights& weights, const profile::Config& config)
        : ZImageTransformer2DModel(Builder(weights), config) {}

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        std::vector<Value> out;
        for (std::int64_t i = 0; i < request.batch; ++i)
            out.push_back({"x." + std::to_string(i), latents(request), request.dtype});
        out.push_back({"t", {request.batch}, request.dtype});
        for (std::int64_t i = 0; i < request.batch; ++i)
            out.push_back({"cap_feats." + std::to_string(i), {request.text_tokens, cap_feat_dim_}, request.dtype});
        return out;
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return std::vector<Dims>(static_cast<std::size_t>(request.batch), latents(request));
    }

    /// {x [C, F, H, W] each, t [B], cap_feats [T, D] each} → {x each}
    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        const std::size_t bsz = args.size() / 2;
        Run& run = args[0].run();
        const Tensor adaln_input = to(t_embedder(mul_scalar(args[bsz])), args[0].dtype());

        // Patchify
        Tensors x_list, cap_list, x_pos_ids, cap_pos_ids, x_pad_mask, cap_pad_mask;
        patchify_and_embed(args, bsz, x_list, cap_list, x_pos_ids, cap_pos_ids, x_pad_mask, cap_pad_mask);

        // X embed & refine
        const std::vector<std::int64_t> x_seqlens = lengths_of(x_list);
        Tensor x = all_x_embedder(cat(x_list, 0));
        x_list.clear();
        Tensor x_freqs, x_mask;
        x = prepare_sequence(split_with_sizes(x, x_seqlens, 0), x_pos_ids, x_pad_mask, *x_pad_token, x_freqs, x_mask);
        const Caller call(run, gradient_checkpointing);
        for (const ZImageTransformerBlock& layer : noise_refiner) x = call(layer, {x, x_mask, x_freqs, adaln_input})[0];

        // Cap embed & refine
        const std::vector<std::int64_t> cap_seqlens = lengths_of(cap_list);
        Tensor cap_feats = cat(cap_list, 0);
        {
            const Tensor held = std::move(cap_feats);  // by the Sequential's call
            cap_feats = cap_embedder_norm(held);
            cap_feats = cap_embedder(cap_feats);
        }
        cap_list.clear();
        Tensor cap_freqs, cap_mask;
        cap_feats = prepare_sequence(split_with_sizes(cap_feats, cap_seqlens, 0), cap_pos_ids, cap_pad_mask,
                                     *cap_pad_token, cap_freqs, cap_mask);
        for (const ZImageTransformerBlock& layer : context_refiner)
            cap_feats = call(layer, {cap_feats, cap_mask, cap_freqs})[0];

        // Unified sequence
        Tensor unified, unified_freqs, unified_mask;
        build_unified_sequence(x, x_freqs, cap_feats, cap_freqs, cap_seqlens, unified, unified_freqs, unified_mask);

        // Main transformer layers
        for (const ZImageTransformerBlock& layer : layers)
            unified = call(layer, {unified, unified_mask, unified_freqs, adaln_input})[0];
        unified = all_final_layer(unified, adaln_input);

        return unpatchify(unbind(unified, 0), args[0].sizes());
    }

  private:
    ZImageTransformer2DModel(const Builder& builder, const profile::Config& config)
        : in_channels_(config.integer("in_channels")),
          cap_feat_dim_(config.integer("cap_feat_dim")),
          patch_size_(config.integers("all_patch_size", {2}).front()),
          f_patch_size_(config.integers("all_f_patch_size", {1}).front()),
          axes_dims_(config.integers("axes_dims")),
          axes_lens_(config.integers("axes_lens")) {
        const std::int64_t dim = config.integer("dim"), refiners = config.integer("n_refiner_layers");
        const Sizes sizes{dim, config.integer("n_heads"), config.boolean("qk_norm")};
        const std::int64_t patch = f_patch_size_ * patch_size_ * patch_size_ * in_channels_;
        const std::string patch_sizes = std::to_string(patch_size_) + "-" + std::to_string(f_patch_size_);
        x_pad_token = &builder.parameter("x_pad_token", {1, dim});
        cap_pad_token = &builder.parameter("cap_pad_token", {1, dim});
        all_x_embedder = builder["all_x_embedder"].linear(patch_sizes, patch, dim);
        all_final_layer = ZImageFinalLayer(builder["all_final_layer"][patch_sizes], dim, patch);
        for (std::int64_t i = 0; i < refiners; ++i)
            noise_refiner.emplace_back(builder["noise_refiner"][i], sizes, true);
        for (std::int64_t i = 0; i < refiners; ++i)
            context_refiner.emplace_back(builder["context_refiner"][i], sizes, false);
        t_embedder = ZImageTimestepEmbedder(builder["t_embedder"], std::min(dim, z_image_adaln_embed_dim), 1024);
        cap_embedder_norm = PlainRmsNorm(builder["cap_embedder"]["0"], cap_feat_dim_);
        cap_embedder = builder["cap_embedder"].linear("1", cap_feat_dim_, dim);
        for (std::int64_t i = 0; i < config.integer("n_layers"); ++i)
            layers.emplace_back(builder["layers"][i], sizes, true);
    }

    [[nodiscard]] Dims latents(const Request& request) const {
        return {in_channels_, 1, request.height / 8, request.width / 8};
    }

    static std::vector<std::int64_t> lengths_of(const Tensors& items) {
        std::vector<std::int64_t> out;
        for (const Tensor& item : items) out.push_back(item.size(0));
        return out;
    }

    /// Which tokens are there, [B, S]; undefined where none are missing.
    static Tensor attn_mask_of(Run& run, const std::vector<std::int64_t>& seqlens) {
        const std::int64_t longest = *std::max_element(seqlens.begin(), seqlens.end());
        if (std::all_of(seqlens.begin(), seqlens.end(), [&](std::int64_t one) { return one == longest; })) return {};
        return run.empty({static_cast<std::int64_t>(seqlens.size()), longest}, Dtype::boolean, Op::zeros);
    }

    /// Pads to a multiple of 32 tokens; fills positions and the mask of what was padded.
    static Tensor pad_with_ids(const Tensor& feat, const std::array<std::int64_t, 3>& pos_grid_size, Tensors& all_ids,
                               Tensors& all_masks) {
        Run& run = feat.run();
        const std::int64_t ori_len = feat.size(0), pad_len = round_up(ori_len, seq_multi_of) - ori_len;
        const Tensor ori_pos_ids = z_image_coordinate_grid(run, pos_grid_size);
        if (pad_len == 0) {
            all_ids.push_back(ori_pos_ids);
            all_masks.push_back(run.empty({ori_len}, Dtype::boolean, Op::zeros));
            return feat;
        }
        const Tensor pad_pos_ids = repeat(z_image_coordinate_grid(run, {1, 1, 1}), {pad_len, 1});
        all_ids.push_back(cat({ori_pos_ids, pad_pos_ids}, 0));
        Tensor padding = repeat(slice(feat, 0, -1, ori_len), {pad_len, 1});
        Tensor padded_feat = cat({feat, std::move(padding)}, 0);
        Tensor zeros = run.empty({ori_len}, Dtype::boolean, Op::zeros);
        Tensor ones = run.empty({pad_len}, Dtype::boolean, Op::ones);
        all_masks.push_back(cat({std::move(zeros), std::move(ones)}, 0));
        return padded_feat;
    }

    void patchify_and_embed(const Tensors& args, std::size_t bsz, Tensors& x, Tensors& cap_feats, Tensors& x_pos_ids,
                            Tensors& cap_pos_ids, Tensors& x_pad_mask, Tensors& cap_pad_mask) const {
        Tensor img_patches;
        for (std::size_t i = 0; i < bsz; ++i) {
            // Caption
            const Tensor& cap_feat = args[bsz + 1 + i];
            const std::int64_t cap_len = round_up(cap_feat.size(0), seq_multi_of);
            cap_feats.push_back(pad_with_ids(cap_feat, {cap_len, 1, 1}, cap_pos_ids, cap_pad_mask));

            // Image: (C, F, H, W) → (num_patches, patch_dim)
            const Tensor& image = args[i];
            const std::int64_t f = image.size(1) / f_patch_size_, h = image.size(2) / patch_size_,
                               w = image.size(3) / patch_size_;
            Tensor patches = view(image, {in_channels_, f, f_patch_size_, h, patch_size_, w, patch_size_});
            patches = permute(std::move(patches), {1, 3, 5, 2, 4, 6, 0});
            img_patches = reshape(std::move(patches), {f * h * w, -1});
            x.push_back(pad_with_ids(img_patches, {f, h, w}, x_pos_ids, x_pad_mask));
        }
    }

    /// Pad token, rotary table, batch: returns [B, S, D] and fills freqs_cis [B, S, head_dim / 2].
    Tensor prepare_sequence(Tensors feats, const Tensors& pos_ids, const Tensors& inner_pad_mask,
                            const Parameter& pad_token, Tensor& freqs_cis, Tensor& attn_mask) const {
        const std::vector<std::int64_t> item_seqlens = lengths_of(feats);
        Tensor feats_cat = cat(feats, 0);
        const Tensor mask = unsqueeze(cat(inner_pad_mask, 0), -1);
        feats_cat = where(mask, pad_token.value, feats_cat);
        feats = split_with_sizes(feats_cat, item_seqlens, 0);
        Tensors freqs = split_with_sizes(rope_embedder(cat(pos_ids, 0)), lengths_of(pos_ids), 0);
        Tensor out = pad_sequence(feats);
        feats.clear();
        freqs_cis = slice(pad_sequence(freqs), 1, 0, out.size(1));
        freqs.clear();
        attn_mask = attn_mask_of(out.run(), item_seqlens);
        return out;
    }

    // RopeEmbedder: ids [S, 3] → [S, head_dim / 2] complex64. Its tables go to the GPU in the first call and stay.
    [[nodiscard]] Tensor rope_embedder(Tensor ids_in) const {
        const Tensor ids = std::move(ids_in);
        Run& run = ids.run();
        if (freqs_cis_.empty()) {
            const ComponentScope scope(run, run.trace.tags[run.activation_tag].component, Category::model_cache);
            for (std::size_t i = 0; i < axes_dims_.size(); ++i)
                freqs_cis_.push_back(run.empty({axes_lens_[i], axes_dims_[i] / 2}, Dtype::complex64, Op::to_copy));
        }
        Tensors result;
        for (const Tensor& table : freqs_cis_)
            result.push_back(run.empty({ids.size(0), table.size(1)}, table.dtype(), Op::index));
        return cat(result, -1);
    }

    // [x, cap] for each sample
    static void build_unified_sequence(const Tensor& x, const Tensor& x_freqs, const Tensor& cap,
                                       const Tensor& cap_freqs, const std::vector<std::int64_t>& cap_seqlens,
                                       Tensor& unified, Tensor& unified_freqs, Tensor& unified_mask) {
        std::vector<std::int64_t> seqlens;
        Tensors samples, freqs;
        for (std::int64_t i = 0; i < x.size(0); ++i) {
            Tensor head = slice(select(x, 0, i), 0, 0, x.size(1));
            const std::int64_t cap_len = cap_seqlens[static_cast<std::size_t>(i)];
            Tensor tail = slice(select(cap, 0, i), 0, 0, cap_len);
            samples.push_back(cat({std::move(head), std::move(tail)}, 0));
            head = slice(select(x_freqs, 0, i), 0, 0, x.size(1));
            tail = slice(select(cap_freqs, 0, i), 0, 0, cap_len);
            freqs.push_back(cat({std::move(head), std::move(tail)}, 0));
            seqlens.push_back(x.size(1) + cap_len);
        }
        unified = pad_sequence(samples);
        samples.clear();
        unified_freqs = pad_sequence(freqs);
        freqs.clear();
        unified_mask = attn_mask_of(unified.run(), seqlens);
    }

    [[nodiscard]] Tensors unpatchify(Tensors x, const Dims& size) const {
        const std::int64_t f = size[1] / f_patch_size_, h = size[2] / patch_size_, w = size[3] / patch_size_;
        for (Tensor& item : x) {
            Tensor out =
                view(slice(item, 0, 0, f * h * w), {f, h, w, f_patch_size_, patch_size_, patch_size_, in_channels_});
            item = reshape(permute(std::move(out), {6, 0, 3, 1, 4, 2, 5}), size);
        }
        return x;
    }

    std::int64_t in_channels_, cap_feat_dim_, patch_size_, f_patch_size_;
    std::vector<std::int64_t> axes_dims_, axes_lens_;
    Parameter *x_pad_token = nullptr, *cap_pad_token = nullptr;
    Linear all_x_embedder;
    ZImageFinalLayer all_final_layer;
    std::deque<ZImageTransformerBlock> noise_refiner, context_refiner, layers;
    ZImageTimestepEmbedder t_embedder;
    PlainRmsNorm cap_embedder_norm;
    Linear cap_embedder;
    mutable Tensors freqs_cis_;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<ZImageTransformer2DModel>(weights, profile.config);
}

}  // namespace vram::models::z_image
