// Mirrors ChromaTransformer2DModel (diffusers 0.42.1, models/transformers/transformer_chroma.py), without
// attention_mask. FLUX.1's blocks with their modulation from one approximator: 3 rows a single block, 6 each for image
// and text of a double block, 2 at the end.
#include <deque>

#include "models/embeddings.hpp"
#include "models/families.hpp"
#include "models/flux_attention.hpp"

namespace vram::models::chroma {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;

struct Sizes {
    std::int64_t dim, heads, head_dim;
};

/// ChromaAdaLayerNormZeroPruned with 6 rows: {x, gate_msa, shift_mlp, scale_mlp, gate_mlp}; with 3, the Single one:
/// {x, gate_msa}.
class ChromaAdaLayerNormZeroPruned {
  public:
    ChromaAdaLayerNormZeroPruned(const Builder& builder, std::int64_t size)
        : norm(builder.layer_norm("norm", size, false)) {}

    Tensors operator()(Tensor x_in, Tensor emb_in) const {
        const Tensor held = std::move(x_in), emb = std::move(emb_in);  // emb: [B, rows, D]
        const std::int64_t rows = emb.size(1);
        const Tensors parts = chunk(flatten(emb, 1, 2), rows, 1);  // shift, scale, then what the block uses
        Tensor x = norm(held);
        x = mul(std::move(x), add_scalar(unsqueeze(parts[1], 1)));
        x = add(std::move(x), unsqueeze(parts[0], 1));
        Tensors out{x};
        for (std::size_t i = 2; i < parts.size(); ++i) out.push_back(parts[i]);
        return out;
    }

  private:
    nn::LayerNorm norm;
};

/// args: hidden_states, encoder_hidden_states, temb [B, 12, D], cos, sin → encoder_hidden_states, hidden_states
class ChromaTransformerBlock : public Block {
  public:
    ChromaTransformerBlock(const Builder& parent, const Sizes& sizes)
        : ChromaTransformerBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        const Tensor &hidden_states = args[0], &encoder_hidden_states = args[1], &temb = args[2];
        const Tensor temb_img = slice(temb, 1, 0, 6), temb_txt = slice(temb, 1, 6, temb.size(1));
        Tensors modulated = norm1(hidden_states, temb_img);
        Tensors modulated_context = norm1_context(encoder_hidden_states, temb_txt);
        return layers(hidden_states, encoder_hidden_states, std::move(modulated), std::move(modulated_context), args[3],
                      args[4]);
    }

  private:
    ChromaTransformerBlock(const BlockBuilder& builder, const Sizes& sizes)
        : norm1(builder["norm1"], sizes.dim),
          norm1_context(builder["norm1_context"], sizes.dim),
          layers(builder, sizes.dim, sizes.heads, sizes.head_dim) {
        builder.finish(*this, "ChromaTransformerBlock", {sizes.heads, sizes.head_dim});
    }

    ChromaAdaLayerNormZeroPruned norm1, norm1_context;
    FluxJointLayers layers;
};

/// args: hidden_states (text, then image), temb [B, 3, D], cos, sin → hidden_states
class ChromaSingleTransformerBlock : public Block {
  public:
    ChromaSingleTransformerBlock(const Builder& parent, const Sizes& sizes)
        : ChromaSingleTransformerBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0];
        const Tensor residual = hidden_states;
        Tensors modulated = norm(hidden_states, args[1]);
        const Tensor norm_hidden_states = modulated[0];
        Tensor gate = modulated[1];
        modulated.clear();
        const Tensor mlp_hidden_states = gelu(proj_mlp(norm_hidden_states));
        const Tensor attn_output = attn(norm_hidden_states, {}, args[2], args[3])[0];
        hidden_states = cat({attn_output, mlp_hidden_states}, 2);
        gate = unsqueeze(gate, 1);
        hidden_states = mul(gate, proj_out(hidden_states));
        hidden_states = add(residual, hidden_states);
        if (hidden_states.dtype() == Dtype::f16) hidden_states = clamp(hidden_states);
        return {hidden_states};
    }

  private:
    ChromaSingleTransformerBlock(const BlockBuilder& builder, const Sizes& sizes)
        : norm(builder["norm"], sizes.dim),
          proj_mlp(builder.linear("proj_mlp", sizes.dim, 4 * sizes.dim)),
          proj_out(builder.linear("proj_out", 5 * sizes.dim, sizes.dim)),
          attn(builder["attn"], sizes.dim, sizes.heads, sizes.head_dim, false) {
        builder.finish(*this, "ChromaSingleTransformerBlock", {sizes.heads, sizes.head_dim});
    }

    ChromaAdaLayerNormZeroPruned norm;
    Linear proj_mlp, proj_out;
    FluxAttention attn;
};

/// One vector of modulation a row, from timestep and row number.
class ChromaApproximator {
  public:
    ChromaApproximator() = default;
    ChromaApproximator(const Builder& builder, std::int64_t in_dim, std::int64_t out_dim, std::int64_t hidden_dim,
                       std::int64_t n_layers)
        : in_proj(builder.linear("in_proj", in_dim, hidden_dim)) {
        for (std::int64_t i = 0; i < n_layers; ++i)
            layers.emplace_back(builder["layers"][i], hidden_dim, hidden_dim, TextProjection::Activation::silu);
        for (std::int64_t i = 0; i < n_layers; ++i)
            norms.push_back(builder["norms"].rms_norm(std::to_string(i), hidden_dim));
        out_proj = builder.linear("out_proj", hidden_dim, out_dim);
    }

    [[nodiscard]] Tensor operator()(Tensor x_in) const {
        Tensor x = std::move(x_in);
        const Tensor held = x;
        x = in_proj(x);
        for (std::size_t i = 0; i < layers.size(); ++i) {
            Tensor out = norms[i](x);
            out = layers[i](std::move(out));
            x = add(x, std::move(out));
        }
        return out_proj(x);
    }

  private:
    Linear in_proj, out_proj;
    std::vector<TextProjection> layers;
    std::vector<nn::RmsNorm> norms;
};

class ChromaTransformer2DModel : public Model {
  public:
    ChromaTransformer2DModel(nn::Weights& weights, const profile::Config& config)
        : ChromaTransformer2DModel(Builder(weights), config) {}

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        const std::int64_t image = checked_mul(request.height / 16, request.width / 16);
        const auto axes = static_cast<std::int64_t>(axes_dims_rope_.size());
        return {{"hidden_states", {request.batch, image, in_channels_}, request.dtype},
                {"encoder_hidden_states", {request.batch, request.text_tokens, joint_attention_dim_}, request.dtype},
                {"timestep", {request.batch}, request.dtype},
                {"img_ids", {image, axes}, request.dtype},
                {"txt_ids", {request.text_tokens, axes}, request.dtype}};
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        Dims shape = inputs(request).front().shape;
        shape[2] = out_channels_;
        return {shape};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        Run& run = args[0].run();
        Tensor hidden_states = x_embedder(args[0]);  // [B, S, D]
        const Tensor timestep = mul_scalar(to(args[2], hidden_states.dtype()));
        const Tensor input_vec = time_text_embed(timestep);              // [B, rows, approximator_num_channels]
        const Tensor pooled_temb = distilled_guidance_layer(input_vec);  // [B, rows, D]
        Tensor encoder_hidden_states = context_embedder(args[1]);        // [B, T, D]
        const Tensor ids = cat({args[4], args[3]}, 0);                   // [T+S, 3]
        const Tensors image_rotary_emb = flux_pos_embed(ids, axes_dims_rope_);

        const Caller call(run, gradient_checkpointing);
        const auto doubles = static_cast<std::int64_t>(transformer_blocks.size()),
                   singles = static_cast<std::int64_t>(single_transformer_blocks.size());
        Tensor temb;
        for (std::int64_t i = 0; i < doubles; ++i) {
            const std::int64_t img_offset = 3 * singles, txt_offset = img_offset + 6 * doubles,
                               img_modulation = img_offset + 6 * i, text_modulation = txt_offset + 6 * i;
            temb = cat({slice(pooled_temb, 1, img_modulation, img_modulation + 6),
                        slice(pooled_temb, 1, text_modulation, text_modulation + 6)},
                       1);
            Tensors out = call(transformer_blocks[static_cast<std::size_t>(i)],
                               {hidden_states, encoder_hidden_states, temb, image_rotary_emb[0], image_rotary_emb[1]});
            encoder_hidden_states = std::move(out[0]);
            hidden_states = std::move(out[1]);
        }
        hidden_states = cat({encoder_hidden_states, hidden_states}, 1);
        for (std::int64_t i = 0; i < singles; ++i) {
            temb = slice(pooled_temb, 1, 3 * i, 3 * i + 3);
            hidden_states = call(single_transformer_blocks[static_cast<std::size_t>(i)],
                                 {hidden_states, temb, image_rotary_emb[0], image_rotary_emb[1]})[0];
        }
        hidden_states = slice(hidden_states, 1, encoder_hidden_states.size(1), hidden_states.size(1));
        temb = slice(pooled_temb, 1, -2, pooled_temb.size(1));
        hidden_states = norm_out(hidden_states, temb);
        return {proj_out(hidden_states)};
    }

  private:
    /// ChromaAdaLayerNormContinuousPruned
    class NormOut {
      public:
        NormOut() = default;
        NormOut(const Builder& builder, std::int64_t size) : norm(builder.layer_norm("norm", size, false)) {}
        [[nodiscard]] Tensor operator()(const Tensor& held, const Tensor& emb) const {
            const Tensors parts = chunk(to(flatten(emb, 1, 2), held.dtype()), 2, 1);  // shift, scale
            Tensor x = norm(held);
            x = mul(std::move(x), unsqueeze(add_scalar(parts[1]), 1));
            return add(std::move(x), unsqueeze(parts[0], 1));
        }

      private:
        nn::LayerNorm norm;
    };

    ChromaTransformer2DModel(const Builder& builder, const profile::Config& config)
        : in_channels_(config.integer("in_channels")),
          out_channels_(config.integer("out_channels", in_channels_)),
          joint_attention_dim_(config.integer("joint_attention_dim")),
          num_channels_(config.integer("approximator_num_channels") / 4),
          axes_dims_rope_(config.integers("axes_dims_rope")) {
        const std::int64_t heads = config.integer("num_attention_heads"),
                           head_dim = config.integer("attention_head_dim"), layers = config.integer("num_layers"),
                           single_layers = config.integer("num_single_layers");
        const Sizes sizes{heads * head_dim, heads, head_dim};
        mod_proj = &builder["time_text_embed"].buffer(
            "mod_proj", {3 * single_layers + 2 * 6 * layers + 2, 2 * num_channels_}, Dtype::f32);
        distilled_guidance_layer = ChromaApproximator(
            builder["distilled_guidance_layer"], config.integer("approximator_num_channels"), sizes.dim,
            config.integer("approximator_hidden_dim"), config.integer("approximator_layers"));
        context_embedder = builder.linear("context_embedder", joint_attention_dim_, sizes.dim);
        x_embedder = builder.linear("x_embedder", in_channels_, sizes.dim);
        for (std::int64_t i = 0; i < layers; ++i)
            transformer_blocks.emplace_back(builder["transformer_blocks"][i], sizes);
        for (std::int64_t i = 0; i < single_layers; ++i)
            single_transformer_blocks.emplace_back(builder["single_transformer_blocks"][i], sizes);
        norm_out = NormOut(builder["norm_out"], sizes.dim);
        proj_out = builder.linear("proj_out", sizes.dim, out_channels_);
    }

    // ChromaCombinedTimestepTextProjEmbeddings; the guidance of 0 is embedded on the CPU.
    [[nodiscard]] Tensor time_text_embed(const Tensor& timestep) const {
        Run& run = timestep.run();
        const std::int64_t mod_index_length = mod_proj->value.size(0), batch_size = timestep.size(0);
        const Tensor timesteps_proj = to(timestep_embedding(timestep, num_channels_, true), timestep.dtype());
        const Tensor guidance_proj = to_cuda(run, run.on_cpu({batch_size, num_channels_}, timestep.dtype()));
        const Tensor rows = repeat(to(mod_proj->value, timesteps_proj.dtype()), {batch_size, 1, 1});
        const Tensor timestep_guidance =
            repeat(unsqueeze(cat({timesteps_proj, guidance_proj}, 1), 1), {1, mod_index_length, 1});
        const Tensor input_vec = cat({timestep_guidance, rows}, -1);
        return to(input_vec, timestep.dtype());
    }

    std::int64_t in_channels_, out_channels_, joint_attention_dim_, num_channels_;
    std::vector<std::int64_t> axes_dims_rope_;
    nn::Parameter* mod_proj = nullptr;
    ChromaApproximator distilled_guidance_layer;
    Linear context_embedder, x_embedder, proj_out;
    std::deque<ChromaTransformerBlock> transformer_blocks;
    std::deque<ChromaSingleTransformerBlock> single_transformer_blocks;
    NormOut norm_out;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<ChromaTransformer2DModel>(weights, profile.config);
}

}  // namespace vram::models::chroma
