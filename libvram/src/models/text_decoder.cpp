#include "models/text_decoder.hpp"

#include <array>
#include <stdexcept>

#include "models/families.hpp"
#include "models/masking.hpp"

namespace vram::models {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;
using HeadNorm = DecoderClass::HeadNorm;
using Axes = DecoderClass::Axes;

constexpr std::array classes{
    DecoderClass{"gemma2", "Gemma2DecoderLayer", false, HeadNorm::none, true},
    DecoderClass{"gemma3_text", "Gemma3DecoderLayer", false, HeadNorm::transposed, true, true},
    DecoderClass{"llama", "LlamaDecoderLayer"},
    DecoderClass{"ministral3", "Ministral3DecoderLayer", false, HeadNorm::none, false, false, Axes::one, true},
    DecoderClass{"mistral", "MistralDecoderLayer"},
    DecoderClass{"qwen2_5_vl_text", "Qwen2_5_VLDecoderLayer", true, HeadNorm::none, false, false, Axes::joined},
    DecoderClass{"qwen3", "Qwen3DecoderLayer", false, HeadNorm::projected},
    DecoderClass{"qwen3_vl_text", "Qwen3VLTextDecoderLayer", false, HeadNorm::projected, false, false,
                 Axes::interleaved},
};

const DecoderClass& class_of(std::string_view model_type) {
    for (const DecoderClass& one : classes)
        if (one.model_type == model_type) return one;
    throw std::logic_error("text decoder: no model_type " + std::string(model_type));
}

// LlamaRMSNorm.forward
Tensor llama_norm(const Tensor& weight, Tensor argument) {
    const Tensor held = std::move(argument);
    Tensor hidden_states = to_float(held);
    Tensor variance = mean(pow_scalar(hidden_states), -1, true);
    {
        Tensor factor = rsqrt(add_scalar(variance));
        hidden_states = mul(hidden_states, std::move(factor));
    }
    return mul(weight, to(hidden_states, held.dtype()));
}

// Gemma2RMSNorm._norm
Tensor gemma_norm_of(Tensor argument) {
    const Tensor x = std::move(argument);
    Tensor factor = mean(pow_scalar(x), -1, true);
    factor = rsqrt(add_scalar(std::move(factor)));
    return mul(x, std::move(factor));
}
// Gemma2RMSNorm.forward
Tensor gemma_norm(const Tensor& weight, Tensor argument) {
    const Tensor x = std::move(argument);
    Tensor output = gemma_norm_of(to_float(x));
    {
        Tensor factor = add_scalar(to_float(weight));
        output = mul(output, std::move(factor));
    }
    return to(output, x.dtype());
}

Tensor rotate_half(const Tensor& x) {
    const std::int64_t half = x.size(-1) / 2;
    const Tensor x1 = slice(x, -1, 0, half);
    const Tensor x2 = slice(x, -1, half, x.size(-1));
    return cat({neg(x2), x1}, -1);
}

Tensor repeat_kv(const Tensor& hidden_states, std::int64_t n_rep) {
    if (n_rep == 1) return hidden_states;
    const std::int64_t batch = hidden_states.size(0), heads = hidden_states.size(1), tokens = hidden_states.size(2),
                       head = hidden_states.size(3);
    return reshape(expand(unsqueeze(hidden_states, 2), {batch, heads, n_rep, tokens, head}),
                   {batch, heads * n_rep, tokens, head});
}

/// args: hidden_states [B, T, D], cos, sin [B or 1, T, head], mask or undefined, a tensor without elements where a
/// cache is filled, else undefined, position_ids [1, T] where queries are scaled → hidden_states, and what the cache
/// keeps: keys, values, the window's size; then the attention's weights, if they are asked for
class DecoderLayer : public Block {
  public:
    DecoderLayer(const Builder& parent, const DecoderClass& of, const DecoderSizes& sizes, bool sliding)
        : DecoderLayer(parent.block(*this), of, sizes, sliding) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0];
        Tensor residual = hidden_states;
        Tensors out{Tensor()};
        hidden_states = input_layernorm(hidden_states);
        // Self Attention
        Tensor attn_weights;  // a name there
        hidden_states = self_attn(hidden_states, args, attn_weights, out);
        if (gemma_) hidden_states = post_attention_layernorm(hidden_states);
        hidden_states = add(residual, hidden_states);
        // Fully Connected
        residual = hidden_states;
        hidden_states = pre_feedforward_layernorm(hidden_states);
        hidden_states = mlp(hidden_states);
        if (gemma_) hidden_states = post_feedforward_layernorm(hidden_states);
        hidden_states = add(residual, hidden_states);
        out[0] = hidden_states;
        if (sizes_.output_attentions) out.push_back(attn_weights);
        return out;
    }

  private:
    DecoderLayer(const BlockBuilder& builder, const DecoderClass& of, const DecoderSizes& sizes, bool sliding)
        : sizes_(sizes),
          head_norm_(of.head_norm),
          gemma_(of.gemma),
          sliding_(sliding),
          q_proj(builder["self_attn"].linear("q_proj", sizes.hidden, sizes.heads * sizes.head, of.qkv_bias)),
          k_proj(builder["self_attn"].linear("k_proj", sizes.hidden, sizes.key_value_heads * sizes.head, of.qkv_bias)),
          v_proj(builder["self_attn"].linear("v_proj", sizes.hidden, sizes.key_value_heads * sizes.head, of.qkv_bias)),
          o_proj(builder["self_attn"].linear("o_proj", sizes.heads * sizes.head, sizes.hidden, false)) {
        if (head_norm_ != HeadNorm::none) {
            q_norm = DecoderNorm(builder["self_attn"], "q_norm", sizes.head, gemma_);
            k_norm = DecoderNorm(builder["self_attn"], "k_norm", sizes.head, gemma_);
        }
        mlp = DecoderMlp(builder["mlp"], sizes.hidden, sizes.intermediate, sizes.silu);
        input_layernorm = DecoderNorm(builder, "input_layernorm", sizes.hidden, gemma_);
        if (gemma_) {
            post_attention_layernorm = DecoderNorm(builder, "post_attention_layernorm", sizes.hidden, true);
            pre_feedforward_layernorm = DecoderNorm(builder, "pre_feedforward_layernorm", sizes.hidden, true);
            post_feedforward_layernorm = DecoderNorm(builder, "post_feedforward_layernorm", sizes.hidden, true);
        } else {
            pre_feedforward_layernorm = DecoderNorm(builder, "post_attention_layernorm", sizes.hidden);
        }
        builder.finish(*this, of.layer,
                       {sizes.heads, sizes.key_value_heads, sizes.head, sizes.eager, sizes.silu, sizes.softcaps,
                        sizes.output_attentions, sliding});
    }

    [[nodiscard]] Tensor self_attn(Tensor argument, const Tensors& args, Tensor& attn_weights, Tensors& cache) const {
        const Tensor hidden_states = std::move(argument);
        const Dims hidden_shape{hidden_states.size(0), hidden_states.size(1), -1, sizes_.head};
        Tensor query_states = view(q_proj(hidden_states), hidden_shape);
        if (head_norm_ == HeadNorm::projected) query_states = q_norm(std::move(query_states));
        query_states = transpose(std::move(query_states), 1, 2);
        Tensor key_states = view(k_proj(hidden_states), hidden_shape);
        if (head_norm_ == HeadNorm::projected) key_states = k_norm(std::move(key_states));
        key_states = transpose(std::move(key_states), 1, 2);
        Tensor value_states = transpose(view(v_proj(hidden_states), hidden_shape), 1, 2);
        if (head_norm_ == HeadNorm::transposed) {
            query_states = q_norm(query_states);
            key_states = k_norm(key_states);
        }
        {
            const Tensor cos = unsqueeze(args[1], 1), sin = unsqueeze(args[2], 1);
            const Tensor q_embed = rotate_halves(query_states, cos, sin);
            const Tensor k_embed = rotate_halves(key_states, cos, sin);
            query_states = q_embed;
            key_states = k_embed;
        }
        if (args[5].defined()) query_states = scaled(query_states, args[5]);
        if (args[4].defined()) {
            // DynamicCache.update: a layer joins them to the nothing that it holds
            if (sliding_) cache.push_back(hidden_states.run().empty({}, Dtype::i64, Op::to_device));
            const Tensor keys = cat({key_states}, -2);
            const Tensor values = cat({value_states}, -2);
            cache.push_back(keys);
            cache.push_back(values);
            key_states = keys;
            value_states = values;
        }
        Tensor attn_output = sizes_.eager
                                 ? eager_attention(query_states, key_states, value_states, args[3], attn_weights)
                                 : sdpa_attention(query_states, key_states, value_states, args[3]);
        attn_output = reshape(attn_output, {hidden_states.size(0), hidden_states.size(1), -1});
        attn_output = o_proj(attn_output);
        return attn_output;
    }

    // query_states * get_llama_4_attn_scale(position_ids, …).to(dtype): 1 + beta * log(1 + floor(positions / most))
    [[nodiscard]] static Tensor scaled(const Tensor& query_states, const Tensor& position_ids) {
        Tensor scaling = div_scalar(position_ids);
        scaling = query_states.run().empty_like(scaling, Op::round);  // floor
        scaling = add_scalar(std::move(scaling));
        scaling = log(std::move(scaling));
        scaling = mul_scalar(std::move(scaling));
        scaling = add_scalar(std::move(scaling));
        scaling = unsqueeze(unsqueeze(std::move(scaling), 1), -1);
        scaling = to(std::move(scaling), query_states.dtype());
        return mul(query_states, std::move(scaling));
    }

    // sdpa_attention_forward (integrations/sdpa_attention.py): [B, H, T, D] → [B, T, H, D]
    [[nodiscard]] Tensor sdpa_attention(Tensor query, Tensor key, Tensor value, const Tensor& attention_mask) const {
        const std::int64_t groups = sizes_.heads / sizes_.key_value_heads;
        const std::int64_t batch = query.size(0), q_length = query.size(2);
        const bool enable_gqa = !attention_mask.defined() && sizes_.head <= 256;
        if (groups > 1 && !enable_gqa) {
            if (q_length == 1) {
                query = reshape(query, {batch, sizes_.key_value_heads, groups, sizes_.head});  // pack_gqa
            } else {
                key = repeat_kv(key, groups);
                value = repeat_kv(value, groups);
            }
        }
        const bool is_causal = q_length > 1 && !attention_mask.defined();
        Tensor attn_output = scaled_dot_product_attention(query, key, value, attention_mask, is_causal);
        attn_output = reshape(attn_output, {batch, -1, q_length, sizes_.head});
        attn_output = contiguous(transpose(attn_output, 1, 2));
        return attn_output;
    }

    // eager_attention_forward of Gemma 2, and of Llama
    [[nodiscard]] Tensor eager_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                         const Tensor& attention_mask, Tensor& attn_weights) const {
        const std::int64_t groups = sizes_.heads / sizes_.key_value_heads;
        const Tensor key_states = repeat_kv(key, groups);
        const Tensor value_states = repeat_kv(value, groups);
        attn_weights = matmul(query, transpose(key_states, 2, 3));
        attn_weights = mul_scalar(attn_weights);
        if (sizes_.softcaps) {
            attn_weights = div_scalar(attn_weights);
            attn_weights = tanh(attn_weights);
            attn_weights = mul_scalar(attn_weights);
        }
        attn_weights = add(attn_weights, attention_mask);
        // upcast attention to fp32
        {
            Tensor scores = softmax(attn_weights, Dtype::f32);
            attn_weights = to(std::move(scores), query.dtype());
        }
        Tensor attn_output = matmul(attn_weights, value_states);
        attn_output = contiguous(transpose(attn_output, 1, 2));
        return attn_output;
    }

    DecoderSizes sizes_;
    HeadNorm head_norm_;
    bool gemma_, sliding_;
    Linear q_proj, k_proj, v_proj, o_proj;
    DecoderNorm q_norm, k_norm;
    DecoderMlp mlp;
    DecoderNorm input_layernorm, post_attention_layernorm, pre_feedforward_layernorm, post_feedforward_layernorm;
};

}  // namespace

Tensor rotate_halves(const Tensor& x, const Tensor& cos, const Tensor& sin) {
    Tensor product = mul(x, cos);
    Tensor turned = rotate_half(x);
    turned = mul(std::move(turned), sin);
    return add(std::move(product), std::move(turned));
}

Tensor DecoderNorm::operator()(Tensor x) const {
    return gemma_ ? gemma_norm(weight_->value, std::move(x)) : llama_norm(weight_->value, std::move(x));
}

Tensor DecoderMlp::operator()(Tensor argument) const {
    const Tensor x = std::move(argument);
    Tensor gate = gate_proj_(x);
    gate = silu_ ? silu(std::move(gate)) : gelu(std::move(gate));
    Tensor up = up_proj_(x);
    gate = mul(std::move(gate), std::move(up));
    return down_proj_(std::move(gate));
}

TextDecoder::TextDecoder(const Builder& builder, const profile::Config& config)
    : class_(class_of(config.text("model_type"))),
      sizes_{config.integer("hidden_size"),
             config.integer("intermediate_size"),
             config.integer("num_attention_heads"),
             config.integer("num_key_value_heads"),
             config.integer("head_dim", config.integer("hidden_size") / config.integer("num_attention_heads")),
             config.has("attn_logit_softcapping") || config.text("attn_implementation", "sdpa") == "eager",
             config.text("hidden_activation", config.text("hidden_act", "silu")) == "silu",
             config.has("attn_logit_softcapping"),
             config.boolean("output_attentions", false)},
      layer_count_(config.integer("num_hidden_layers")),
      sliding_window_(config.integer("sliding_window", 0)),
      sliding_window_pattern_(config.integer("sliding_window_pattern", 0)),
      embedding_(builder.embedding("embed_tokens", config.integer("vocab_size"), sizes_.hidden)) {
    if (class_.gemma) embed_scale_ = &builder["embed_tokens"].buffer("embed_scale", {}, Dtype::f32);
    for (std::int64_t i = 0; i < layer_count_; ++i)
        layers_.push_back(std::make_unique<DecoderLayer>(builder["layers"][i], class_, sizes_, slides(i)));
    norm_ = DecoderNorm(builder, "norm", sizes_.hidden, class_.gemma);
    const auto frequencies = [&](std::string_view type) {
        const Builder rotary = builder["rotary_emb"];
        const std::string prefix = type.empty() ? "" : std::string(type) + "_";
        nn::Parameter& made = rotary.buffer(prefix + "inv_freq", {sizes_.head / 2}, Dtype::f32);
        (void)rotary.buffer(prefix + "original_inv_freq", {sizes_.head / 2}, Dtype::f32);
        return &made;
    };
    if (class_.rotates_by_layer_type) {
        inv_freq_ = frequencies("full_attention");
        sliding_inv_freq_ = frequencies("sliding_attention");
    } else {
        inv_freq_ = frequencies("");
    }
}

bool TextDecoder::slides(std::int64_t layer) const {
    return sliding_window_ > 0 && (sliding_window_pattern_ == 0 || (layer + 1) % sliding_window_pattern_ != 0);
}

Tensor TextDecoder::embed_tokens(Tensor input_ids) const {
    Tensor inputs_embeds = embedding_(std::move(input_ids));
    if (embed_scale_ == nullptr) return inputs_embeds;
    Tensor scale = to(embed_scale_->value, embedding_.weight->value.dtype());
    return mul(std::move(inputs_embeds), std::move(scale));
}

Tensors TextDecoder::rotary_emb(const Tensor& x, const Tensor& position_ids, const nn::Parameter& inv_freq) const {
    Tensor freqs;
    {
        Tensor positions = to_float(unsqueeze(position_ids, -1));
        Tensor frequencies = to_float(inv_freq.value);
        freqs = mul(std::move(positions), std::move(frequencies));
    }
    const bool one_axis = class_.axes == Axes::one;
    Tensor emb = one_axis ? cat({freqs, freqs}, -1) : freqs;
    Tensor cosines = cos(emb);
    cosines = mul_scalar(std::move(cosines));
    Tensor sines = sin(emb);
    sines = mul_scalar(std::move(sines));
    if (!one_axis) {
        // recomposition_frequencies: a part of the frequencies for each axis, twice
        const auto recompose = [&](Tensor& freq) {
            const Dims sizes{freq.size(1), freq.size(2), freq.size(3)};
            Tensor joined =
                class_.axes == Axes::joined ? x.run().empty(sizes, Dtype::f32, Op::cat) : select(freq, 0, 0);
            joined = cat({joined, joined}, -1);
            freq = joined;
        };
        recompose(sines);
        recompose(cosines);
    }
    const Tensor cosines_like_x = to(cosines, x.dtype());
    const Tensor sines_like_x = to(sines, x.dtype());
    return {cosines_like_x, sines_like_x};
}

Tensor TextDecoder::count_positions(const Tensor& inputs_embeds) const {
    Tensor position_ids = add_scalar(arange(inputs_embeds.run(), inputs_embeds.size(1), Dtype::i64));
    return class_.axes == Axes::one ? unsqueeze(position_ids, 0)
                                    : expand(view(position_ids, {1, 1, -1}), {3, inputs_embeds.size(0), -1});
}

TextDecoder::Masks TextDecoder::masks(const Tensor& inputs_embeds, const Tensor& attention_mask,
                                      const Tensor& position_ids, bool use_cache) const {
    bool some_slide = false, all_slide = true;
    for (std::int64_t i = 0; i < layer_count_; ++i) {
        some_slide = some_slide || slides(i);
        all_slide = all_slide && slides(i);
    }
    Masks out;
    if (!all_slide)
        out.full_attention = causal_mask(inputs_embeds, attention_mask, position_ids, {0, sizes_.eager, use_cache});
    if (some_slide)
        out.sliding_attention =
            causal_mask(inputs_embeds, attention_mask, position_ids, {sliding_window_, sizes_.eager, use_cache});
    return out;
}

TextDecoder::Output TextDecoder::forward(Tensor argument, const Tensor& attention_mask, const Request& request,
                                         bool gradient_checkpointing) const {
    const Tensor inputs_embeds = std::move(argument);
    const Tensor position_ids = count_positions(inputs_embeds);
    // Qwen2.5-VL has no positions of the text beside those of its axes, unless it is handed them.
    const Tensor text_position_ids = class_.axes == Axes::joined        ? Tensor()
                                     : class_.axes == Axes::interleaved ? select(position_ids, 0, 0)
                                                                        : position_ids;
    const Masks causal_mask_mapping = masks(inputs_embeds, attention_mask, text_position_ids, request.use_cache);
    return run_layers(inputs_embeds, causal_mask_mapping, position_ids, request, gradient_checkpointing);
}

TextDecoder::Output TextDecoder::forward(Tensor argument, Masks masks, const Request& request,
                                         bool gradient_checkpointing) const {
    const Tensor inputs_embeds = std::move(argument);
    const Masks causal_mask_mapping = std::move(masks);
    const Tensor position_ids = count_positions(inputs_embeds);
    return run_layers(inputs_embeds, causal_mask_mapping, position_ids, request, gradient_checkpointing);
}

TextDecoder::Output TextDecoder::run_layers(const Tensor& inputs_embeds, const Masks& causal_mask_mapping,
                                            const Tensor& position_ids, const Request& request,
                                            bool gradient_checkpointing) const {
    Run& run = inputs_embeds.run();
    Tensor hidden_states = inputs_embeds;
    const Tensors position_embeddings = rotary_emb(hidden_states, position_ids, *inv_freq_);
    const Tensors sliding_position_embeddings = sliding_inv_freq_ == nullptr
                                                    ? position_embeddings
                                                    : rotary_emb(hidden_states, position_ids, *sliding_inv_freq_);

    Output output;
    const Tensor cache = request.use_cache ? run.on_cpu({0}, inputs_embeds.dtype()) : Tensor();
    const Caller call(run, gradient_checkpointing);
    if (request.all_hidden_states) output.hidden_states.push_back(hidden_states);
    for (std::int64_t i = 0; i < layer_count_; ++i) {
        const Tensors& turns = slides(i) ? sliding_position_embeddings : position_embeddings;
        const Tensors out =
            call(*layers_[static_cast<std::size_t>(i)],
                 {hidden_states, turns[0], turns[1],
                  slides(i) ? causal_mask_mapping.sliding_attention : causal_mask_mapping.full_attention, cache,
                  class_.scales_queries ? position_ids : Tensor()});
        hidden_states = out[0];
        const std::size_t cached = out.size() - (sizes_.output_attentions ? 1 : 0);
        for (std::size_t kept = 1; kept < cached; ++kept) output.cache.push_back(out[kept]);
        if (sizes_.output_attentions) output.attentions.push_back(out[cached]);
        if (request.all_hidden_states) output.hidden_states.push_back(hidden_states);
    }
    hidden_states = norm_(hidden_states);
    if (request.all_hidden_states) output.hidden_states.back() = hidden_states;
    output.last_hidden_state = hidden_states;
    return output;
}

Tensors TextDecoder::Output::tensors() const {
    Tensors out{last_hidden_state};
    for (const Tensor& one : hidden_states) out.push_back(one);
    for (const Tensor& one : cache) out.push_back(one);
    for (const Tensor& one : attentions) out.push_back(one);
    return out;
}

namespace text_decoder {
namespace {

/// …Model, or with `language_head` …ForCausalLM.
class DecoderModel : public Model {
  public:
    DecoderModel(const Builder& builder, const profile::Config& config)
        : language_head_(config.boolean("language_head", false)),
          vocab_size_(config.integer("vocab_size")),
          decoder_(language_head_ ? builder["model"] : builder, config) {
        if (language_head_)
            lm_head_ = config.boolean("tie_word_embeddings")
                           ? builder.tied_linear("lm_head", decoder_.embedding())
                           : builder.linear("lm_head", decoder_.hidden_size(), vocab_size_, false);
    }

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        std::vector<Value> out{{"input_ids", {request.batch, request.text_tokens}, Dtype::i64}};
        if (request.attention_mask) out.push_back({"attention_mask", {request.batch, request.text_tokens}, Dtype::i64});
        return out;
    }
    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {{request.batch, request.text_tokens, language_head_ ? vocab_size_ : decoder_.hidden_size()}};
    }
    /// {last_hidden_state or logits, hidden states of every layer, keys and values and attentions if asked}
    [[nodiscard]] Tensors forward(const Tensors& args, const Request& request) const override {
        TextDecoder::Output outputs = model(args, request);
        if (language_head_) outputs.last_hidden_state = lm_head_(outputs.last_hidden_state);
        return outputs.tensors();
    }

  private:
    [[nodiscard]] TextDecoder::Output model(const Tensors& args, const Request& request) const {
        const Tensor inputs_embeds = decoder_.embed_tokens(args[0]);
        return decoder_.forward(inputs_embeds, request.attention_mask ? args[1] : Tensor(), request,
                                gradient_checkpointing);
    }

    bool language_head_;
    std::int64_t vocab_size_;
    TextDecoder decoder_;
    nn::Linear lm_head_;  // empty where there is none
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<DecoderModel>(Builder(weights), profile.config);
}

}  // namespace text_decoder
}  // namespace vram::models
