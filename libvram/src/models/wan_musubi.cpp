// Mirrors WanModel (musubi-tuner 30c658c, src/musubi_tuner/wan/modules/model.py), which musubi trains Wan 2.1 and the
// experts of Wan 2.2 A14B with: the forward of its authors, attention as with --sdpa. A file of its own, since it keeps
// the modulation in fp32, turns query and key in place and in fp64, takes lists of samples and, for Wan 2.2, embeds the
// time of every token. It only runs under autocast, or in fp32: a norm's bf16 weight meets fp32.
#include <array>
#include <deque>

#include "models/bfl_attention.hpp"
#include "models/families.hpp"

namespace vram::models {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;

struct Sizes {
    std::int64_t dim, heads, ffn_dim;
    bool image_context;  // keys and values of the picture's tokens
    bool v2_2;           // every token has its modulation
    [[nodiscard]] std::int64_t head_dim() const { return dim / heads; }
};

/// WanLayerNorm: in fp32, the result in the input's dtype.
Tensor layer_norm_as(const nn::LayerNorm& norm, const Tensor& x) {
    Tensor wide = norm(to_float(x));
    return to(std::move(wide), x.dtype());
}

/// flash_attention with attn_mode "torch": lets go of q, k and v [B, L, N, D] as soon as it has attended → [B, L, N, D]
Tensor attend(Tensor q, Tensor k, Tensor v) {
    q = transpose(std::move(q), 1, 2);
    k = transpose(std::move(k), 1, 2);
    v = transpose(std::move(v), 1, 2);
    Tensor x = scaled_dot_product_attention(std::move(q), std::move(k), std::move(v));
    return contiguous(transpose(std::move(x), 1, 2));
}

/// rope_apply_inplace_cached: each sample of x [B, L, N, D], a view of `base` [B, L, N D], is turned in fp64 and
/// written back; a view whose base was written to gets its history anew.
void rope_apply_inplace(Tensor& base, Tensor& x, const Tensor& freqs) {
    const Dims sizes = x.sizes();
    Tensor x_i;
    for (std::int64_t i = 0; i < sizes[0]; ++i) {
        Tensor wide = to(select(x, 0, i), Dtype::f64);
        x_i = view_as_complex(reshape(std::move(wide), {sizes[1], sizes[2], -1, 2}));
        x_i = flatten(view_as_real(mul(x_i, freqs)), 2, 3);
        Tensor narrow = to(x_i, x.dtype());
        copy_into_view(base, select(view(base.detach(), sizes), 0, i), std::move(narrow));
        x = view(base, sizes);
    }
}

/// WanSelfAttention, and WanCrossAttention and WanI2VCrossAttention over a context.
class Attention {
  public:
    Attention(const Builder& builder, const Sizes& sizes, bool image_context)
        : heads_(sizes.heads),
          image_context_(image_context),
          q(builder.linear("q", sizes.dim, sizes.dim)),
          k(builder.linear("k", sizes.dim, sizes.dim)),
          v(builder.linear("v", sizes.dim, sizes.dim)),
          o(builder.linear("o", sizes.dim, sizes.dim)),
          norm_q(builder["norm_q"], sizes.dim),
          norm_k(builder["norm_k"], sizes.dim) {
        if (!image_context) return;
        k_img = builder.linear("k_img", sizes.dim, sizes.dim);
        v_img = builder.linear("v_img", sizes.dim, sizes.dim);
        norm_k_img = Fp32RmsNorm(builder["norm_k_img"], sizes.dim);
    }

    /// x [B, L, D], freqs [L, 1, D / 2] complex128
    Tensor self(Tensor x_in, const Tensor& freqs) const {
        const Tensor x = std::move(x_in);
        Tensor query = q(x);
        Tensor key = k(x);
        Tensor value = v(x);
        query = norm_q(query);
        key = norm_k(key);
        Tensor query_base = query, key_base = key;
        query = split_heads(std::move(query));
        key = split_heads(std::move(key));
        value = split_heads(std::move(value));
        rope_apply_inplace(query_base, query, freqs);
        rope_apply_inplace(key_base, key, freqs);
        query_base = key_base = Tensor();
        Tensor out = attend(std::move(query), std::move(key), std::move(value));
        return o(flatten(std::move(out), 2, 3));
    }

    Tensor cross(Tensor x_in, const Tensor& context) const {
        const Tensor x = std::move(x_in);
        if (image_context_) return cross_with_image(x, context);
        Tensor query = q(x);
        Tensor key = k(context);
        Tensor value = v(context);
        query = norm_q(query);
        key = norm_k(key);
        query = split_heads(std::move(query));
        key = split_heads(std::move(key));
        value = split_heads(std::move(value));
        Tensor out = attend(std::move(query), std::move(key), std::move(value));
        return o(flatten(std::move(out), 2, 3));
    }

  private:
    static constexpr std::int64_t image_tokens = 257;

    Tensor cross_with_image(const Tensor& x, const Tensor& context_in) const {
        Tensor context_img = slice(context_in, 1, 0, image_tokens);
        Tensor context = slice(context_in, 1, image_tokens, context_in.size(1));
        Tensor query = q(x);
        query = norm_q(query);
        query = split_heads(std::move(query));
        Tensor key = k(context);
        key = split_heads(norm_k(std::move(key)));
        Tensor value = split_heads(v(context));
        context = Tensor();
        Tensor out = attend(query, std::move(key), std::move(value));
        key = k_img(context_img);
        key = split_heads(norm_k_img(std::move(key)));
        value = split_heads(v_img(context_img));
        context_img = Tensor();
        Tensor img_x = attend(std::move(query), std::move(key), std::move(value));
        out = flatten(std::move(out), 2, 3);
        img_x = flatten(std::move(img_x), 2, 3);
        if (x.run().grad_enabled()) {  // self.training
            out = add(out, img_x);
        } else {
            add_(out, img_x);
        }
        img_x = Tensor();
        return o(out);
    }

    [[nodiscard]] Tensor split_heads(Tensor x) const { return view(x, {x.size(0), -1, heads_, x.size(2) / heads_}); }

    std::int64_t heads_;
    bool image_context_;
    Linear q, k, v, o;
    Fp32RmsNorm norm_q, norm_k;
    Linear k_img, v_img;
    Fp32RmsNorm norm_k_img;
};

/// Sequential: linear, activation, linear.
class Mlp {
  public:
    Mlp() = default;
    Mlp(const Builder& builder, std::int64_t in, std::int64_t inner, std::int64_t out, bool is_silu = false)
        : first(builder.linear("0", in, inner)), second(builder.linear("2", inner, out)), silu_(is_silu) {}
    Tensor operator()(Tensor x_in) const {
        const Tensor x = std::move(x_in);
        Tensor input = first(x);
        input = silu_ ? silu(input) : gelu(input);
        return second(input);
    }

  private:
    Linear first, second;
    bool silu_ = false;
};

/// args: x [B, L, D], e [B, 6, D] or [B, L, 6, D] fp32, context, freqs → x
class WanAttentionBlock : public Block {
  public:
    WanAttentionBlock(const Builder& parent, const Sizes& sizes) : WanAttentionBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor x = args[0];
        const Tensor &context = args[2], &freqs = args[3];
        const Dtype org_dtype = x.dtype();
        Tensors e;
        {
            Tensor wide = to_float(modulation.value);
            Tensor sum = add(std::move(wide), args[1]);
            e = chunk(std::move(sum), 6, v2_2_ ? 2 : 1);
        }
        // self-attention
        Tensor y = self_attn.self(modulated(norm1, x, e[1], e[0]), freqs);
        x = gated(x, y, e[2], org_dtype);
        y = Tensor();
        // cross-attention & ffn
        {
            Tensor change = cross_attn_norm_ ? layer_norm_as(norm3, x) : x;
            change = cross_attn.cross(std::move(change), context);
            x = add(x, std::move(change));
        }
        y = ffn(modulated(norm2, x, e[4], e[3]));
        x = gated(x, y, e[5], org_dtype);
        y = Tensor();
        return {x};
    }

  private:
    WanAttentionBlock(const nn::BlockBuilder& builder, const Sizes& sizes)
        : modulation(builder.parameter("modulation", {1, 6, sizes.dim})),
          norm1(builder.layer_norm("norm1", sizes.dim, false)),
          self_attn(builder["self_attn"], sizes, false),
          norm3(builder.layer_norm("norm3", sizes.dim)),
          cross_attn(builder["cross_attn"], sizes, sizes.image_context),
          norm2(builder.layer_norm("norm2", sizes.dim, false)),
          ffn(builder["ffn"], sizes.dim, sizes.ffn_dim, sizes.dim),
          v2_2_(sizes.v2_2) {
        builder.finish(*this, "musubi.WanAttentionBlock", {sizes.heads, sizes.image_context, sizes.v2_2});
    }

    // addcmul(shift, norm(x).float(), 1 + scale).to(dtype of x)
    [[nodiscard]] Tensor modulated(const nn::LayerNorm& norm, const Tensor& x, const Tensor& scale,
                                   const Tensor& shift) const {
        Tensor normed = layer_norm_as(norm, x);
        normed = to_float(std::move(normed));
        Tensor factor = add_scalar(of_token(scale));
        Tensor out = addcmul(of_token(shift), std::move(normed), std::move(factor));
        return to(std::move(out), x.dtype());
    }
    // addcmul(x, y.to(float32), gate).to(dtype)
    [[nodiscard]] Tensor gated(const Tensor& x, const Tensor& y, const Tensor& gate, Dtype dtype) const {
        Tensor wide = to_float(y);
        Tensor out = addcmul(x, std::move(wide), of_token(gate));
        return to(std::move(out), dtype);
    }
    [[nodiscard]] Tensor of_token(const Tensor& e) const { return v2_2_ ? squeeze(e, 2) : e; }

    nn::Parameter& modulation;
    nn::LayerNorm norm1;
    Attention self_attn;
    nn::LayerNorm norm3;
    Attention cross_attn;
    nn::LayerNorm norm2;
    Mlp ffn;
    bool v2_2_, cross_attn_norm_ = true;
};

class WanModel : public Model {
  public:
    WanModel(const Builder& builder, const profile::Config& config, bool v2_2)
        : WanModel(builder, config,
                   {checked_mul(config.integer("num_attention_heads"), config.integer("attention_head_dim")),
                    config.integer("num_attention_heads"), config.integer("ffn_dim"),
                    config.integer("image_dim", 0) > 0, v2_2}) {}

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        std::vector<Value> out{{"x", latents(request, out_dim_), request.dtype}, {"t", {request.batch}, Dtype::f32}};
        for (std::int64_t i = 0; i < request.batch; ++i)
            out.push_back({"context." + std::to_string(i), {request.text_tokens, text_dim_}, request.dtype});
        if (sizes_.image_context) out.push_back({"clip_fea", {request.batch, 257, image_dim_}, request.dtype});
        if (in_dim_ > out_dim_) out.push_back({"y", latents(request, in_dim_ - out_dim_), request.dtype});
        return out;
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        Dims sample = latents(request, out_dim_);
        sample.erase(0);
        return std::vector<Dims>(static_cast<std::size_t>(request.batch), sample);
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request& request) const override {
        Run& run = args[0].run();
        if (request.dtype != Dtype::f32 && !run.autocast().enabled)
            throw Refused("musubi's WanModel mixes fp32 and " + std::string(to_text(request.dtype)) +
                          " and so only runs under autocast: set train.autocast",
                          "forward");
        const auto batch = static_cast<std::size_t>(args[0].size(0));
        Tensor clip_fea, y;
        std::size_t at = 2 + batch;
        if (sizes_.image_context) clip_fea = args[at++];
        if (in_dim_ > out_dim_) y = args[at++];

        to_device(run);
        std::vector<Tensor> samples;
        for (const Tensor& u : unbind(args[0], 0)) samples.push_back(u);
        if (y.defined()) {
            const Tensors conditions = unbind(y, 0);
            for (std::size_t i = 0; i < batch; ++i) samples[i] = cat({samples[i], conditions[i]}, 0);
        }
        // embeddings
        std::vector<Tensor> embedded;
        for (const Tensor& u : samples) embedded.push_back(patch_embedding(unsqueeze(u, 0)));
        samples = std::move(embedded);
        const Dims grid{samples[0].size(2), samples[0].size(3), samples[0].size(4)};
        const Tensor freqs = freqs_of(run, grid);
        const std::int64_t seq_len = grid.product();
        Tensor x;
        {
            for (Tensor& u : samples) u = transpose(flatten(u, 2, 4), 1, 2);
            std::vector<Tensor> filled;
            for (const Tensor& u : samples)
                filled.push_back(cat({u, run.empty({1, 0, sizes_.dim}, u.dtype(), Op::zeros)}, 1));
            x = cat(filled, 0);
            filled.clear();
            samples.clear();
        }

        // time embeddings
        Tensor e, e0, t = args[1];
        {
            const AutocastScope autocast(run, {true, Dtype::f32});
            if (!sizes_.v2_2) {
                Tensor sinusoid = sinusoidal_embedding(t);
                e = time_embedding(to_float(std::move(sinusoid)));
                e0 = unflatten(time_projection(silu(e)), 1, {6, sizes_.dim});
            } else {
                t = flatten(expand(unsqueeze(t, 1), {-1, seq_len}), 0, 1);  // of more than one sample a copy
                Tensor sinusoid = unflatten(sinusoidal_embedding(t), 0, {-1, seq_len});
                e = time_embedding(to_float(std::move(sinusoid)));
                e0 = unflatten(time_projection(silu(e)), 2, {6, sizes_.dim});
            }
        }

        // context
        Tensor context;
        {
            std::vector<Tensor> filled;
            for (std::size_t i = 0; i < batch; ++i) {
                const Tensor& u = args[2 + i];
                Tensor zeros = run.empty({text_len - u.size(0), u.size(1)}, u.dtype(), Op::zeros);
                filled.push_back(cat({u, std::move(zeros)}, 0));
            }
            context = stack(filled, 0);
        }
        context = text_embedding(context);
        if (clip_fea.defined()) {
            Tensor context_clip = img_emb(clip_fea);
            context = cat({std::move(context_clip), context}, 1);
        }

        const Caller call(run, gradient_checkpointing);
        for (const WanAttentionBlock& block : blocks) x = call(block, {x, e0, context, freqs})[0];
        x = head(x, e);
        const Tensors samples_out = unpatchify(x, grid);
        x = Tensor();
        Tensors out;
        for (const Tensor& u : samples_out) out.push_back(to_float(u));
        return out;
    }

  private:
    static constexpr std::int64_t text_len = 512, positions = 1024;

    WanModel(const Builder& builder, const profile::Config& config, const Sizes& sizes)
        : sizes_(sizes),
          in_dim_(config.integer("in_channels")),
          out_dim_(config.integer("out_channels", in_dim_)),
          text_dim_(config.integer("text_dim")),
          freq_dim_(config.integer("freq_dim")),
          image_dim_(config.integer("image_dim", 0)),
          patch_size_(config.integers("patch_size")) {
        const Dims patch{patch_size_[0], patch_size_[1], patch_size_[2]};
        patch_embedding = builder.conv("patch_embedding", in_dim_, sizes.dim, patch, patch, {0, 0, 0});
        text_embedding = Mlp(builder["text_embedding"], text_dim_, sizes.dim, sizes.dim);
        time_embedding = Mlp(builder["time_embedding"], freq_dim_, sizes.dim, sizes.dim, true);
        time_projection = builder["time_projection"].linear("1", sizes.dim, 6 * sizes.dim);
        for (std::int64_t i = 0; i < config.integer("num_layers"); ++i)
            blocks.emplace_back(builder["blocks"][i], sizes);
        const Builder last = builder["head"];
        head_modulation = &last.parameter("modulation", {1, 2, sizes.dim});
        head_norm = last.layer_norm("norm", sizes.dim, false);
        head_linear = last.linear("head", sizes.dim, out_dim_ * patch.product());
        if (!sizes.image_context) return;
        const Builder proj = builder["img_emb"]["proj"];
        img_norm_in = proj.layer_norm("0", image_dim_);
        img_first = proj.linear("1", image_dim_, image_dim_);
        img_second = proj.linear("3", image_dim_, sizes.dim);
        img_norm_out = proj.layer_norm("4", sizes.dim);
    }

    [[nodiscard]] Dims latents(const Request& request, std::int64_t channels) const {
        return {request.batch, channels, (request.frames - 1) / 4 + 1, request.height / 8, request.width / 8};
    }

    // sinusoidal_embedding_1d: position [N] → [N, freq_dim] fp64
    [[nodiscard]] Tensor sinusoidal_embedding(const Tensor& position_in) const {
        const Tensor position = to(position_in, Dtype::f64);
        Tensor sinusoid;
        {
            Tensor exponent = position_in.run().empty({freq_dim_ / 2}, Dtype::f64, Op::to_device);
            exponent = div_scalar(std::move(exponent));
            exponent = neg(std::move(exponent));
            sinusoid = outer(position, scalar_pow(std::move(exponent)));
        }
        Tensor cosine = cos(sinusoid);
        Tensor sine = sin(sinusoid);
        return cat({std::move(cosine), std::move(sine)}, 1);
    }

    // The table of frequencies, a plain tensor on the CPU until the first call.
    void to_device(Run& run) const {
        if (freqs_.defined()) return;
        const ComponentScope scope(run, run.trace.tags[run.activation_tag].component, Category::model_cache);
        freqs_ = run.empty({positions, sizes_.head_dim() / 2}, Dtype::complex128, Op::to_device);
    }

    // calculate_freqs_i, which freqs_fhw keeps for every shape: [L, 1, head_dim / 2] complex128
    [[nodiscard]] Tensor freqs_of(Run& run, const Dims& grid) const {
        const std::int64_t half = sizes_.head_dim() / 2;
        const ComponentScope scope(run, run.trace.tags[run.activation_tag].component, Category::model_cache);
        for (const auto& [known, freqs] : freqs_fhw_)
            if (known == grid) return freqs;
        const Tensors axes = split(freqs_, Dims{half - 2 * (half / 3), half / 3, half / 3}, 1);
        Tensors parts;
        for (int axis = 0; axis < 3; ++axis) {
            Dims at{1, 1, 1, -1};
            at[axis] = grid[axis];
            parts.push_back(expand(view(slice(axes[static_cast<std::size_t>(axis)], 0, 0, grid[axis]), at),
                                   {grid[0], grid[1], grid[2], -1}));
        }
        Tensor freqs = reshape(cat(parts, -1), {grid.product(), 1, -1});
        freqs_fhw_.emplace_back(grid, freqs);
        return freqs;
    }

    // MLPProj
    [[nodiscard]] Tensor img_emb(const Tensor& image_embeds) const {
        Tensor input = img_norm_in(image_embeds);
        input = img_first(input);
        input = gelu(input);
        input = img_second(input);
        return img_norm_out(input);
    }

    [[nodiscard]] Tensor head(const Tensor& x_in, const Tensor& e_in) const {
        Tensors e;
        {
            Tensor wide = to_float(sizes_.v2_2 ? unsqueeze(head_modulation->value, 0) : head_modulation->value);
            Tensor sum = add(std::move(wide), unsqueeze(e_in, sizes_.v2_2 ? 2 : 1));
            e = chunk(std::move(sum), 2, sizes_.v2_2 ? 2 : 1);
        }
        if (sizes_.v2_2)
            for (Tensor& part : e) part = squeeze(part, 2);
        Tensor normed = layer_norm_as(head_norm, x_in);
        Tensor factor = add_scalar(e[1]);
        Tensor out = addcmul(e[0], std::move(normed), std::move(factor));
        return head_linear(std::move(out));
    }

    // x [B, L, patch C] → [C, F, H, W], one a sample
    [[nodiscard]] Tensors unpatchify(const Tensor& x, const Dims& grid) const {
        Tensors out;
        for (const Tensor& sample : unbind(x, 0)) {
            Tensor u = slice(sample, 0, 0, grid.product());  // all of it, and yet a node of its own
            u = view(u, {grid[0], grid[1], grid[2], patch_size_[0], patch_size_[1], patch_size_[2], -1});
            u = permute(u, {6, 0, 3, 1, 4, 2, 5});
            out.push_back(
                reshape(u, {out_dim_, grid[0] * patch_size_[0], grid[1] * patch_size_[1], grid[2] * patch_size_[2]}));
        }
        return out;
    }

    Sizes sizes_;
    std::int64_t in_dim_, out_dim_, text_dim_, freq_dim_, image_dim_;
    std::vector<std::int64_t> patch_size_;
    nn::Conv patch_embedding;
    Mlp text_embedding, time_embedding;
    Linear time_projection;
    std::deque<WanAttentionBlock> blocks;
    nn::Parameter* head_modulation = nullptr;
    nn::LayerNorm head_norm;
    Linear head_linear;
    nn::LayerNorm img_norm_in, img_norm_out;
    Linear img_first, img_second;
    mutable Tensor freqs_;
    mutable std::vector<std::pair<Dims, Tensor>> freqs_fhw_;
};

}  // namespace

namespace wan_musubi {
std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<WanModel>(Builder(weights), profile.config, false);
}
}  // namespace wan_musubi

namespace wan22_musubi {
std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<WanModel>(Builder(weights), profile.config, true);
}
}  // namespace wan22_musubi

}  // namespace vram::models
