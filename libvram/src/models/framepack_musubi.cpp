// Mirrors HunyuanVideoTransformer3DModelPacked (musubi-tuner 30c658c, src/musubi_tuner/frame_pack/
// hunyuan_video_packed.py), which musubi trains FramePack with: attention as with --sdpa, and as the forward
// musubi_split_attn with --split_attn beside it, which more than one sample needs. A file of its own: its modules are
// diffusers', its forward is the authors'. Tensors are let go earlier, embedders are checkpointed, gates are added by
// addcmul, and the last linear becomes fp32 in the first call.
#include <array>
#include <deque>

#include "models/families.hpp"
#include "models/hunyuan_blocks.hpp"
#include "shadow/checkpoint.hpp"

namespace vram::models::framepack_musubi {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;

/// LayerNormFramePack: the result in the input's dtype.
Tensor norm_as(const nn::LayerNorm& norm, const Tensor& x) { return to(norm(x), x.dtype()); }

class RMSNormFramePack {
  public:
    RMSNormFramePack() = default;
    RMSNormFramePack(const Builder& builder, std::int64_t dim) : weight(&builder.parameter("weight", {dim})) {}
    Tensor operator()(Tensor x_in) const {
        const Tensor x = std::move(x_in);
        const Tensor variance = mean(pow_scalar(to_float(x)), -1, true);
        Tensor scale = add_scalar(variance);
        scale = rsqrt(std::move(scale));
        const Tensor hidden_states = mul(x, std::move(scale));
        Tensor narrow = to(hidden_states, x.dtype());
        return mul(std::move(narrow), to(weight->value, x.dtype()));
    }

  private:
    nn::Parameter* weight = nullptr;
};

/// apply_rotary_emb_transposed: x [B, S, H, D], freqs_cis [B, S, 2 D], the cosines before the sines.
Tensor rotated(const Tensor& x, const Tensor& freqs_cis) {
    const Tensors tables = chunk(unsqueeze(freqs_cis, -2), 2, -1);
    Tensor x_rotated;
    {
        const Tensors halves = unbind(unflatten(x, -1, {-1, 2}), -1);
        Tensor negative = neg(halves[1]);
        const std::array<Tensor, 2> turned{std::move(negative), halves[0]};
        x_rotated = flatten(stack(turned, -1), 3, 4);
    }
    Tensor along = mul(to_float(x), tables[0]);
    Tensor across = mul(to_float(x_rotated), tables[1]);
    along = add(std::move(along), std::move(across));
    return to(std::move(along), x.dtype());
}

/// Attention with HunyuanAttnProcessorFlashAttnDouble or ...Single.
class Attention {
  public:
    /// Not `joint`: pre_only, the block projects the output itself.
    Attention(const Builder& builder, const hunyuan::Sizes& sizes, bool joint)
        : heads_(sizes.heads),
          joint_(joint),
          norm_q(builder["norm_q"], sizes.head_dim),
          norm_k(builder["norm_k"], sizes.head_dim),
          to_q(builder.linear("to_q", sizes.dim, sizes.dim)),
          to_k(builder.linear("to_k", sizes.dim, sizes.dim)),
          to_v(builder.linear("to_v", sizes.dim, sizes.dim)) {
        if (!joint) return;
        add_k_proj = builder.linear("add_k_proj", sizes.dim, sizes.dim);
        add_v_proj = builder.linear("add_v_proj", sizes.dim, sizes.dim);
        add_q_proj = builder.linear("add_q_proj", sizes.dim, sizes.dim);
        to_out = builder["to_out"].linear("0", sizes.dim, sizes.dim);
        to_add_out = builder.linear("to_add_out", sizes.dim, sizes.dim);
        norm_added_q = RMSNormFramePack(builder["norm_added_q"], sizes.head_dim);
        norm_added_k = RMSNormFramePack(builder["norm_added_k"], sizes.head_dim);
    }

    /// {hidden_states, encoder_hidden_states}
    [[nodiscard]] Tensors operator()(const Tensor& hidden_states, const Tensor& encoder_hidden_states,
                                     const Tensor& freqs_cis, const Tensor& seq_len) const {
        const std::int64_t text = encoder_hidden_states.size(1);
        Tensors qkv = joint_ ? project_joint(hidden_states, encoder_hidden_states, freqs_cis)
                             : project(hidden_states, encoder_hidden_states, freqs_cis);
        Tensor attended = attend(qkv, seq_len);
        qkv.clear();
        attended = flatten(std::move(attended), -2, -1);
        const std::int64_t tokens = attended.size(1);
        Tensor video_out = slice(attended, 1, 0, tokens - text);
        Tensor text_out = slice(attended, 1, tokens - text, tokens);
        attended = Tensor();
        if (joint_) {
            video_out = to_out(video_out);
            text_out = to_add_out(text_out);
        }
        return {video_out, text_out};
    }

  private:
    [[nodiscard]] Tensor split(Tensor x) const { return unflatten(std::move(x), 2, {heads_, -1}); }

    [[nodiscard]] Tensors project_joint(const Tensor& hidden_states, const Tensor& encoder_hidden_states,
                                        const Tensor& freqs_cis) const {
        Tensor query = to_q(hidden_states);
        Tensor key = to_k(hidden_states);
        Tensor value = to_v(hidden_states);
        query = split(std::move(query));
        key = split(std::move(key));
        value = split(std::move(value));
        query = norm_q(std::move(query));
        key = norm_k(std::move(key));
        query = rotated(query, freqs_cis);
        key = rotated(key, freqs_cis);
        Tensor encoder_query = add_q_proj(encoder_hidden_states);
        Tensor encoder_key = add_k_proj(encoder_hidden_states);
        Tensor encoder_value = add_v_proj(encoder_hidden_states);
        encoder_query = split(std::move(encoder_query));
        encoder_key = split(std::move(encoder_key));
        encoder_value = split(std::move(encoder_value));
        encoder_query = norm_added_q(std::move(encoder_query));
        encoder_key = norm_added_k(std::move(encoder_key));
        query = cat({query, encoder_query}, 1);
        key = cat({key, encoder_key}, 1);
        value = cat({value, encoder_value}, 1);
        return {query, key, value};
    }

    [[nodiscard]] Tensors project(const Tensor& hidden_states, const Tensor& encoder_hidden_states,
                                  const Tensor& freqs_cis) const {
        Tensor hidden_states_cat = cat({hidden_states, encoder_hidden_states}, 1);
        Tensor query = to_q(hidden_states_cat);
        Tensor key = to_k(hidden_states_cat);
        Tensor value = to_v(hidden_states_cat);
        hidden_states_cat = Tensor();
        query = split(std::move(query));
        key = split(std::move(key));
        value = split(std::move(value));
        query = norm_q(std::move(query));
        key = norm_k(std::move(key));
        const std::int64_t video = hidden_states.size(1), tokens = query.size(1);
        for (Tensor* x : {&query, &key}) {
            Tensor turned = rotated(slice(*x, 1, 0, video), freqs_cis);
            *x = cat({std::move(turned), slice(*x, 1, video, tokens)}, 1);
        }
        return {query, key, value};
    }

    // x[i : i + 1, :, :seq_len_i]; what takes all of a dimension is no slice to torch.
    [[nodiscard]] static Tensor sample(const Tensor& x, std::int64_t i) {
        return x.size(0) == 1 ? view(x, x.sizes()) : slice(x, 0, i, i + 1);
    }

    // attn_varlen_func: one sample, or one by one; every one is as long as its places.
    [[nodiscard]] static Tensor attend(const Tensors& qkv, const Tensor& seq_len) {
        const Tensor q = transpose(qkv[0], 1, 2), k = transpose(qkv[1], 1, 2), v = transpose(qkv[2], 1, 2);
        if (!seq_len.defined()) return transpose(scaled_dot_product_attention(q, k, v), 1, 2);
        Tensors x;
        for (std::int64_t i = 0; i < q.size(0); ++i) {
            Tensor q_i = sample(q, i);
            Tensor k_i = sample(k, i);
            Tensor v_i = sample(v, i);
            x.push_back(scaled_dot_product_attention(std::move(q_i), std::move(k_i), std::move(v_i)));
            (void)compare_scalar(select(seq_len, 0, i));
        }
        Tensor joined = cat(x, 0);
        return transpose(std::move(joined), 1, 2);
    }

    std::int64_t heads_;
    bool joint_;
    RMSNormFramePack norm_q, norm_k;
    Linear to_q, to_k, to_v, add_k_proj, add_v_proj, add_q_proj, to_out, to_add_out;
    RMSNormFramePack norm_added_q, norm_added_k;
};

/// AdaLayerNormZero, AdaLayerNormZeroSingle, AdaLayerNormContinuous.
class AdaNorm {
  public:
    AdaNorm() = default;
    AdaNorm(const Builder& builder, std::int64_t dim, std::int64_t vectors)
        : vectors_(vectors),
          linear(builder.linear("linear", dim, vectors * dim)),
          norm(builder.layer_norm("norm", dim, false)) {}
    /// The vectors [B, 1, D] that emb [B, D] makes.
    [[nodiscard]] Tensors vectors(const Tensor& emb_in) const {
        Tensor emb = silu(unsqueeze(emb_in, -2));
        emb = linear(std::move(emb));
        return chunk(std::move(emb), vectors_, -1);
    }
    [[nodiscard]] Tensor operator()(const Tensor& x, const Tensor& scale, const Tensor& shift) const {
        return modulate(norm_as(norm, x), scale, shift);
    }

  private:
    std::int64_t vectors_ = 0;
    Linear linear;
    nn::LayerNorm norm;
};

/// args: hidden_states, encoder_hidden_states, temb, freqs_cis, and of more than one sample seq_len, cu_seqlens_q →
/// hidden_states, encoder_hidden_states
class HunyuanVideoTransformerBlock : public Block {
  public:
    HunyuanVideoTransformerBlock(const Builder& parent, const hunyuan::Sizes& sizes)
        : HunyuanVideoTransformerBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0], encoder_hidden_states = args[1];
        // 1. Input normalization: shift, scale, gate of attention, then of the MLP
        Tensors mod = norm1.vectors(args[2]);
        Tensor norm_hidden_states = norm1(hidden_states, mod[1], mod[0]);
        Tensors c_mod = norm1_context.vectors(args[2]);
        Tensor norm_encoder_hidden_states = norm1_context(encoder_hidden_states, c_mod[1], c_mod[0]);

        // 2. Joint attention
        Tensors attn_outputs =
            attn(norm_hidden_states, norm_encoder_hidden_states, args[3], args.size() > 4 ? args[4] : Tensor());
        norm_hidden_states = norm_encoder_hidden_states = Tensor();

        // 3. Modulation and residual connection
        hidden_states = addcmul(hidden_states, attn_outputs[0], mod[2]);
        attn_outputs[0] = Tensor();
        encoder_hidden_states = addcmul(encoder_hidden_states, attn_outputs[1], c_mod[2]);
        attn_outputs.clear();
        norm_hidden_states = norm_as(norm2, hidden_states);
        norm_encoder_hidden_states = norm_as(norm2_context, encoder_hidden_states);
        norm_hidden_states = modulate(norm_hidden_states, mod[4], mod[3]);
        norm_encoder_hidden_states = addcmul(c_mod[3], norm_encoder_hidden_states, add_scalar(c_mod[4]));

        // 4. Feed-forward
        Tensor ff_output = ff(norm_hidden_states);
        norm_hidden_states = Tensor();
        Tensor context_ff_output = ff_context(norm_encoder_hidden_states);
        norm_encoder_hidden_states = Tensor();
        hidden_states = addcmul(hidden_states, mod[5], ff_output);
        ff_output = Tensor();
        mod.clear();
        encoder_hidden_states = addcmul(encoder_hidden_states, c_mod[5], context_ff_output);
        return {hidden_states, encoder_hidden_states};
    }

  private:
    HunyuanVideoTransformerBlock(const BlockBuilder& builder, const hunyuan::Sizes& sizes)
        : norm1(builder["norm1"], sizes.dim, 6),
          norm1_context(builder["norm1_context"], sizes.dim, 6),
          attn(builder["attn"], sizes, true),
          norm2(builder.layer_norm("norm2", sizes.dim, false)),
          ff(builder["ff"], sizes.dim, sizes.mlp_dim, FeedForward::Activation::gelu),
          norm2_context(builder.layer_norm("norm2_context", sizes.dim, false)),
          ff_context(builder["ff_context"], sizes.dim, sizes.mlp_dim, FeedForward::Activation::gelu) {
        builder.finish(*this, "musubi.HunyuanVideoTransformerBlock", {sizes.heads, sizes.head_dim});
    }

    AdaNorm norm1, norm1_context;
    Attention attn;
    nn::LayerNorm norm2;
    FeedForward ff;
    nn::LayerNorm norm2_context;
    FeedForward ff_context;
};

/// args and outputs as of the double block
class HunyuanVideoSingleTransformerBlock : public Block {
  public:
    HunyuanVideoSingleTransformerBlock(const Builder& parent, const hunyuan::Sizes& sizes)
        : HunyuanVideoSingleTransformerBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        const std::int64_t video = args[0].size(1), tokens = video + args[1].size(1);
        Tensor hidden_states = cat({args[0], args[1]}, 1);
        const Tensor residual = hidden_states;
        // 1. Input normalization
        Tensors mod = norm.vectors(args[2]);  // shift, scale, gate
        Tensor norm_hidden_states = norm(hidden_states, mod[1], mod[0]);
        Tensor mlp_hidden_states = proj_mlp(norm_hidden_states);
        mlp_hidden_states = gelu(std::move(mlp_hidden_states));
        Tensor norm_video = slice(norm_hidden_states, 1, 0, video);
        Tensor norm_text = slice(norm_hidden_states, 1, video, tokens);
        norm_hidden_states = Tensor();
        // 2. Attention
        Tensors attn_outputs = attn(norm_video, norm_text, args[3], args.size() > 4 ? args[4] : Tensor());
        Tensor attn_output = cat({attn_outputs[0], attn_outputs[1]}, 1);
        attn_outputs.clear();
        norm_video = norm_text = Tensor();
        // 3. Modulation and residual connection
        hidden_states = cat({attn_output, mlp_hidden_states}, 2);
        attn_output = mlp_hidden_states = Tensor();
        hidden_states = mul(mod[2], proj_out(hidden_states));
        hidden_states = add(hidden_states, residual);
        return {slice(hidden_states, 1, 0, video), slice(hidden_states, 1, video, tokens)};
    }

  private:
    HunyuanVideoSingleTransformerBlock(const BlockBuilder& builder, const hunyuan::Sizes& sizes)
        : attn(builder["attn"], sizes, false),
          norm(builder["norm"], sizes.dim, 3),
          proj_mlp(builder.linear("proj_mlp", sizes.dim, sizes.mlp_dim)),
          proj_out(builder.linear("proj_out", sizes.dim + sizes.mlp_dim, sizes.dim)) {
        builder.finish(*this, "musubi.HunyuanVideoSingleTransformerBlock", {sizes.heads, sizes.head_dim});
    }

    Attention attn;
    AdaNorm norm;
    Linear proj_mlp, proj_out;
};

/// args: hidden_states [B, T, D], temb [B, D], attention_mask [B, 1, T, T] → hidden_states
class RefinerBlock : public Block {
  public:
    RefinerBlock(const Builder& parent, const hunyuan::Sizes& sizes) : RefinerBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0];
        Tensor norm_hidden_states = norm_as(norm1, hidden_states);
        Tensor attn_output = attend(norm_hidden_states, args[2]);
        norm_hidden_states = Tensor();
        Tensor modulation = silu(args[1]);
        modulation = norm_out(std::move(modulation));
        const Tensors gates = chunk(std::move(modulation), 2, -1);  // msa, mlp
        hidden_states = addcmul(hidden_states, attn_output, unsqueeze(gates[0], 1));
        attn_output = Tensor();
        const Tensor ff_output = ff(norm_as(norm2, hidden_states));
        hidden_states = addcmul(hidden_states, ff_output, unsqueeze(gates[1], 1));
        return {hidden_states};
    }

  private:
    RefinerBlock(const BlockBuilder& builder, const hunyuan::Sizes& sizes)
        : heads_(sizes.heads),
          norm1(builder.layer_norm("norm1", sizes.dim)),
          to_q(builder["attn"].linear("to_q", sizes.dim, sizes.dim)),
          to_k(builder["attn"].linear("to_k", sizes.dim, sizes.dim)),
          to_v(builder["attn"].linear("to_v", sizes.dim, sizes.dim)),
          to_out(builder["attn"]["to_out"].linear("0", sizes.dim, sizes.dim)),
          norm2(builder.layer_norm("norm2", sizes.dim)),
          ff(builder["ff"], sizes.dim, 4 * sizes.dim, FeedForward::Activation::linear_silu),
          norm_out(builder["norm_out"].linear("linear", sizes.dim, 2 * sizes.dim)) {
        builder.finish(*this, "musubi.HunyuanVideoIndividualTokenRefinerBlock", {sizes.heads});
    }

    // AttnProcessor2_0; the mask is repeated for each head.
    [[nodiscard]] Tensor attend(const Tensor& x, const Tensor& mask) const {
        Tensor attention_mask = repeat_interleave(mask, heads_, 0);
        attention_mask = view(attention_mask, {x.size(0), heads_, -1, x.size(1)});
        const auto split = [&](Tensor part) {
            return transpose(view(std::move(part), {x.size(0), -1, heads_, x.size(2) / heads_}), 1, 2);
        };
        Tensor query = split(to_q(x));
        Tensor key = split(to_k(x));
        Tensor value = split(to_v(x));
        Tensor out =
            scaled_dot_product_attention(std::move(query), std::move(key), std::move(value), std::move(attention_mask));
        out = reshape(transpose(out, 1, 2), {x.size(0), -1, x.size(2)});
        return to_out(out);
    }

    std::int64_t heads_;
    nn::LayerNorm norm1;
    Linear to_q, to_k, to_v, to_out;
    nn::LayerNorm norm2;
    FeedForward ff;
    Linear norm_out;
};

/// HunyuanVideoTokenRefiner, one checkpoint as a whole.
class TokenRefiner {
  public:
    TokenRefiner(const Builder& builder, std::int64_t in, const hunyuan::Sizes& sizes, std::int64_t layers)
        : timestep_embedder(builder["time_text_embed"]["timestep_embedder"], 256, sizes.dim),
          text_embedder(builder["time_text_embed"]["text_embedder"], in, sizes.dim, TextProjection::Activation::silu),
          proj_in(builder.linear("proj_in", in, sizes.dim)) {
        for (std::int64_t i = 0; i < layers; ++i)
            refiner_blocks.emplace_back(builder["token_refiner"]["refiner_blocks"][i], sizes);
    }

    /// args: hidden_states [B, T, in], timestep [B], attention_mask [B, T] bool → [B, T, D]
    [[nodiscard]] Tensor operator()(const Tensors& args) const {
        const Tensor& mask = args[2];
        Tensor hidden_states = args[0], temb;
        const Tensor mask_float = unsqueeze(to_float(mask), -1);
        {
            Tensor pooled_projections = sum(mul(hidden_states, mask_float), 1, false);
            pooled_projections = div(std::move(pooled_projections), sum(mask_float, 1, false));
            pooled_projections = to(pooled_projections, hidden_states.dtype());
            temb = time_text_embed(args[1], pooled_projections);
        }
        hidden_states = proj_in(hidden_states);
        const std::int64_t batch_size = mask.size(0), seq_len = mask.size(1);
        const Tensor self_attn_mask_1 = repeat(view(mask, {batch_size, 1, 1, seq_len}), {1, 1, seq_len, 1});
        const Tensor self_attn_mask = bitwise_and(self_attn_mask_1, transpose(self_attn_mask_1, 2, 3));
        const Caller call(mask.run(), false);
        const Tensor held = hidden_states;  // by Module.__call__
        for (const RefinerBlock& block : refiner_blocks)
            hidden_states = call(block, {hidden_states, temb, self_attn_mask})[0];
        return hidden_states;
    }

  private:
    [[nodiscard]] Tensor time_text_embed(const Tensor& timestep, const Tensor& pooled_projection) const {
        const Tensor timesteps_proj = timestep_embedding(timestep, 256, true);
        const Tensor timesteps_emb = timestep_embedder(to(timesteps_proj, pooled_projection.dtype()));
        const Tensor pooled_projections = text_embedder(pooled_projection);
        return add(timesteps_emb, pooled_projections);
    }

    TimestepEmbedding timestep_embedder;
    TextProjection text_embedder;
    Linear proj_in;
    std::deque<RefinerBlock> refiner_blocks;
};

class HunyuanVideoTransformer3DModelPacked : public Model {
  public:
    HunyuanVideoTransformer3DModelPacked(const Builder& builder, const profile::Config& config)
        : HunyuanVideoTransformer3DModelPacked(builder, config, sizes_of(config)) {}

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        const std::int64_t batch = request.batch, frames = (request.frames - 1) / 4 + 1;
        std::vector<Value> out{{"hidden_states", latents(request, frames), request.dtype},
                               {"timestep", {batch}, Dtype::f32},
                               {"encoder_hidden_states", {batch, request.text_tokens, text_embed_dim_}, request.dtype},
                               {"encoder_attention_mask", {batch, request.text_tokens}, Dtype::boolean},
                               {"pooled_projections", {batch, pooled_projection_dim_}, request.dtype},
                               {"guidance", {batch}, request.dtype},
                               {"latent_indices", {batch, frames}, Dtype::i64}};
        const auto history = [&](const char* name, const char* indices, std::int64_t count) {
            out.push_back({name, latents(request, count), request.dtype});
            out.push_back({indices, {batch, count}, Dtype::i64});
        };
        history("clean_latents", "clean_latent_indices", hunyuan::clean_frames);
        history("clean_latents_2x", "clean_latent_2x_indices", hunyuan::frames_2x);
        history("clean_latents_4x", "clean_latent_4x_indices", hunyuan::frames_4x);
        out.push_back({"image_embeddings", {batch, hunyuan::image_tokens, image_proj_dim_}, request.dtype});
        return out;
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {latents(request, (request.frames - 1) / 4 + 1)};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        Run& run = args[0].run();
        const std::int64_t batch_size = args[0].size(0);
        if (batch_size > 1 && !split_attn_)
            throw Refused(
                "musubi's FramePack attends to several samples at once with flash or sage attention only, and "
                "else to one after the other: forward must be musubi_split_attn",
                "forward");
        const std::array<std::int64_t, 3> grid{args[0].size(2) / patch_[0], args[0].size(3) / patch_[1],
                                               args[0].size(4) / patch_[2]};
        const std::int64_t original_context_length = grid[0] * grid[1] * grid[2];
        Tensors processed = process_input_hidden_states(args, grid);
        Tensor hidden_states = std::move(processed[0]), rope_freqs = std::move(processed[1]);
        processed.clear();

        const Tensor temb =
            part([this](const Tensors& in) { return time_text_embed(in); }, {args[1], args[5], args[4]});
        Tensor encoder_hidden_states =
            part([this](const Tensors& in) { return context_embedder(in); }, {args[2], args[1], args[3]});
        Tensor encoder_attention_mask = args[3];
        {
            const Tensor extra = part([this](const Tensors& in) { return image_projection(in[0]); }, {args[13]});
            const Tensor extra_attention_mask =
                run.empty({batch_size, extra.size(1)}, encoder_attention_mask.dtype(), Op::ones);
            encoder_hidden_states = cat({extra, encoder_hidden_states}, 1);
            encoder_attention_mask = cat({extra_attention_mask, encoder_attention_mask}, 1);
        }
        Tensor cu_seqlens, seq_len;
        {
            const NoGrad no_grad(run);
            if (!split_attn_) {  // what is cut off has no history, though nothing is
                (void)run.empty({}, Dtype::i64, Op::sum);
                encoder_hidden_states = slice(encoder_hidden_states, 1, 0, encoder_hidden_states.size(1));
            } else {
                get_cu_seqlens(encoder_attention_mask, cu_seqlens, seq_len);
            }
        }
        encoder_attention_mask = Tensor();

        const Caller call(run, gradient_checkpointing);
        const auto run_block = [&](const Block& block) {
            Tensors in{hidden_states, encoder_hidden_states, temb, rope_freqs};
            if (seq_len.defined()) {
                in.push_back(seq_len);
                in.push_back(cu_seqlens);
            }
            Tensors out = call(block, std::move(in));
            hidden_states = std::move(out[0]);
            encoder_hidden_states = std::move(out[1]);
        };
        for (const HunyuanVideoTransformerBlock& block : transformer_blocks) run_block(block);
        for (const HunyuanVideoSingleTransformerBlock& block : single_transformer_blocks) run_block(block);
        rope_freqs = encoder_hidden_states = cu_seqlens = seq_len = Tensor();

        hidden_states = part([this](const Tensors& in) { return normed_out(in); }, {hidden_states, temb});
        hidden_states = slice(hidden_states, 1, hidden_states.size(1) - original_context_length, hidden_states.size(1));
        hidden_states = to_float(hidden_states);
        widen(proj_out);
        hidden_states = part([this](const Tensors& in) { return proj_out(in[0]); }, {hidden_states});
        return {unpatchify(hidden_states, grid)};
    }

  private:
    static hunyuan::Sizes sizes_of(const profile::Config& config) {
        const std::int64_t heads = config.integer("num_attention_heads"),
                           head_dim = config.integer("attention_head_dim"), dim = checked_mul(heads, head_dim);
        return {dim, heads, head_dim, static_cast<std::int64_t>(static_cast<double>(dim) * config.number("mlp_ratio"))};
    }

    HunyuanVideoTransformer3DModelPacked(const Builder& builder, const profile::Config& config,
                                         const hunyuan::Sizes& sizes)
        : split_attn_(config.text("forward", "musubi") == "musubi_split_attn"),
          in_channels_(config.integer("in_channels")),
          text_embed_dim_(config.integer("text_embed_dim")),
          pooled_projection_dim_(config.integer("pooled_projection_dim")),
          image_proj_dim_(config.integer("image_proj_dim")),
          rope_dim_(config.integers("rope_axes_dim")),
          patch_{config.integer("patch_size_t"), config.integer("patch_size"), config.integer("patch_size")},
          x_embedder(builder["x_embedder"].conv("proj", in_channels_, sizes.dim, patch_, patch_, {0, 0, 0})),
          context_embedder(builder["context_embedder"], text_embed_dim_, sizes, config.integer("num_refiner_layers")),
          timestep_embedder(builder["time_text_embed"]["timestep_embedder"], 256, sizes.dim),
          guidance_embedder(builder["time_text_embed"]["guidance_embedder"], 256, sizes.dim),
          text_embedder(builder["time_text_embed"]["text_embedder"], pooled_projection_dim_, sizes.dim,
                        TextProjection::Activation::silu) {
        for (std::int64_t i = 0; i < config.integer("num_layers"); ++i)
            transformer_blocks.emplace_back(builder["transformer_blocks"][i], sizes);
        for (std::int64_t i = 0; i < config.integer("num_single_layers"); ++i)
            single_transformer_blocks.emplace_back(builder["single_transformer_blocks"][i], sizes);
        norm_out = AdaNorm(builder["norm_out"], sizes.dim, 2);
        proj_out = builder.linear("proj_out", sizes.dim, patch_.product() * in_channels_);
        image_up = builder["image_projection"].linear("up", image_proj_dim_, 3 * sizes.dim);
        image_down = builder["image_projection"].linear("down", 3 * sizes.dim, sizes.dim);
        const Builder clean = builder["clean_x_embedder"];
        clean_proj = clean.conv("proj", in_channels_, sizes.dim, {1, 2, 2}, {1, 2, 2}, {0, 0, 0});
        clean_proj_2x = clean.conv("proj_2x", in_channels_, sizes.dim, {2, 4, 4}, {2, 4, 4}, {0, 0, 0});
        clean_proj_4x = clean.conv("proj_4x", in_channels_, sizes.dim, {4, 8, 8}, {4, 8, 8}, {0, 0, 0});
    }

    [[nodiscard]] Dims latents(const Request& request, std::int64_t frames) const {
        return {request.batch, in_channels_, frames, request.height / 8, request.width / 8};
    }

    /// gradient_checkpointing_method
    template <class Forward>
    [[nodiscard]] Tensor part(const Forward& forward, Tensors args) const {
        Run& run = args[0].run();
        const auto function = [forward](const Tensors& inputs) { return Tensors{forward(inputs)}; };
        if (!gradient_checkpointing) return function(args)[0];
        return checkpoint(run, function, std::move(args))[0];
    }

    [[nodiscard]] Tensor embed(const nn::Conv& proj, const Tensor& x) const {
        Tensor out = part([&proj](const Tensors& in) { return proj(in[0]); }, {x});
        return transpose(flatten(std::move(out), 2, 4), 1, 2);
    }

    // {hidden_states [B, S, D], rope_freqs [B, S, 2 head_dim]}, the history before the video
    [[nodiscard]] Tensors process_input_hidden_states(const Tensors& args,
                                                      const std::array<std::int64_t, 3>& grid) const {
        Tensor hidden_states = embed(x_embedder, args[0]);
        Tensor rope_freqs = as_rows(rope(args[6], grid));
        const Tensor clean_latents = embed(clean_proj, args[7]);
        const Tensor clean_rope_freqs = as_rows(rope(args[8], grid));
        hidden_states = cat({clean_latents, hidden_states}, 1);
        rope_freqs = cat({clean_rope_freqs, rope_freqs}, 1);
        const Tensor clean_latents_2x = embed_padded(clean_proj_2x, args[9], {2, 4, 4});
        const Tensor clean_2x_rope_freqs = pooled_rope(args[10], grid, {2, 2, 2});
        hidden_states = cat({clean_latents_2x, hidden_states}, 1);
        rope_freqs = cat({clean_2x_rope_freqs, rope_freqs}, 1);
        const Tensor clean_latents_4x = embed_padded(clean_proj_4x, args[11], {4, 8, 8});
        const Tensor clean_4x_rope_freqs = pooled_rope(args[12], grid, {4, 4, 4});
        hidden_states = cat({clean_latents_4x, hidden_states}, 1);
        rope_freqs = cat({clean_4x_rope_freqs, rope_freqs}, 1);
        return {hidden_states, rope_freqs};
    }

    [[nodiscard]] Tensor embed_padded(const nn::Conv& proj, const Tensor& latents, const Dims& kernel) const {
        const Tensor padded = hunyuan::pad_for_3d_conv(latents, kernel);
        return embed(proj, padded);
    }
    [[nodiscard]] Tensor pooled_rope(const Tensor& frame_indices, const std::array<std::int64_t, 3>& grid,
                                     const Dims& kernel) const {
        Tensor freqs = rope(frame_indices, grid);
        freqs = hunyuan::pad_for_3d_conv(freqs, kernel);
        freqs = avg_pool3d(freqs, kernel);
        return as_rows(freqs);
    }
    [[nodiscard]] static Tensor as_rows(Tensor x) { return transpose(flatten(std::move(x), 2, 4), 1, 2); }

    // HunyuanVideoRotaryPosEmbed: frame_indices [B, F] → [B, 2 head_dim, F, H, W] fp32
    [[nodiscard]] Tensor rope(const Tensor& frame_indices, const std::array<std::int64_t, 3>& grid) const {
        const NoGrad no_grad(frame_indices.run());
        Tensors results;
        for (const Tensor& indices : unbind(frame_indices, 0)) results.push_back(rope_of(indices, grid));
        return stack(results, 0);
    }

    [[nodiscard]] Tensor rope_of(const Tensor& frame_indices, const std::array<std::int64_t, 3>& grid) const {
        Run& run = frame_indices.run();
        Tensors axes;
        {
            Tensor time = to_float(frame_indices);
            Tensor rows = arange(run, grid[1], Dtype::f32);
            rows = mul_scalar(std::move(rows));
            Tensor columns = arange(run, grid[2], Dtype::f32);
            columns = mul_scalar(std::move(columns));
            axes = meshgrid(time, rows, columns);
        }
        Tensors cosines, sines;
        for (std::size_t i = 0; i < 3; ++i) {
            Tensor freqs = get_frequency(rope_dim_[i], axes[i]);
            Tensor cosine = cos(freqs);
            Tensor sine = sin(freqs);
            freqs = Tensor();
            axes[i] = Tensor();
            cosines.push_back(std::move(cosine));
            sines.push_back(std::move(sine));
        }
        return cat({cosines[0], cosines[1], cosines[2], sines[0], sines[1], sines[2]}, 0);
    }

    // Before cosine and sine.
    [[nodiscard]] static Tensor get_frequency(std::int64_t dim, const Tensor& pos) {
        Run& run = pos.run();
        Tensor freqs = div_scalar(arange(run, dim / 2, Dtype::f32));
        freqs = scalar_pow(std::move(freqs));
        freqs = rdiv_scalar(std::move(freqs));
        Tensor outer_product = outer(freqs, reshape(pos, {-1}));
        outer_product = unflatten(std::move(outer_product), -1, {pos.size(0), pos.size(1), pos.size(2)});
        return repeat_interleave(std::move(outer_product), 2, 0);
    }

    // CombinedTimestepGuidanceTextProjEmbeddings; in: timestep, guidance, pooled_projection
    [[nodiscard]] Tensor time_text_embed(const Tensors& in) const {
        const Dtype dtype = in[2].dtype();
        const Tensor timesteps_proj = timestep_embedding(in[0], 256, true);
        const Tensor timesteps_emb = timestep_embedder(to(timesteps_proj, dtype));
        const Tensor guidance_proj = timestep_embedding(in[1], 256, true);
        const Tensor guidance_emb = guidance_embedder(to(guidance_proj, dtype));
        const Tensor time_guidance_emb = add(timesteps_emb, guidance_emb);
        const Tensor pooled_projections = text_embedder(in[2]);
        return add(time_guidance_emb, pooled_projections);
    }

    // ClipVisionProjection
    [[nodiscard]] Tensor image_projection(const Tensor& x) const {
        Tensor projected = image_up(x);
        projected = silu(std::move(projected));
        return image_down(std::move(projected));
    }

    // in: hidden_states, temb
    [[nodiscard]] Tensor normed_out(const Tensors& in) const {
        const Tensors parts = norm_out.vectors(in[1]);  // scale, shift
        return norm_out(in[0], parts[0], parts[1]);
    }

    static void get_cu_seqlens(const Tensor& text_mask, Tensor& cu_seqlens, Tensor& seq_len) {
        Run& run = text_mask.run();
        const std::int64_t batch_size = text_mask.size(0);
        const Tensor text_len = sum(text_mask, 1, false);
        cu_seqlens = run.empty({2 * batch_size + 1}, Dtype::i32, Op::zeros);
        Tensor s, s1;
        for (std::int64_t i = 0; i < batch_size; ++i) {
            s = add_scalar(select(text_len, 0, i));
            s1 = add_scalar(s);
        }
        seq_len = add_scalar(text_len);
    }

    /// linear.to(torch.float32), which stays so.
    static void widen(const Linear& linear) {
        for (nn::Parameter* parameter : {linear.weight, linear.bias})
            if (parameter != nullptr) widen(*linear.weights, *parameter, Category::weights);
        if (linear.adapter == nullptr) return;
        for (nn::Parameter* parameter : linear.adapter->own) widen(*linear.weights, *parameter, Category::adapter);
    }
    static void widen(nn::Weights& weights, nn::Parameter& parameter, Category category) {
        if (parameter.value.dtype() == Dtype::f32) return;
        const ComponentScope scope(weights.run(), weights.component(), category);
        const bool trains = parameter.value.requires_grad();
        parameter.value = to_float(parameter.value.detach());
        if (trains) weights.run().make_leaf(parameter);  // its gradients are fp32 from now on, too
    }

    [[nodiscard]] Tensor unpatchify(const Tensor& tokens, const std::array<std::int64_t, 3>& grid) const {
        Tensor x =
            reshape(tokens, {tokens.size(0), grid[0], grid[1], grid[2], in_channels_, patch_[0], patch_[1], patch_[2]});
        x = permute(std::move(x), {0, 4, 1, 5, 2, 6, 3, 7});
        return reshape(std::move(x),
                       {tokens.size(0), in_channels_, grid[0] * patch_[0], grid[1] * patch_[1], grid[2] * patch_[2]});
    }

    bool split_attn_;
    std::int64_t in_channels_, text_embed_dim_, pooled_projection_dim_, image_proj_dim_;
    std::vector<std::int64_t> rope_dim_;
    Dims patch_;
    nn::Conv x_embedder;
    TokenRefiner context_embedder;
    TimestepEmbedding timestep_embedder, guidance_embedder;
    TextProjection text_embedder;
    std::deque<HunyuanVideoTransformerBlock> transformer_blocks;
    std::deque<HunyuanVideoSingleTransformerBlock> single_transformer_blocks;
    AdaNorm norm_out;
    Linear proj_out, image_up, image_down;
    nn::Conv clean_proj, clean_proj_2x, clean_proj_4x;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<HunyuanVideoTransformer3DModelPacked>(Builder(weights), profile.config);
}

}  // namespace vram::models::framepack_musubi
