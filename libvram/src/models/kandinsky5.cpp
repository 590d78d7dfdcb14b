// Mirrors Kandinsky5Transformer3DModel (diffusers 0.42.1, models/transformers/transformer_kandinsky.py) with dense
// attention, the class's default: videos from text or a picture, pictures from text or another picture.
#include <array>
#include <deque>

#include "models/attention.hpp"
#include "models/families.hpp"

namespace vram::models::kandinsky5 {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::LayerNorm;
using nn::Linear;
using nn::RmsNorm;

struct Sizes {
    std::int64_t model_dim, time_dim, ff_dim, head_dim;
};

// (norm(x.float()) * (scale.float() + 1.0) + shift.float()).type_as(x)
Tensor modulated(const LayerNorm& norm, const Tensor& x, const Tensor& shift, const Tensor& scale) {
    Tensor out = norm(to_float(x));
    Tensor factor = add_scalar(to_float(scale), true);
    out = mul(std::move(out), std::move(factor));
    out = add(std::move(out), to_float(shift));
    return to(std::move(out), x.dtype());
}
// (x.float() + gate.float() * out.float()).type_as(x)
Tensor gated(const Tensor& x, const Tensor& gate, const Tensor& out) {
    Tensor sum = to_float(x);
    {
        Tensor wide_gate = to_float(gate), wide = to_float(out);
        wide = mul(std::move(wide_gate), std::move(wide));
        sum = add(std::move(sum), std::move(wide));
    }
    return to(std::move(sum), x.dtype());
}

/// Kandinsky5TextEmbeddings.
class TextEmbeddings {
  public:
    TextEmbeddings() = default;
    TextEmbeddings(const Builder& builder, std::int64_t in, std::int64_t out)
        : in_layer(builder.linear("in_layer", in, out)), norm(builder.layer_norm("norm", out)) {}

    [[nodiscard]] Tensor operator()(const Tensor& held) const {
        const Tensor text_embed = in_layer(held);
        return to(norm(text_embed), text_embed.dtype());
    }

  private:
    Linear in_layer;
    LayerNorm norm;
};

/// Kandinsky5Attention with Kandinsky5AttnProcessor.
class Attention {
  public:
    Attention(const Builder& builder, const Sizes& sizes)
        : heads_(sizes.model_dim / sizes.head_dim),
          to_query(builder.linear("to_query", sizes.model_dim, sizes.model_dim)),
          to_key(builder.linear("to_key", sizes.model_dim, sizes.model_dim)),
          to_value(builder.linear("to_value", sizes.model_dim, sizes.model_dim)),
          query_norm(builder.rms_norm("query_norm", sizes.head_dim)),
          key_norm(builder.rms_norm("key_norm", sizes.head_dim)),
          out_layer(builder.linear("out_layer", sizes.model_dim, sizes.model_dim)) {}

    /// Self-attention with a rope, or cross-attention with encoder_hidden_states.
    [[nodiscard]] Tensor operator()(const Tensor& held, const Tensor& encoder_hidden_states, const Tensor& rope) const {
        const Tensor& context = encoder_hidden_states.defined() ? encoder_hidden_states : held;
        Tensor query = to_query(held);
        Tensor key = to_key(context);
        Tensor value = to_value(context);
        query = unflatten(query, 2, {heads_, -1});
        key = unflatten(key, 2, {heads_, -1});
        value = unflatten(value, 2, {heads_, -1});
        query = normed(query_norm, query);
        key = normed(key_norm, key);
        if (rope.defined()) {
            query = rotate(query, rope);
            key = rotate(key, rope);
        }
        Tensor hidden_states = dispatch_attention(query, key, value);
        hidden_states = flatten(std::move(hidden_states), 2, 3);
        return out_layer(hidden_states);
    }

  private:
    // norm(x.float()).type_as(x)
    static Tensor normed(const RmsNorm& norm, const Tensor& x) {
        Tensor out = norm(to_float(x));
        return to(std::move(out), x.dtype());
    }
    // apply_rotary(x, rope).type_as(x): x [B, S, H, D], rope [B, S, 1, D / 2, 2, 2]; by way of bf16 whatever x is
    static Tensor rotate(const Tensor& x, const Tensor& rope) {
        Tensor out;
        {
            const Tensor pairs = to_float(reshape(x, {x.size(0), x.size(1), x.size(2), -1, 1, 2}));
            const Tensor x_out = sum(mul(rope, pairs), -1, false);
            out = to(reshape(x_out, x.sizes()), Dtype::bf16);
        }
        return to(std::move(out), x.dtype());
    }

    std::int64_t heads_;
    Linear to_query, to_key, to_value;
    RmsNorm query_norm, key_norm;
    Linear out_layer;
};

/// Kandinsky5FeedForward.
class FeedForward {
  public:
    FeedForward(const Builder& builder, const Sizes& sizes)
        : in_layer(builder.linear("in_layer", sizes.model_dim, sizes.ff_dim, false)),
          out_layer(builder.linear("out_layer", sizes.ff_dim, sizes.model_dim, false)) {}

    [[nodiscard]] Tensor operator()(const Tensor& x) const {
        Tensor inner = in_layer(x);
        inner = gelu(std::move(inner));
        return out_layer(std::move(inner));
    }

  private:
    Linear in_layer, out_layer;
};

/// Kandinsky5Modulation: `parts` vectors of [B, 1, .. D] each.
class Modulation {
  public:
    Modulation() = default;
    Modulation(const Builder& builder, const Sizes& sizes, std::int64_t parts)
        : parts_(parts), out_layer(builder.linear("out_layer", sizes.time_dim, parts * sizes.model_dim)) {}

    [[nodiscard]] Tensors operator()(const Tensor& time_embed) const {
        Tensor out = silu(time_embed);
        out = unsqueeze(out_layer(std::move(out)), 1);
        return chunk(out, parts_, -1);
    }

  private:
    std::int64_t parts_ = 0;
    Linear out_layer;
};

/// args: x, time_embed, rope → x
class EncoderBlock : public Block {
  public:
    EncoderBlock(const Builder& parent, const Sizes& sizes) : EncoderBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor x = args[0];
        const Tensors params = text_modulation(args[1]);  // shift, scale, gate of attention, of the feed-forward
        Tensor out = modulated(self_attention_norm, x, params[0], params[1]);
        out = self_attention(out, {}, args[2]);
        x = gated(x, params[2], out);

        out = modulated(feed_forward_norm, x, params[3], params[4]);
        out = feed_forward(out);
        x = gated(x, params[5], out);
        return {x};
    }

  private:
    EncoderBlock(const BlockBuilder& builder, const Sizes& sizes)
        : text_modulation(builder["text_modulation"], sizes, 6),
          self_attention_norm(builder.layer_norm("self_attention_norm", sizes.model_dim, false)),
          self_attention(builder["self_attention"], sizes),
          feed_forward_norm(builder.layer_norm("feed_forward_norm", sizes.model_dim, false)),
          feed_forward(builder["feed_forward"], sizes) {
        builder.finish(*this, "Kandinsky5TransformerEncoderBlock", {sizes.head_dim});
    }

    Modulation text_modulation;
    LayerNorm self_attention_norm;
    Attention self_attention;
    LayerNorm feed_forward_norm;
    FeedForward feed_forward;
};

/// args: visual_embed, text_embed, time_embed, rope → visual_embed
class DecoderBlock : public Block {
  public:
    DecoderBlock(const Builder& parent, const Sizes& sizes) : DecoderBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor visual_embed = args[0];
        const Tensors params = visual_modulation(args[2]);  // as in the encoder, cross-attention's between
        Tensor visual_out = modulated(self_attention_norm, visual_embed, params[0], params[1]);
        visual_out = self_attention(visual_out, {}, args[3]);
        visual_embed = gated(visual_embed, params[2], visual_out);

        visual_out = modulated(cross_attention_norm, visual_embed, params[3], params[4]);
        visual_out = cross_attention(visual_out, args[1], {});
        visual_embed = gated(visual_embed, params[5], visual_out);

        visual_out = modulated(feed_forward_norm, visual_embed, params[6], params[7]);
        visual_out = feed_forward(visual_out);
        visual_embed = gated(visual_embed, params[8], visual_out);
        return {visual_embed};
    }

  private:
    DecoderBlock(const BlockBuilder& builder, const Sizes& sizes)
        : visual_modulation(builder["visual_modulation"], sizes, 9),
          self_attention_norm(builder.layer_norm("self_attention_norm", sizes.model_dim, false)),
          self_attention(builder["self_attention"], sizes),
          cross_attention_norm(builder.layer_norm("cross_attention_norm", sizes.model_dim, false)),
          cross_attention(builder["cross_attention"], sizes),
          feed_forward_norm(builder.layer_norm("feed_forward_norm", sizes.model_dim, false)),
          feed_forward(builder["feed_forward"], sizes) {
        builder.finish(*this, "Kandinsky5TransformerDecoderBlock", {sizes.head_dim});
    }

    Modulation visual_modulation;
    LayerNorm self_attention_norm;
    Attention self_attention;
    LayerNorm cross_attention_norm;
    Attention cross_attention;
    LayerNorm feed_forward_norm;
    FeedForward feed_forward;
};

// What a rotation by each of `args` [.., D / 2] is: [.., 1, D / 2, 2, 2]
Tensor rotations(const Tensor& args) {
    const Tensor cosine = cos(args);
    const Tensor sine = sin(args);
    Tensor rope;
    {
        const std::array<Tensor, 4> entries{cosine, neg(sine), sine, cosine};
        rope = stack(entries, -1);
    }
    const int last = args.rank() - 1;
    return unsqueeze(unflatten(rope, last + 1, {2, 2}), last);
}

constexpr std::int64_t text_positions = 1024, visual_positions = 128;  // of the tables of angles

class Kandinsky5Transformer3DModel : public Model {
  public:
    Kandinsky5Transformer3DModel(const Builder& builder, const profile::Config& config)
        : in_channels_(config.integer("in_visual_dim")),
          out_channels_(config.integer("out_visual_dim")),
          in_text_dim_(config.integer("in_text_dim")),
          in_text_dim2_(config.integer("in_text_dim2")),
          model_dim_(config.integer("model_dim")),
          patch_size_(config.integers("patch_size")) {
        if (config.boolean("visual_cond", false)) in_channels_ = 2 * in_channels_ + 1;
        const std::vector<std::int64_t>& axes_dims = config.integers("axes_dims");
        const Sizes sizes{model_dim_, config.integer("time_dim"), config.integer("ff_dim"),
                          axes_dims[0] + axes_dims[1] + axes_dims[2]};
        const std::int64_t patch = patch_size_[0] * patch_size_[1] * patch_size_[2];
        const Builder time = builder["time_embeddings"];
        time_in_layer = time.linear("in_layer", model_dim_, sizes.time_dim);
        time_out_layer = time.linear("out_layer", sizes.time_dim, sizes.time_dim);
        text_embeddings = TextEmbeddings(builder["text_embeddings"], in_text_dim_, model_dim_);
        pooled_text_embeddings = TextEmbeddings(builder["pooled_text_embeddings"], in_text_dim2_, sizes.time_dim);
        visual_embeddings = builder["visual_embeddings"].linear("in_layer", patch * in_channels_, model_dim_);
        text_args = &builder["text_rope_embeddings"].buffer("args", {text_positions, sizes.head_dim / 2}, Dtype::f32);
        for (std::size_t i = 0; i < 3; ++i)
            visual_args[i] = &builder["visual_rope_embeddings"].buffer(
                "args_" + std::to_string(i), {visual_positions, axes_dims[i] / 2}, Dtype::f32);
        for (std::int64_t i = 0; i < config.integer("num_text_blocks"); ++i)
            text_transformer_blocks.emplace_back(builder["text_transformer_blocks"][i], sizes);
        for (std::int64_t i = 0; i < config.integer("num_visual_blocks"); ++i)
            visual_transformer_blocks.emplace_back(builder["visual_transformer_blocks"][i], sizes);
        const Builder out = builder["out_layer"];
        out_modulation = Modulation(out["modulation"], sizes, 2);
        out_norm = out.layer_norm("norm", model_dim_, false);
        out_layer = out.linear("out_layer", model_dim_, patch * out_channels_);
    }

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        const Dims sample = latents(request, in_channels_);
        std::vector<Value> out{
            {"hidden_states", sample, request.dtype},
            {"encoder_hidden_states", {request.batch, request.text_tokens, in_text_dim_}, request.dtype},
            {"timestep", {request.batch}, request.dtype},
            {"pooled_projections", {request.batch, in_text_dim2_}, request.dtype}};
        for (int i = 0; i < 3; ++i)
            out.push_back({"visual_rope_pos." + std::to_string(i),
                           {sample[i + 1] / patch_size_[static_cast<std::size_t>(i)]},
                           Dtype::i64});
        out.push_back({"text_rope_pos", {request.text_tokens}, Dtype::i64});
        return out;
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {latents(request, out_channels_)};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        const Tensor &hidden_states = args[0], &time = args[2], &text_rope_pos = args[7];
        Tensor text_embed = text_embeddings(args[1]);
        Tensor time_embed = time_embeddings(time);
        time_embed = add(time_embed, pooled_text_embeddings(args[3]));
        Tensor visual_embed = embedded(hidden_states);  // [B, T, H, W, D]
        Tensor text_rope;
        {
            const Tensor angles = index(text_args->value, 0, text_rope_pos);
            text_rope = unsqueeze(rotations(angles), 0);
        }

        const Caller call(hidden_states.run(), gradient_checkpointing);
        for (const EncoderBlock& block : text_transformer_blocks)
            text_embed = call(block, {text_embed, time_embed, text_rope})[0];

        const Dims visual_shape = visual_embed.sizes();
        const Tensor visual_rope = flatten(visual_rope_of(visual_shape, args), 1, 3);
        visual_embed = flatten(visual_embed, 1, 3);
        for (const DecoderBlock& block : visual_transformer_blocks)
            visual_embed = call(block, {visual_embed, text_embed, time_embed, visual_rope})[0];
        visual_embed = reshape(visual_embed, visual_shape);
        return {output(visual_embed, time_embed)};
    }

  private:
    [[nodiscard]] static Dims latents(const Request& request, std::int64_t channels) {
        return {request.batch, (request.frames - 1) / 4 + 1, request.height / 8, request.width / 8, channels};
    }

    // Kandinsky5TimeEmbeddings, whose frequencies come over from the CPU
    [[nodiscard]] Tensor time_embeddings(const Tensor& time) const {
        Tensor args, time_embed;
        {
            Tensor wide = to_float(time);
            Tensor freqs = time.run().empty({model_dim_ / 2}, Dtype::f32, Op::to_copy);
            args = outer(std::move(wide), std::move(freqs));
        }
        {
            Tensor cosine = cos(args);
            Tensor sine = sin(args);
            time_embed = cat({std::move(cosine), std::move(sine)}, -1);
        }
        {
            Tensor inner = time_in_layer(time_embed);
            inner = silu(std::move(inner));
            time_embed = time_out_layer(std::move(inner));
        }
        return time_embed;
    }

    // Kandinsky5VisualEmbeddings
    [[nodiscard]] Tensor embedded(const Tensor& held) const {
        const std::int64_t p_t = patch_size_[0], p_h = patch_size_[1], p_w = patch_size_[2];
        Tensor x = view(held, {held.size(0), held.size(1) / p_t, p_t, held.size(2) / p_h, p_h, held.size(3) / p_w, p_w,
                               held.size(4)});
        x = flatten(permute(std::move(x), {0, 1, 3, 5, 2, 4, 6, 7}), 4, 7);
        return visual_embeddings(x);
    }

    // Kandinsky5RoPE3D: [B, T, H, W, 1, D / 2, 2, 2]
    [[nodiscard]] Tensor visual_rope_of(const Dims& shape, const Tensors& inputs) const {
        const std::int64_t batch_size = shape[0], duration = shape[1], height = shape[2], width = shape[3];
        std::array<Tensor, 3> angles;
        for (std::size_t i = 0; i < 3; ++i) angles[i] = div_scalar(index(visual_args[i]->value, 0, inputs[4 + i]));
        Tensor args;
        {
            Tensor t = repeat(view(angles[0], {1, duration, 1, 1, -1}), {batch_size, 1, height, width, 1});
            Tensor h = repeat(view(angles[1], {1, 1, height, 1, -1}), {batch_size, duration, 1, width, 1});
            Tensor w = repeat(view(angles[2], {1, 1, 1, width, -1}), {batch_size, duration, height, 1, 1});
            args = cat({std::move(t), std::move(h), std::move(w)}, -1);
        }
        return rotations(args);
    }

    // Kandinsky5OutLayer
    [[nodiscard]] Tensor output(const Tensor& held, const Tensor& time_embed) const {
        const Tensors params = out_modulation(time_embed);
        const Tensor shift = unsqueeze(unsqueeze(params[0], 1), 1), scale = unsqueeze(unsqueeze(params[1], 1), 1);
        const Tensor visual_embed = modulated(out_norm, held, shift, scale);
        Tensor x = out_layer(visual_embed);
        x = view(x, {x.size(0), x.size(1), x.size(2), x.size(3), -1, patch_size_[0], patch_size_[1], patch_size_[2]});
        x = flatten(permute(std::move(x), {0, 1, 5, 2, 6, 3, 7, 4}), 1, 2);
        x = flatten(std::move(x), 2, 3);
        return flatten(std::move(x), 3, 4);
    }

    std::int64_t in_channels_, out_channels_, in_text_dim_, in_text_dim2_, model_dim_;
    std::vector<std::int64_t> patch_size_;
    Linear time_in_layer, time_out_layer;
    TextEmbeddings text_embeddings, pooled_text_embeddings;
    Linear visual_embeddings;
    Parameter* text_args = nullptr;
    std::array<Parameter*, 3> visual_args{};
    std::deque<EncoderBlock> text_transformer_blocks;
    std::deque<DecoderBlock> visual_transformer_blocks;
    Modulation out_modulation;
    LayerNorm out_norm;
    Linear out_layer;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<Kandinsky5Transformer3DModel>(Builder(weights), profile.config);
}

}  // namespace vram::models::kandinsky5
