// Mirrors CLIPTextModel (transformers 5.24.0, models/clip/modeling_clip.py): CLIP-L, OpenCLIP H and bigG; as the
// forward of sd_scripts that of transformers 4.54.1, which its requirements pin.
#include <deque>

#include "models/clip_layer.hpp"
#include "models/families.hpp"
#include "models/masking.hpp"
#include "shadow/checkpoint.hpp"

namespace vram::models::clip_text {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using clip::CLIPEncoderLayer;
using nn::LayerNorm;
using nn::Linear;

class CLIPTextModel : public Model {
  public:
    CLIPTextModel(const Builder& builder, const profile::Config& config)
        : sizes_{config.integer("hidden_size"),
                 config.integer("intermediate_size"),
                 config.integer("num_attention_heads"),
                 config.text("hidden_act") == "quick_gelu",
                 true,
                 config.text("forward", "") == "sd_scripts"},
          projection_dim_(config.integer("projection_dim", 0)),
          eos_is_argmax_(config.integer("eos_token_id") == 2) {
        const std::int64_t positions = config.integer("max_position_embeddings");
        const Builder embeddings = builder["embeddings"];
        token_embedding = embeddings.embedding("token_embedding", config.integer("vocab_size"), sizes_.hidden);
        position_embedding = embeddings.embedding("position_embedding", positions, sizes_.hidden);
        position_ids = &embeddings.buffer("position_ids", {1, positions}, Dtype::i64);
        for (std::int64_t i = 0; i < config.integer("num_hidden_layers"); ++i)
            layers.emplace_back(builder["encoder"]["layers"][i], sizes_);
        final_layer_norm = builder.layer_norm("final_layer_norm", sizes_.hidden);
        if (projection_dim_ > 0)
            text_projection = builder.linear("text_projection", sizes_.hidden, projection_dim_, false);
    }

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        std::vector<Value> out{{"input_ids", {request.batch, request.text_tokens}, Dtype::i64}};
        if (request.attention_mask) out.push_back({"attention_mask", {request.batch, request.text_tokens}, Dtype::i64});
        return out;
    }
    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {{request.batch, request.text_tokens, sizes_.hidden}};
    }

    /// {last_hidden_state, pooler_output or text_embeds, hidden states of every layer if asked}
    [[nodiscard]] Tensors forward(const Tensors& args, const Request& request) const override {
        Run& run = args[0].run();
        const Tensor& input_ids = args[0];
        Tensor hidden_states;
        {
            Tensor inputs_embeds = token_embedding(input_ids);
            // PreTrainedModel.gradient_checkpointing_enable: the embeddings' output asks for a gradient.
            if (gradient_checkpointing && !sizes_.copies_heads) requires_grad_(inputs_embeds);
            const Tensor position_embeddings =
                position_embedding(slice(position_ids->value, 1, 0, request.text_tokens));
            hidden_states = add(inputs_embeds, position_embeddings);
        }
        Tensor attention_mask;
        if (request.attention_mask) attention_mask = sdpa_mask(args[1], true);
        if (sizes_.copies_heads) attention_mask = make_causal_mask(hidden_states);
        Tensors all;
        // GradientCheckpointingLayer of transformers 4 is reentrant.
        const bool reentrant = gradient_checkpointing && sizes_.copies_heads;
        const Caller call =
            reentrant ? Caller(run, Caller::Checkpointing::reentrant) : Caller(run, gradient_checkpointing);
        Tensor layer_states = hidden_states;
        for (const CLIPEncoderLayer& layer : layers) {
            if (request.all_hidden_states) all.push_back(layer_states);
            layer_states = call(layer, {layer_states, attention_mask})[0];
        }
        if (request.all_hidden_states) all.push_back(layer_states);
        Tensor last_hidden_state = final_layer_norm(layer_states);
        Tensor pooled_output = pool(last_hidden_state, input_ids);
        attention_mask = Tensor();
        if (projection_dim_ > 0) pooled_output = text_projection(pooled_output);
        all.push_back(last_hidden_state);
        all.push_back(pooled_output);
        return all;
    }

  private:
    // AttentionMaskConverter._make_causal_mask of transformers 4: [T, T], added to the scores.
    [[nodiscard]] static Tensor make_causal_mask(const Tensor& hidden_states) {
        Run& run = hidden_states.run();
        const std::int64_t tokens = hidden_states.size(1);
        Tensor mask = run.empty({tokens, tokens}, Dtype::f32, Op::full);
        const Tensor mask_cond = arange(run, tokens, Dtype::i64);
        {
            const Tensor row = add_scalar(mask_cond);
            const Tensor before = run.empty({tokens, tokens}, Dtype::boolean, Op::compare);
        }
        mask = to(mask, hidden_states.dtype());
        return expand(mask, {hidden_states.size(0), 1, tokens, tokens});
    }

    // The features of the end token: an index by (arange, argmax).
    [[nodiscard]] Tensor pool(const Tensor& last_hidden_state, const Tensor& input_ids) const {
        Run& run = input_ids.run();
        const std::int64_t batch = input_ids.size(0);
        const Tensor rows = arange(run, batch, Dtype::i64);
        Tensor ids = to(input_ids, Dtype::i32);
        if (!eos_is_argmax_) {
            ids = compare_scalar(std::move(ids));
            ids = to(std::move(ids), Dtype::i32);
        }
        const Tensor places = run.empty({batch}, Dtype::i64, Op::index);  // argmax
        ids = Tensor();
        return index_pairs(last_hidden_state, rows, places);
    }

    clip::Sizes sizes_;
    std::int64_t projection_dim_;
    bool eos_is_argmax_;
    nn::Embedding token_embedding, position_embedding;
    nn::Parameter* position_ids = nullptr;
    std::deque<CLIPEncoderLayer> layers;
    LayerNorm final_layer_norm;
    Linear text_projection;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<CLIPTextModel>(Builder(weights), profile.config);
}

}  // namespace vram::models::clip_text
