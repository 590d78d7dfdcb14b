#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "models/model.hpp"

/// The decoder-only stacks that text encoders are made of: LlamaModel, MistralModel, Ministral3Model,
/// Qwen3Model, Gemma2Model, Gemma3TextModel, Qwen2_5_VLTextModel, Qwen3VLTextModel (transformers 5.24.0, modeling_*.py
/// of each).
namespace vram::models {

/// LlamaRMSNorm and its copies in elementary steps; Gemma's scale by 1 + weight, in fp32.
class DecoderNorm {
  public:
    DecoderNorm() = default;
    DecoderNorm(const Builder& builder, std::string_view name, std::int64_t size, bool gemma = false)
        : weight_(&builder[name].parameter("weight", {size})), gemma_(gemma) {}
    [[nodiscard]] Tensor operator()(Tensor x) const;

  private:
    nn::Parameter* weight_ = nullptr;
    bool gemma_ = false;
};

/// down_proj(act_fn(gate_proj(x)) * up_proj(x))
class DecoderMlp {
  public:
    DecoderMlp() = default;
    DecoderMlp(const Builder& builder, std::int64_t hidden, std::int64_t intermediate, bool silu, bool bias = false)
        : gate_proj_(builder.linear("gate_proj", hidden, intermediate, bias)),
          up_proj_(builder.linear("up_proj", hidden, intermediate, bias)),
          down_proj_(builder.linear("down_proj", intermediate, hidden, bias)),
          silu_(silu) {}
    [[nodiscard]] Tensor operator()(Tensor x) const;

  private:
    nn::Linear gate_proj_, up_proj_, down_proj_;
    bool silu_ = true;
};

/// For one of queries and keys what apply_rotary_pos_emb does: x * cos + rotate_half(x) * sin.
[[nodiscard]] Tensor rotate_halves(const Tensor& x, const Tensor& cos, const Tensor& sin);

/// What a decoder's class decides, and not its config.
struct DecoderClass {
    std::string_view model_type;  // as config.json says
    std::string_view layer;       // the class of a layer
    bool qkv_bias = false;        // of q_proj, k_proj, v_proj
    /// Queries and keys are normed by head: as soon as each is projected, [B, T, H, D], or after all are, [B, H, T, D].
    enum class HeadNorm : std::uint8_t { none, projected, transposed } head_norm = HeadNorm::none;
    bool gemma = false;                  // Gemma's norms, also after attention and MLP; embeddings are scaled
    bool rotates_by_layer_type = false;  // layers with a window turn by frequencies of their own
    /// Positions in time, height and width: each has a part of the frequencies, which are joined; or every third one,
    /// which are put in place.
    enum class Axes : std::uint8_t { one, joined, interleaved } axes = Axes::one;
    bool scales_queries = false;  // by position (get_llama_4_attn_scale)
};

/// What its config decides.
struct DecoderSizes {
    std::int64_t hidden, intermediate, heads, key_value_heads, head;
    bool eager;              // attention of elementary steps: asked for, or since capped scores have no fused kernel
    bool silu;               // else gelu by tanh
    bool softcaps;           // the scores
    bool output_attentions;  // of each layer, which eager attention alone has
};

/// The stack without a language head: embeddings, layers, the last norm.
class TextDecoder {
  public:
    TextDecoder(const Builder& builder, const profile::Config& config);

    /// The module's call: input_ids [B, T] → [B, T, D]
    [[nodiscard]] Tensor embed_tokens(Tensor input_ids) const;

    struct Output {
        Tensor last_hidden_state;
        Tensors hidden_states;  // if asked: what went into the first layer, and of each layer; the last one normed
        Tensors cache;          // if asked: keys and values of each layer
        Tensors attentions;     // if the config asks: [B, H, T, T] of each layer
        /// All that lives while the output does.
        [[nodiscard]] Tensors tensors() const;
    };
    /// inputs_embeds [B, T, D], attention_mask [B, T] or undefined
    [[nodiscard]] Output forward(Tensor inputs_embeds, const Tensor& attention_mask, const Request& request,
                                 bool gradient_checkpointing) const;

    /// By type of layer; undefined where none is needed.
    struct Masks {
        Tensor full_attention, sliding_attention;
    };
    [[nodiscard]] Masks masks(const Tensor& inputs_embeds, const Tensor& attention_mask, const Tensor& position_ids,
                              bool use_cache) const;
    /// The same with masks that are ready.
    [[nodiscard]] Output forward(Tensor inputs_embeds, Masks masks, const Request& request,
                                 bool gradient_checkpointing) const;

    [[nodiscard]] std::int64_t hidden_size() const noexcept { return sizes_.hidden; }

    /// embed_tokens, whose weight a language head may share
    [[nodiscard]] const nn::Embedding& embedding() const noexcept { return embedding_; }

  private:
    [[nodiscard]] bool slides(std::int64_t layer) const;
    [[nodiscard]] Tensor count_positions(const Tensor& inputs_embeds) const;
    [[nodiscard]] Output run_layers(const Tensor& inputs_embeds, const Masks& causal_mask_mapping,
                                    const Tensor& position_ids, const Request& request,
                                    bool gradient_checkpointing) const;
    /// {cos, sin}
    [[nodiscard]] Tensors rotary_emb(const Tensor& x, const Tensor& position_ids, const nn::Parameter& inv_freq) const;

    DecoderClass class_;
    DecoderSizes sizes_;
    std::int64_t layer_count_;
    std::int64_t sliding_window_;          // 0: every layer looks at all tokens
    std::int64_t sliding_window_pattern_;  // every n-th layer does; 0: none
    nn::Embedding embedding_;
    nn::Parameter* embed_scale_ = nullptr;
    std::vector<std::unique_ptr<nn::Block>> layers_;
    DecoderNorm norm_;
    nn::Parameter* inv_freq_ = nullptr;
    nn::Parameter* sliding_inv_freq_ = nullptr;  // where it is another
};

}  // namespace vram::models
