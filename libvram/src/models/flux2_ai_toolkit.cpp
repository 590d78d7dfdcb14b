// Mirrors Flux2 (ai-toolkit 27a03a91, extensions_built_in/diffusion_models/flux2/src/model.py), which ai-toolkit trains
// FLUX.2 dev and klein with. A file of its own, since its modules are others than diffusers': one linear for query, key
// and value; RMSNorm and rotary embedding in elementary steps; tables of the rotary embedding an item, joined in every
// block. Modulation is made once, as there.
#include <deque>

#include "models/bfl_attention.hpp"
#include "models/families.hpp"

namespace vram::models::flux2_ai_toolkit {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;

struct Sizes {
    std::int64_t dim, heads, mlp_hidden_dim;
    [[nodiscard]] std::int64_t head_dim() const { return dim / heads; }
};

class RMSNorm {
  public:
    RMSNorm(const Builder& builder, std::int64_t dim) : scale(builder.parameter("scale", {dim})) {}
    Tensor operator()(Tensor x_in) const {
        const Tensor held = std::move(x_in);
        const Tensor x = to_float(held);
        Tensor rrms = mean(pow_scalar(x), -1, true);
        rrms = add_scalar(std::move(rrms));
        rrms = rsqrt(std::move(rrms));
        Tensor normed = mul(x, rrms);
        normed = to(std::move(normed), held.dtype());
        return mul(std::move(normed), scale.value);
    }

  private:
    nn::Parameter& scale;
};

struct QKNorm {
    QKNorm(const Builder& builder, std::int64_t dim)
        : query_norm(builder["query_norm"], dim), key_norm(builder["key_norm"], dim) {}
    /// q, k, v: the first two are replaced
    void operator()(Tensors& heads) const {
        Tensor q = query_norm(heads[0]);
        Tensor k = key_norm(heads[1]);
        heads[0] = std::move(q);
        heads[1] = std::move(k);
    }
    RMSNorm query_norm, key_norm;
};

/// The parts of SelfAttention, which has no forward.
struct SelfAttention {
    SelfAttention(const Builder& builder, const Sizes& sizes)
        : qkv(builder.linear("qkv", sizes.dim, 3 * sizes.dim, false)),
          norm(builder["norm"], sizes.head_dim()),
          proj(builder.linear("proj", sizes.dim, sizes.dim, false)) {}
    Linear qkv;
    QKNorm norm;
    Linear proj;
};

// SiLUActivation: the first half gates the second.
Tensor silu_activation(Arg x_in) {
    const Tensor x = std::move(x_in);
    const Tensors halves = chunk(x, 2, -1);
    Tensor gate = silu(halves[0]);
    return mul(std::move(gate), halves[1]);
}

class Modulation {
  public:
    Modulation() = default;
    Modulation(const Builder& builder, std::int64_t dim, std::int64_t multiplier)
        : lin(builder.linear("lin", dim, multiplier * dim, false)), multiplier_(multiplier) {}
    /// shift, scale, gate [B, 1, D], once or twice
    Tensors operator()(const Tensor& vec) const {
        Tensor out = lin(silu(vec));
        return chunk(unsqueeze(std::move(out), 1), multiplier_, -1);
    }

  private:
    Linear lin;
    std::int64_t multiplier_ = 0;
};

/// One stream of a DoubleStreamBlock.
class Stream {
  public:
    Stream(const Builder& builder, const Sizes& sizes, const std::string& name)
        : norm1(builder.layer_norm(name + "_norm1", sizes.dim, false)),
          attn(builder[name + "_attn"], sizes),
          norm2(builder.layer_norm(name + "_norm2", sizes.dim, false)),
          mlp(builder[name + "_mlp"], sizes.dim, 2 * sizes.mlp_hidden_dim, sizes.mlp_hidden_dim, false,
              silu_activation) {}

    /// What the block's frame holds of a stream up to its end.
    struct Prepared {
        Tensor modulated, qkv;
        Tensors heads;  // q, k, v
    };
    /// `mod`: the first of shift, scale, gate twice.
    [[nodiscard]] Prepared prepare(const Tensor& x, const Tensor* mod, std::int64_t heads) const {
        Prepared out;
        out.modulated = norm1(x);
        {
            Tensor product = add_scalar(mod[1]);
            product = mul(std::move(product), out.modulated);
            out.modulated = add(std::move(product), mod[0]);
        }
        out.qkv = attn.qkv(out.modulated);
        out.heads = heads_of(out.qkv, heads);
        attn.norm(out.heads);
        return out;
    }

    [[nodiscard]] Tensor finish(Tensor x, const Tensor& attn_part, const Tensor* mod) const {
        Tensor change = attn.proj(attn_part);
        change = mul(mod[2], std::move(change));
        x = add(std::move(x), std::move(change));
        change = modulated_norm(norm2, x, mod[4], mod[3]);
        change = mlp(std::move(change));
        change = mul(mod[5], std::move(change));
        return add(std::move(x), std::move(change));
    }

  private:
    nn::LayerNorm norm1;
    SelfAttention attn;
    nn::LayerNorm norm2;
    BflMlp mlp;
};

/// args: img, txt, pe, pe_ctx, then shift, scale, gate twice of img and twice of txt → img, txt
class DoubleStreamBlock : public Block {
  public:
    DoubleStreamBlock(const Builder& parent, const Sizes& sizes) : DoubleStreamBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor img = args[0], txt = args[1], pe = args[2];
        const Tensor &pe_ctx = args[3], *img_mod = &args[4], *txt_mod = &args[10];

        const Stream::Prepared of_img = img_stream.prepare(img, img_mod, heads_);
        const Stream::Prepared of_txt = txt_stream.prepare(txt, txt_mod, heads_);

        const Tensor q = cat({of_txt.heads[0], of_img.heads[0]}, 2);
        const Tensor k = cat({of_txt.heads[1], of_img.heads[1]}, 2);
        const Tensor v = cat({of_txt.heads[2], of_img.heads[2]}, 2);
        pe = cat({pe_ctx, pe}, 2);
        const Tensor attn = bfl_attention(q, k, v, pe);
        const Tensor txt_attn = slice(attn, 1, 0, txt.size(1));
        const Tensor img_attn = slice(attn, 1, txt.size(1), attn.size(1));

        img = img_stream.finish(std::move(img), img_attn, img_mod);
        txt = txt_stream.finish(std::move(txt), txt_attn, txt_mod);
        return {img, txt};
    }

  private:
    DoubleStreamBlock(const nn::BlockBuilder& builder, const Sizes& sizes)
        : heads_(sizes.heads), img_stream(builder, sizes, "img"), txt_stream(builder, sizes, "txt") {
        builder.finish(*this, "flux2_ai_toolkit.DoubleStreamBlock", {sizes.heads});
    }

    std::int64_t heads_;
    Stream img_stream, txt_stream;
};

/// args: x (text, then image), pe, shift, scale, gate → x
class SingleStreamBlock : public Block {
  public:
    SingleStreamBlock(const Builder& parent, const Sizes& sizes) : SingleStreamBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        const Tensor &x = args[0], &pe = args[1];
        const Tensor x_mod = modulated_norm(pre_norm, x, args[3], args[2]);
        const Tensors parts = split(linear1(x_mod), Dims{3 * sizes_.dim, 2 * sizes_.mlp_hidden_dim}, -1);  // qkv, mlp
        Tensors heads = heads_of(parts[0], sizes_.heads);
        norm(heads);
        const Tensor attn = bfl_attention(heads[0], heads[1], heads[2], pe);
        Tensor output = silu_activation(parts[1]);
        output = cat({attn, std::move(output)}, 2);
        output = linear2(std::move(output));
        Tensor gated = mul(args[4], output);
        return {add(x, std::move(gated))};
    }

  private:
    SingleStreamBlock(const nn::BlockBuilder& builder, const Sizes& sizes)
        : sizes_(sizes),
          linear1(builder.linear("linear1", sizes.dim, 3 * sizes.dim + 2 * sizes.mlp_hidden_dim, false)),
          linear2(builder.linear("linear2", sizes.dim + sizes.mlp_hidden_dim, sizes.dim, false)),
          norm(builder["norm"], sizes.head_dim()),
          pre_norm(builder.layer_norm("pre_norm", sizes.dim, false)) {
        builder.finish(*this, "flux2_ai_toolkit.SingleStreamBlock", {sizes.heads});
    }

    Sizes sizes_;
    Linear linear1, linear2;
    QKNorm norm;
    nn::LayerNorm pre_norm;
};

class MLPEmbedder {
  public:
    MLPEmbedder() = default;
    MLPEmbedder(const Builder& builder, std::int64_t hidden_dim)
        : in_layer(builder.linear("in_layer", 256, hidden_dim, false)),
          out_layer(builder.linear("out_layer", hidden_dim, hidden_dim, false)) {}
    Tensor operator()(const Tensor& held) const {
        Tensor x = in_layer(held);
        x = silu(std::move(x));
        return out_layer(std::move(x));
    }

  private:
    Linear in_layer, out_layer;
};

// timestep_embedding: t [B] → [B, 256] in its dtype
Tensor timestep_embedding_of(const Tensor& t_in) {
    const Tensor t = mul_scalar(t_in);
    Tensor freqs = mul_scalar(arange(t.run(), 128, Dtype::f32));
    freqs = div_scalar(std::move(freqs));
    freqs = exp(std::move(freqs));
    return bfl_waves(t, freqs, t.dtype());
}

class Flux2 : public Model {
  public:
    Flux2(const Builder& builder, const profile::Config& config) : Flux2(builder, config, sizes_of(config)) {}

    /// Reference pictures stand behind the noisy tokens, with ids of their own. The class takes guidance in any case.
    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        std::int64_t image = checked_mul(request.height / 16, request.width / 16);
        for (const auto& [width, height] : request.reference_images)
            image = checked_add(image, checked_mul(height / 16, width / 16));
        const auto axes = static_cast<std::int64_t>(axes_dim_.size());
        return {{"x", {request.batch, image, in_channels_}, request.dtype},
                {"x_ids", {request.batch, image, axes}, Dtype::i64},
                {"timesteps", {request.batch}, request.dtype},
                {"ctx", {request.batch, request.text_tokens, context_in_dim_}, request.dtype},
                {"ctx_ids", {request.batch, request.text_tokens, axes}, Dtype::i64},
                {"guidance", {request.batch}, request.dtype}};
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {inputs(request).front().shape};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        const Tensor &x = args[0], &ctx = args[3];
        const std::int64_t num_txt_tokens = ctx.size(1);
        const Tensor timestep_emb = timestep_embedding_of(args[2]);
        Tensor vec = time_in(timestep_emb);
        Tensor guidance_emb;
        if (use_guidance_embed_) {
            guidance_emb = timestep_embedding_of(args[5]);
            Tensor guided = guidance_in(guidance_emb);
            vec = add(vec, std::move(guided));
        }
        const Tensors double_block_mod_img = double_stream_modulation_img(vec);
        const Tensors double_block_mod_txt = double_stream_modulation_txt(vec);
        const Tensors single_block_mod = single_stream_modulation(vec);
        Tensor img = img_in(x);
        Tensor txt = txt_in(ctx);
        const Tensor pe_x = embed_nd(args[1], axes_dim_, Dtype::i64);
        const Tensor pe_ctx = embed_nd(args[4], axes_dim_, Dtype::i64);

        const Caller call(x.run(), gradient_checkpointing);
        for (const DoubleStreamBlock& block : double_blocks) {
            Tensors in{img, txt, pe_x, pe_ctx};
            for (const Tensor& one : double_block_mod_img) in.push_back(one);
            for (const Tensor& one : double_block_mod_txt) in.push_back(one);
            Tensors out = call(block, std::move(in));
            img = std::move(out[0]);
            txt = std::move(out[1]);
        }
        img = cat({txt, img}, 1);
        const Tensor pe = cat({pe_ctx, pe_x}, 2);
        for (const SingleStreamBlock& block : single_blocks) {
            Tensors in{img, pe};
            for (const Tensor& one : single_block_mod) in.push_back(one);
            img = call(block, std::move(in))[0];
        }
        img = slice(img, 1, num_txt_tokens, img.size(1));
        return {final_layer(img, vec)};
    }

  private:
    static Sizes sizes_of(const profile::Config& config) {
        const std::int64_t heads = config.integer("num_attention_heads"),
                           dim = checked_mul(heads, config.integer("attention_head_dim"));
        return {dim, heads, static_cast<std::int64_t>(static_cast<double>(dim) * config.number("mlp_ratio", 3.0))};
    }

    Flux2(const Builder& builder, const profile::Config& config, const Sizes& sizes)
        : in_channels_(config.integer("in_channels")),
          context_in_dim_(config.integer("joint_attention_dim")),
          use_guidance_embed_(config.boolean("guidance_embeds")),
          axes_dim_(config.integers("axes_dims_rope")),
          img_in(builder.linear("img_in", in_channels_, sizes.dim, false)),
          time_in(builder["time_in"], sizes.dim),
          txt_in(builder.linear("txt_in", context_in_dim_, sizes.dim, false)) {
        if (use_guidance_embed_) guidance_in = MLPEmbedder(builder["guidance_in"], sizes.dim);
        for (std::int64_t i = 0; i < config.integer("num_layers"); ++i)
            double_blocks.emplace_back(builder["double_blocks"][i], sizes);
        for (std::int64_t i = 0; i < config.integer("num_single_layers"); ++i)
            single_blocks.emplace_back(builder["single_blocks"][i], sizes);
        double_stream_modulation_img = Modulation(builder["double_stream_modulation_img"], sizes.dim, 6);
        double_stream_modulation_txt = Modulation(builder["double_stream_modulation_txt"], sizes.dim, 6);
        single_stream_modulation = Modulation(builder["single_stream_modulation"], sizes.dim, 3);
        const Builder last = builder["final_layer"];
        norm_final = last.layer_norm("norm_final", sizes.dim, false);
        linear = last.linear("linear", sizes.dim, in_channels_, false);
        adaLN_modulation = last["adaLN_modulation"].linear("1", sizes.dim, 2 * sizes.dim, false);
    }

    // LastLayer
    [[nodiscard]] Tensor final_layer(const Tensor& x_in, const Tensor& vec) const {
        const Tensor mod = adaLN_modulation(silu(vec));
        const Tensors parts = chunk(unsqueeze(mod, 1), 2, -1);  // shift, scale
        const Tensor x = modulated_norm(norm_final, x_in, parts[1], parts[0]);
        return linear(x);
    }

    std::int64_t in_channels_, context_in_dim_;
    bool use_guidance_embed_;
    std::vector<std::int64_t> axes_dim_;
    Linear img_in;
    MLPEmbedder time_in;
    Linear txt_in;
    MLPEmbedder guidance_in;
    std::deque<DoubleStreamBlock> double_blocks;
    std::deque<SingleStreamBlock> single_blocks;
    Modulation double_stream_modulation_img, double_stream_modulation_txt, single_stream_modulation;
    nn::LayerNorm norm_final;
    Linear linear, adaLN_modulation;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<Flux2>(Builder(weights), profile.config);
}

}  // namespace vram::models::flux2_ai_toolkit
