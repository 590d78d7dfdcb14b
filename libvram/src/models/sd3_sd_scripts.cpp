// Mirrors MMDiT (sd-scripts 48d368f, library/sd3_models.py), which sd-scripts trains Stable Diffusion 3 and 3.5 with:
// the forward of Stability AI, attention as with attn_mode "torch", which is the trainer's. A file of its own, since
// its modules are others than diffusers': one linear for query, key and value, text before picture. A second attention
// is told the number of heads for their size.
#include <algorithm>
#include <deque>
#include <optional>

#include "models/bfl_attention.hpp"
#include "models/families.hpp"
#include "models/normalization.hpp"
#include "models/patch_embed.hpp"

namespace vram::models::sd3_sd_scripts {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;

struct Sizes {
    std::int64_t dim, heads, head_dim;
    bool qk_norm;  // rms, or none
};

class RMSNorm {
  public:
    RMSNorm(const Builder& builder, std::int64_t dim) : weight(builder.parameter("weight", {dim})) {}
    Tensor operator()(Tensor x_in) const {
        const Tensor held = std::move(x_in);
        const Tensor x = plain_rms(held);
        return mul(x, to(weight.value, x.dtype()));
    }

  private:
    nn::Parameter& weight;
};

class AttentionLinears {
  public:
    AttentionLinears(const Builder& builder, const Sizes& sizes, bool pre_only)
        : head_dim_(sizes.head_dim), qkv(builder.linear("qkv", sizes.dim, 3 * sizes.dim)) {
        if (!pre_only) proj = builder.linear("proj", sizes.dim, sizes.dim);
        if (!sizes.qk_norm) return;
        ln_q.emplace(builder["ln_q"], sizes.head_dim);
        ln_k.emplace(builder["ln_k"], sizes.head_dim);
    }

    /// q, k, v [B, L, D]
    [[nodiscard]] Tensors pre_attention(const Tensor& x) const {
        const Dims rows{x.size(0), x.size(1), -1};
        const Tensor joined = qkv(x);
        Tensors parts = chunk(reshape(joined, {x.size(0), x.size(1), -1, head_dim_}), 3, 2);
        Tensor q = std::move(parts[0]), k = std::move(parts[1]);
        const Tensor v = std::move(parts[2]);
        q = reshape(ln_q ? (*ln_q)(q) : q, rows);
        k = reshape(ln_k ? (*ln_k)(k) : k, rows);
        return {q, k, v};
    }
    [[nodiscard]] Tensor post_attention(const Tensor& x) const { return proj(x); }

  private:
    std::int64_t head_dim_;
    Linear qkv, proj;
    std::optional<RMSNorm> ln_q, ln_k;
};

/// attention: q, k, v [B, L, D] or with heads [B, L, H, D] → [B, L, D]
Tensor attention(Tensor q, Tensor k, Tensor v, std::int64_t head_dim) {
    const auto layout = [&](const Tensor& x) {
        return transpose(reshape(x, {x.size(0), x.size(1), -1, head_dim}), 1, 2);
    };
    q = layout(q);
    k = layout(k);
    v = layout(v);
    Tensor key = to(k, q.dtype());
    Tensor value = to(v, q.dtype());
    Tensor scores = scaled_dot_product_attention(q, std::move(key), std::move(value));
    scores = transpose(std::move(scores), 1, 2);
    return reshape(std::move(scores), {q.size(0), q.size(2), -1});
}

/// SingleDiTBlock: one stream of a block.
class Stream {
  public:
    enum class Kind : std::uint8_t { plain, pre_only, self_attn };  // text in the last block; with a second attention
    Stream(const Builder& builder, const Sizes& sizes, Kind kind)
        : kind_(kind),
          norm1(builder.layer_norm("norm1", sizes.dim, false)),
          attn(builder["attn"], sizes, kind == Kind::pre_only) {
        if (kind == Kind::self_attn) attn2.emplace(builder["attn2"], sizes, false);
        if (kind != Kind::pre_only) {
            norm2 = builder.layer_norm("norm2", sizes.dim, false);
            mlp.emplace(builder["mlp"], Mlp::Names{"fc1", "fc2"},
                        Mlp::Sizes{sizes.dim, 4 * sizes.dim, 4 * sizes.dim, sizes.dim}, true, gelu);
        }
        adaLN_modulation = builder["adaLN_modulation"].linear("1", sizes.dim, vectors() * sizes.dim);
    }

    /// What attention and what comes behind it need of a stream.
    struct Before {
        Tensors qkv, qkv2;
        Tensor x, gate_msa, shift_mlp, scale_mlp, gate_mlp, gate_msa2;
    };

    /// pre_attention and pre_attention_x
    [[nodiscard]] Before pre_attention(const Tensor& x, const Tensor& c) const {
        Before out;
        Tensor modulation = silu(c);
        modulation = adaLN_modulation(std::move(modulation));
        const Tensors parts = chunk(std::move(modulation), vectors(), -1);
        if (kind_ == Kind::self_attn) {
            const Tensor x_norm = norm1(x);
            out.qkv = project(attn, x_norm, parts[1], parts[0]);
            out.qkv2 = project(*attn2, x_norm, parts[7], parts[6]);
            out.gate_msa2 = parts[8];
        } else {
            Tensor modulated = norm1(x);
            modulated = scale_and_shift(modulated, parts[1], parts[0]);
            out.qkv = attn.pre_attention(modulated);
        }
        if (kind_ == Kind::pre_only) return out;
        out.x = x;
        out.gate_msa = parts[2];
        out.shift_mlp = parts[3];
        out.scale_mlp = parts[4];
        out.gate_mlp = parts[5];
        return out;
    }

    /// post_attention and post_attention_x
    [[nodiscard]] Tensor post_attention(const Tensor& attn_out, const Tensor& attn2_out, const Before& before) const {
        Tensor change = gated(before.gate_msa, attn.post_attention(attn_out));
        Tensor x = add(before.x, change);
        if (kind_ != Kind::self_attn) {
            change = Tensor();
            change = changed_by_mlp(x, before);
            return add(std::move(x), std::move(change));
        }
        const Tensor attn2_ = gated(before.gate_msa2, attn2->post_attention(attn2_out));
        x = add(std::move(x), attn2_);
        const Tensor mlp_ = changed_by_mlp(x, before);
        return add(std::move(x), mlp_);
    }

  private:
    [[nodiscard]] std::int64_t vectors() const { return kind_ == Kind::self_attn ? 9 : kind_ == Kind::plain ? 6 : 2; }

    static Tensors project(const AttentionLinears& linears, const Tensor& x_norm, const Tensor& scale,
                           const Tensor& shift) {
        const Tensor modulated = scale_and_shift(x_norm, scale, shift);
        return linears.pre_attention(modulated);
    }
    static Tensor gated(const Tensor& gate, Tensor x) { return mul(unsqueeze(gate, 1), std::move(x)); }

    [[nodiscard]] Tensor changed_by_mlp(const Tensor& x, const Before& before) const {
        Tensor change = norm2(x);
        change = scale_and_shift(change, before.scale_mlp, before.shift_mlp);
        change = (*mlp)(std::move(change));
        return gated(before.gate_mlp, std::move(change));
    }

    Kind kind_;
    nn::LayerNorm norm1;
    AttentionLinears attn;
    std::optional<AttentionLinears> attn2;
    nn::LayerNorm norm2;
    std::optional<Mlp> mlp;
    Linear adaLN_modulation;
};

/// args: context [B, T, D], x [B, S, D], c [B, D] → x and, but for the last block, context
class MMDiTBlock : public Block {
  public:
    MMDiTBlock(const Builder& parent, const Sizes& sizes, Stream::Kind context_kind, Stream::Kind x_kind)
        : MMDiTBlock(parent.block(*this), sizes, context_kind, x_kind) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        const Stream::Before ctx = context_block.pre_attention(args[0], args[2]);
        const Stream::Before picture = x_block.pre_attention(args[1], args[2]);
        const std::int64_t ctx_len = args[0].size(1);
        const Tensor q = cat({ctx.qkv[0], picture.qkv[0]}, 1);
        const Tensor k = cat({ctx.qkv[1], picture.qkv[1]}, 1);
        const Tensor v = cat({ctx.qkv[2], picture.qkv[2]}, 1);
        const Tensor attn = attention(q, k, v, head_dim_);
        const Tensor ctx_attn_out = slice(attn, 1, 0, ctx_len);
        const Tensor x_attn_out = slice(attn, 1, ctx_len, attn.size(1));
        Tensor attn2;
        if (!picture.qkv2.empty()) attn2 = attention(picture.qkv2[0], picture.qkv2[1], picture.qkv2[2], heads_);
        const Tensor x = x_block.post_attention(x_attn_out, attn2, picture);
        if (!ctx.x.defined()) return {x};
        return {x, context_block.post_attention(ctx_attn_out, {}, ctx)};
    }

  private:
    MMDiTBlock(const BlockBuilder& builder, const Sizes& sizes, Stream::Kind context_kind, Stream::Kind x_kind)
        : heads_(sizes.heads),
          head_dim_(sizes.head_dim),
          context_block(builder["context_block"], sizes, context_kind),
          x_block(builder["x_block"], sizes, x_kind) {
        builder.finish(*this, "sd_scripts.MMDiTBlock",
                       {sizes.heads, sizes.head_dim, sizes.qk_norm, static_cast<std::int64_t>(context_kind),
                        static_cast<std::int64_t>(x_kind)});
    }

    std::int64_t heads_, head_dim_;
    Stream context_block, x_block;
};

class MMDiT : public Model {
  public:
    MMDiT(const Builder& builder, const profile::Config& config)
        : in_channels_(config.integer("in_channels")),
          context_dim_(config.integer("joint_attention_dim")),
          adm_in_channels_(config.integer("pooled_projection_dim")),
          patch_size_(config.integer("patch_size")),
          pos_embed_max_size_(config.integer("pos_embed_max_size")) {
        const std::int64_t heads = config.integer("num_attention_heads"),
                           head_dim = config.integer("attention_head_dim"), dim = checked_mul(heads, head_dim),
                           depth = config.integer("num_layers");
        const std::vector<std::int64_t> dual = config.integers("dual_attention_layers", {});
        const Sizes sizes{dim, heads, head_dim, config.text("qk_norm", "") == "rms_norm"};
        x_embedder = builder["x_embedder"].conv2d("proj", in_channels_, dim, patch_size_, patch_size_);
        t_embedder.emplace(builder["t_embedder"]["mlp"], frequencies, dim, dim, true, silu, dim);
        y_embedder.emplace(builder["y_embedder"]["mlp"], adm_in_channels_, dim, dim, true, silu, dim);
        context_embedder = builder.linear("context_embedder", context_dim_, config.integer("caption_projection_dim"));
        pos_embed =
            &builder.buffer("pos_embed", {1, checked_mul(pos_embed_max_size_, pos_embed_max_size_), dim}, Dtype::f32);
        for (std::int64_t i = 0; i < depth; ++i) {
            const bool twice = std::find(dual.begin(), dual.end(), i) != dual.end();
            joint_blocks.emplace_back(builder["joint_blocks"][i], sizes,
                                      i == depth - 1 ? Stream::Kind::pre_only : Stream::Kind::plain,
                                      twice ? Stream::Kind::self_attn : Stream::Kind::plain);
        }
        const Builder last = builder["final_layer"];
        norm_final = last.layer_norm("norm_final", dim, false);
        linear = last.linear("linear", dim, patch_size_ * patch_size_ * in_channels_);
        adaLN_modulation = last["adaLN_modulation"].linear("1", dim, 2 * dim);
    }

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        return {{"x", latents(request), request.dtype},
                {"t", {request.batch}, request.dtype},
                {"y", {request.batch, adm_in_channels_}, request.dtype},
                {"context", {request.batch, request.text_tokens, context_dim_}, request.dtype}};
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override { return {latents(request)}; }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        Tensor x = args[0];
        const std::int64_t height = x.size(2), width = x.size(3);
        {
            const Tensor positions = to(cropped_pos_embed(height / patch_size_, width / patch_size_), x.dtype());
            x = transpose(flatten(x_embedder(x), 2, 3), 1, 2);
            x = add(std::move(x), positions);
        }
        Tensor c = time_embedding(args[1], x.dtype());
        const Tensor y = (*y_embedder)(args[2]);
        c = add(std::move(c), y);
        Tensor context = context_embedder(args[3]);
        const Caller call(x.run(), gradient_checkpointing);
        for (const MMDiTBlock& block : joint_blocks) {
            Tensors out = call(block, {context, x, c});
            context = out.size() > 1 ? std::move(out[1]) : Tensor();
            x = std::move(out[0]);
        }
        return {final_layer(std::move(x), c, height, width)};
    }

  private:
    static constexpr std::int64_t frequencies = 256;

    [[nodiscard]] Dims latents(const Request& request) const {
        return {request.batch, in_channels_, request.height / 8, request.width / 8};
    }

    // TimestepEmbedding
    [[nodiscard]] Tensor time_embedding(const Tensor& t, Dtype dtype) const {
        Tensor t_freq = bfl_timestep_embedding(t, frequencies, t.dtype());
        t_freq = to(std::move(t_freq), dtype);
        return (*t_embedder)(t_freq);
    }

    [[nodiscard]] Tensor cropped_pos_embed(std::int64_t h, std::int64_t w) const {
        const std::int64_t side = pos_embed_max_size_, top = (side - h) / 2, left = (side - w) / 2;
        Tensor spatial = reshape(pos_embed->value, {1, side, side, -1});
        spatial = slice(slice(std::move(spatial), 1, top, top + h), 2, left, left + w);
        return reshape(std::move(spatial), {1, h * w, -1});
    }

    // UnPatch
    [[nodiscard]] Tensor final_layer(Tensor x_in, const Tensor& cmod, std::int64_t height, std::int64_t width) const {
        const Tensor held = std::move(x_in);
        Tensor modulation = silu(cmod);
        modulation = adaLN_modulation(std::move(modulation));
        const Tensors parts = chunk(std::move(modulation), 2, -1);  // shift, scale
        Tensor x = norm_final(held);
        x = scale_and_shift(x, parts[1], parts[0]);
        x = linear(x);
        const std::int64_t p = patch_size_, h = height / p, w = width / p;
        x = view(x, {x.size(0), h, w, p, p, in_channels_});
        x = contiguous(permute(x, {0, 5, 1, 3, 2, 4}));
        return view(x, {x.size(0), in_channels_, height, width});
    }

    std::int64_t in_channels_, context_dim_, adm_in_channels_, patch_size_, pos_embed_max_size_;
    nn::Conv x_embedder;
    std::optional<BflMlp> t_embedder, y_embedder;
    Linear context_embedder;
    nn::Parameter* pos_embed = nullptr;  // a buffer
    std::deque<MMDiTBlock> joint_blocks;
    nn::LayerNorm norm_final;
    Linear linear, adaLN_modulation;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<MMDiT>(Builder(weights), profile.config);
}

}  // namespace vram::models::sd3_sd_scripts
