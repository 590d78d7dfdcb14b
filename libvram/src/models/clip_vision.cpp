// Mirrors CLIPVisionModel (transformers 5.24.0, models/clip/modeling_clip.py): the ViT-H that Wan 2.1 I2V looks
// through.
#include <deque>

#include "models/clip_layer.hpp"
#include "models/families.hpp"

namespace vram::models::clip_vision {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using clip::CLIPEncoderLayer;
using nn::LayerNorm;

class CLIPVisionModel : public Model {
  public:
    CLIPVisionModel(const Builder& builder, const profile::Config& config)
        : sizes_{config.integer("hidden_size"), config.integer("intermediate_size"),
                 config.integer("num_attention_heads"), config.text("hidden_act") == "quick_gelu", false},
          channels_(config.integer("num_channels", 3)),
          image_size_(config.integer("image_size")) {
        const std::int64_t patch = config.integer("patch_size"), side = image_size_ / patch;
        positions_ = side * side + 1;
        const Builder embeddings = builder["embeddings"];
        class_embedding = &embeddings.parameter("class_embedding", {sizes_.hidden});
        patch_embedding = embeddings.conv2d("patch_embedding", channels_, sizes_.hidden, patch, patch, 0, false);
        position_embedding = embeddings.embedding("position_embedding", positions_, sizes_.hidden);
        position_ids = &embeddings.buffer("position_ids", {1, positions_}, Dtype::i64);
        pre_layrnorm = builder.layer_norm("pre_layrnorm", sizes_.hidden);
        for (std::int64_t i = 0; i < config.integer("num_hidden_layers"); ++i)
            layers.emplace_back(builder["encoder"]["layers"][i], sizes_);
        post_layernorm = builder.layer_norm("post_layernorm", sizes_.hidden);
    }

    /// The pictures are of image_size, whatever was asked for.
    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        return {{"pixel_values", {request.batch, channels_, image_size_, image_size_}, request.dtype}};
    }
    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {{request.batch, positions_, sizes_.hidden}};
    }

    /// {hidden states of every layer if asked, last_hidden_state, pooler_output}; the first is what went into the first
    /// layer.
    [[nodiscard]] Tensors forward(const Tensors& args, const Request& request) const override {
        Run& run = args[0].run();
        Tensor hidden_states;
        {
            Tensor patch_embeds = patch_embedding(to(args[0], patch_embedding.weight->value.dtype()));
            patch_embeds = transpose(flatten(patch_embeds, 2, 3), 1, 2);
            const Tensor class_embeds = expand(class_embedding->value, {args[0].size(0), 1, -1});
            const Tensor embeddings = cat({class_embeds, patch_embeds}, 1);
            hidden_states = add(embeddings, position_embedding(position_ids->value));
        }
        hidden_states = pre_layrnorm(hidden_states);
        Tensors all;
        const Caller call(run, gradient_checkpointing);
        Tensor layer_states = hidden_states;
        for (const CLIPEncoderLayer& layer : layers) {
            if (request.all_hidden_states) all.push_back(layer_states);
            layer_states = call(layer, {layer_states, Tensor()})[0];
        }
        if (request.all_hidden_states) all.push_back(layer_states);
        Tensor pooled_output = select(layer_states, 1, 0);
        pooled_output = post_layernorm(pooled_output);
        all.push_back(layer_states);
        all.push_back(pooled_output);
        return all;
    }

  private:
    clip::Sizes sizes_;
    std::int64_t channels_, image_size_, positions_ = 0;
    nn::Parameter* class_embedding = nullptr;
    nn::Conv patch_embedding;
    nn::Embedding position_embedding;
    nn::Parameter* position_ids = nullptr;
    LayerNorm pre_layrnorm;
    std::deque<CLIPEncoderLayer> layers;
    LayerNorm post_layernorm;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<CLIPVisionModel>(Builder(weights), profile.config);
}

}  // namespace vram::models::clip_vision
