// Mirrors Gemma3ForConditionalGeneration, Mistral3ForConditionalGeneration and Qwen3VLForConditionalGeneration
// (transformers 5.24.0, models/gemma3/modeling_gemma3.py, models/mistral3/modeling_mistral3.py,
// models/qwen3_vl/modeling_qwen3_vl.py) as pipelines of pictures and videos call them: with text alone. The vision
// tower lies there unused, or a trainer has deleted it; the language head runs over every token. Without
// `language_head` it is Mistral3Model.
#include "models/families.hpp"
#include "models/text_decoder.hpp"

namespace vram::models::vision_language {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward

struct VisionSizes {
    std::int64_t hidden, intermediate, layers, heads, patch, image;
};

// SiglipVisionModel without its pooling head, which a trainer may have deleted.
void build_siglip_tower(const Builder& builder, const VisionSizes& sizes) {
    const Builder tower = builder["vision_tower"];
    const Builder embeddings = tower["embeddings"];
    const std::int64_t side = sizes.image / sizes.patch, positions = side * side;
    (void)embeddings.conv2d("patch_embedding", 3, sizes.hidden, sizes.patch, sizes.patch);
    (void)embeddings.embedding("position_embedding", positions, sizes.hidden);
    (void)embeddings.buffer("position_ids", {1, positions}, Dtype::i64);
    for (std::int64_t i = 0; i < sizes.layers; ++i) {
        const Builder layer = tower["encoder"]["layers"][i];
        (void)layer.layer_norm("layer_norm1", sizes.hidden);
        for (const char* name : {"k_proj", "v_proj", "q_proj", "out_proj"})
            (void)layer["self_attn"].linear(name, sizes.hidden, sizes.hidden);
        (void)layer.layer_norm("layer_norm2", sizes.hidden);
        (void)layer["mlp"].linear("fc1", sizes.hidden, sizes.intermediate);
        (void)layer["mlp"].linear("fc2", sizes.intermediate, sizes.hidden);
    }
    (void)tower.layer_norm("post_layernorm", sizes.hidden);
}

// The tower, and Gemma3MultiModalProjector.
void build_siglip(const Builder& builder, const VisionSizes& sizes, std::int64_t text_hidden, bool has_tower) {
    if (has_tower) build_siglip_tower(builder, sizes);
    const Builder projector = builder["multi_modal_projector"];
    (void)projector.parameter("mm_input_projection_weight", {sizes.hidden, text_hidden});
    (void)projector["mm_soft_emb_norm"].parameter("weight", {sizes.hidden});
}

// PixtralVisionModel and Mistral3MultiModalProjector.
void build_pixtral(const Builder& builder, const VisionSizes& sizes, std::int64_t text_hidden) {
    const Builder tower = builder["vision_tower"];
    (void)tower.conv2d("patch_conv", 3, sizes.hidden, sizes.patch, sizes.patch, 0, false);
    (void)tower["ln_pre"].parameter("weight", {sizes.hidden});
    for (std::int64_t i = 0; i < sizes.layers; ++i) {
        const Builder layer = tower["transformer"]["layers"][i];
        (void)layer["attention_norm"].parameter("weight", {sizes.hidden});
        (void)DecoderMlp(layer["feed_forward"], sizes.hidden, sizes.intermediate, true);
        for (const char* name : {"k_proj", "v_proj", "q_proj", "o_proj"})
            (void)layer["attention"].linear(name, sizes.hidden, sizes.hidden, false);
        (void)layer["ffn_norm"].parameter("weight", {sizes.hidden});
    }
    for (const char* name : {"inv_freq", "original_inv_freq"})
        (void)tower["patch_positional_embedding"].buffer(name, {sizes.hidden / sizes.heads / 2}, Dtype::f32);
    const Builder projector = builder["multi_modal_projector"];
    (void)projector["norm"].parameter("weight", {sizes.hidden});
    (void)projector["patch_merger"].linear("merging_layer", 4 * sizes.hidden, sizes.hidden, false);
    (void)projector.linear("linear_1", sizes.hidden, text_hidden, false);
    (void)projector.linear("linear_2", text_hidden, text_hidden, false);
}

// Qwen3VLVisionModel, whose mergers are a part of it.
void build_qwen3_vl(const Builder& builder, const profile::Config& config) {
    const std::int64_t hidden = config.integer("vision_hidden_size"),
                       intermediate = config.integer("vision_intermediate_size"),
                       patch = config.integer("vision_patch_size"), merge = config.integer("vision_spatial_merge_size");
    const Builder visual = builder["visual"];
    const Dims kernel{config.integer("vision_temporal_patch_size"), patch, patch};
    (void)visual["patch_embed"].conv("proj", 3, hidden, kernel, kernel, {0, 0, 0});
    (void)visual.embedding("pos_embed", config.integer("vision_num_position_embeddings"), hidden);
    for (const char* name : {"inv_freq", "original_inv_freq"})
        (void)visual["rotary_pos_emb"].buffer(name, {hidden / config.integer("vision_num_heads") / 4}, Dtype::f32);
    for (std::int64_t i = 0; i < config.integer("vision_depth"); ++i) {
        const Builder block = visual["blocks"][i];
        (void)block.layer_norm("norm1", hidden);
        (void)block.layer_norm("norm2", hidden);
        (void)block["attn"].linear("qkv", hidden, 3 * hidden);
        (void)block["attn"].linear("proj", hidden, hidden);
        (void)block["mlp"].linear("linear_fc1", hidden, intermediate);
        (void)block["mlp"].linear("linear_fc2", intermediate, hidden);
    }
    const std::int64_t merged = hidden * merge * merge;
    const auto merger = [&](const Builder& part, std::int64_t normed) {
        (void)part.layer_norm("norm", normed);
        (void)part.linear("linear_fc1", merged, merged);
        (void)part.linear("linear_fc2", merged, config.integer("hidden_size"));
    };
    merger(visual["merger"], hidden);
    const auto deepstack = static_cast<std::int64_t>(config.integers("vision_deepstack_visual_indexes").size());
    for (std::int64_t i = 0; i < deepstack; ++i) merger(visual["deepstack_merger_list"][i], merged);
}

class ConditionalGeneration : public Model {
  public:
    ConditionalGeneration(const Builder& builder, const profile::Config& config)
        : gemma_(config.text("model_type") == "gemma3_text"),
          language_head_(config.boolean("language_head", true)),
          language_model(build_model(language_head_ ? builder["model"] : builder, config)) {
        if (language_head_)
            lm_head =
                config.boolean("tie_word_embeddings")
                    ? builder.tied_linear("lm_head", language_model->embedding())
                    : builder.linear("lm_head", language_model->hidden_size(), config.integer("vocab_size"), false);
    }

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        std::vector<Value> out{{"input_ids", {request.batch, request.text_tokens}, Dtype::i64}};
        if (request.attention_mask) out.push_back({"attention_mask", {request.batch, request.text_tokens}, Dtype::i64});
        return out;
    }
    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        const std::int64_t size =
            language_head_ ? language_model->embedding().weight->value.size(0) : language_model->hidden_size();
        return {{request.batch, request.text_tokens, size}};
    }

    /// {logits or last_hidden_state, hidden states of every layer and keys and values if asked}
    [[nodiscard]] Tensors forward(const Tensors& args, const Request& request) const override {
        TextDecoder::Output outputs = model(args, request);
        if (!language_head_) return outputs.tensors();
        Tensor logits = lm_head(outputs.last_hidden_state);
        outputs.last_hidden_state = std::move(logits);
        return outputs.tensors();
    }

  private:
    static std::unique_ptr<TextDecoder> build_model(const Builder& builder, const profile::Config& config) {
        if (config.text("model_type") == "qwen3_vl_text") {
            if (config.has("vision_depth")) build_qwen3_vl(builder, config);
            return std::make_unique<TextDecoder>(builder["language_model"], config);
        }
        const VisionSizes vision{
            config.integer("vision_hidden_size"),       config.integer("vision_intermediate_size"),
            config.integer("vision_num_hidden_layers"), config.integer("vision_num_attention_heads"),
            config.integer("vision_patch_size"),        config.integer("vision_image_size")};
        const std::string tower = config.text("vision_model_type", "");
        if (tower == "pixtral")
            build_pixtral(builder, vision, config.integer("hidden_size"));
        else
            build_siglip(builder, vision, config.integer("hidden_size"), !tower.empty());
        return std::make_unique<TextDecoder>(builder["language_model"], config);
    }

    // Gemma3Model.forward makes the masks itself, without positions; Mistral3Model.forward and Qwen3VLModel.forward
    // leave them to their language model.
    [[nodiscard]] TextDecoder::Output model(const Tensors& args, const Request& request) const {
        const Tensor attention_mask = request.attention_mask ? args[1] : Tensor();
        const Tensor inputs_embeds = language_model->embed_tokens(args[0]);
        if (!gemma_) return language_model->forward(inputs_embeds, attention_mask, request, gradient_checkpointing);
        const TextDecoder::Masks causal_mask_mapping = language_model->masks(inputs_embeds, attention_mask, {}, false);
        return language_model->forward(inputs_embeds, causal_mask_mapping, request, gradient_checkpointing);
    }

    bool gemma_, language_head_;
    std::unique_ptr<TextDecoder> language_model;
    nn::Linear lm_head;  // empty where there is none
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<ConditionalGeneration>(Builder(weights), profile.config);
}

}  // namespace vram::models::vision_language

namespace vram::models::qwen3_vl {

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return vision_language::build(weights, profile);
}

}  // namespace vram::models::qwen3_vl
