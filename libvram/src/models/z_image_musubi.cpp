// Mirrors ZImageTransformer2DModel of musubi-tuner (30c658c, src/musubi_tuner/zimage/zimage_model.py), attention as
// with
// --sdpa and without --use_32bit_attention, captions without a mask. A file of its own, since little but the modules'
// names is as in diffusers: whole batches instead of lists that are padded, norms in fp32, and checkpoints within
// checkpoints: of the block, and in it again of attention and feed-forward.
#include <algorithm>
#include <deque>

#include "models/families.hpp"
#include "models/z_image_parts.hpp"
#include "shadow/checkpoint.hpp"

namespace vram::models::z_image_musubi {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;

struct Sizes {
    std::int64_t dim, heads;
    bool qk_norm;
};

/// In fp32, weight and all.
class RMSNorm {
  public:
    RMSNorm() = default;
    RMSNorm(const Builder& builder, std::int64_t dim) : weight(&builder.parameter("weight", {dim})) {}
    Tensor operator()(Tensor x_in) const {
        const Tensor x = std::move(x_in);
        const Tensor x_f = to_float(x);
        const Tensor w_f = to_float(weight->value);
        Tensor scale = mean(pow_scalar(x_f), -1, true);
        scale = add_scalar(std::move(scale));
        scale = rsqrt(std::move(scale));
        const Tensor out = mul(x_f, std::move(scale));
        return to(mul(out, w_f), x.dtype());
    }

  private:
    nn::Parameter* weight = nullptr;
};

/// A part of a block: a checkpoint within the block's own, where that has one.
template <class Part>
Tensor call_part(const Part& part, Tensors args) {
    Run& run = args[0].run();
    const auto forward = [&part](const Tensors& inputs) { return Tensors{part.forward(inputs)}; };
    const Tensors held = args;  // by Module.__call__
    return run.hooks.empty() ? forward(args)[0] : checkpoint(run, forward, std::move(args))[0];
}

class FeedForward {
  public:
    FeedForward(const Builder& builder, std::int64_t dim, std::int64_t hidden_dim)
        : w1(builder.linear("w1", dim, hidden_dim, false)),
          w2(builder.linear("w2", hidden_dim, dim, false)),
          w3(builder.linear("w3", dim, hidden_dim, false)) {}

    /// args: x
    [[nodiscard]] Tensor forward(const Tensors& args) const {
        const Tensor x3 = w3(args[0]);
        Tensor x1 = silu(w1(args[0]));
        x1 = mul(std::move(x1), x3);
        return w2(std::move(x1));
    }

  private:
    Linear w1, w2, w3;
};

class ZImageAttention {
  public:
    ZImageAttention(const Builder& builder, const Sizes& sizes)
        : heads_(sizes.heads),
          qk_norm_(sizes.qk_norm),
          to_q(builder.linear("to_q", sizes.dim, sizes.dim, false)),
          to_k(builder.linear("to_k", sizes.dim, sizes.dim, false)),
          to_v(builder.linear("to_v", sizes.dim, sizes.dim, false)),
          to_out(builder["to_out"].linear("0", sizes.dim, sizes.dim, false)) {
        if (!qk_norm_) return;
        norm_q = RMSNorm(builder["norm_q"], sizes.dim / sizes.heads);
        norm_k = RMSNorm(builder["norm_k"], sizes.dim / sizes.heads);
    }

    /// args: hidden_states [B, S, D], freqs_cis [B, S, head_dim / 2]
    [[nodiscard]] Tensor forward(const Tensors& args) const {
        const Tensor& freqs_cis = args[1];
        Tensor query = to_q(args[0]);
        Tensor key = to_k(args[0]);
        Tensor value = to_v(args[0]);
        query = unflatten(query, -1, {heads_, -1});
        key = unflatten(key, -1, {heads_, -1});
        value = unflatten(value, -1, {heads_, -1});
        if (qk_norm_) {
            query = norm_q(query);
            key = norm_k(key);
        }
        query = z_image_rotary_emb(query, freqs_cis);
        key = z_image_rotary_emb(key, freqs_cis);
        query = transpose(std::move(query), 1, 2);
        key = transpose(std::move(key), 1, 2);
        value = transpose(std::move(value), 1, 2);
        Tensor hidden_states = scaled_dot_product_attention(std::move(query), std::move(key), std::move(value));
        hidden_states = flatten(transpose(std::move(hidden_states), 1, 2), 2, 3);
        return to_out(hidden_states);
    }

  private:
    std::int64_t heads_;
    bool qk_norm_;
    Linear to_q, to_k, to_v, to_out;
    RMSNorm norm_q, norm_k;
};

/// args: x [B, S, D], freqs_cis [B, S, head_dim / 2], with modulation adaln_input [B, 256] → x
class ZImageTransformerBlock : public Block {
  public:
    ZImageTransformerBlock(const Builder& parent, const Sizes& sizes, bool modulation)
        : ZImageTransformerBlock(parent.block(*this), sizes, modulation) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor x = args[0];
        const Tensor& freqs_cis = args[1];
        Tensor scale_msa, gate_msa, scale_mlp, gate_mlp;
        if (modulation_) {
            Tensors parts = chunk(unsqueeze(adaLN_modulation(args[2]), 1), 4, 2);
            gate_msa = tanh(parts[1]);
            gate_mlp = tanh(parts[3]);
            parts[1] = parts[3] = Tensor();
            scale_msa = add_scalar(parts[0], true);
            scale_mlp = add_scalar(parts[2], true);
        }
        Tensor change = scaled(attention_norm1(x), scale_msa);
        const Tensor attn_out = call_part(attention, {std::move(change), freqs_cis});
        scale_msa = Tensor();
        change = gated(gate_msa, attention_norm2(attn_out));
        x = add(x, std::move(change));
        gate_msa = Tensor();
        change = scaled(ffn_norm1(x), scale_mlp);
        change = call_part(feed_forward, {std::move(change)});
        change = gated(gate_mlp, ffn_norm2(std::move(change)));
        x = add(x, std::move(change));
        return {x};
    }

  private:
    ZImageTransformerBlock(const nn::BlockBuilder& builder, const Sizes& sizes, bool modulation)
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
        builder.finish(*this, "musubi.ZImageTransformerBlock", {sizes.heads, sizes.qk_norm, modulation});
    }

    /// x * scale and gate * x, where there is modulation.
    static Tensor scaled(Tensor x, const Tensor& scale) { return scale.defined() ? mul(std::move(x), scale) : x; }
    static Tensor gated(const Tensor& gate, Tensor x) { return gate.defined() ? mul(gate, std::move(x)) : x; }

    bool modulation_;
    ZImageAttention attention;
    FeedForward feed_forward;
    RMSNorm attention_norm1, ffn_norm1, attention_norm2, ffn_norm2;
    Linear adaLN_modulation;
};

class ZImageTransformer2DModel : public Model {
  public:
    ZImageTransformer2DModel(const Builder& builder, const profile::Config& config)
        : in_channels_(config.integer("in_channels")),
          cap_feat_dim_(config.integer("cap_feat_dim")),
          patch_size_(config.integers("all_patch_size", {2}).front()),
          axes_dims_(config.integers("axes_dims")) {
        const std::int64_t dim = config.integer("dim"), refiners = config.integer("n_refiner_layers");
        const Sizes sizes{dim, config.integer("n_heads"), config.boolean("qk_norm")};
        const std::int64_t patch = patch_size_ * patch_size_ * in_channels_;
        const std::string patch_sizes = std::to_string(patch_size_) + "-1";
        (void)builder.parameter("x_pad_token", {1, dim});  // nothing is padded here
        (void)builder.parameter("cap_pad_token", {1, dim});
        all_x_embedder = builder["all_x_embedder"].linear(patch_sizes, patch, dim);
        all_final_layer = ZImageFinalLayer(builder["all_final_layer"][patch_sizes], dim, patch);
        for (std::int64_t i = 0; i < refiners; ++i)
            noise_refiner.emplace_back(builder["noise_refiner"][i], sizes, true);
        for (std::int64_t i = 0; i < refiners; ++i)
            context_refiner.emplace_back(builder["context_refiner"][i], sizes, false);
        t_embedder = ZImageTimestepEmbedder(builder["t_embedder"], std::min(dim, z_image_adaln_embed_dim), 1024);
        cap_embedder_norm = RMSNorm(builder["cap_embedder"]["0"], cap_feat_dim_);
        cap_embedder = builder["cap_embedder"].linear("1", cap_feat_dim_, dim);
        for (std::int64_t i = 0; i < config.integer("n_layers"); ++i)
            layers.emplace_back(builder["layers"][i], sizes, true);
    }

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        return {{"x", latents(request), request.dtype},
                {"t", {request.batch}, request.dtype},
                {"cap_feats", {request.batch, request.text_tokens, cap_feat_dim_}, request.dtype}};
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override { return {latents(request)}; }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        Run& run = args[0].run();
        const Dims size = args[0].sizes();
        const std::int64_t batch = size[0], rows = size[3] / patch_size_, columns = size[4] / patch_size_;
        const Tensor t = mul_scalar(args[1]);
        Tensor adaln_input = t_embedder(t);

        Tensor x = patchify(args[0], rows, columns);
        x = all_x_embedder(x);
        adaln_input = to(adaln_input, x.dtype());
        Tensor x_freqs_cis = rope_embedder(z_image_coordinate_grid(run, {size[2], rows, columns}));
        x_freqs_cis = expand(unsqueeze(x_freqs_cis, 0), {batch, -1, -1});
        const Caller call(run, gradient_checkpointing);
        for (const ZImageTransformerBlock& layer : noise_refiner) x = call(layer, {x, x_freqs_cis, adaln_input})[0];

        Tensor cap_feats = cap_embedder_norm(args[2]);
        cap_feats = cap_embedder(cap_feats);
        Tensor cap_freqs_cis = rope_embedder(z_image_coordinate_grid(run, {cap_feats.size(1), 1, 1}));
        cap_freqs_cis = expand(unsqueeze(cap_freqs_cis, 0), {batch, -1, -1});
        for (const ZImageTransformerBlock& layer : context_refiner)
            cap_feats = call(layer, {cap_feats, cap_freqs_cis})[0];

        Tensor unified = cat({x, cap_feats}, 1);
        x = cap_feats = Tensor();
        const Tensor unified_freqs_cis = cat({x_freqs_cis, cap_freqs_cis}, 1);
        x_freqs_cis = cap_freqs_cis = Tensor();
        for (const ZImageTransformerBlock& layer : layers)
            unified = call(layer, {unified, unified_freqs_cis, adaln_input})[0];
        unified = all_final_layer(unified, adaln_input);
        return {unpatchify(unified, size, rows, columns)};
    }

  private:
    [[nodiscard]] Dims latents(const Request& request) const {
        return {request.batch, in_channels_, 1, request.height / 8, request.width / 8};
    }

    [[nodiscard]] Tensor patchify(Tensor x, std::int64_t rows, std::int64_t columns) const {
        const std::int64_t batch = x.size(0), frames = x.size(2);
        x = view(std::move(x), {batch, in_channels_, frames, 1, rows, patch_size_, columns, patch_size_});
        x = permute(std::move(x), {0, 2, 4, 6, 3, 5, 7, 1});
        return reshape(std::move(x), {batch, frames * rows * columns, -1});
    }

    [[nodiscard]] Tensor unpatchify(const Tensor& unified, const Dims& size, std::int64_t rows,
                                    std::int64_t columns) const {
        Tensor x = slice(unified, 1, 0, size[2] * rows * columns);
        x = view(std::move(x), {size[0], size[2], rows, columns, 1, patch_size_, patch_size_, in_channels_});
        x = permute(std::move(x), {0, 7, 1, 4, 2, 5, 3, 6});
        return reshape(std::move(x), size);
    }

    // RopeEmbedder: ids [S, 3] → [S, head_dim / 2] complex64. Its tables, as long as zimage_config.py says, stay on the
    // CPU.
    [[nodiscard]] Tensor rope_embedder(const Tensor& ids) const {
        Tensors result;
        for (std::size_t i = 0; i < axes_dims_.size(); ++i) {
            const Tensor table = ids.run().empty({axes_lens[i], axes_dims_[i] / 2}, Dtype::complex64, Op::to_device);
            result.push_back(ids.run().empty({ids.size(0), table.size(1)}, table.dtype(), Op::index));
        }
        return cat(result, -1);
    }

    std::int64_t in_channels_, cap_feat_dim_, patch_size_;
    static constexpr std::array<std::int64_t, 3> axes_lens{1536, 512, 512};
    std::vector<std::int64_t> axes_dims_;
    Linear all_x_embedder;
    ZImageFinalLayer all_final_layer;
    std::deque<ZImageTransformerBlock> noise_refiner, context_refiner, layers;
    ZImageTimestepEmbedder t_embedder;
    RMSNorm cap_embedder_norm;
    Linear cap_embedder;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<ZImageTransformer2DModel>(Builder(weights), profile.config);
}

}  // namespace vram::models::z_image_musubi
