// Mirrors HYVideoDiffusionTransformer (musubi-tuner 30c658c, src/musubi_tuner/hunyuan_model/), which musubi trains
// HunyuanVideo with: the forward of its authors, attention as with --sdpa and without --split_attn, so that every block
// is handed a mask of all tokens by all tokens. A file of its own, since its modules are others than diffusers': one
// linear for query, key and value; tables of the rotary embedding that stay on the CPU and are copied for every block;
// gates by addcmul. It only runs under autocast, or in fp32: the text's mean is in fp32 whatever its weights are.
#include <array>
#include <deque>

#include "models/bfl_attention.hpp"
#include "models/families.hpp"
#include "models/normalization.hpp"

namespace vram::models::hunyuan_video_musubi {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;

struct Sizes {
    std::int64_t dim, heads, mlp_dim;
    [[nodiscard]] std::int64_t head_dim() const { return dim / heads; }
};

/// "B L (K H D) -> K B L H D": q, k, v as views.
Tensors split_heads(const Tensor& qkv, std::int64_t heads) {
    Tensor parts = view(qkv, {qkv.size(0), qkv.size(1), 3, heads, -1});
    parts = permute(std::move(parts), {2, 0, 1, 3, 4});
    return unbind(std::move(parts), 0);
}

/// attention with mode "torch": q, k, v [B, L, H, D], mask [B, 1, L, L] → [B, L, H D]
Tensor attention(Tensor q, Tensor k, Tensor v, const Tensor& attn_mask) {
    q = transpose(std::move(q), 1, 2);
    k = transpose(std::move(k), 1, 2);
    v = transpose(std::move(v), 1, 2);
    Tensor x = scaled_dot_product_attention(std::move(q), std::move(k), std::move(v), attn_mask);
    x = transpose(std::move(x), 1, 2);
    return reshape(std::move(x), {x.size(0), x.size(1), -1});
}

Tensor rotate_half(Tensor x_in) {
    const Tensor x = std::move(x_in);
    const Tensors parts = unbind(reshape(x, {x.size(0), x.size(1), x.size(2), -1, 2}), -1);
    Tensor negative = neg(parts[1]);
    const std::array<Tensor, 2> turned{std::move(negative), parts[0]};
    return flatten(stack(turned, -1), 3, 4);
}

Tensor rotated(const Tensor& x, const Tensor& cos, const Tensor& sin) {
    Tensor along = mul(to_float(x), cos);
    Tensor across = rotate_half(to_float(x));
    across = mul(std::move(across), sin);
    along = add(std::move(along), std::move(across));
    return to(std::move(along), x.dtype());
}

/// apply_rotary_emb: query and key [B, L, H, D] are turned; tables [L, D], which are copied from the CPU.
void apply_rotary_emb(Tensor& xq, Tensor& xk, const Tensor& freqs_cos, const Tensor& freqs_sin) {
    Run& run = xq.run();
    const Dims broadcast{1, xq.size(1), 1, xq.size(3)};
    const Tensor cos = to_cuda(run, view(freqs_cos, broadcast));
    const Tensor sin = to_cuda(run, view(freqs_sin, broadcast));
    Tensor xq_out = rotated(xq, cos, sin);
    Tensor xk_out = rotated(xk, cos, sin);
    xq = std::move(xq_out);
    xk = std::move(xk_out);
}

class ModulateDiT {
  public:
    ModulateDiT(const Builder& builder, std::int64_t dim, std::int64_t factor)
        : factor_(factor), linear(builder.linear("linear", dim, factor * dim)) {}
    /// shift, scale, gate [B, D], once or twice
    Tensors operator()(const Tensor& vec) const {
        Tensor modulation = silu(vec);
        modulation = linear(std::move(modulation));
        return chunk(std::move(modulation), factor_, -1);
    }

  private:
    std::int64_t factor_;
    Linear linear;
};

Mlp make_mlp(const Builder& builder, const Sizes& sizes, Mlp::Activation activation) {
    return {builder, {"fc1", "fc2"}, {sizes.dim, sizes.mlp_dim, sizes.mlp_dim, sizes.dim}, true, activation};
}

/// One stream of an MMDoubleStreamBlock.
class Stream {
  public:
    Stream(const Builder& builder, const Sizes& sizes, const std::string& name)
        : mod(builder[name + "_mod"], sizes.dim, 6),
          heads_(sizes.heads),
          norm1(builder.layer_norm(name + "_norm1", sizes.dim, false)),
          attn_qkv(builder.linear(name + "_attn_qkv", sizes.dim, 3 * sizes.dim)),
          attn_q_norm(builder[name + "_attn_q_norm"], sizes.head_dim()),
          attn_k_norm(builder[name + "_attn_k_norm"], sizes.head_dim()),
          attn_proj(builder.linear(name + "_attn_proj", sizes.dim, sizes.dim)),
          norm2(builder.layer_norm(name + "_norm2", sizes.dim, false)),
          mlp(make_mlp(builder[name + "_mlp"], sizes, gelu)) {}

    /// q, k, v [B, L, H, D] with their norms
    [[nodiscard]] Tensors project(const Tensor& x, const Tensors& modulation) const {
        Tensor modulated = norm1(x);
        modulated = scale_and_shift(modulated, modulation[1], modulation[0]);
        Tensor qkv = attn_qkv(modulated);
        modulated = Tensor();
        Tensors parts = split_heads(qkv, heads_);
        qkv = Tensor();
        Tensor q = attn_q_norm(parts[0]);
        parts[0] = std::move(q);
        Tensor k = attn_k_norm(parts[1]);
        parts[1] = std::move(k);
        return parts;
    }

    [[nodiscard]] Tensor finish(Tensor x, Tensor attn, const Tensors& modulation) const {
        Tensor change = attn_proj(attn);
        x = addcmul(std::move(x), std::move(change), unsqueeze(modulation[2], 1));
        attn = Tensor();
        change = norm2(x);
        change = scale_and_shift(change, modulation[4], modulation[3]);
        change = mlp(std::move(change));
        return addcmul(std::move(x), std::move(change), unsqueeze(modulation[5], 1));
    }

    ModulateDiT mod;

  private:
    std::int64_t heads_;
    nn::LayerNorm norm1;
    Linear attn_qkv;
    Fp32RmsNorm attn_q_norm, attn_k_norm;
    Linear attn_proj;
    nn::LayerNorm norm2;
    Mlp mlp;
};

/// args: img, txt, vec, attn_mask, freqs_cos, freqs_sin, and cu_seqlens_q, which other kernels would need → img, txt
class MMDoubleStreamBlock : public Block {
  public:
    MMDoubleStreamBlock(const Builder& parent, const Sizes& sizes) : MMDoubleStreamBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor img = args[0], txt = args[1];
        const std::int64_t img_len = img.size(1);
        const Tensors img_mod = img_stream.mod(args[2]), txt_mod = txt_stream.mod(args[2]);
        Tensors img_heads = img_stream.project(img, img_mod);
        apply_rotary_emb(img_heads[0], img_heads[1], args[4], args[5]);
        Tensors txt_heads = txt_stream.project(txt, txt_mod);
        Tensors heads;
        for (std::size_t i = 0; i < 3; ++i) {
            heads.push_back(cat({img_heads[i], txt_heads[i]}, 1));
            img_heads[i] = txt_heads[i] = Tensor();
        }
        Tensor attn = attention(std::move(heads[0]), std::move(heads[1]), std::move(heads[2]), args[3]);
        Tensor img_attn = slice(attn, 1, 0, img_len);
        Tensor txt_attn = slice(attn, 1, img_len, attn.size(1));
        attn = Tensor();
        img = img_stream.finish(std::move(img), std::move(img_attn), img_mod);
        txt = txt_stream.finish(std::move(txt), std::move(txt_attn), txt_mod);
        return {img, txt};
    }

  private:
    MMDoubleStreamBlock(const nn::BlockBuilder& builder, const Sizes& sizes)
        : img_stream(builder, sizes, "img"), txt_stream(builder, sizes, "txt") {
        builder.finish(*this, "musubi.MMDoubleStreamBlock", {sizes.heads});
    }

    Stream img_stream, txt_stream;
};

/// args: x, vec, attn_mask, freqs_cos, freqs_sin, cu_seqlens_q → x; the picture's tokens are as many as the tables are
/// long.
class MMSingleStreamBlock : public Block {
  public:
    MMSingleStreamBlock(const Builder& parent, const Sizes& sizes) : MMSingleStreamBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        const Tensor& x = args[0];
        const Tensors mod = modulation(args[1]);  // shift, scale, gate
        Tensor x_mod = pre_norm(x);
        x_mod = scale_and_shift(x_mod, mod[1], mod[0]);
        Tensors parts = split(linear1(x_mod), Dims{3 * sizes_.dim, sizes_.mlp_dim}, -1);
        x_mod = Tensor();
        Tensors heads = split_heads(parts[0], sizes_.heads);
        parts[0] = Tensor();
        Tensor q = q_norm(heads[0]);
        heads[0] = Tensor();
        Tensor k = k_norm(heads[1]);
        heads[1] = Tensor();
        rotate_image(q, k, args[3], args[4]);
        Tensor attn = attention(std::move(q), std::move(k), std::move(heads[2]), args[2]);
        Tensor mlp = gelu(parts[1]);
        parts.clear();
        Tensor attn_mlp = cat({attn, mlp}, 2);
        attn = mlp = Tensor();
        Tensor output = linear2(attn_mlp);
        attn_mlp = Tensor();
        return {addcmul(x, std::move(output), unsqueeze(mod[2], 1))};
    }

  private:
    MMSingleStreamBlock(const nn::BlockBuilder& builder, const Sizes& sizes)
        : sizes_(sizes),
          linear1(builder.linear("linear1", sizes.dim, 3 * sizes.dim + sizes.mlp_dim)),
          linear2(builder.linear("linear2", sizes.dim + sizes.mlp_dim, sizes.dim)),
          q_norm(builder["q_norm"], sizes.head_dim()),
          k_norm(builder["k_norm"], sizes.head_dim()),
          pre_norm(builder.layer_norm("pre_norm", sizes.dim, false)),
          modulation(builder["modulation"], sizes.dim, 3) {
        builder.finish(*this, "musubi.MMSingleStreamBlock", {sizes.heads, sizes.mlp_dim});
    }

    static void rotate_image(Tensor& q, Tensor& k, const Tensor& freqs_cos, const Tensor& freqs_sin) {
        const std::int64_t image = freqs_cos.size(0), tokens = q.size(1);
        Tensor img_q = slice(q, 1, 0, image);
        const Tensor txt_q = slice(q, 1, image, tokens);
        Tensor img_k = slice(k, 1, 0, image);
        const Tensor txt_k = slice(k, 1, image, tokens);
        q = k = Tensor();
        apply_rotary_emb(img_q, img_k, freqs_cos, freqs_sin);
        q = cat({img_q, txt_q}, 1);
        k = cat({img_k, txt_k}, 1);
    }

    Sizes sizes_;
    Linear linear1, linear2;
    Fp32RmsNorm q_norm, k_norm;
    nn::LayerNorm pre_norm;
    ModulateDiT modulation;
};

/// args: x [B, T, D], c [B, D], attn_mask [B, 1, T, T] → x
class IndividualTokenRefinerBlock : public Block {
  public:
    IndividualTokenRefinerBlock(const Builder& parent, const Sizes& sizes)
        : IndividualTokenRefinerBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor x = args[0];
        Tensor modulation = silu(args[1]);
        modulation = adaLN_modulation(std::move(modulation));
        const Tensors gates = chunk(std::move(modulation), 2, 1);  // msa, mlp
        const Tensor norm_x = norm1(x);
        const Tensor qkv = self_attn_qkv(norm_x);
        const Tensors heads = split_heads(qkv, heads_);
        const Tensor attn = attention(heads[0], heads[1], heads[2], args[2]);
        Tensor change = self_attn_proj(attn);
        x = addcmul(std::move(x), std::move(change), unsqueeze(gates[0], 1));
        change = mlp(norm2(x));
        x = addcmul(std::move(x), std::move(change), unsqueeze(gates[1], 1));
        return {x};
    }

  private:
    IndividualTokenRefinerBlock(const nn::BlockBuilder& builder, const Sizes& sizes)
        : heads_(sizes.heads),
          norm1(builder.layer_norm("norm1", sizes.dim)),
          self_attn_qkv(builder.linear("self_attn_qkv", sizes.dim, 3 * sizes.dim)),
          self_attn_proj(builder.linear("self_attn_proj", sizes.dim, sizes.dim)),
          norm2(builder.layer_norm("norm2", sizes.dim)),
          mlp(make_mlp(builder["mlp"], sizes, silu)),
          adaLN_modulation(builder["adaLN_modulation"].linear("1", sizes.dim, 2 * sizes.dim)) {
        builder.finish(*this, "musubi.IndividualTokenRefinerBlock", {sizes.heads});
    }

    std::int64_t heads_;
    nn::LayerNorm norm1;
    Linear self_attn_qkv, self_attn_proj;
    nn::LayerNorm norm2;
    Mlp mlp;
    Linear adaLN_modulation;
};

constexpr std::int64_t frequencies = 256;

/// TimestepEmbedder: t [B] → [B, D]
Tensor embed_time(const Mlp& mlp, const Tensor& t, Dtype dtype) {
    Tensor t_freq = bfl_timestep_embedding(t, frequencies, Dtype::f32);
    t_freq = to(std::move(t_freq), dtype);
    return mlp(t_freq);
}

BflMlp time_embedder(const Builder& builder, std::int64_t dim) {
    return {builder["mlp"], frequencies, dim, dim, true, silu, dim};
}

/// SingleTokenRefiner; its blocks are checkpointed as the others are.
class SingleTokenRefiner {
  public:
    SingleTokenRefiner(const Builder& builder, std::int64_t in, const Sizes& sizes, std::int64_t depth)
        : input_embedder(builder.linear("input_embedder", in, sizes.dim)),
          t_embedder(time_embedder(builder["t_embedder"], sizes.dim)),
          c_embedder(builder["c_embedder"], {"linear_1", "linear_2"}, {in, sizes.dim, sizes.dim, sizes.dim}, true,
                     silu) {
        for (std::int64_t i = 0; i < depth; ++i)
            blocks.emplace_back(builder["individual_token_refiner"]["blocks"][i], sizes);
    }

    /// x [B, T, in], mask [B, T] int64 → [B, T, D]
    [[nodiscard]] Tensor operator()(const Caller& call, const Tensor& x_in, const Tensor& t, const Tensor& mask,
                                    Dtype dtype) const {
        const Tensor timestep_aware_representations = embed_time(t_embedder, t, dtype);
        const Tensor mask_float = unsqueeze(to_float(mask), -1);
        Tensor context_aware_representations = sum(mul(x_in, mask_float), 1, false);
        context_aware_representations = div(std::move(context_aware_representations), sum(mask_float, 1, false));
        context_aware_representations = c_embedder(context_aware_representations);
        const Tensor c = add(timestep_aware_representations, context_aware_representations);
        Tensor x = input_embedder(x_in);

        const std::int64_t batch_size = mask.size(0), seq_len = mask.size(1);
        const Tensor self_attn_mask_1 = repeat(view(mask, {batch_size, 1, 1, seq_len}), {1, 1, seq_len, 1});
        Tensor self_attn_mask = bitwise_and(self_attn_mask_1, transpose(self_attn_mask_1, 2, 3));
        self_attn_mask = to(std::move(self_attn_mask), Dtype::boolean);
        const Tensor held = x;  // by Module.__call__
        for (const IndividualTokenRefinerBlock& block : blocks) x = call(block, {x, c, self_attn_mask})[0];
        return x;
    }

  private:
    Linear input_embedder;
    BflMlp t_embedder;
    Mlp c_embedder;
    std::deque<IndividualTokenRefinerBlock> blocks;
};

class HYVideoDiffusionTransformer : public Model {
  public:
    HYVideoDiffusionTransformer(const Builder& builder, const profile::Config& config)
        : HYVideoDiffusionTransformer(builder, config, sizes_of(config)) {}

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        std::vector<Value> out{{"x", latents(request, in_channels_), request.dtype},
                               {"t", {request.batch}, Dtype::f32},
                               {"text_states", {request.batch, request.text_tokens, text_states_dim_}, request.dtype},
                               {"text_mask", {request.batch, request.text_tokens}, Dtype::i64},
                               {"text_states_2", {request.batch, text_states_dim_2_}, request.dtype}};
        if (!guidance_in.empty()) out.push_back({"guidance", {request.batch}, Dtype::f32});
        return out;
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {latents(request, out_channels_)};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        const Tensor &t = args[1], &text_mask = args[3];
        Run& run = t.run();
        const Dtype dtype = args[0].dtype();
        const std::int64_t batch = args[0].size(0);
        const Dims grid{args[0].size(2) / patch_[0], args[0].size(3) / patch_[1], args[0].size(4) / patch_[2]};
        const Caller call(run, gradient_checkpointing);

        // Prepare modulation vectors.
        Tensor vec = embed_time(time_in, t, dtype);
        {
            Tensor pooled = vector_in(args[4]);
            vec = add(vec, std::move(pooled));
        }
        if (!guidance_in.empty()) {
            Tensor guidance = embed_time(guidance_in.front(), args[5], dtype);
            vec = add(vec, std::move(guidance));
        }
        // Embed image and text.
        Tensor img = transpose(flatten(img_in(args[0]), 2, 4), 1, 2);
        Tensor txt = txt_in(call, args[2], t, text_mask, dtype);

        const std::int64_t img_seq_len = img.size(1), tokens = img_seq_len + txt.size(1);
        const Tensor cu_seqlens_q = get_cu_seqlens(text_mask);
        const Tensor text_len = sum(text_mask, 1, false);
        Tensor total_len = add_scalar(text_len);
        const Tensor attn_mask = run.empty({batch, 1, tokens, tokens}, Dtype::boolean, Op::zeros);
        total_len = Tensor();

        // The trainer's get_rotary_pos_embed_by_shape
        const Tensor freqs_cos = run.on_cpu({img_seq_len, head_dim_}, Dtype::f32);
        const Tensor freqs_sin = run.on_cpu({img_seq_len, head_dim_}, Dtype::f32);
        Tensors double_block_args, single_block_args;  // these names hold what the last of the blocks was handed
        for (const MMDoubleStreamBlock& block : double_blocks) {
            double_block_args = {img, txt, vec, attn_mask, freqs_cos, freqs_sin, cu_seqlens_q};
            Tensors out = call(block, double_block_args);
            img = std::move(out[0]);
            txt = std::move(out[1]);
        }
        Tensor x = cat({img, txt}, 1);
        for (const MMSingleStreamBlock& block : single_blocks) {
            single_block_args = {x, vec, attn_mask, freqs_cos, freqs_sin, cu_seqlens_q};
            x = call(block, single_block_args)[0];
        }
        img = slice(x, 1, 0, img_seq_len);
        x = Tensor();
        img = final_layer(img, vec);
        return {unpatchify(img, grid)};
    }

  private:
    static Sizes sizes_of(const profile::Config& config) {
        const std::int64_t heads = config.integer("num_attention_heads"),
                           dim = checked_mul(heads, config.integer("attention_head_dim"));
        return {dim, heads, static_cast<std::int64_t>(static_cast<double>(dim) * config.number("mlp_ratio"))};
    }

    HYVideoDiffusionTransformer(const Builder& builder, const profile::Config& config, const Sizes& sizes)
        : in_channels_(config.integer("in_channels")),
          out_channels_(config.integer("out_channels", in_channels_)),
          text_states_dim_(config.integer("text_embed_dim")),
          text_states_dim_2_(config.integer("pooled_projection_dim")),
          head_dim_(sizes.head_dim()),
          patch_{config.integer("patch_size_t"), config.integer("patch_size"), config.integer("patch_size")},
          img_in(builder["img_in"].conv("proj", in_channels_, sizes.dim, patch_, patch_, {0, 0, 0})),
          txt_in(builder["txt_in"], text_states_dim_, sizes, config.integer("num_refiner_layers")),
          time_in(time_embedder(builder["time_in"], sizes.dim)),
          vector_in(builder["vector_in"], {"in_layer", "out_layer"},
                    {text_states_dim_2_, sizes.dim, sizes.dim, sizes.dim}, true, silu) {
        if (config.boolean("guidance_embeds")) guidance_in.push_back(time_embedder(builder["guidance_in"], sizes.dim));
        for (std::int64_t i = 0; i < config.integer("num_layers"); ++i)
            double_blocks.emplace_back(builder["double_blocks"][i], sizes);
        for (std::int64_t i = 0; i < config.integer("num_single_layers"); ++i)
            single_blocks.emplace_back(builder["single_blocks"][i], sizes);
        const Builder last = builder["final_layer"];
        norm_final = last.layer_norm("norm_final", sizes.dim, false);
        linear = last.linear("linear", sizes.dim, patch_.product() * out_channels_);
        adaLN_modulation = last["adaLN_modulation"].linear("1", sizes.dim, 2 * sizes.dim);
    }

    [[nodiscard]] static Dims latents(const Request& request, std::int64_t channels) {
        return {request.batch, channels, (request.frames - 1) / 4 + 1, request.height / 8, request.width / 8};
    }

    // For kernels that take sequences of other lengths; these places are filled in place.
    [[nodiscard]] static Tensor get_cu_seqlens(const Tensor& text_mask) {
        Run& run = text_mask.run();
        const std::int64_t batch_size = text_mask.size(0);
        const Tensor text_len = sum(text_mask, 1, false);
        Tensor cu_seqlens = run.empty({2 * batch_size + 1}, Dtype::i32, Op::zeros), s, s1;
        for (std::int64_t i = 0; i < batch_size; ++i) {
            s = add_scalar(select(text_len, 0, i));
            s1 = add_scalar(s);
        }
        return cu_seqlens;
    }

    // FinalLayer
    [[nodiscard]] Tensor final_layer(const Tensor& x_in, const Tensor& c) const {
        Tensor modulation = silu(c);
        modulation = adaLN_modulation(std::move(modulation));
        const Tensors parts = chunk(std::move(modulation), 2, 1);  // shift, scale
        Tensor x = norm_final(x_in);
        x = scale_and_shift(x, parts[1], parts[0]);
        return linear(x);
    }

    [[nodiscard]] Tensor unpatchify(const Tensor& tokens, const Dims& grid) const {
        Tensor x = reshape(tokens,
                           {tokens.size(0), grid[0], grid[1], grid[2], out_channels_, patch_[0], patch_[1], patch_[2]});
        x = permute(std::move(x), {0, 4, 1, 5, 2, 6, 3, 7});
        return reshape(std::move(x),
                       {tokens.size(0), out_channels_, grid[0] * patch_[0], grid[1] * patch_[1], grid[2] * patch_[2]});
    }

    std::int64_t in_channels_, out_channels_, text_states_dim_, text_states_dim_2_, head_dim_;
    Dims patch_;
    nn::Conv img_in;
    SingleTokenRefiner txt_in;
    BflMlp time_in;
    Mlp vector_in;
    std::deque<BflMlp> guidance_in;  // at most one
    std::deque<MMDoubleStreamBlock> double_blocks;
    std::deque<MMSingleStreamBlock> single_blocks;
    nn::LayerNorm norm_final;
    Linear linear, adaLN_modulation;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<HYVideoDiffusionTransformer>(Builder(weights), profile.config);
}

}  // namespace vram::models::hunyuan_video_musubi
