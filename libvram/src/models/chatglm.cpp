// Mirrors ChatGLMModel (diffusers 0.42.1, pipelines/kolors/text_encoder.py) as Kolors' pipeline calls it: with
// positions, without a prefix. Tokens come first: [T, B, D].
#include <deque>
#include <optional>

#include "models/families.hpp"

namespace vram::models::chatglm {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;

struct Sizes {
    std::int64_t hidden, ffn, heads, groups, head;
    bool qkv_bias;
};

/// RMSNorm of this file: multiplies by the fp32 factor, whatever it is given.
class RMSNorm {
  public:
    RMSNorm(const Builder& builder, std::int64_t size) : weight(&builder.parameter("weight", {size})) {}

    [[nodiscard]] Tensor operator()(Tensor argument) const {
        const Tensor held = std::move(argument);
        Tensor hidden_states = held;
        const Tensor variance = mean(pow_scalar(to_float(hidden_states)), -1, true);
        hidden_states = mul(hidden_states, rsqrt(add_scalar(variance)));
        return to(mul(weight->value, hidden_states), held.dtype());
    }

  private:
    nn::Parameter* weight;
};

// A TorchScript function, whose values die with their last use; as interpreted: later calls on a GPU may fuse it.
// x [T, B, H, D], rope_cache [T, B, D / 4, 2]: half of a head turns.
Tensor apply_rotary_pos_emb(Tensor x, Tensor rope_cache) {
    const std::int64_t sq = x.size(0), np = x.size(2), rot_dim = 2 * rope_cache.size(-2);
    Tensor x_pass = slice(x, -1, rot_dim, x.size(-1));
    Tensor xshaped = reshape(slice(std::move(x), -1, 0, rot_dim), {sq, -1, np, rot_dim / 2, 2});
    rope_cache = view(std::move(rope_cache), {sq, -1, 1, rot_dim / 2, 2});
    const auto product = [&](std::int64_t part, std::int64_t turn) {
        return mul(select(xshaped, -1, part), select(rope_cache, -1, turn));
    };
    Tensor a = product(0, 0);
    Tensor b = product(1, 1);
    Tensor first = sub(std::move(a), std::move(b));
    a = product(1, 0);
    b = product(0, 1);
    Tensor second = add(std::move(a), std::move(b));
    Tensor x_out2;
    {
        const Tensors both{std::move(first), std::move(second)};
        x_out2 = stack(both, -1);
    }
    return cat({flatten(std::move(x_out2), 3, -1), std::move(x_pass)}, -1);
}

/// args: hidden_states [T, B, D], attention_mask or undefined, rotary_pos_emb, a tensor without elements where keys and
/// values are to be kept, else undefined → hidden_states, and those
class GLMBlock : public Block {
  public:
    GLMBlock(const Builder& parent, const Sizes& sizes) : GLMBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        const Tensor& hidden_states = args[0];
        Tensors out{Tensor()};
        Tensor layernorm_output = input_layernorm(hidden_states);
        const Tensor attention_output = self_attention(layernorm_output, args, out);
        const Tensor layernorm_input = add(hidden_states, dropout(attention_output));
        layernorm_output = post_attention_layernorm(layernorm_input);
        const Tensor mlp_output = mlp(layernorm_output);
        out[0] = add(layernorm_input, dropout(mlp_output));
        return out;
    }

  private:
    GLMBlock(const BlockBuilder& builder, const Sizes& sizes)
        : sizes_(sizes),
          input_layernorm(builder["input_layernorm"], sizes.hidden),
          query_key_value(builder["self_attention"].linear(
              "query_key_value", sizes.hidden, (sizes.heads + 2 * sizes.groups) * sizes.head, sizes.qkv_bias)),
          dense(builder["self_attention"].linear("dense", sizes.heads * sizes.head, sizes.hidden, false)),
          post_attention_layernorm(builder["post_attention_layernorm"], sizes.hidden),
          dense_h_to_4h(builder["mlp"].linear("dense_h_to_4h", sizes.hidden, 2 * sizes.ffn, false)),
          dense_4h_to_h(builder["mlp"].linear("dense_4h_to_h", sizes.ffn, sizes.hidden, false)) {
        builder.finish(*this, "GLMBlock", {sizes.heads, sizes.groups, sizes.head});
    }

    [[nodiscard]] Tensor self_attention(const Tensor& hidden_states, const Tensors& args, Tensors& kv_cache) const {
        const std::int64_t tokens = hidden_states.size(0), batch = hidden_states.size(1);
        const Tensor mixed_x_layer = query_key_value(hidden_states);
        const Dims widths{sizes_.heads * sizes_.head, sizes_.groups * sizes_.head, sizes_.groups * sizes_.head};
        const Tensors layers = split(mixed_x_layer, widths, -1);
        Tensor query_layer = view(layers[0], {tokens, batch, sizes_.heads, sizes_.head});
        Tensor key_layer = view(layers[1], {tokens, batch, sizes_.groups, sizes_.head});
        Tensor value_layer = view(layers[2], {tokens, batch, sizes_.groups, sizes_.head});
        query_layer = apply_rotary_pos_emb(query_layer, args[2]);
        key_layer = apply_rotary_pos_emb(key_layer, args[2]);
        if (args[3].defined()) {
            kv_cache.push_back(key_layer);
            kv_cache.push_back(value_layer);
        }
        key_layer = every_head(key_layer);
        value_layer = every_head(value_layer);
        const Tensor context_layer = core_attention(query_layer, key_layer, value_layer, args[1]);
        return dense(context_layer);
    }

    [[nodiscard]] Tensor every_head(const Tensor& layer) const {
        Tensor wide = expand(unsqueeze(layer, -2), {-1, -1, -1, sizes_.heads / sizes_.groups, -1});
        wide = contiguous(std::move(wide));
        return view(std::move(wide), {layer.size(0), layer.size(1), sizes_.heads, sizes_.head});
    }

    [[nodiscard]] static Tensor core_attention(const Tensor& query_layer, const Tensor& key_layer,
                                               const Tensor& value_layer, Tensor attention_mask) {
        const Tensor query = permute(query_layer, {1, 2, 0, 3});
        const Tensor key = permute(key_layer, {1, 2, 0, 3});
        const Tensor value = permute(value_layer, {1, 2, 0, 3});
        const bool causal = !attention_mask.defined();
        if (!causal) attention_mask = query.run().empty_like(attention_mask, Op::bitwise);
        Tensor context_layer = scaled_dot_product_attention(query, key, value, attention_mask, causal);
        context_layer = permute(std::move(context_layer), {2, 0, 1, 3});
        return reshape(context_layer, {context_layer.size(0), context_layer.size(1), -1});
    }

    [[nodiscard]] Tensor mlp(const Tensor& hidden_states) const {
        Tensor intermediate_parallel = dense_h_to_4h(hidden_states);
        intermediate_parallel = swiglu(intermediate_parallel);
        return dense_4h_to_h(intermediate_parallel);
    }
    [[nodiscard]] static Tensor swiglu(const Tensor& argument) {
        const Tensors x = chunk(argument, 2, -1);
        return mul(silu(x[0]), x[1]);
    }

    Sizes sizes_;
    RMSNorm input_layernorm;
    Linear query_key_value, dense;
    RMSNorm post_attention_layernorm;
    Linear dense_h_to_4h, dense_4h_to_h;
};

class ChatGLMModel : public Model {
  public:
    ChatGLMModel(const Builder& builder, const profile::Config& config)
        : sizes_{config.integer("hidden_size"),         config.integer("ffn_hidden_size"),
                 config.integer("num_attention_heads"), config.integer("multi_query_group_num"),
                 config.integer("kv_channels"),         config.boolean("add_qkv_bias")},
          seq_length_(config.integer("seq_length")),
          word_embeddings(
              builder["embedding"].embedding("word_embeddings", config.integer("padded_vocab_size"), sizes_.hidden)),
          inv_freq(&builder["rotary_pos_emb"].buffer("inv_freq", {sizes_.head / 4}, Dtype::f32)) {
        const Builder encoder = builder["encoder"];
        for (std::int64_t i = 0; i < config.integer("num_layers"); ++i)
            layers.emplace_back(encoder["layers"][i], sizes_);
        final_layernorm.emplace(encoder["final_layernorm"], sizes_.hidden);
        (void)builder.linear("output_layer", sizes_.hidden, config.integer("padded_vocab_size"), false);  // unused
    }

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        const Dims ids{request.batch, request.text_tokens};
        std::vector<Value> out{{"input_ids", ids, Dtype::i64}};
        if (request.attention_mask) out.push_back({"attention_mask", ids, Dtype::i64});
        out.push_back({"position_ids", ids, Dtype::i64});
        return out;
    }
    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {{request.text_tokens, request.batch, sizes_.hidden}};
    }

    /// {last_hidden_state, hidden states of every layer and keys and values if asked}
    [[nodiscard]] Tensors forward(const Tensors& args, const Request& request) const override {
        const Tensor& position_ids = args[args.size() - 1];
        const Tensor inputs_embeds = embedding(args[0]);
        Tensor full_attention_mask;
        if (request.attention_mask && holds_padding(args[1])) full_attention_mask = get_masks(args[1]);
        Tensor rotary_pos_emb = rotary(args[0].run());
        rotary_pos_emb = index(rotary_pos_emb, 0, flatten(position_ids, 0, 1));
        rotary_pos_emb = unflatten(std::move(rotary_pos_emb), 0, position_ids.sizes());
        rotary_pos_emb = contiguous(transpose(std::move(rotary_pos_emb), 0, 1));
        return encoder(inputs_embeds, full_attention_mask, rotary_pos_emb, request);
    }

  private:
    [[nodiscard]] Tensor embedding(const Tensor& input_ids) const {
        const Tensor embeddings = word_embeddings(input_ids);
        return contiguous(transpose(embeddings, 0, 1));
    }

    // not attention_mask.all(): pipelines pad to a fixed length
    static bool holds_padding(const Tensor& attention_mask) {
        const Tensor all = attention_mask.run().empty({}, Dtype::boolean, Op::any);
        return true;
    }

    [[nodiscard]] static Tensor get_masks(const Tensor& padding_mask) {
        Run& run = padding_mask.run();
        const std::int64_t batch = padding_mask.size(0), tokens = padding_mask.size(1);
        Tensor full_attention_mask = run.empty({batch, tokens, tokens}, Dtype::f32, Op::ones);
        full_attention_mask = mul(full_attention_mask, unsqueeze(padding_mask, 1));
        {
            const Tensor padding = add_scalar(unsqueeze(padding_mask, -1));  // subtracted in place
        }
        full_attention_mask = compare_scalar(full_attention_mask);
        return unsqueeze(full_attention_mask, 1);
    }

    // RotaryEmbedding.forward_impl: a table of all positions, [seq_length, head / 4, 2]
    [[nodiscard]] Tensor rotary(Run& run) const {
        Tensor theta = div_scalar(arange(run, sizes_.head / 4, Dtype::f32));
        theta = scalar_pow(std::move(theta));
        theta = rdiv_scalar(std::move(theta));
        const Tensor seq_idx = arange(run, seq_length_, Dtype::f32);
        const Tensor idx_theta = outer(seq_idx, theta);
        Tensor cache;
        {
            Tensors parts{cos(idx_theta)};
            parts.push_back(sin(idx_theta));
            cache = stack(parts, -1);
        }
        return to(std::move(cache), inv_freq->value.dtype());
    }

    // GLMTransformer.forward
    [[nodiscard]] Tensors encoder(const Tensor& inputs_embeds, const Tensor& attention_mask,
                                  const Tensor& rotary_pos_emb, const Request& request) const {
        Run& run = inputs_embeds.run();
        Tensor hidden_states = inputs_embeds;
        Tensors all_hidden_states, presents;
        const Tensor cache = request.use_cache ? run.on_cpu({0}, inputs_embeds.dtype()) : Tensor();
        const Caller call(run, gradient_checkpointing);
        for (const GLMBlock& layer : layers) {
            if (request.all_hidden_states) all_hidden_states.push_back(hidden_states);
            Tensors layer_ret = call(layer, {hidden_states, attention_mask, rotary_pos_emb, cache});
            hidden_states = std::move(layer_ret[0]);
            for (std::size_t kept = 1; kept < layer_ret.size(); ++kept) presents.push_back(std::move(layer_ret[kept]));
        }
        if (request.all_hidden_states) all_hidden_states.push_back(hidden_states);
        hidden_states = (*final_layernorm)(hidden_states);
        Tensors out{hidden_states};
        for (Tensor& one : presents) out.push_back(std::move(one));
        for (Tensor& one : all_hidden_states) out.push_back(std::move(one));
        return out;
    }

    Sizes sizes_;
    std::int64_t seq_length_;
    nn::Embedding word_embeddings;
    nn::Parameter* inv_freq;
    std::deque<GLMBlock> layers;
    std::optional<RMSNorm> final_layernorm;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<ChatGLMModel>(Builder(weights), profile.config);
}

}  // namespace vram::models::chatglm
