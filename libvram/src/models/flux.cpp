// Mirrors FluxTransformer2DModel (diffusers 0.42.1, models/transformers/transformer_flux.py): FLUX.1 dev, schnell,
// Kontext, Fill, Flex.1, Flex.2.
#include <deque>

#include "models/embeddings.hpp"
#include "models/families.hpp"
#include "models/flux_attention.hpp"
#include "models/normalization.hpp"

namespace vram::models::flux {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;

struct Sizes {
    std::int64_t dim, heads, head_dim;
};

/// args: hidden_states, encoder_hidden_states, temb, cos, sin → encoder_hidden_states, hidden_states
class FluxTransformerBlock : public Block {
  public:
    FluxTransformerBlock(const Builder& parent, const Sizes& sizes)
        : FluxTransformerBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        const Tensor &hidden_states = args[0], &encoder_hidden_states = args[1], &temb = args[2];
        Tensors modulated = norm1(hidden_states, temb);
        Tensors modulated_context = norm1_context(encoder_hidden_states, temb);
        return layers(hidden_states, encoder_hidden_states, std::move(modulated), std::move(modulated_context), args[3],
                      args[4]);
    }

  private:
    FluxTransformerBlock(const BlockBuilder& builder, const Sizes& sizes)
        : norm1(builder["norm1"], sizes.dim),
          norm1_context(builder["norm1_context"], sizes.dim),
          layers(builder, sizes.dim, sizes.heads, sizes.head_dim) {
        builder.finish(*this, "FluxTransformerBlock", {sizes.heads, sizes.head_dim});
    }

    AdaLayerNormZero norm1, norm1_context;
    FluxJointLayers layers;
};

/// args and outputs as in the double block
class FluxSingleTransformerBlock : public Block {
  public:
    FluxSingleTransformerBlock(const Builder& parent, const Sizes& sizes)
        : FluxSingleTransformerBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0], encoder_hidden_states = args[1];
        const std::int64_t text_seq_len = encoder_hidden_states.size(1);
        hidden_states = cat({encoder_hidden_states, hidden_states}, 1);
        const Tensor residual = hidden_states;
        Tensors modulated = norm(hidden_states, args[2]);
        const Tensor norm_hidden_states = modulated[0];
        Tensor gate = modulated[1];
        modulated.clear();
        const Tensor mlp_hidden_states = gelu(proj_mlp(norm_hidden_states));
        const Tensor attn_output = attn(norm_hidden_states, {}, args[3], args[4])[0];
        hidden_states = cat({attn_output, mlp_hidden_states}, 2);
        gate = unsqueeze(gate, 1);
        hidden_states = mul(gate, proj_out(hidden_states));
        hidden_states = add(residual, hidden_states);
        if (hidden_states.dtype() == Dtype::f16) hidden_states = clamp(hidden_states);
        encoder_hidden_states = slice(hidden_states, 1, 0, text_seq_len);
        hidden_states = slice(hidden_states, 1, text_seq_len, hidden_states.size(1));
        return {encoder_hidden_states, hidden_states};
    }

  private:
    FluxSingleTransformerBlock(const BlockBuilder& builder, const Sizes& sizes)
        : norm(builder["norm"], sizes.dim),
          proj_mlp(builder.linear("proj_mlp", sizes.dim, 4 * sizes.dim)),
          proj_out(builder.linear("proj_out", 5 * sizes.dim, sizes.dim)),
          attn(builder["attn"], sizes.dim, sizes.heads, sizes.head_dim, false) {
        builder.finish(*this, "FluxSingleTransformerBlock", {sizes.heads, sizes.head_dim});
    }

    AdaLayerNormZeroSingle norm;
    Linear proj_mlp, proj_out;
    FluxAttention attn;
};

class FluxTransformer2DModel : public Model {
  public:
    FluxTransformer2DModel(nn::Weights& weights, const profile::Config& config)
        : FluxTransformer2DModel(Builder(weights), config) {}

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        std::int64_t image = checked_mul(request.height / 16, request.width / 16);
        for (const auto& [width, height] : request.reference_images)
            image = checked_add(image, checked_mul(height / 16, width / 16));
        std::vector<Value> out{
            {"hidden_states", {request.batch, image, in_channels_}, request.dtype},
            {"encoder_hidden_states", {request.batch, request.text_tokens, joint_attention_dim_}, request.dtype},
            {"pooled_projections", {request.batch, pooled_projection_dim_}, request.dtype},
            {"timestep", {request.batch}, request.dtype},
            {"img_ids", {image, 3}, request.dtype},
            {"txt_ids", {request.text_tokens, 3}, request.dtype}};
        if (guidance_embeds_) out.push_back({"guidance", {request.batch}, Dtype::f32});
        return out;
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        Dims shape = inputs(request).front().shape;
        shape[2] = out_channels_;
        return {shape};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        Run& run = args[0].run();
        Tensor hidden_states = x_embedder(args[0]);  // [B, S, D]
        const Dtype dtype = hidden_states.dtype();
        const Tensor timestep = mul_scalar(to(args[3], dtype));
        Tensor guidance;
        if (guidance_embeds_) guidance = mul_scalar(to(args[6], dtype));
        const Tensor temb = time_text_embed(timestep, guidance, args[2]);  // [B, D]
        Tensor encoder_hidden_states = context_embedder(args[1]);          // [B, T, D]
        const Tensor ids = cat({args[5], args[4]}, 0);                     // [T+S, 3]
        const Tensors image_rotary_emb = flux_pos_embed(ids, axes_dims_rope_);

        const Caller call(run, gradient_checkpointing);
        for (const FluxTransformerBlock& block : transformer_blocks) {
            Tensors out =
                call(block, {hidden_states, encoder_hidden_states, temb, image_rotary_emb[0], image_rotary_emb[1]});
            encoder_hidden_states = std::move(out[0]);
            hidden_states = std::move(out[1]);
        }
        for (const FluxSingleTransformerBlock& block : single_transformer_blocks) {
            Tensors out =
                call(block, {hidden_states, encoder_hidden_states, temb, image_rotary_emb[0], image_rotary_emb[1]});
            encoder_hidden_states = std::move(out[0]);
            hidden_states = std::move(out[1]);
        }
        hidden_states = norm_out(hidden_states, temb);
        return {proj_out(hidden_states)};
    }

  private:
    FluxTransformer2DModel(const Builder& builder, const profile::Config& config)
        : in_channels_(config.integer("in_channels")),
          out_channels_(config.integer("out_channels", in_channels_)),
          joint_attention_dim_(config.integer("joint_attention_dim")),
          pooled_projection_dim_(config.integer("pooled_projection_dim")),
          guidance_embeds_(config.boolean("guidance_embeds")),
          axes_dims_rope_(config.integers("axes_dims_rope")) {
        const std::int64_t heads = config.integer("num_attention_heads"),
                           head_dim = config.integer("attention_head_dim");
        const Sizes sizes{heads * head_dim, heads, head_dim};
        const Builder embed = builder["time_text_embed"];
        timestep_embedder = TimestepEmbedding(embed["timestep_embedder"], 256, sizes.dim);
        if (guidance_embeds_) guidance_embedder = TimestepEmbedding(embed["guidance_embedder"], 256, sizes.dim);
        text_embedder =
            TextProjection(embed["text_embedder"], pooled_projection_dim_, sizes.dim, TextProjection::Activation::silu);
        context_embedder = builder.linear("context_embedder", joint_attention_dim_, sizes.dim);
        x_embedder = builder.linear("x_embedder", in_channels_, sizes.dim);
        for (std::int64_t i = 0; i < config.integer("num_layers"); ++i)
            transformer_blocks.emplace_back(builder["transformer_blocks"][i], sizes);
        for (std::int64_t i = 0; i < config.integer("num_single_layers"); ++i)
            single_transformer_blocks.emplace_back(builder["single_transformer_blocks"][i], sizes);
        norm_out = AdaLayerNormContinuous(builder["norm_out"], sizes.dim, sizes.dim);
        proj_out = builder.linear("proj_out", sizes.dim, out_channels_);
    }

    // CombinedTimestepGuidanceTextProjEmbeddings, CombinedTimestepTextProjEmbeddings
    [[nodiscard]] Tensor time_text_embed(const Tensor& timestep, const Tensor& guidance,
                                         const Tensor& pooled_projection) const {
        const Tensor timesteps_proj = timestep_embedding(timestep, 256, true);
        const Tensor timesteps_emb = timestep_embedder(to(timesteps_proj, pooled_projection.dtype()));
        if (!guidance.defined()) {
            const Tensor pooled_projections = text_embedder(pooled_projection);
            return add(timesteps_emb, pooled_projections);
        }
        const Tensor guidance_proj = timestep_embedding(guidance, 256, true);
        const Tensor guidance_emb = guidance_embedder(to(guidance_proj, pooled_projection.dtype()));
        const Tensor time_guidance_emb = add(timesteps_emb, guidance_emb);
        const Tensor pooled_projections = text_embedder(pooled_projection);
        return add(time_guidance_emb, pooled_projections);
    }

    std::int64_t in_channels_, out_channels_, joint_attention_dim_, pooled_projection_dim_;
    bool guidance_embeds_;
    std::vector<std::int64_t> axes_dims_rope_;
    TimestepEmbedding timestep_embedder, guidance_embedder;
    TextProjection text_embedder;
    Linear context_embedder, x_embedder, proj_out;
    std::deque<FluxTransformerBlock> transformer_blocks;
    std::deque<FluxSingleTransformerBlock> single_transformer_blocks;
    AdaLayerNormContinuous norm_out;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<FluxTransformer2DModel>(weights, profile.config);
}

}  // namespace vram::models::flux
