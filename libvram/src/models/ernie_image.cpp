// Mirrors ErnieImageTransformer2DModel (diffusers 0.42.1, models/transformers/transformer_ernie_image.py): ERNIE-Image
// and its Turbo. The sequence comes first: hidden states are [S, B, D]. In the class that ai-toolkit brings in its
// place (27a03a91, extensions_built_in/diffusion_models/ernie_image/transformer.py) the batch does, [B, S, D], and
// modulation keeps one place for the whole sequence.
#include <array>
#include <deque>
#include <optional>

#include "models/attention.hpp"
#include "models/embeddings.hpp"
#include "models/families.hpp"
#include "models/normalization.hpp"

namespace vram::models::ernie_image {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;

struct Sizes {
    std::int64_t dim, heads, inner_dim;
    bool batch_first;
};

/// ErnieImageAttention with ErnieImageSingleStreamAttnProcessor.
class Attention {
  public:
    Attention(const Builder& builder, const Sizes& sizes)
        : heads_(sizes.heads),
          to_q(builder.linear("to_q", sizes.dim, sizes.dim, false)),
          to_k(builder.linear("to_k", sizes.dim, sizes.dim, false)),
          to_v(builder.linear("to_v", sizes.dim, sizes.dim, false)),
          norm_q(builder.rms_norm("norm_q", sizes.dim / sizes.heads)),
          norm_k(builder.rms_norm("norm_k", sizes.dim / sizes.heads)),
          to_out(builder["to_out"].linear("0", sizes.dim, sizes.dim, false)) {}

    /// hidden_states [B, S, D], attention_mask [B, 1, 1, S] bool, freqs_cis [B, S, 1, head_dim]
    Tensor operator()(Tensor hidden_states_in, const Tensor& attention_mask, const Tensor& freqs_cis) const {
        const Tensor held = std::move(hidden_states_in);
        Tensor query = to_q(held);
        Tensor key = to_k(held);
        Tensor value = to_v(held);
        query = unflatten(query, -1, {heads_, -1});
        key = unflatten(key, -1, {heads_, -1});
        value = unflatten(value, -1, {heads_, -1});
        query = norm_q(query);
        key = norm_k(key);
        query = apply_rotary_emb(query, freqs_cis);
        key = apply_rotary_emb(key, freqs_cis);
        const Dtype dtype = query.dtype();
        key = to(key, dtype);
        Tensor hidden_states = dispatch_attention(query, key, value, attention_mask);
        hidden_states = flatten(hidden_states, 2, 3);
        hidden_states = to(hidden_states, dtype);
        return to_out(hidden_states);
    }

  private:
    // Halves are turned, not pairs. The rotation takes whole heads here: a slice of all is an alias, and the rest that
    // passes an empty slice.
    static Tensor apply_rotary_emb(const Tensor& x_in, const Tensor& freqs_cis) {
        const Tensor x = view(x_in, x_in.sizes());
        const Tensor x_pass = slice(x_in, -1, freqs_cis.size(-1), x_in.size(-1));
        const Tensor cos_ = to(cos(freqs_cis), x.dtype());
        const Tensor sin_ = to(sin(freqs_cis), x.dtype());
        const Tensors halves = chunk(x, 2, -1);
        const Tensor x_rotated = cat({neg(halves[1]), halves[0]}, -1);
        Tensor left = mul(x, cos_);
        Tensor right = mul(x_rotated, sin_);
        Tensor turned = add(std::move(left), std::move(right));
        return cat({std::move(turned), x_pass}, -1);
    }

    std::int64_t heads_;
    Linear to_q, to_k, to_v;
    nn::RmsNorm norm_q, norm_k;
    Linear to_out;
};

/// ErnieImageFeedForward
class FeedForward {
  public:
    FeedForward(const Builder& builder, const Sizes& sizes)
        : gate_proj(builder.linear("gate_proj", sizes.dim, sizes.inner_dim, false)),
          up_proj(builder.linear("up_proj", sizes.dim, sizes.inner_dim, false)),
          linear_fc2(builder.linear("linear_fc2", sizes.inner_dim, sizes.dim, false)) {}

    Tensor operator()(Tensor x_in) const {
        const Tensor x = std::move(x_in);
        Tensor up = up_proj(x);
        Tensor gate = gelu(gate_proj(x));
        return linear_fc2(mul(std::move(up), std::move(gate)));
    }

  private:
    Linear gate_proj, up_proj, linear_fc2;
};

/// args: x [S, B, D], rotary_pos_emb, attention_mask, and shift, scale, gate [S, B, D], twice → x; with the batch first
/// x [B, S, D] and the others [B, 1, D]
class SharedAdaLnBlock : public Block {
  public:
    SharedAdaLnBlock(const Builder& parent, const Sizes& sizes) : SharedAdaLnBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor x = args[0];
        Tensor residual = x;
        x = adaLN_sa_ln(x);
        x = modulated(x, args[4], args[3]);
        Tensor x_bsh;  // a name to the block's end where there is one
        if (!batch_first_) x_bsh = permute(x, {1, 0, 2});
        Tensor attn_out = self_attention(batch_first_ ? x : x_bsh, args[2], args[1]);
        if (!batch_first_) attn_out = permute(attn_out, {1, 0, 2});
        {
            Tensor gate = to_float(args[5]);
            Tensor wide = to_float(attn_out);
            wide = mul(std::move(gate), std::move(wide));
            x = add(residual, to(std::move(wide), x.dtype()));
        }
        residual = x;
        x = adaLN_mlp_ln(x);
        x = modulated(x, args[7], args[6]);
        Tensor gate = to_float(args[8]);
        Tensor wide = to_float(mlp(x));
        wide = mul(std::move(gate), std::move(wide));
        return {add(residual, to(std::move(wide), x.dtype()))};
    }

  private:
    SharedAdaLnBlock(const BlockBuilder& builder, const Sizes& sizes)
        : batch_first_(sizes.batch_first),
          adaLN_sa_ln(builder["adaLN_sa_ln"], sizes.dim),
          self_attention(builder["self_attention"], sizes),
          adaLN_mlp_ln(builder["adaLN_mlp_ln"], sizes.dim),
          mlp(builder["mlp"], sizes) {
        builder.finish(*this, "ErnieImageSharedAdaLNBlock", {sizes.heads, sizes.batch_first});
    }

    // in fp32; the result in the dtype of x
    static Tensor modulated(const Tensor& x, const Tensor& scale, const Tensor& shift) {
        Tensor wide = to_float(x);
        Tensor factor = to_float(scale);
        factor = add_scalar(std::move(factor));
        wide = mul(std::move(wide), std::move(factor));
        wide = add(std::move(wide), to_float(shift));
        return to(std::move(wide), x.dtype());
    }

    bool batch_first_;
    PlainRmsNorm adaLN_sa_ln;
    Attention self_attention;
    PlainRmsNorm adaLN_mlp_ln;
    FeedForward mlp;
};

class ErnieImageTransformer2DModel : public Model {
  public:
    ErnieImageTransformer2DModel(nn::Weights& weights, const profile::Config& config, bool batch_first)
        : ErnieImageTransformer2DModel(Builder(weights), config, batch_first) {}

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        return {{"hidden_states", latents(request, in_channels_), request.dtype},
                {"timestep", {request.batch}, batch_first_ ? Dtype::f32 : request.dtype},
                {"text_bth", {request.batch, request.text_tokens, text_in_dim_}, request.dtype},
                {"text_lens", {request.batch}, Dtype::i64}};
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {latents(request, out_channels_)};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        Run& run = args[0].run();
        const Dtype dtype = args[0].dtype();
        const std::int64_t batch = args[0].size(0), p = patch_size_, height = args[0].size(2) / p,
                           width = args[0].size(3) / p, image = height * width, text = args[2].size(1);
        const Tensor img = batch_first_ ? patch_embed(args[0]) : contiguous(transpose(patch_embed(args[0]), 0, 1));
        Tensor text_bth = args[2];
        if (text_proj) text_bth = (*text_proj)(text_bth);
        const Tensor text_in_line = batch_first_ ? text_bth : contiguous(transpose(text_bth, 0, 1));
        Tensor x = cat({img, text_in_line}, batch_first_ ? 1 : 0);
        const std::int64_t length = x.size(batch_first_ ? 1 : 0);

        // Position IDs
        Tensor text_ids;
        {
            Tensor positions = view(arange(run, text, Dtype::f32), {1, text, 1});
            positions = expand(std::move(positions), {batch, -1, -1});
            text_ids = cat({positions, run.empty({batch, text, 2}, Dtype::f32, Op::zeros)}, -1);
        }
        const Tensor grid_yx = grid(run, height, width);
        Tensor image_ids;
        {
            Tensor starts = expand(view(to_float(args[3]), {batch, 1, 1}), {-1, image, -1});
            image_ids = cat({std::move(starts), expand(view(grid_yx, {1, image, 2}), {batch, -1, -1})}, -1);
        }
        const Tensor rotary_pos_emb = pos_embed(cat({image_ids, text_ids}, 1));

        // Attention mask
        Tensor valid_text, attention_mask;
        {
            Tensor positions = view(arange(run, text, Dtype::i64), {1, text});
            valid_text = compare(std::move(positions), view(args[3], {batch, 1}));
        }
        attention_mask = cat({run.empty({batch, image}, Dtype::boolean, Op::ones), valid_text}, 1);
        attention_mask = view(attention_mask, {batch, 1, 1, length});

        // AdaLN
        Tensor sample = timestep_embedding(batch_first_ ? to(args[1], dtype) : args[1], dim_, false);
        sample = to(sample, dtype);
        const Tensor c = time_embedding(sample);
        Tensors temb;
        {
            const Tensors parts = chunk(adaLN_modulation(silu(c)), 6, -1);  // shift, scale, gate, twice
            for (const Tensor& part : parts)
                temb.push_back(batch_first_ ? unsqueeze(part, 1)
                                            : contiguous(expand(unsqueeze(part, 0), {length, -1, -1})));
        }
        const Caller call(run, gradient_checkpointing);
        for (const SharedAdaLnBlock& layer : layers)
            x = call(layer,
                     {x, rotary_pos_emb, attention_mask, temb[0], temb[1], temb[2], temb[3], temb[4], temb[5]})[0];
        x = to(final_norm(x, c), x.dtype());
        const Tensor patches = batch_first_ ? contiguous(slice(final_linear(x), 1, 0, image))
                                            : contiguous(transpose(slice(final_linear(x), 0, 0, image), 0, 1));
        Tensor output = view(patches, {batch, height, width, p, p, out_channels_});
        output = contiguous(permute(std::move(output), {0, 5, 1, 3, 2, 4}));
        return {view(std::move(output), {batch, out_channels_, height * p, width * p})};
    }

  private:
    ErnieImageTransformer2DModel(const Builder& builder, const profile::Config& config, bool batch_first)
        : batch_first_(batch_first),
          dim_(config.integer("hidden_size")),
          patch_size_(config.integer("patch_size")),
          in_channels_(config.integer("in_channels")),
          out_channels_(config.integer("out_channels")),
          text_in_dim_(config.integer("text_in_dim")),
          rope_axes_dim_(config.integers("rope_axes_dim")) {
        const Sizes sizes{dim_, config.integer("num_attention_heads"), config.integer("ffn_hidden_size"), batch_first};
        proj = builder["x_embedder"].conv2d("proj", in_channels_, dim_, patch_size_, patch_size_);
        if (text_in_dim_ != dim_) text_proj = builder.linear("text_proj", text_in_dim_, dim_, false);
        time_embedding = TimestepEmbedding(builder["time_embedding"], dim_, dim_);
        adaLN_modulation = builder["adaLN_modulation"].linear("1", dim_, 6 * dim_);
        for (std::int64_t i = 0; i < config.integer("num_layers"); ++i)
            layers.emplace_back(builder["layers"][i], sizes);
        final_norm_norm = builder["final_norm"].layer_norm("norm", dim_, false);
        final_norm_linear = builder["final_norm"].linear("linear", dim_, 2 * dim_);
        final_linear = builder.linear("final_linear", dim_, patch_size_ * patch_size_ * out_channels_);
    }

    // 8 pixels a latent of the VAE, and 2 x 2 of these one of the pipeline's
    [[nodiscard]] static Dims latents(const Request& request, std::int64_t channels) {
        return {request.batch, channels, request.height / 16, request.width / 16};
    }

    // ErnieImagePatchEmbedDynamic
    [[nodiscard]] Tensor patch_embed(const Tensor& latents) const {
        Tensor x = proj(latents);
        x = reshape(std::move(x), {x.size(0), x.size(1), -1});
        return contiguous(transpose(std::move(x), 1, 2));
    }

    static Tensor grid(Run& run, std::int64_t height, std::int64_t width) {
        const Tensor rows = arange(run, height, Dtype::f32);
        const Tensor columns = arange(run, width, Dtype::f32);
        const std::array<Tensor, 2> mesh{expand(view(rows, {height, 1}), {height, width}),
                                         expand(view(columns, {1, width}), {height, width})};
        return view(stack(mesh, -1), {-1, 2});
    }

    // ErnieImageEmbedND3: ids [B, S, 3] → [B, S, 1, head_dim] fp32
    [[nodiscard]] Tensor pos_embed(Tensor ids_in) const {
        const Tensor ids = std::move(ids_in);
        Tensors parts;
        for (std::size_t i = 0; i < rope_axes_dim_.size(); ++i)
            parts.push_back(rope(select(ids, -1, static_cast<std::int64_t>(i)), rope_axes_dim_[i]));
        Tensor emb = cat(parts, -1);
        parts.clear();
        emb = unsqueeze(emb, 2);
        const std::array<Tensor, 2> twice{emb, emb};
        return flatten(stack(twice, -1), 3, 4);
    }
    static Tensor rope(const Tensor& pos, std::int64_t dim) {
        const Tensor scale = div_scalar(arange(pos.run(), dim / 2, Dtype::f32));
        const Tensor omega = rdiv_scalar(scalar_pow(scale));
        return mul(unsqueeze(pos, -1), omega);
    }

    // ErnieImageAdaLNContinuous
    [[nodiscard]] Tensor final_norm(const Tensor& x_in, const Tensor& conditioning) const {
        const Tensors parts = chunk(final_norm_linear(conditioning), 2, -1);  // scale, shift
        Tensor x = final_norm_norm(x_in);
        const int places = batch_first_ ? 1 : 0;
        Tensor scaled = mul(x, add_scalar(unsqueeze(parts[0], places)));
        x = add(std::move(scaled), unsqueeze(parts[1], places));
        return x;
    }

    bool batch_first_;
    std::int64_t dim_, patch_size_, in_channels_, out_channels_, text_in_dim_;
    std::vector<std::int64_t> rope_axes_dim_;
    nn::Conv proj;
    std::optional<Linear> text_proj;
    TimestepEmbedding time_embedding;
    Linear adaLN_modulation;
    std::deque<SharedAdaLnBlock> layers;
    nn::LayerNorm final_norm_norm;
    Linear final_norm_linear, final_linear;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<ErnieImageTransformer2DModel>(weights, profile.config, false);
}

}  // namespace vram::models::ernie_image

namespace vram::models::ernie_image_ai_toolkit {

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<ernie_image::ErnieImageTransformer2DModel>(weights, profile.config, true);
}

}  // namespace vram::models::ernie_image_ai_toolkit
