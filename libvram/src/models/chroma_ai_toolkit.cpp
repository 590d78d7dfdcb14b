// Mirrors Chroma (ai-toolkit 27a03a91, extensions_built_in/diffusion_models/chroma/src/model.py, layers.py), which
// ai-toolkit trains Chroma with. A file of its own, since its modules are others than diffusers': one linear for query,
// key and value; a mask of every pair of tokens and every head; blocks that are checkpointed reentrantly, whatever
// trains.
#include <deque>

#include "models/bfl_attention.hpp"
#include "models/embeddings.hpp"
#include "models/families.hpp"
#include "shadow/checkpoint.hpp"

namespace vram::models::chroma_ai_toolkit {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;

struct Sizes {
    std::int64_t dim, heads;
    [[nodiscard]] std::int64_t head_dim() const { return dim / heads; }
};

struct QKNorm {
    QKNorm(const Builder& builder, std::int64_t dim)
        : query_norm(norm(builder["query_norm"], dim)), key_norm(norm(builder["key_norm"], dim)) {}
    /// q, k, v: the first two are replaced
    void operator()(Tensors& heads) const {
        Tensor q = rms_norm(heads[0], query_norm.value);
        Tensor k = rms_norm(heads[1], key_norm.value);
        heads[0] = std::move(q);
        heads[1] = std::move(k);
    }

  private:
    static nn::Parameter& norm(const Builder& builder, std::int64_t dim) { return builder.parameter("scale", {dim}); }
    nn::Parameter &query_norm, &key_norm;
};

// _modulation_shift_scale_fn: (1 + scale) * x + shift; the call holds x.
Tensor shift_scale(const Tensor& x, const Tensor& scale, const Tensor& shift) {
    Tensor product = add_scalar(scale);
    product = mul(std::move(product), x);
    return add(std::move(product), shift);
}

// _modulation_gate_fn: x + gate * gate_params; the call holds both.
Tensor gated(const Tensor& x, const Tensor& gate, const Tensor& gate_params) {
    Tensor product = mul(gate, gate_params);
    return add(x, std::move(product));
}

/// shift, scale, gate [B, 1, D] each, one after the other.
struct Modulation {
    const Tensor *shift, *scale, *gate;
    explicit Modulation(const Tensor* first) : shift(first), scale(first + 1), gate(first + 2) {}
};

/// One stream of a DoubleStreamBlock.
class Stream {
  public:
    Stream(const Builder& builder, const Sizes& sizes, const std::string& name)
        : norm1(builder.layer_norm(name + "_norm1", sizes.dim, false)),
          qkv(builder[name + "_attn"].linear("qkv", sizes.dim, 3 * sizes.dim)),
          norm(builder[name + "_attn"]["norm"], sizes.head_dim()),
          proj(builder[name + "_attn"].linear("proj", sizes.dim, sizes.dim)),
          norm2(builder.layer_norm(name + "_norm2", sizes.dim, false)),
          mlp(builder[name + "_mlp"], sizes.dim, 4 * sizes.dim, 4 * sizes.dim, true, gelu) {}

    /// What the block's frame holds of a stream up to its end.
    struct Prepared {
        Tensor modulated, qkv;
        Tensors heads;  // q, k, v
    };
    [[nodiscard]] Prepared prepare(const Tensor& x, const Modulation& mod, std::int64_t heads) const {
        Prepared out;
        out.modulated = norm1(x);
        out.modulated = shift_scale(out.modulated, *mod.scale, *mod.shift);
        out.qkv = qkv(out.modulated);
        out.heads = heads_of(out.qkv, heads);
        norm(out.heads);
        return out;
    }

    [[nodiscard]] Tensor finish(Tensor x, const Tensor& attn_part, const Modulation& mod1,
                                const Modulation& mod2) const {
        {
            const Tensor change = proj(attn_part);
            x = gated(x, *mod1.gate, change);
        }
        Tensor modulated;
        {
            const Tensor normed = norm2(x);
            modulated = shift_scale(normed, *mod2.scale, *mod2.shift);
        }
        const Tensor change = mlp(std::move(modulated));
        return gated(x, *mod2.gate, change);
    }

  private:
    nn::LayerNorm norm1;
    Linear qkv;
    QKNorm norm;
    Linear proj;
    nn::LayerNorm norm2;
    BflMlp mlp;
};

/// args: img, txt, pe, mask, then shift, scale, gate twice of img and twice of txt → img, txt
class DoubleStreamBlock : public Block {
  public:
    DoubleStreamBlock(const Builder& parent, const Sizes& sizes) : DoubleStreamBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor img = args[0], txt = args[1];
        const Tensor &pe = args[2], &mask = args[3];
        const Modulation img_mod1(&args[4]), img_mod2(&args[7]), txt_mod1(&args[10]), txt_mod2(&args[13]);

        const Stream::Prepared of_img = img_stream.prepare(img, img_mod1, heads_);
        const Stream::Prepared of_txt = txt_stream.prepare(txt, txt_mod1, heads_);

        const Tensor q = cat({of_txt.heads[0], of_img.heads[0]}, 2);
        const Tensor k = cat({of_txt.heads[1], of_img.heads[1]}, 2);
        const Tensor v = cat({of_txt.heads[2], of_img.heads[2]}, 2);
        const Tensor attn = bfl_attention(q, k, v, pe, mask);
        const Tensor txt_attn = slice(attn, 1, 0, txt.size(1));
        const Tensor img_attn = slice(attn, 1, txt.size(1), attn.size(1));

        img = img_stream.finish(std::move(img), img_attn, img_mod1, img_mod2);
        txt = txt_stream.finish(std::move(txt), txt_attn, txt_mod1, txt_mod2);
        return {img, txt};
    }

  private:
    DoubleStreamBlock(const nn::BlockBuilder& builder, const Sizes& sizes)
        : heads_(sizes.heads), img_stream(builder, sizes, "img"), txt_stream(builder, sizes, "txt") {
        builder.finish(*this, "chroma_ai_toolkit.DoubleStreamBlock", {sizes.heads});
    }

    std::int64_t heads_;
    Stream img_stream, txt_stream;
};

/// args: x (text, then image), pe, mask, shift, scale, gate → x
class SingleStreamBlock : public Block {
  public:
    SingleStreamBlock(const Builder& parent, const Sizes& sizes) : SingleStreamBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        const Tensor &x = args[0], &pe = args[1], &mask = args[2];
        const Modulation mod(&args[3]);
        Tensor x_mod;
        {
            const Tensor normed = pre_norm(x);
            x_mod = shift_scale(normed, *mod.scale, *mod.shift);
        }
        const Tensors parts = split(linear1(x_mod), Dims{3 * sizes_.dim, 4 * sizes_.dim}, -1);  // qkv, mlp
        Tensors heads = heads_of(parts[0], sizes_.heads);
        norm(heads);
        const Tensor attn = bfl_attention(heads[0], heads[1], heads[2], pe, mask);
        Tensor output = gelu(parts[1]);
        output = cat({attn, std::move(output)}, 2);
        output = linear2(std::move(output));
        return {gated(x, *mod.gate, output)};
    }

  private:
    SingleStreamBlock(const nn::BlockBuilder& builder, const Sizes& sizes)
        : sizes_(sizes),
          linear1(builder.linear("linear1", sizes.dim, 7 * sizes.dim)),
          linear2(builder.linear("linear2", 5 * sizes.dim, sizes.dim)),
          norm(builder["norm"], sizes.head_dim()),
          pre_norm(builder.layer_norm("pre_norm", sizes.dim, false)) {
        builder.finish(*this, "chroma_ai_toolkit.SingleStreamBlock", {sizes.heads});
    }

    Sizes sizes_;
    Linear linear1, linear2;
    QKNorm norm;
    nn::LayerNorm pre_norm;
};

/// Approximator: a vector of modulation a row.
class Approximator {
  public:
    Approximator(const Builder& builder, std::int64_t in_dim, std::int64_t out_dim, std::int64_t hidden_dim,
                 std::int64_t n_layers)
        : in_proj(builder.linear("in_proj", in_dim, hidden_dim)) {
        for (std::int64_t i = 0; i < n_layers; ++i) {
            in_layers.push_back(builder["layers"][i].linear("in_layer", hidden_dim, hidden_dim));
            out_layers.push_back(builder["layers"][i].linear("out_layer", hidden_dim, hidden_dim));
        }
        for (std::int64_t i = 0; i < n_layers; ++i)
            norms.push_back(&builder["norms"][i].parameter("scale", {hidden_dim}));
        out_proj = builder.linear("out_proj", hidden_dim, out_dim);
    }

    [[nodiscard]] Tensor operator()(const Tensor& held, Dtype dtype) const {
        Tensor x = to(held, dtype);
        x = in_proj(x);
        for (std::size_t i = 0; i < norms.size(); ++i) {
            Tensor change = rms_norm(x, norms[i]->value);
            {
                const Tensor normed = change;  // MLPEmbedder's call holds it
                change = in_layers[i](normed);
                change = silu(std::move(change));
                change = out_layers[i](std::move(change));
            }
            x = add(x, std::move(change));
        }
        return out_proj(x);
    }

  private:
    Linear in_proj, out_proj;
    std::vector<Linear> in_layers, out_layers;
    std::vector<nn::Parameter*> norms;
};

// timestep_embedding: t [N] → [N, dim] in its dtype, or in fp32
Tensor timestep_embedding_of(const Tensor& t_in, std::int64_t dim) {
    const Tensor t = mul_scalar(t_in);
    const Tensor freqs = t.run().empty({dim / 2}, Dtype::f32, Op::to_device);  // made on the host
    return bfl_waves(t, freqs, t.dtype());
}

class Chroma : public Model {
  public:
    Chroma(const Builder& builder, const profile::Config& config) : Chroma(builder, config, sizes_of(config)) {}

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        const std::int64_t image = checked_mul(request.height / 16, request.width / 16);
        const auto axes = static_cast<std::int64_t>(axes_dim_.size());
        return {{"img", {request.batch, image, in_channels_}, request.dtype},
                {"img_ids", {request.batch, image, axes}, Dtype::f32},
                {"txt", {request.batch, request.text_tokens, context_in_dim_}, request.dtype},
                {"txt_ids", {request.batch, request.text_tokens, axes}, Dtype::f32},
                {"txt_mask", {request.batch, request.text_tokens}, request.dtype},
                {"timesteps", {request.batch}, Dtype::f32},
                {"guidance", {request.batch}, Dtype::f32}};
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {inputs(request).front().shape};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        Tensor img = img_in(args[0]);
        const Tensor& img_ids = args[1];
        Tensor txt = txt_in(args[2]);
        const Tensor &txt_ids = args[3], &txt_mask = args[4];
        Run& run = img.run();
        const std::int64_t batch = img.size(0), rows = mod_index->value.size(0);
        const Dtype dtype = img.dtype();

        Tensor distill_timestep, distil_guidance, modulation_index, timestep_guidance, input_vec, mod_vectors;
        {
            const NoGrad no_grad(run);
            distill_timestep = timestep_embedding_of(args[5], 16);
            distil_guidance = timestep_embedding_of(args[6], 16);
            modulation_index = timestep_embedding_of(mod_index->value, 32);
            modulation_index = repeat(unsqueeze(modulation_index, 0), {batch, 1, 1});
            {
                const Tensor both = cat({distill_timestep, distil_guidance}, 1);
                timestep_guidance = repeat(unsqueeze(both, 1), {1, rows, 1});
            }
            input_vec = cat({timestep_guidance, modulation_index}, -1);
            mod_vectors = distilled_guidance_layer(input_vec, dtype);
        }
        const auto vector = [&mod_vectors](std::int64_t i) { return slice(mod_vectors, 1, i, i + 1); };
        const Tensor ids = cat({txt_ids, img_ids}, 1);
        const Tensor pe = embed_nd(ids, axes_dim_, Dtype::f64);
        Tensor txt_mask_w_padding, txt_img_mask;
        {
            const NoGrad no_grad(run);
            txt_mask_w_padding = modify_mask_to_attend_padding(txt_mask);
            txt_img_mask = every_pair(txt_mask_w_padding, batch, img.size(1));
        }

        const bool checkpoints = gradient_checkpointing && run.grad_enabled();
        const Caller call(run, checkpoints ? Caller::Checkpointing::reentrant : Caller::Checkpointing::none);
        const auto doubles = static_cast<std::int64_t>(double_blocks.size()),
                   singles = static_cast<std::int64_t>(single_blocks.size());
        for (std::int64_t i = 0; i < doubles; ++i) {
            if (checkpoints) requires_grad_(img);
            Tensors in{img, txt, pe, txt_img_mask};
            for (const std::int64_t first : {3 * singles + 6 * i, 3 * singles + 6 * doubles + 6 * i})
                for (std::int64_t k = 0; k < 6; ++k) in.push_back(vector(first + k));
            Tensors out = call(double_blocks[static_cast<std::size_t>(i)], std::move(in));
            img = std::move(out[0]);
            txt = std::move(out[1]);
        }
        img = cat({txt, img}, 1);
        for (std::int64_t i = 0; i < singles; ++i) {
            if (checkpoints) requires_grad_(img);
            Tensors in{img, pe, txt_img_mask};
            for (std::int64_t k = 0; k < 3; ++k) in.push_back(vector(3 * i + k));
            img = call(single_blocks[static_cast<std::size_t>(i)], std::move(in))[0];
        }
        img = slice(img, 1, txt.size(1), img.size(1));
        return {final_layer(img, vector(rows - 2), vector(rows - 1))};
    }

  private:
    static Sizes sizes_of(const profile::Config& config) {
        const std::int64_t heads = config.integer("num_attention_heads");
        return {checked_mul(heads, config.integer("attention_head_dim")), heads};
    }

    Chroma(const Builder& builder, const profile::Config& config, const Sizes& sizes)
        : in_channels_(config.integer("in_channels")),
          context_in_dim_(config.integer("joint_attention_dim")),
          heads_(sizes.heads),
          axes_dim_(config.integers("axes_dims_rope")),
          img_in(builder.linear("img_in", in_channels_, sizes.dim)),
          distilled_guidance_layer(builder["distilled_guidance_layer"], config.integer("approximator_num_channels"),
                                   sizes.dim, config.integer("approximator_hidden_dim"),
                                   config.integer("approximator_layers")),
          txt_in(builder.linear("txt_in", context_in_dim_, sizes.dim)) {
        const std::int64_t doubles = config.integer("num_layers"), singles = config.integer("num_single_layers");
        for (std::int64_t i = 0; i < doubles; ++i) double_blocks.emplace_back(builder["double_blocks"][i], sizes);
        for (std::int64_t i = 0; i < singles; ++i) single_blocks.emplace_back(builder["single_blocks"][i], sizes);
        const Builder last = builder["final_layer"];
        norm_final = last.layer_norm("norm_final", sizes.dim, false);
        linear = last.linear("linear", sizes.dim, in_channels_);
        mod_index = &builder.buffer("mod_index", {3 * singles + 12 * doubles + 2}, Dtype::i64);
    }

    // Tokens behind a prompt are seen, too: one of them.
    [[nodiscard]] static Tensor modify_mask_to_attend_padding(const Tensor& mask) {
        const Tensor seq_length = sum(mask, -1, false);
        return clone(mask);  // and written into
    }

    // Of each head, and of each item as of all.
    [[nodiscard]] Tensor every_pair(const Tensor& txt_mask, std::int64_t batch, std::int64_t image) const {
        Run& run = txt_mask.run();
        Tensor mask;
        {
            const Tensor of_image = run.empty({batch, image}, Dtype::f32, Op::ones);
            const std::int64_t tokens = txt_mask.size(1) + image;
            mask = run.empty({batch, tokens}, Dtype::f32, Op::cat);
        }
        mask = mm(transpose(mask, 0, 1), mask);
        Tensor repeated = repeat(unsqueeze(unsqueeze(mask, 0), 0), {batch, heads_, 1, 1});
        repeated = to(std::move(repeated), Dtype::i32);
        repeated = to(std::move(repeated), Dtype::boolean);
        return repeated;
    }

    // LastLayer
    [[nodiscard]] Tensor final_layer(Tensor x_in, const Tensor& shift, const Tensor& scale) const {
        const Tensor held = std::move(x_in);
        Tensor x;
        {
            const Tensor normed = norm_final(held);
            x = shift_scale(normed, scale, shift);
        }
        return linear(x);
    }

    std::int64_t in_channels_, context_in_dim_, heads_;
    std::vector<std::int64_t> axes_dim_;
    Linear img_in;
    Approximator distilled_guidance_layer;
    Linear txt_in;
    std::deque<DoubleStreamBlock> double_blocks;
    std::deque<SingleStreamBlock> single_blocks;
    nn::LayerNorm norm_final;
    Linear linear;
    nn::Parameter* mod_index = nullptr;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<Chroma>(Builder(weights), profile.config);
}

}  // namespace vram::models::chroma_ai_toolkit
