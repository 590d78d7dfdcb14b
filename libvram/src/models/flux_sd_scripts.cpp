// Mirrors Flux (sd-scripts 48d368f, library/flux_models.py), which sd-scripts trains FLUX.1 dev and schnell with: the
// forward of Black Forest Labs. A file of its own, since its modules are others than diffusers': one linear for query,
// key and value, in single blocks for the MLP too; RMSNorm and rotary embedding in elementary steps; embedders that are
// checkpointed as blocks are.
#include <deque>

#include "models/bfl_attention.hpp"
#include "models/families.hpp"

namespace vram::models::flux_sd_scripts {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;

struct Sizes {
    std::int64_t dim, heads;
    [[nodiscard]] std::int64_t head_dim() const { return dim / heads; }
};

/// (1 + scale) * x + shift
Tensor modulated(const Tensor& x, const Tensor& scale, const Tensor& shift) {
    Tensor product = add_scalar(scale);
    product = mul(std::move(product), x);
    return add(std::move(product), shift);
}

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
        Tensor weight = to_float(scale.value);
        normed = mul(std::move(normed), std::move(weight));
        return to(std::move(normed), held.dtype());
    }

  private:
    nn::Parameter& scale;
};

/// The parts of SelfAttention; its forward is never called.
struct SelfAttention {
    SelfAttention(const Builder& builder, const Sizes& sizes)
        : qkv(builder.linear("qkv", sizes.dim, 3 * sizes.dim)),
          query_norm(builder["norm"]["query_norm"], sizes.head_dim()),
          key_norm(builder["norm"]["key_norm"], sizes.head_dim()),
          proj(builder.linear("proj", sizes.dim, sizes.dim)) {}
    Linear qkv;
    RMSNorm query_norm, key_norm;
    Linear proj;
};

class Modulation {
  public:
    Modulation(const Builder& builder, std::int64_t dim, std::int64_t multiplier)
        : lin(builder.linear("lin", dim, multiplier * dim)), multiplier_(multiplier) {}
    /// shift, scale, gate [B, 1, D], once or twice
    Tensors operator()(const Tensor& vec) const {
        Tensor out = lin(silu(vec));
        return chunk(unsqueeze(std::move(out), 1), multiplier_, -1);
    }

  private:
    Linear lin;
    std::int64_t multiplier_;
};

/// One stream of a DoubleStreamBlock.
class Stream {
  public:
    Stream(const Builder& builder, const Sizes& sizes, const std::string& name)
        : mod(builder[name + "_mod"], sizes.dim, 6),
          norm1(builder.layer_norm(name + "_norm1", sizes.dim, false)),
          attn(builder[name + "_attn"], sizes),
          norm2(builder.layer_norm(name + "_norm2", sizes.dim, false)),
          mlp(builder[name + "_mlp"], sizes.dim, 4 * sizes.dim, 4 * sizes.dim, true, gelu) {}

    Tensor finish(Tensor x, const Tensor& attn_part, const Tensors& modulation) const {
        Tensor change = attn.proj(attn_part);
        change = mul(modulation[2], std::move(change));
        x = add(std::move(x), std::move(change));
        change = modulated_norm(norm2, x, modulation[4], modulation[3]);
        change = mlp(std::move(change));
        change = mul(modulation[5], std::move(change));
        return add(std::move(x), std::move(change));
    }

    Modulation mod;
    nn::LayerNorm norm1;
    SelfAttention attn;

  private:
    nn::LayerNorm norm2;
    BflMlp mlp;
};

/// What attention over text and picture sees: txt_attention_mask [B, T], then every place of the picture. Undefined
/// where there is no mask.
Tensor seen(const Tensor& txt_attention_mask, const Tensor& q, std::int64_t places) {
    if (!txt_attention_mask.defined()) return {};
    Run& run = q.run();
    Tensor attn_mask = to(txt_attention_mask, Dtype::boolean);
    {
        Tensor ones = run.empty({attn_mask.size(0), places}, Dtype::boolean, Op::ones);
        attn_mask = cat({attn_mask, std::move(ones)}, 1);
    }
    attn_mask = unsqueeze(unsqueeze(std::move(attn_mask), 1), 1);
    return expand(std::move(attn_mask), {-1, q.size(1), q.size(2), -1});
}

/// args: img, txt, vec, pe, txt_attention_mask or undefined → img, txt
class DoubleStreamBlock : public Block {
  public:
    DoubleStreamBlock(const Builder& parent, const Sizes& sizes) : DoubleStreamBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor img = args[0], txt = args[1];
        const Tensor &vec = args[2], &pe = args[3];
        const Tensors img_mod = img_stream.mod(vec), txt_mod = txt_stream.mod(vec);

        // prepare image for attention
        Tensor img_modulated = img_stream.norm1(img);
        img_modulated = modulated(img_modulated, img_mod[1], img_mod[0]);
        const Tensor img_qkv = img_stream.attn.qkv(img_modulated);
        Tensors img_heads = heads_of(img_qkv, heads_);
        normalize_heads(img_stream.attn, img_heads);

        // prepare txt for attention
        Tensor txt_modulated = txt_stream.norm1(txt);
        txt_modulated = modulated(txt_modulated, txt_mod[1], txt_mod[0]);
        const Tensor txt_qkv = txt_stream.attn.qkv(txt_modulated);
        Tensors txt_heads = heads_of(txt_qkv, heads_);
        normalize_heads(txt_stream.attn, txt_heads);

        // run actual attention
        const Tensor q = cat({txt_heads[0], img_heads[0]}, 2);
        const Tensor k = cat({txt_heads[1], img_heads[1]}, 2);
        const Tensor v = cat({txt_heads[2], img_heads[2]}, 2);
        const Tensor attn_mask = seen(args[4], q, img.size(1));
        const Tensor attn = bfl_attention(q, k, v, pe, attn_mask);
        const Tensor txt_attn = slice(attn, 1, 0, txt.size(1));
        const Tensor img_attn = slice(attn, 1, txt.size(1), attn.size(1));

        img = img_stream.finish(std::move(img), img_attn, img_mod);
        txt = txt_stream.finish(std::move(txt), txt_attn, txt_mod);
        return {img, txt};
    }

  private:
    DoubleStreamBlock(const nn::BlockBuilder& builder, const Sizes& sizes)
        : heads_(sizes.heads), img_stream(builder, sizes, "img"), txt_stream(builder, sizes, "txt") {
        builder.finish(*this, "flux_sd_scripts.DoubleStreamBlock", {sizes.heads});
    }

    // QKNorm
    static void normalize_heads(const SelfAttention& attn, Tensors& heads) {
        Tensor q = attn.query_norm(heads[0]);
        Tensor k = attn.key_norm(heads[1]);
        heads[0] = std::move(q);
        heads[1] = std::move(k);
    }

    std::int64_t heads_;
    Stream img_stream, txt_stream;
};

/// args: x, vec, pe, txt_attention_mask or undefined → x
class SingleStreamBlock : public Block {
  public:
    SingleStreamBlock(const Builder& parent, const Sizes& sizes) : SingleStreamBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        const Tensor &x = args[0], &vec = args[1], &pe = args[2];
        const Tensors mod = modulation(vec);
        Tensor x_mod = add_scalar(mod[1]);
        {
            Tensor normed = pre_norm(x);
            x_mod = mul(std::move(x_mod), std::move(normed));
        }
        x_mod = add(std::move(x_mod), mod[0]);
        const Tensors parts = split(linear1(x_mod), Dims{3 * dim_, 4 * dim_}, -1);  // qkv, mlp
        const Tensors heads = heads_of(parts[0], heads_);
        const Tensor q = query_norm(heads[0]);
        const Tensor k = key_norm(heads[1]);
        const Tensor attn_mask = seen(args[3], q, args[3].defined() ? x.size(1) - args[3].size(1) : 0);
        const Tensor attn = bfl_attention(q, k, heads[2], pe, attn_mask);
        Tensor output;
        {
            Tensor joined = gelu(parts[1]);
            joined = cat({attn, std::move(joined)}, 2);
            output = linear2(std::move(joined));
        }
        Tensor gated = mul(mod[2], output);
        return {add(x, std::move(gated))};
    }

  private:
    SingleStreamBlock(const nn::BlockBuilder& builder, const Sizes& sizes)
        : dim_(sizes.dim),
          heads_(sizes.heads),
          linear1(builder.linear("linear1", sizes.dim, 7 * sizes.dim)),
          linear2(builder.linear("linear2", 5 * sizes.dim, sizes.dim)),
          query_norm(builder["norm"]["query_norm"], sizes.head_dim()),
          key_norm(builder["norm"]["key_norm"], sizes.head_dim()),
          pre_norm(builder.layer_norm("pre_norm", sizes.dim, false)),
          modulation(builder["modulation"], sizes.dim, 3) {
        builder.finish(*this, "flux_sd_scripts.SingleStreamBlock", {sizes.heads});
    }

    std::int64_t dim_, heads_;
    Linear linear1, linear2;
    RMSNorm query_norm, key_norm;
    nn::LayerNorm pre_norm;
    Modulation modulation;
};

/// args: x → x
class MLPEmbedder : public Block {
  public:
    MLPEmbedder(const Builder& parent, std::int64_t in_dim, std::int64_t hidden_dim)
        : MLPEmbedder(parent.block(*this), in_dim, hidden_dim) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor x = in_layer(args[0]);
        x = silu(std::move(x));
        return {out_layer(std::move(x))};
    }

  private:
    MLPEmbedder(const nn::BlockBuilder& builder, std::int64_t in_dim, std::int64_t hidden_dim)
        : in_layer(builder.linear("in_layer", in_dim, hidden_dim)),
          out_layer(builder.linear("out_layer", hidden_dim, hidden_dim)) {
        builder.finish(*this, "flux_sd_scripts.MLPEmbedder", {});
    }

    Linear in_layer, out_layer;
};

/// t [B] → [B, dim] in its dtype
Tensor timestep_embedding(const Tensor& t_in, std::int64_t dim) {
    const Tensor t = mul_scalar(t_in);
    return bfl_timestep_embedding(t, dim, t.dtype());
}

class Flux : public Model {
  public:
    Flux(const Builder& builder, const profile::Config& config)
        : Flux(builder, config,
               {checked_mul(config.integer("num_attention_heads"), config.integer("attention_head_dim")),
                config.integer("num_attention_heads")}) {}

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        const std::int64_t image = checked_mul(request.height / 16, request.width / 16);
        std::vector<Value> out{{"img", {request.batch, image, in_channels_}, request.dtype},
                               {"img_ids", {request.batch, image, 3}, Dtype::f32},
                               {"txt", {request.batch, request.text_tokens, context_in_dim_}, request.dtype},
                               {"txt_ids", {request.batch, request.text_tokens, 3}, Dtype::f32},
                               {"timesteps", {request.batch}, request.dtype},
                               {"y", {request.batch, vec_in_dim_}, request.dtype}};
        if (guidance_embed_) out.push_back({"guidance", {request.batch}, request.dtype});
        return out;
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {inputs(request).front().shape};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        const Caller call(args[0].run(), gradient_checkpointing);
        const Tensor mask = args.size() > 7 ? args[7] : Tensor();
        Tensor img = img_in(args[0]);
        Tensor vec = call(time_in, {timestep_embedding(args[4], 256)})[0];
        if (guidance_embed_) {
            Tensor guidance = call(guidance_in.front(), {timestep_embedding(args[6], 256)})[0];
            vec = add(vec, std::move(guidance));
        }
        {
            Tensor pooled = call(vector_in, {args[5]})[0];
            vec = add(vec, std::move(pooled));
        }
        Tensor txt = txt_in(args[2]);
        const Tensor ids = cat({args[3], args[1]}, 1);
        const Tensor pe = embed_nd(ids, axes_dim_, Dtype::f64);

        for (const DoubleStreamBlock& block : double_blocks) {
            Tensors out = call(block, {img, txt, vec, pe, mask});
            img = std::move(out[0]);
            txt = std::move(out[1]);
        }
        img = cat({txt, img}, 1);
        for (const SingleStreamBlock& block : single_blocks) img = call(block, {img, vec, pe, mask})[0];
        img = slice(img, 1, txt.size(1), img.size(1));
        return {final_layer(img, vec)};
    }

  private:
    Flux(const Builder& builder, const profile::Config& config, const Sizes& sizes)
        : in_channels_(config.integer("in_channels")),
          context_in_dim_(config.integer("joint_attention_dim")),
          vec_in_dim_(config.integer("pooled_projection_dim")),
          guidance_embed_(config.boolean("guidance_embeds")),
          axes_dim_(config.integers("axes_dims_rope")),
          img_in(builder.linear("img_in", in_channels_, sizes.dim)),
          time_in(builder["time_in"], 256, sizes.dim),
          vector_in(builder["vector_in"], vec_in_dim_, sizes.dim) {
        if (guidance_embed_) guidance_in.emplace_back(builder["guidance_in"], 256, sizes.dim);
        txt_in = builder.linear("txt_in", context_in_dim_, sizes.dim);
        for (std::int64_t i = 0; i < config.integer("num_layers"); ++i)
            double_blocks.emplace_back(builder["double_blocks"][i], sizes);
        for (std::int64_t i = 0; i < config.integer("num_single_layers"); ++i)
            single_blocks.emplace_back(builder["single_blocks"][i], sizes);
        const Builder last = builder["final_layer"];
        norm_final = last.layer_norm("norm_final", sizes.dim, false);
        linear = last.linear("linear", sizes.dim, in_channels_);
        adaLN_modulation = last["adaLN_modulation"].linear("1", sizes.dim, 2 * sizes.dim);
    }

    // LastLayer
    [[nodiscard]] Tensor final_layer(const Tensor& x_in, const Tensor& vec) const {
        Tensor modulation = adaLN_modulation(silu(vec));
        const Tensors parts = chunk(std::move(modulation), 2, 1);  // shift, scale
        Tensor x = add_scalar(unsqueeze(parts[1], 1));
        {
            Tensor normed = norm_final(x_in);
            x = mul(std::move(x), std::move(normed));
        }
        x = add(std::move(x), unsqueeze(parts[0], 1));
        return linear(x);
    }

    std::int64_t in_channels_, context_in_dim_, vec_in_dim_;
    bool guidance_embed_;
    std::vector<std::int64_t> axes_dim_;
    Linear img_in;
    MLPEmbedder time_in, vector_in;
    std::deque<MLPEmbedder> guidance_in;  // at most one
    Linear txt_in;
    std::deque<DoubleStreamBlock> double_blocks;
    std::deque<SingleStreamBlock> single_blocks;
    nn::LayerNorm norm_final;
    Linear linear, adaLN_modulation;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<Flux>(Builder(weights), profile.config);
}

}  // namespace vram::models::flux_sd_scripts
