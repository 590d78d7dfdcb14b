// Mirrors T5EncoderModel and UMT5EncoderModel (transformers 5.24.0, models/t5/modeling_t5.py,
// models/umt5/modeling_umt5.py): gated gelu. As the forward of sd_scripts T5EncoderModel of transformers 4.54.1, which
// its requirements pin: attention in elementary steps.
#include <deque>

#include "models/families.hpp"
#include "models/masking.hpp"
#include "shadow/checkpoint.hpp"

namespace vram::models::t5 {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;

struct Sizes {
    std::int64_t d_model, d_kv, d_ff, heads, buckets;
    bool umt5;   // every layer has a position bias of its own, which dies with its attention
    bool eager;  // transformers 4
};

/// T5LayerNorm: scales, does not shift; the variance in fp32.
class T5LayerNorm {
  public:
    T5LayerNorm(const Builder& builder, std::int64_t size) : weight(&builder.parameter("weight", {size})) {}

    [[nodiscard]] Tensor operator()(Tensor argument) const {
        const Tensor held = std::move(argument);
        Tensor hidden_states = held;
        const Tensor variance = mean(pow_scalar(to_float(hidden_states)), -1, true);
        hidden_states = mul(hidden_states, rsqrt(add_scalar(variance)));
        if (size_of(weight->value.dtype()) == 2) hidden_states = to(hidden_states, weight->value.dtype());
        return mul(weight->value, hidden_states);
    }

  private:
    nn::Parameter* weight;
};

/// gelu_new, in elementary steps. Source: transformers/activations.py, NewGELUActivation.
Tensor gelu_new(Tensor argument) {
    const Tensor input = std::move(argument);
    Tensor half = mul_scalar(input);
    Tensor inner = mul_scalar(pow_scalar(input));
    inner = mul_scalar(add(input, std::move(inner)));
    inner = add_scalar(tanh(std::move(inner)));
    return mul(std::move(half), std::move(inner));
}

/// nn.Dropout(config.dropout_rate), which T5 v1.1 and UMT5 publish as 0.1.
Tensor dropout_of(const nn::Weights& weights, Tensor x) {
    return weights.training() ? native_dropout(std::move(x)) : x;
}

/// args: hidden_states [B, T, D], position_bias [1, H, T, T] or undefined, mask or undefined → hidden_states,
/// position_bias (UMT5: undefined)
class T5Block : public Block {
  public:
    T5Block(const Builder& parent, const Sizes& sizes, bool has_relative_attention_bias)
        : T5Block(parent.block(*this), sizes, has_relative_attention_bias) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0];
        Tensor position_bias = args[1];
        hidden_states = self_attention(hidden_states, position_bias, args[2]);
        if (hidden_states.dtype() == Dtype::f16) hidden_states = clamp_infinite(hidden_states);
        hidden_states = feed_forward(hidden_states);
        if (hidden_states.dtype() == Dtype::f16) hidden_states = clamp_infinite(hidden_states);
        return {hidden_states, position_bias};
    }

  private:
    T5Block(const BlockBuilder& builder, const Sizes& sizes, bool has_relative_attention_bias)
        : sizes_(sizes),
          weights_(builder.weights()),
          q(builder["layer"]["0"]["SelfAttention"].linear("q", sizes.d_model, sizes.heads * sizes.d_kv, false)),
          k(builder["layer"]["0"]["SelfAttention"].linear("k", sizes.d_model, sizes.heads * sizes.d_kv, false)),
          v(builder["layer"]["0"]["SelfAttention"].linear("v", sizes.d_model, sizes.heads * sizes.d_kv, false)),
          o(builder["layer"]["0"]["SelfAttention"].linear("o", sizes.heads * sizes.d_kv, sizes.d_model, false)),
          relative_attention_bias(has_relative_attention_bias
                                      ? builder["layer"]["0"]["SelfAttention"].embedding("relative_attention_bias",
                                                                                         sizes.buckets, sizes.heads)
                                      : nn::Embedding()),
          attention_norm(builder["layer"]["0"]["layer_norm"], sizes.d_model),
          wi_0(builder["layer"]["1"]["DenseReluDense"].linear("wi_0", sizes.d_model, sizes.d_ff, false)),
          wi_1(builder["layer"]["1"]["DenseReluDense"].linear("wi_1", sizes.d_model, sizes.d_ff, false)),
          wo(builder["layer"]["1"]["DenseReluDense"].linear("wo", sizes.d_ff, sizes.d_model, false)),
          feed_forward_norm(builder["layer"]["1"]["layer_norm"], sizes.d_model) {
        builder.finish(*this, "T5Block",
                       {sizes.d_kv, sizes.heads, has_relative_attention_bias, sizes.umt5, sizes.eager});
    }

    // T5LayerSelfAttention; the first layer makes the bias that the others share. UMT5's attention keeps its own to
    // itself.
    [[nodiscard]] Tensor self_attention(const Tensor& hidden_states, Tensor& position_bias, const Tensor& mask) const {
        const Tensor normed_hidden_states = attention_norm(hidden_states);
        Tensor attention_output =
            sizes_.umt5 ? attend_alone(normed_hidden_states, mask) : attend(normed_hidden_states, position_bias, mask);
        Tensor dropped = dropout_of(weights_, attention_output);
        return add(hidden_states, std::move(dropped));
    }

    [[nodiscard]] Tensor attend_alone(const Tensor& hidden_states, const Tensor& mask) const {
        Tensor position_bias;
        return attend(hidden_states, position_bias, mask);
    }

    [[nodiscard]] Tensor attend(const Tensor& hidden_states, Tensor& position_bias, const Tensor& mask) const {
        const std::int64_t batch = hidden_states.size(0), tokens = hidden_states.size(1);
        const Dims shape{batch, tokens, -1, sizes_.d_kv};
        const Tensor query_states = transpose(view(q(hidden_states), shape), 1, 2);
        const Tensor key_states = transpose(view(k(hidden_states), shape), 1, 2);
        const Tensor value_states = transpose(view(v(hidden_states), shape), 1, 2);
        Tensor scores, attn_weights;
        if (sizes_.eager) scores = matmul(query_states, transpose(key_states, 3, 2));
        if (!position_bias.defined()) {
            position_bias = compute_bias(hidden_states.run(), tokens);
            if (sizes_.eager) position_bias = add(position_bias, mask);
        }
        Tensor attn_output;
        if (sizes_.eager) {
            add_(scores, position_bias);
            {
                Tensor wide = to_float(scores);
                wide = softmax(std::move(wide));
                attn_weights = to(std::move(wide), scores.dtype());
            }
            attn_weights = dropout_of(weights_, std::move(attn_weights));
            attn_output = matmul(attn_weights, value_states);
        } else {
            // create_position_bias_mask of the sdpa integration
            Tensor attention_mask;
            if (!mask.defined()) {
                attention_mask = contiguous(position_bias);
            } else {
                attention_mask =
                    where(mask, position_bias, hidden_states.run().empty({}, position_bias.dtype(), Op::where));
                attention_mask = contiguous(attention_mask);
            }
            attn_output = scaled_dot_product_attention(query_states, key_states, value_states, attention_mask);
        }
        attn_output = contiguous(transpose(attn_output, 1, 2));
        attn_output = reshape(attn_output, {batch, tokens, -1});
        attn_output = o(attn_output);
        return attn_output;
    }

    // compute_bias and _relative_position_bucket, bidirectional
    [[nodiscard]] Tensor compute_bias(Run& run, std::int64_t tokens) const {
        const Tensor context_position = add_scalar(unsqueeze(arange(run, tokens, Dtype::i64), 1));
        const Tensor memory_position = unsqueeze(arange(run, tokens, Dtype::i64), 0);
        const Tensor relative_position = sub(memory_position, context_position);
        const Tensor bucket = relative_position_bucket(relative_position);
        Tensor values = relative_attention_bias(bucket);  // [T, T, H]
        values = unsqueeze(permute(values, {2, 0, 1}), 0);
        return values;
    }

    [[nodiscard]] Tensor relative_position_bucket(const Tensor& argument) const {
        Run& run = argument.run();
        Tensor relative_position = argument;
        Tensor relative_buckets;
        {
            Tensor side = to(compare_scalar(relative_position), Dtype::i64);
            side = mul_scalar(std::move(side), false);
            relative_buckets = add_scalar(std::move(side));
        }
        relative_position = run.empty_like(relative_position, Op::clamp);  // abs
        const Tensor is_small = compare_scalar(relative_position);
        Tensor relative_position_if_large, log_ratio;
        {
            Tensor scaled = div_scalar(to_float(relative_position));
            scaled = mul_scalar(div_scalar(log(std::move(scaled))));
            if (sizes_.umt5) log_ratio = scaled;  // a name there
            relative_position_if_large = add_scalar(to(std::move(scaled), Dtype::i64));
        }
        {
            const Tensor last = run.empty_like(relative_position_if_large, Op::empty);           // full_like
            relative_position_if_large = run.empty_like(relative_position_if_large, Op::clamp);  // min
        }
        add_(relative_buckets, where(is_small, relative_position, relative_position_if_large));
        return relative_buckets;
    }

    // T5LayerFF
    [[nodiscard]] Tensor feed_forward(const Tensor& argument) const {
        const Tensor hidden_states = argument;
        Tensor forwarded_states = feed_forward_norm(hidden_states);
        forwarded_states = dense(forwarded_states);
        Tensor dropped = dropout_of(weights_, forwarded_states);
        return add(hidden_states, std::move(dropped));
    }
    [[nodiscard]] Tensor dense(const Tensor& argument) const {
        Tensor hidden_states = argument;
        const Tensor hidden_gelu = gelu_new(wi_0(hidden_states));
        const Tensor hidden_linear = wi_1(hidden_states);
        hidden_states = mul(hidden_gelu, hidden_linear);
        hidden_states = dropout_of(weights_, std::move(hidden_states));
        // Loaded in fp16, the class keeps wo in fp32 (_keep_in_fp32_modules).
        if (wo.weight != nullptr && hidden_states.dtype() != wo.weight->value.dtype())
            hidden_states = to(hidden_states, wo.weight->value.dtype());
        hidden_states = wo(hidden_states);
        return hidden_states;
    }

    // clamp_value on the GPU, then a clamp by tensors
    static Tensor clamp_infinite(const Tensor& hidden_states) {
        Run& run = hidden_states.run();
        Tensor any = run.empty_like(hidden_states, Dtype::boolean, Op::compare);
        any = run.empty({}, Dtype::boolean, Op::any);
        const Tensor clamp_value = where_scalars(any, Dtype::f32);
        const Tensor negative = neg(clamp_value);
        return clamp(hidden_states);
    }

    Sizes sizes_;
    const nn::Weights& weights_;
    Linear q, k, v, o;
    nn::Embedding relative_attention_bias;
    T5LayerNorm attention_norm;
    Linear wi_0, wi_1, wo;
    T5LayerNorm feed_forward_norm;
};

class T5EncoderModel : public Model {
  public:
    T5EncoderModel(const Builder& builder, const profile::Config& config)
        : weights_(builder.weights()),
          sizes_{config.integer("d_model"),
                 config.integer("d_kv"),
                 config.integer("d_ff"),
                 config.integer("num_heads"),
                 config.integer("relative_attention_num_buckets"),
                 config.boolean("bias_in_every_layer", false),
                 config.text("forward", "") == "sd_scripts"},
          shared(builder.embedding("shared", config.integer("vocab_size"), sizes_.d_model)) {
        for (std::int64_t i = 0; i < config.integer("num_layers"); ++i)
            blocks.emplace_back(builder["encoder"]["block"][i], sizes_, i == 0 || sizes_.umt5);
        final_layer_norm.emplace_back(builder["encoder"]["final_layer_norm"], sizes_.d_model);
    }

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        std::vector<Value> out{{"input_ids", {request.batch, request.text_tokens}, Dtype::i64}};
        if (request.attention_mask) out.push_back({"attention_mask", {request.batch, request.text_tokens}, Dtype::i64});
        return out;
    }
    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {{request.batch, request.text_tokens, sizes_.d_model}};
    }

    /// {last_hidden_state, hidden states of every layer if asked}
    [[nodiscard]] Tensors forward(const Tensors& args, const Request& request) const override {
        Run& run = args[0].run();
        Tensor inputs_embeds = shared(args[0]);
        // PreTrainedModel.gradient_checkpointing_enable: the embeddings' output asks for a gradient.
        if (gradient_checkpointing) requires_grad_(inputs_embeds);
        Tensor attention_mask;
        if (request.attention_mask && !sizes_.eager) attention_mask = sdpa_mask(args[1], false);
        Tensor cache_position, ones;  // names of T5Stack
        if (sizes_.eager) {
            cache_position = arange(run, request.text_tokens, Dtype::i64);
            if (!request.attention_mask) ones = run.empty({request.batch, request.text_tokens}, Dtype::f32, Op::ones);
            attention_mask = eager_mask(request.attention_mask ? args[1] : ones, inputs_embeds.dtype());
        }
        Tensor position_bias;
        Tensor hidden_states = dropout_of(weights_, inputs_embeds);
        Tensors all;
        const Caller call(run, gradient_checkpointing);
        for (const T5Block& block : blocks) {
            if (request.all_hidden_states) all.push_back(hidden_states);
            Tensors out = call(block, {hidden_states, position_bias, attention_mask});
            hidden_states = std::move(out[0]);
            position_bias = std::move(out[1]);
        }
        hidden_states = final_layer_norm.front()(hidden_states);
        hidden_states = dropout_of(weights_, std::move(hidden_states));
        if (request.all_hidden_states) all.push_back(hidden_states);
        all.push_back(hidden_states);
        return all;
    }

  private:
    // (1 - mask) * min, [B, 1, 1, T]
    [[nodiscard]] static Tensor eager_mask(const Tensor& attention_mask, Dtype dtype) {
        Tensor causal_mask = unsqueeze(unsqueeze(attention_mask, 1), 1);
        causal_mask = to(causal_mask, dtype);
        Tensor inverted = rsub_scalar(causal_mask);
        causal_mask = mul_scalar(std::move(inverted));
        return causal_mask;
    }

    const nn::Weights& weights_;
    Sizes sizes_;
    nn::Embedding shared;
    std::deque<T5Block> blocks;
    std::deque<T5LayerNorm> final_layer_norm;  // one
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<T5EncoderModel>(Builder(weights), profile.config);
}

}  // namespace vram::models::t5
