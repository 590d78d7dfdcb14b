// Mirrors Krea2Transformer2DModel (diffusers 0.42.1, models/transformers/transformer_krea2.py): Krea 2 Raw and Turbo.
// And SingleStreamDiT (ai-toolkit 27a03a91, extensions_built_in/diffusion_models/krea2/src/mmdit.py), which ai-toolkit
// trains them with: other names; attention by cuDNN's kernel with masks of pairs; the rotary embedding in elementary
// steps; the sequence is padded to a multiple of 256.
#include <deque>

#include "models/attention.hpp"
#include "models/bfl_attention.hpp"
#include "models/embeddings.hpp"
#include "models/families.hpp"

namespace vram::models {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;

/// Of a block.
struct Sizes {
    std::int64_t dim, heads, kv_heads, inner_dim;
};

/// Krea2RMSNorm: in fp32, by 1 + weight.
class RmsNorm {
  public:
    RmsNorm() = default;
    RmsNorm(const Builder& builder, std::int64_t size) : RmsNorm(builder, size, "weight", false) {}

    Tensor operator()(Tensor hidden_states_in) const {
        Tensor hidden_states = std::move(hidden_states_in);
        const Tensor held = hidden_states;
        Tensor wide = to_float(hidden_states);
        Tensor factor = add_scalar(widens_weight_ ? to_float(weight->value) : weight->value);
        hidden_states = rms_norm(std::move(wide), std::move(factor));
        return to(hidden_states, held.dtype());
    }

  protected:
    RmsNorm(const Builder& builder, std::int64_t size, std::string_view name, bool widens_weight)
        : weight(&builder.parameter(name, {size})), widens_weight_(widens_weight) {}

  private:
    nn::Parameter* weight = nullptr;
    bool widens_weight_ = false;
};

// (1 + scale) * norm(x) + shift
Tensor modulated(const RmsNorm& norm, const Tensor& x, const Tensor& scale, const Tensor& shift) {
    Tensor factor = add_scalar(scale);
    Tensor out = norm(x);
    out = mul(std::move(factor), std::move(out));
    return add(std::move(out), shift);
}

/// Krea2SwiGLU, and SwiGLU
class SwiGlu {
  public:
    SwiGlu(const Builder& builder, const Sizes& sizes)
        : gate(builder.linear("gate", sizes.dim, sizes.inner_dim, false)),
          up(builder.linear("up", sizes.dim, sizes.inner_dim, false)),
          down(builder.linear("down", sizes.inner_dim, sizes.dim, false)) {}

    Tensor operator()(Tensor hidden_states_in) const {
        const Tensor hidden_states = std::move(hidden_states_in);
        Tensor left = silu(gate(hidden_states));
        Tensor right = up(hidden_states);
        return down(mul(std::move(left), std::move(right)));
    }

  private:
    Linear gate, up, down;
};

}  // namespace

namespace krea2 {
namespace {

/// Krea2Attention with Krea2AttnProcessor.
class Attention {
  public:
    Attention(const Builder& builder, const Sizes& sizes)
        : heads_(sizes.heads),
          kv_heads_(sizes.kv_heads),
          to_q(builder.linear("to_q", sizes.dim, sizes.dim, false)),
          to_k(builder.linear("to_k", sizes.dim, sizes.dim / sizes.heads * sizes.kv_heads, false)),
          to_v(builder.linear("to_v", sizes.dim, sizes.dim / sizes.heads * sizes.kv_heads, false)),
          to_gate(builder.linear("to_gate", sizes.dim, sizes.dim, false)),
          norm_q(builder["norm_q"], sizes.dim / sizes.heads),
          norm_k(builder["norm_k"], sizes.dim / sizes.heads),
          to_out(builder["to_out"].linear("0", sizes.dim, sizes.dim, false)) {}

    /// hidden_states [B, S, D]; attention_mask [B, 1, 1, S] bool, cos and sin may be undefined
    Tensor operator()(Tensor hidden_states_in, const Tensor& attention_mask, const Tensor& cos,
                      const Tensor& sin) const {
        const Tensor held = std::move(hidden_states_in);
        Tensor query = unflatten(to_q(held), -1, {heads_, -1});
        Tensor key = unflatten(to_k(held), -1, {kv_heads_, -1});
        Tensor value = unflatten(to_v(held), -1, {kv_heads_, -1});
        const Tensor gate = to_gate(held);
        query = norm_q(query);
        key = norm_k(key);
        if (cos.defined()) {
            query = apply_rotary_emb(query, cos, sin, 1);
            key = apply_rotary_emb(key, cos, sin, 1);
        }
        if (heads_ > kv_heads_) {
            key = repeat_interleave(key, heads_ / kv_heads_, 2);
            value = repeat_interleave(value, heads_ / kv_heads_, 2);
        }
        Tensor hidden_states = dispatch_attention(query, key, value, attention_mask);
        hidden_states = flatten(hidden_states, 2, 3);
        hidden_states = mul(hidden_states, sigmoid(gate));
        return to_out(hidden_states);
    }

  private:
    std::int64_t heads_, kv_heads_;
    Linear to_q, to_k, to_v, to_gate;
    RmsNorm norm_q, norm_k;
    Linear to_out;
};

/// args: hidden_states, attention_mask or undefined → hidden_states
class TextFusionBlock : public Block {
  public:
    TextFusionBlock(const Builder& parent, const Sizes& sizes) : TextFusionBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0];
        hidden_states = add(hidden_states, attn(norm1(hidden_states), args[1], {}, {}));
        hidden_states = add(hidden_states, ff(norm2(hidden_states)));
        return {hidden_states};
    }

  private:
    TextFusionBlock(const BlockBuilder& builder, const Sizes& sizes)
        : norm1(builder["norm1"], sizes.dim),
          norm2(builder["norm2"], sizes.dim),
          attn(builder["attn"], sizes),
          ff(builder["ff"], sizes) {
        builder.finish(*this, "Krea2TextFusionBlock", {sizes.heads, sizes.kv_heads});
    }

    RmsNorm norm1, norm2;
    Attention attn;
    SwiGlu ff;
};

/// args: hidden_states, temb [B, 1, 6 D], cos, sin, attention_mask or undefined → hidden_states
class TransformerBlock : public Block {
  public:
    TransformerBlock(const Builder& parent, const Sizes& sizes) : TransformerBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0];
        const Tensor modulation = add(unflatten(args[1], -1, {6, -1}), scale_shift_table->value);  // [B, 1, 6, D]
        const Tensors parts = unbind(modulation, -2);  // prescale, preshift, pregate, and those after attention
        const Tensor attn_out = attn(modulated(norm1, hidden_states, parts[0], parts[1]), args[4], args[2], args[3]);
        hidden_states = add(hidden_states, mul(parts[2], attn_out));
        const Tensor ff_out = ff(modulated(norm2, hidden_states, parts[3], parts[4]));
        hidden_states = add(hidden_states, mul(parts[5], ff_out));
        return {hidden_states};
    }

  private:
    TransformerBlock(const BlockBuilder& builder, const Sizes& sizes)
        : scale_shift_table(&builder.parameter("scale_shift_table", {6, sizes.dim})),
          norm1(builder["norm1"], sizes.dim),
          norm2(builder["norm2"], sizes.dim),
          attn(builder["attn"], sizes),
          ff(builder["ff"], sizes) {
        builder.finish(*this, "Krea2TransformerBlock", {sizes.heads, sizes.kv_heads});
    }

    nn::Parameter* scale_shift_table;
    RmsNorm norm1, norm2;
    Attention attn;
    SwiGlu ff;
};

class Krea2Transformer2DModel : public Model {
  public:
    Krea2Transformer2DModel(nn::Weights& weights, const profile::Config& config)
        : Krea2Transformer2DModel(Builder(weights), config) {}

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        const std::int64_t image = tokens(request);
        return {{"hidden_states", {request.batch, image, in_channels_}, request.dtype},
                {"encoder_hidden_states",
                 {request.batch, request.text_tokens, num_text_layers_, text_hidden_dim_},
                 request.dtype},
                {"timestep", {request.batch}, request.dtype},
                {"position_ids", {request.text_tokens + image, 3}, Dtype::f32},
                {"encoder_attention_mask", {request.batch, request.text_tokens}, Dtype::boolean}};
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {{request.batch, tokens(request), in_channels_}};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        Run& run = args[0].run();
        Tensor hidden_states = args[0], encoder_hidden_states = args[1];
        const Tensor& encoder_attention_mask = args[4];
        const std::int64_t batch_size = hidden_states.size(0), image_seq_len = hidden_states.size(1),
                           text_seq_len = encoder_hidden_states.size(1);
        const Tensor temb = time_embed(args[2], hidden_states.dtype());  // [B, 1, D]
        const Tensor temb_mod = time_mod_proj(gelu(temb));

        // Key-padding masks: padded text tokens are no keys anywhere.
        const Tensor text_attention_mask = unsqueeze(unsqueeze(encoder_attention_mask, 1), 1);
        const Tensor image_mask = run.empty({batch_size, image_seq_len}, Dtype::boolean, Op::ones);
        const Tensor whole_mask = cat({encoder_attention_mask, image_mask}, 1);
        const Tensor attention_mask = unsqueeze(unsqueeze(whole_mask, 1), 1);

        encoder_hidden_states = text_fusion(encoder_hidden_states, text_attention_mask);
        encoder_hidden_states = txt_in(encoder_hidden_states);
        hidden_states = img_in(hidden_states);
        hidden_states = cat({encoder_hidden_states, hidden_states}, 1);
        const Tensors image_rotary_emb = flux_pos_embed(args[3], axes_dims_rope_);

        const Caller call(run, gradient_checkpointing);
        for (const TransformerBlock& block : transformer_blocks)
            hidden_states =
                call(block, {hidden_states, temb_mod, image_rotary_emb[0], image_rotary_emb[1], attention_mask})[0];

        hidden_states = slice(hidden_states, 1, text_seq_len, text_seq_len + image_seq_len);
        return {final_layer(hidden_states, temb)};
    }

  private:
    Krea2Transformer2DModel(const Builder& builder, const profile::Config& config)
        : in_channels_(config.integer("in_channels")),
          text_hidden_dim_(config.integer("text_hidden_dim")),
          num_text_layers_(config.integer("num_text_layers")),
          timestep_embed_dim_(config.integer("timestep_embed_dim")),
          axes_dims_rope_(config.integers("axes_dims_rope")) {
        const std::int64_t heads = config.integer("num_attention_heads"),
                           dim = heads * config.integer("attention_head_dim");
        const Sizes sizes{dim, heads, config.integer("num_key_value_heads"), config.integer("intermediate_size")};
        const Sizes text{text_hidden_dim_, config.integer("text_num_attention_heads"),
                         config.integer("text_num_key_value_heads"), config.integer("text_intermediate_size")};
        img_in = builder.linear("img_in", in_channels_, dim);
        time_linear_1 = builder["time_embed"].linear("linear_1", timestep_embed_dim_, dim);
        time_linear_2 = builder["time_embed"].linear("linear_2", dim, dim);
        time_mod_proj = builder.linear("time_mod_proj", dim, 6 * dim);
        const Builder fusion = builder["text_fusion"];
        for (std::int64_t i = 0; i < config.integer("num_layerwise_text_blocks"); ++i)
            layerwise_blocks.emplace_back(fusion["layerwise_blocks"][i], text);
        projector = fusion.linear("projector", num_text_layers_, 1, false);
        for (std::int64_t i = 0; i < config.integer("num_refiner_text_blocks"); ++i)
            refiner_blocks.emplace_back(fusion["refiner_blocks"][i], text);
        txt_norm = RmsNorm(builder["txt_in"]["norm"], text_hidden_dim_);
        txt_linear_1 = builder["txt_in"].linear("linear_1", text_hidden_dim_, dim);
        txt_linear_2 = builder["txt_in"].linear("linear_2", dim, dim);
        for (std::int64_t i = 0; i < config.integer("num_layers"); ++i)
            transformer_blocks.emplace_back(builder["transformer_blocks"][i], sizes);
        const Builder last = builder["final_layer"];
        final_table = &last.parameter("scale_shift_table", {2, dim});
        final_norm = RmsNorm(last["norm"], dim);
        final_linear = last.linear("linear", dim, in_channels_);
    }

    [[nodiscard]] static std::int64_t tokens(const Request& request) {
        return checked_mul(request.height / 16, request.width / 16);
    }

    // Krea2TimestepEmbedding
    [[nodiscard]] Tensor time_embed(const Tensor& timestep, Dtype dtype) const {
        Tensor freqs = mul_scalar(arange(timestep.run(), timestep_embed_dim_ / 2, Dtype::f32));
        freqs = div_scalar(std::move(freqs));
        freqs = exp(std::move(freqs));
        Tensor args = mul_scalar(to_float(timestep));
        args = mul(view(std::move(args), {-1, 1, 1}), freqs);
        Tensor emb;
        {
            Tensor cosine = cos(args);
            Tensor sine = sin(args);
            emb = cat({std::move(cosine), std::move(sine)}, -1);
        }
        emb = to(std::move(emb), dtype);
        return time_linear_2(gelu(time_linear_1(emb)));
    }

    // Krea2TextFusion: [B, T, L, D] → [B, T, D]
    [[nodiscard]] Tensor text_fusion(const Tensor& encoder_hidden_states, const Tensor& attention_mask) const {
        const std::int64_t batch_size = encoder_hidden_states.size(0), seq_len = encoder_hidden_states.size(1);
        const Caller call(encoder_hidden_states.run(), false);
        Tensor hidden_states =
            reshape(encoder_hidden_states, {batch_size * seq_len, num_text_layers_, text_hidden_dim_});
        for (const TextFusionBlock& block : layerwise_blocks)
            hidden_states = call(block, {contiguous(hidden_states), {}})[0];
        hidden_states = reshape(hidden_states, {batch_size, seq_len, num_text_layers_, text_hidden_dim_});
        hidden_states = permute(hidden_states, {0, 1, 3, 2});
        hidden_states = squeeze(projector(hidden_states), -1);
        for (const TextFusionBlock& block : refiner_blocks)
            hidden_states = call(block, {hidden_states, attention_mask})[0];
        return hidden_states;
    }

    // Krea2TextProjection
    [[nodiscard]] Tensor txt_in(const Tensor& text) const {
        Tensor hidden_states = txt_linear_1(txt_norm(text));
        return txt_linear_2(gelu(hidden_states));
    }

    // Krea2FinalLayer
    [[nodiscard]] Tensor final_layer(const Tensor& x, const Tensor& temb) const {
        const Tensor modulation = add(temb, final_table->value);
        const Tensors parts = chunk(modulation, 2, 1);  // scale, shift
        Tensor hidden_states = modulated(final_norm, x, parts[0], parts[1]);
        return final_linear(hidden_states);
    }

    std::int64_t in_channels_, text_hidden_dim_, num_text_layers_, timestep_embed_dim_;
    std::vector<std::int64_t> axes_dims_rope_;
    Linear img_in, time_linear_1, time_linear_2, time_mod_proj, projector;
    std::deque<TextFusionBlock> layerwise_blocks, refiner_blocks;
    RmsNorm txt_norm;
    Linear txt_linear_1, txt_linear_2;
    std::deque<TransformerBlock> transformer_blocks;
    nn::Parameter* final_table = nullptr;
    RmsNorm final_norm;
    Linear final_linear;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<Krea2Transformer2DModel>(weights, profile.config);
}

}  // namespace krea2

namespace krea2_ai_toolkit {
namespace {

/// RMSNorm, whose weight may be of less than fp32.
class RMSNorm : public RmsNorm {
  public:
    RMSNorm() = default;
    RMSNorm(const Builder& builder, std::int64_t size) : RmsNorm(builder, size, "scale", true) {}
};

/// ropeapply: [B, H, L, D] of queries and keys
void rope_apply(Tensor& q, Tensor& k, const Tensor& freqs) {
    Tensor xq_ = bfl_pairs(q);
    Tensor xk_ = bfl_pairs(k);
    xq_ = bfl_turned(xq_, freqs);
    xk_ = bfl_turned(xk_, freqs);
    const Tensor xq = to(reshape(xq_, q.sizes()), q.dtype());
    const Tensor xk = to(reshape(xk_, k.sizes()), k.dtype());
    q = xq;
    k = xk;
}

class Attention {
  public:
    Attention(const Builder& builder, const Sizes& sizes)
        : heads_(sizes.heads),
          kv_heads_(sizes.kv_heads),
          wq(builder.linear("wq", sizes.dim, sizes.dim, false)),
          wk(builder.linear("wk", sizes.dim, sizes.dim / sizes.heads * sizes.kv_heads, false)),
          wv(builder.linear("wv", sizes.dim, sizes.dim / sizes.heads * sizes.kv_heads, false)),
          gate(builder.linear("gate", sizes.dim, sizes.dim, false)),
          qnorm(builder["qknorm"]["qnorm"], sizes.dim / sizes.heads),
          knorm(builder["qknorm"]["knorm"], sizes.dim / sizes.heads),
          wo(builder.linear("wo", sizes.dim, sizes.dim, false)) {}

    /// qkv [B, L, D]; freqs [B, 1, L, D / 2, 2, 2] and mask [B, 1, L, L] bool may be undefined
    Tensor operator()(Tensor qkv_in, const Tensor& freqs, const Tensor& mask) const {
        const Tensor qkv = std::move(qkv_in);
        Tensor q = wq(qkv);
        Tensor k = wk(qkv);
        Tensor v = wv(qkv);
        const Tensor gates = gate(qkv);
        q = heads(q, heads_);
        k = heads(k, kv_heads_);
        v = heads(v, kv_heads_);
        {
            const Tensor normed = qnorm(q);
            k = knorm(k);
            q = normed;
        }
        if (freqs.defined()) rope_apply(q, k, freqs);
        Tensor out = attention(q, k, v, mask);
        out = mul(std::move(out), sigmoid(gates));
        return wo(std::move(out));
    }

  private:
    // "B L (H D) -> B H L D"
    static Tensor heads(const Tensor& x, std::int64_t count) {
        return permute(reshape(x, {x.size(0), x.size(1), count, -1}), {0, 2, 1, 3});
    }
    static Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask) {
        const Tensor x = scaled_dot_product_attention(q, k, v, mask, false, SdpaPriority::cudnn);
        return reshape(permute(x, {0, 2, 1, 3}), {x.size(0), x.size(2), -1});
    }

    std::int64_t heads_, kv_heads_;
    Linear wq, wk, wv, gate;
    RMSNorm qnorm, knorm;
    Linear wo;
};

/// args: x, mask or undefined → x
class TextFusionBlock : public Block {
  public:
    TextFusionBlock(const Builder& parent, const Sizes& sizes) : TextFusionBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor x = args[0];
        x = add(x, attn(prenorm(x), {}, args[1]));
        x = add(x, mlp(postnorm(x)));
        return {x};
    }

  private:
    TextFusionBlock(const BlockBuilder& builder, const Sizes& sizes)
        : prenorm(builder["prenorm"], sizes.dim),
          postnorm(builder["postnorm"], sizes.dim),
          attn(builder["attn"], sizes),
          mlp(builder["mlp"], sizes) {
        builder.finish(*this, "krea2_ai_toolkit.TextFusionBlock", {sizes.heads, sizes.kv_heads});
    }

    RMSNorm prenorm, postnorm;
    Attention attn;
    SwiGlu mlp;
};

/// args: x, vec [B, 1, 6 D], freqs, mask → x
class SingleStreamBlock : public Block {
  public:
    SingleStreamBlock(const Builder& parent, const Sizes& sizes) : SingleStreamBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor x = args[0];
        const Tensors mod =
            chunk(add(args[1], lin->value), 6, -1);  // prescale, preshift, pregate, and behind attention
        {
            Tensor change = attn(modulated(prenorm, x, mod[0], mod[1]), args[2], args[3]);
            change = mul(mod[2], std::move(change));
            x = add(x, std::move(change));
        }
        {
            Tensor change = mlp(modulated(postnorm, x, mod[3], mod[4]));
            change = mul(mod[5], std::move(change));
            x = add(x, std::move(change));
        }
        return {x};
    }

  private:
    SingleStreamBlock(const BlockBuilder& builder, const Sizes& sizes)
        : lin(&builder["mod"].parameter("lin", {6 * sizes.dim})),
          prenorm(builder["prenorm"], sizes.dim),
          postnorm(builder["postnorm"], sizes.dim),
          attn(builder["attn"], sizes),
          mlp(builder["mlp"], sizes) {
        builder.finish(*this, "krea2_ai_toolkit.SingleStreamBlock", {sizes.heads, sizes.kv_heads});
    }

    nn::Parameter* lin;
    RMSNorm prenorm, postnorm;
    Attention attn;
    SwiGlu mlp;
};

// _mask: [B, L] → [B, 1, L, L]
Tensor of_pairs(const Tensor& mask) {
    Tensor keys = unsqueeze(unsqueeze(mask, 1), 2);
    Tensor queries = unsqueeze(unsqueeze(mask, 1), 3);
    return mul(std::move(keys), std::move(queries));
}

class SingleStreamDiT : public Model {
  public:
    SingleStreamDiT(nn::Weights& weights, const profile::Config& config) : SingleStreamDiT(Builder(weights), config) {}

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        const std::int64_t image = checked_mul(request.height / 16, request.width / 16),
                           tokens = checked_add(request.text_tokens, image);
        return {{"img", {request.batch, image, in_channels_}, request.dtype},
                {"context", {request.batch, request.text_tokens, txtlayers_, txtdim_}, request.dtype},
                {"t", {request.batch}, Dtype::f32},
                {"pos", {request.batch, tokens, static_cast<std::int64_t>(axes_.size())}, Dtype::f32},
                {"mask", {request.batch, tokens}, Dtype::boolean}};
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {inputs(request).front().shape};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        Tensor img = args[0], context = args[1], pos = args[3], mask = args[4];
        img = first(img);
        const Tensor t = tmlp(temb(args[2], img.dtype()));  // [B, 1, D]
        const Tensor tvec = tproj(gelu(t));
        const Tensor txtmask = of_pairs(slice(mask, 1, 0, context.size(1)));
        context = txtfusion(context, txtmask);
        context = txtmlp(context);

        const std::int64_t txtlen = context.size(1), imglen = img.size(1);
        Tensor combined = cat({context, img}, 1);
        constexpr std::int64_t multiple = 256;
        if (const std::int64_t rest = combined.size(1) % multiple; rest > 0) {
            const std::int64_t padlen = multiple - rest;
            combined = pad(combined, {0, 0, 0, padlen});
            mask = pad(mask, {0, padlen});
            pos = pad(pos, {0, 0, 0, padlen});
        }
        const Tensor padmask = mask;
        mask = of_pairs(mask);
        const Tensor freqs = embed_nd(pos, axes_, Dtype::f64);

        const Caller call(img.run(), gradient_checkpointing);
        for (const SingleStreamBlock& block : blocks) combined = call(block, {combined, tvec, freqs, mask})[0];
        const Tensor final = last(combined, t);
        return {slice(final, 1, txtlen, txtlen + imglen)};
    }

  private:
    SingleStreamDiT(const Builder& builder, const profile::Config& config)
        : in_channels_(config.integer("in_channels")),
          txtdim_(config.integer("text_hidden_dim")),
          txtlayers_(config.integer("num_text_layers")),
          tdim_(config.integer("timestep_embed_dim")),
          axes_(config.integers("axes_dims_rope")) {
        const std::int64_t heads = config.integer("num_attention_heads"),
                           features = heads * config.integer("attention_head_dim");
        const Sizes sizes{features, heads, config.integer("num_key_value_heads"), config.integer("intermediate_size")};
        const Sizes text{txtdim_, config.integer("text_num_attention_heads"),
                         config.integer("text_num_key_value_heads"), config.integer("text_intermediate_size")};
        first = builder.linear("first", in_channels_, features);
        for (std::int64_t i = 0; i < config.integer("num_layers"); ++i)
            blocks.emplace_back(builder["blocks"][i], sizes);
        tmlp_0 = builder["tmlp"].linear("0", tdim_, features);
        tmlp_2 = builder["tmlp"].linear("2", features, features);
        const Builder fusion = builder["txtfusion"];
        for (std::int64_t i = 0; i < config.integer("num_layerwise_text_blocks"); ++i)
            layerwise_blocks.emplace_back(fusion["layerwise_blocks"][i], text);
        projector = fusion.linear("projector", txtlayers_, 1, false);
        for (std::int64_t i = 0; i < config.integer("num_refiner_text_blocks"); ++i)
            refiner_blocks.emplace_back(fusion["refiner_blocks"][i], text);
        txtmlp_0 = RMSNorm(builder["txtmlp"]["0"], txtdim_);
        txtmlp_1 = builder["txtmlp"].linear("1", txtdim_, features);
        txtmlp_3 = builder["txtmlp"].linear("3", features, features);
        const Builder end = builder["last"];
        norm = RMSNorm(end["norm"], features);
        linear = end.linear("linear", features, in_channels_);
        lin = &end["modulation"].parameter("lin", {2, features});
        tproj = builder["tproj"].linear("1", features, 6 * features);
    }

    // t [B] → [B, 1, tdim]
    [[nodiscard]] Tensor temb(const Tensor& t, Dtype dtype) const {
        Tensor freqs = mul_scalar(arange(t.run(), tdim_ / 2, Dtype::f32));
        freqs = div_scalar(std::move(freqs));
        freqs = exp(std::move(freqs));
        Tensor args = mul_scalar(to_float(t));
        args = mul(view(std::move(args), {-1, 1, 1}), freqs);
        const Tensor sines = sin(args);
        const Tensor cosines = cos(args);
        return to(cat({cosines, sines}, -1), dtype);
    }
    [[nodiscard]] Tensor tmlp(const Tensor& t) const {
        Tensor x = tmlp_0(t);
        x = gelu(std::move(x));
        return tmlp_2(std::move(x));
    }

    // TextFusionTransformer: [B, T, layers, D] → [B, T, D]
    [[nodiscard]] Tensor txtfusion(const Tensor& x_in, const Tensor& mask) const {
        const std::int64_t b = x_in.size(0), l = x_in.size(1), n = txtlayers_, d = txtdim_;
        const Caller call(x_in.run(), false);
        Tensor x = reshape(x_in, {b * l, n, d});
        for (const TextFusionBlock& block : layerwise_blocks) x = call(block, {contiguous(x), {}})[0];
        x = permute(reshape(x, {b, l, n, d}), {0, 1, 3, 2});
        x = projector(reshape(x, {b * l, d, n}));
        x = reshape(x, {b, l, d});
        for (const TextFusionBlock& block : refiner_blocks) x = call(block, {x, mask})[0];
        return x;
    }
    [[nodiscard]] Tensor txtmlp(const Tensor& context) const {
        Tensor x = txtmlp_0(context);
        x = txtmlp_1(std::move(x));
        x = gelu(std::move(x));
        return txtmlp_3(std::move(x));
    }

    // LastLayer
    [[nodiscard]] Tensor last(const Tensor& x, const Tensor& tvec) const {
        const Tensors modulation = chunk(add(tvec, unsqueeze(lin->value, 0)), 2, 1);  // scale, shift
        Tensor out = modulated(norm, x, modulation[0], modulation[1]);
        return linear(std::move(out));
    }

    std::int64_t in_channels_, txtdim_, txtlayers_, tdim_;
    std::vector<std::int64_t> axes_;
    Linear first, tmlp_0, tmlp_2, projector, txtmlp_1, txtmlp_3, tproj, linear;
    std::deque<SingleStreamBlock> blocks;
    std::deque<TextFusionBlock> layerwise_blocks, refiner_blocks;
    RMSNorm txtmlp_0, norm;
    nn::Parameter* lin = nullptr;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<SingleStreamDiT>(weights, profile.config);
}

}  // namespace krea2_ai_toolkit
}  // namespace vram::models
