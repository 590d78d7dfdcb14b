// Mirrors MochiTransformer3DModel (diffusers 0.42.1, models/transformers/transformer_mochi.py; MochiAttention and its
// processor of models/attention_processor.py; MochiCombinedTimestepCaptionEmbedding and MochiAttentionPool of
// models/embeddings.py). Every caption fills its tokens: attention picks the valid ones out, sample by sample.
#include <array>
#include <deque>

#include "models/families.hpp"
#include "models/normalization.hpp"

namespace vram::models::mochi {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;

struct Sizes {
    std::int64_t dim, heads, head_dim, pooled_projection_dim;
};

/// MochiModulatedRMSNorm: the norm and the product in fp32.
Tensor modulated_rms_norm(const Tensor& held, Tensor scale_in) {
    const Tensor scale = std::move(scale_in);
    Tensor hidden_states = to_float(held);
    hidden_states = PlainRmsNorm()(hidden_states);
    hidden_states = mul(hidden_states, scale);
    return to(std::move(hidden_states), held.dtype());
}

// 1 + scale.unsqueeze(1).to(torch.float32)
Tensor scale_of(const Tensor& scale) { return add_scalar(to_float(unsqueeze(scale, 1))); }
// torch.tanh(gate).unsqueeze(1)
Tensor gate_of(const Tensor& gate) { return unsqueeze(tanh(gate), 1); }

/// MochiRMSNorm: unlike diffusers' RMSNorm it stays in fp32 until the weight is in.
class MochiRmsNorm {
  public:
    MochiRmsNorm(const Builder& builder, std::string_view name, std::int64_t size)
        : weight(&builder[name].parameter("weight", {size})) {}

    [[nodiscard]] Tensor operator()(Tensor hidden_states_in) const {
        const Tensor held = std::move(hidden_states_in);
        const Tensor variance = mean(pow_scalar(to_float(held)), -1, true);
        Tensor hidden_states = mul(held, rsqrt(add_scalar(variance)));
        hidden_states = mul(hidden_states, weight->value);
        return to(std::move(hidden_states), held.dtype());
    }

  private:
    Parameter* weight;
};

/// MochiRMSNormZero: {hidden_states, gate_msa, scale_mlp, gate_mlp}.
class RmsNormZero {
  public:
    RmsNormZero() = default;
    RmsNormZero(const Builder& builder, std::int64_t dim, std::int64_t hidden_dim)
        : linear(builder.linear("linear", dim, hidden_dim)) {}

    [[nodiscard]] Tensors operator()(const Tensor& held, const Tensor& temb) const {
        const Tensor emb = linear(silu(temb));
        const Tensors parts = chunk(emb, 4, 1);  // scale_msa, gate_msa, scale_mlp, gate_mlp
        Tensor hidden_states = PlainRmsNorm()(to_float(held));
        Tensor factor = scale_of(parts[0]);
        hidden_states = mul(std::move(hidden_states), std::move(factor));
        hidden_states = to(std::move(hidden_states), held.dtype());
        return {hidden_states, parts[1], parts[2], parts[3]};
    }

  private:
    Linear linear;
};

/// MochiAttention with MochiAttnProcessor2_0: {hidden_states, encoder_hidden_states}.
class MochiAttention {
  public:
    MochiAttention(const Builder& builder, const Sizes& sizes, bool context_pre_only)
        : heads_(sizes.heads),
          context_pre_only_(context_pre_only),
          norm_q(builder, "norm_q", sizes.head_dim),
          norm_k(builder, "norm_k", sizes.head_dim),
          norm_added_q(builder, "norm_added_q", sizes.head_dim),
          norm_added_k(builder, "norm_added_k", sizes.head_dim),
          to_q(builder.linear("to_q", sizes.dim, sizes.dim, false)),
          to_k(builder.linear("to_k", sizes.dim, sizes.dim, false)),
          to_v(builder.linear("to_v", sizes.dim, sizes.dim, false)),
          add_k_proj(builder.linear("add_k_proj", sizes.pooled_projection_dim, sizes.dim, false)),
          add_v_proj(builder.linear("add_v_proj", sizes.pooled_projection_dim, sizes.dim, false)),
          add_q_proj(builder.linear("add_q_proj", sizes.pooled_projection_dim, sizes.dim, false)),
          to_out(builder["to_out"].linear("0", sizes.dim, sizes.dim)) {
        if (!context_pre_only) to_add_out = builder.linear("to_add_out", sizes.dim, sizes.pooled_projection_dim);
    }

    [[nodiscard]] Tensors operator()(const Tensor& held, const Tensor& encoder_held, const Tensor& attention_mask,
                                     const Tensor& cos, const Tensor& sin) const {
        Run& run = held.run();
        Tensor query = to_q(held);
        Tensor key = to_k(held);
        Tensor value = to_v(held);
        query = unflatten(query, 2, {heads_, -1});
        key = unflatten(key, 2, {heads_, -1});
        value = unflatten(value, 2, {heads_, -1});
        query = norm_q(query);
        key = norm_k(key);

        Tensor encoder_query = add_q_proj(encoder_held);
        Tensor encoder_key = add_k_proj(encoder_held);
        Tensor encoder_value = add_v_proj(encoder_held);
        encoder_query = unflatten(encoder_query, 2, {heads_, -1});
        encoder_key = unflatten(encoder_key, 2, {heads_, -1});
        encoder_value = unflatten(encoder_value, 2, {heads_, -1});
        encoder_query = norm_added_q(encoder_query);
        encoder_key = norm_added_k(encoder_key);

        query = rotate(query, cos, sin);
        key = rotate(key, cos, sin);
        query = transpose(query, 1, 2);
        key = transpose(key, 1, 2);
        value = transpose(value, 1, 2);
        encoder_query = transpose(encoder_query, 1, 2);
        encoder_key = transpose(encoder_key, 1, 2);
        encoder_value = transpose(encoder_value, 1, 2);

        const std::int64_t sequence_length = query.size(2), encoder_sequence_length = encoder_query.size(2),
                           batch_size = query.size(0);
        std::vector<Tensor> attn_outputs;
        Tensor valid_prompt_token_indices, valid_encoder_query, valid_encoder_key, valid_encoder_value, valid_query,
            valid_key, valid_value, attn_output;
        for (std::int64_t idx = 0; idx < batch_size; ++idx) {
            const auto own = [&](const Tensor& x) { return slice(x, 0, idx, idx + 1); };
            // torch.nonzero of the sample's mask
            valid_prompt_token_indices = run.empty({attention_mask.size(1)}, Dtype::i64, Op::index);
            valid_encoder_query = index(own(encoder_query), 2, valid_prompt_token_indices);
            valid_encoder_key = index(own(encoder_key), 2, valid_prompt_token_indices);
            valid_encoder_value = index(own(encoder_value), 2, valid_prompt_token_indices);
            valid_query = cat({own(query), valid_encoder_query}, 2);
            valid_key = cat({own(key), valid_encoder_key}, 2);
            valid_value = cat({own(value), valid_encoder_value}, 2);
            attn_output = scaled_dot_product_attention(valid_query, valid_key, valid_value);
            attn_output = pad(attn_output, {0, 0, 0, 0});  // to the batch's longest: by nothing, and yet a copy
            attn_outputs.push_back(attn_output);
        }
        Tensor hidden_states = cat(attn_outputs, 0);
        hidden_states = flatten(transpose(hidden_states, 1, 2), 2, 3);
        const Tensors parts = split(hidden_states, Dims{sequence_length, encoder_sequence_length}, 1);
        hidden_states = parts[0];
        Tensor encoder_hidden_states = parts[1];
        hidden_states = to_out(hidden_states);
        if (!context_pre_only_) encoder_hidden_states = to_add_out(encoder_hidden_states);
        return {hidden_states, encoder_hidden_states};
    }

  private:
    // apply_rotary_emb of the processor: x [B, S, H, D] with cos, sin [S, H, D / 2]
    static Tensor rotate(const Tensor& x, const Tensor& freqs_cos, const Tensor& freqs_sin) {
        const Tensor x_even = to_float(slice(x, -1, 0, x.size(-1), 2));
        const Tensor x_odd = to_float(slice(x, -1, 1, x.size(-1), 2));
        std::array<Tensor, 2> turned;
        for (const std::size_t half : {0U, 1U}) {
            Tensor first = mul(x_even, half == 0 ? freqs_cos : freqs_sin);
            Tensor second = mul(x_odd, half == 0 ? freqs_sin : freqs_cos);
            Tensor both =
                half == 0 ? sub(std::move(first), std::move(second)) : add(std::move(first), std::move(second));
            turned[half] = to(std::move(both), x.dtype());
        }
        return flatten(stack(turned, -1), -2, -1);
    }

    std::int64_t heads_;
    bool context_pre_only_;
    MochiRmsNorm norm_q, norm_k, norm_added_q, norm_added_k;
    Linear to_q, to_k, to_v, add_k_proj, add_v_proj, add_q_proj, to_out, to_add_out;
};

/// args: hidden_states, encoder_hidden_states, temb, encoder_attention_mask [B, T], cos, sin → hidden_states,
/// encoder_hidden_states
class MochiTransformerBlock : public Block {
  public:
    MochiTransformerBlock(const Builder& parent, const Sizes& sizes, bool context_pre_only)
        : MochiTransformerBlock(parent.block(*this), sizes, context_pre_only) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0], encoder_hidden_states = args[1];
        const Tensor& temb = args[2];
        Tensors modulated = norm1(hidden_states, temb);
        Tensor norm_hidden_states = modulated[0];
        const Tensor gate_msa = modulated[1], scale_mlp = modulated[2], gate_mlp = modulated[3];
        Tensor norm_encoder_hidden_states, enc_gate_msa, enc_scale_mlp, enc_gate_mlp;
        if (context_pre_only_) {
            // MochiLayerNormContinuous
            const Tensor scale = norm1_context_linear(to(silu(temb), encoder_hidden_states.dtype()));
            norm_encoder_hidden_states = modulated_rms_norm(encoder_hidden_states, scale_of(scale));
        } else {
            modulated = norm1_context(encoder_hidden_states, temb);
            norm_encoder_hidden_states = modulated[0];
            enc_gate_msa = modulated[1];
            enc_scale_mlp = modulated[2];
            enc_gate_mlp = modulated[3];
        }
        modulated.clear();

        const Tensors attn = attn1(norm_hidden_states, norm_encoder_hidden_states, args[3], args[4], args[5]);
        const Tensor &attn_hidden_states = attn[0], &context_attn_hidden_states = attn[1];

        hidden_states = add(hidden_states, modulated_rms_norm(attn_hidden_states, gate_of(gate_msa)));
        norm_hidden_states = modulated_rms_norm(hidden_states, scale_of(scale_mlp));
        const Tensor ff_output = ff(norm_hidden_states);
        hidden_states = add(hidden_states, modulated_rms_norm(ff_output, gate_of(gate_mlp)));

        if (!context_pre_only_) {
            encoder_hidden_states =
                add(encoder_hidden_states, modulated_rms_norm(context_attn_hidden_states, gate_of(enc_gate_msa)));
            norm_encoder_hidden_states = modulated_rms_norm(encoder_hidden_states, scale_of(enc_scale_mlp));
            const Tensor context_ff_output = ff_context(norm_encoder_hidden_states);
            encoder_hidden_states =
                add(encoder_hidden_states, modulated_rms_norm(context_ff_output, gate_of(enc_gate_mlp)));
        }
        return {hidden_states, encoder_hidden_states};
    }

  private:
    MochiTransformerBlock(const BlockBuilder& builder, const Sizes& sizes, bool context_pre_only)
        : context_pre_only_(context_pre_only),
          norm1(builder["norm1"], sizes.dim, 4 * sizes.dim),
          attn1([&] {
              if (context_pre_only)
                  norm1_context_linear =
                      builder["norm1_context"].linear("linear_1", sizes.dim, sizes.pooled_projection_dim);
              else
                  norm1_context = RmsNormZero(builder["norm1_context"], sizes.dim, 4 * sizes.pooled_projection_dim);
              return MochiAttention(builder["attn1"], sizes, context_pre_only);
          }()),
          ff(builder["ff"], sizes.dim, 4 * sizes.dim * 2 / 3, FeedForward::Activation::swiglu, 0, false) {
        if (!context_pre_only)
            ff_context =
                FeedForward(builder["ff_context"], sizes.pooled_projection_dim, 4 * sizes.pooled_projection_dim * 2 / 3,
                            FeedForward::Activation::swiglu, 0, false);
        builder.finish(*this, "MochiTransformerBlock", {sizes.heads, sizes.head_dim, context_pre_only});
    }

    bool context_pre_only_;
    RmsNormZero norm1, norm1_context;
    Linear norm1_context_linear;
    MochiAttention attn1;
    FeedForward ff, ff_context;
};

/// MochiAttentionPool: text [B, T, D] → [B, out], by one query a sample.
class AttentionPool {
  public:
    AttentionPool() = default;
    AttentionPool(const Builder& builder, std::int64_t dim, std::int64_t out)
        : to_kv(builder.linear("to_kv", dim, 2 * dim)),
          to_q(builder.linear("to_q", dim, dim)),
          to_out(builder.linear("to_out", dim, out)) {}

    [[nodiscard]] Tensor operator()(const Tensor& held, const Tensor& mask) const {
        constexpr std::int64_t heads = 8;
        const std::int64_t head_dim = held.size(2) / heads;
        const Tensor attn_mask = pad(unsqueeze(unsqueeze(mask, 1), 1), {1, 0});  // [B, 1, 1, 1 + T]
        const Tensor x_pool = pool_tokens(held, mask);                           // [B, 1, D]
        Tensor x = cat({x_pool, held}, 1);
        Tensor kv = to_kv(x);
        Tensor q = to_q(select(x, 1, 0));
        kv = unflatten(kv, 2, {2, heads, head_dim});
        kv = transpose(kv, 1, 3);  // [B, H, 2, 1 + T, head_dim]
        const Tensors halves = unbind(kv, 2);
        q = unflatten(q, 1, {heads, head_dim});
        q = unsqueeze(q, 2);  // [B, H, 1, head_dim]
        x = scaled_dot_product_attention(q, halves[0], halves[1], attn_mask);
        x = flatten(squeeze(x, 2), 1, 2);
        x = to_out(x);
        return x;
    }

  private:
    static Tensor pool_tokens(const Tensor& x, const Tensor& valid) {
        Tensor mask = to(unsqueeze(valid, 2), x.dtype());
        {
            Tensor count = clamp_min(sum(mask, 1, true));
            mask = div(mask, std::move(count));
        }
        return sum(mul(x, mask), 1, true);
    }

    Linear to_kv, to_q, to_out;
};

class MochiTransformer3DModel : public Model {
  public:
    MochiTransformer3DModel(const Builder& builder, const profile::Config& config)
        : in_channels_(config.integer("in_channels")),
          out_channels_(config.integer("out_channels", in_channels_)),
          patch_size_(config.integer("patch_size")),
          text_embed_dim_(config.integer("text_embed_dim")),
          time_embed_dim_(config.integer("time_embed_dim")),
          pos_frequencies(builder.parameter("pos_frequencies", {3, config.integer("num_attention_heads"),
                                                                config.integer("attention_head_dim") / 2})) {
        const std::int64_t heads = config.integer("num_attention_heads"),
                           head_dim = config.integer("attention_head_dim"), num_layers = config.integer("num_layers");
        const Sizes sizes{heads * head_dim, heads, head_dim, config.integer("pooled_projection_dim")};
        patch_embed = builder["patch_embed"].conv2d("proj", in_channels_, sizes.dim, patch_size_, patch_size_);
        const Builder embed = builder["time_embed"];
        timestep_embedder = TimestepEmbedding(embed["timestep_embedder"], time_embed_dim_, sizes.dim);
        pooler = AttentionPool(embed["pooler"], text_embed_dim_, sizes.dim);
        caption_proj = embed.linear("caption_proj", text_embed_dim_, sizes.pooled_projection_dim);
        for (std::int64_t i = 0; i < num_layers; ++i)
            transformer_blocks.emplace_back(builder["transformer_blocks"][i], sizes, i == num_layers - 1);
        norm_out = AdaLayerNormContinuous(builder["norm_out"], sizes.dim, sizes.dim);
        proj_out = builder.linear("proj_out", sizes.dim, patch_size_ * patch_size_ * out_channels_);
    }

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        return {{"hidden_states", latents(request, in_channels_), request.dtype},
                {"encoder_hidden_states", {request.batch, request.text_tokens, text_embed_dim_}, request.dtype},
                {"timestep", {request.batch}, Dtype::i64},
                {"encoder_attention_mask", {request.batch, request.text_tokens}, Dtype::boolean}};
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {latents(request, out_channels_)};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        Tensor hidden_states = args[0], encoder_hidden_states;
        const std::int64_t batch_size = hidden_states.size(0), num_frames = hidden_states.size(2),
                           height = hidden_states.size(3), width = hidden_states.size(4), p = patch_size_;
        const Tensor temb = time_embed(args[2], args[1], args[3], hidden_states.dtype(), encoder_hidden_states);

        hidden_states = flatten(permute(hidden_states, {0, 2, 1, 3, 4}), 0, 1);
        hidden_states = patch_embed(hidden_states);
        hidden_states = transpose(flatten(hidden_states, 2, 3), 1, 2);
        hidden_states = flatten(unflatten(hidden_states, 0, {batch_size, -1}), 1, 2);

        const Tensors image_rotary_emb = rope(num_frames, height / p, width / p);

        const Caller call(hidden_states.run(), gradient_checkpointing);
        for (const MochiTransformerBlock& block : transformer_blocks) {
            Tensors out = call(
                block, {hidden_states, encoder_hidden_states, temb, args[3], image_rotary_emb[0], image_rotary_emb[1]});
            hidden_states = std::move(out[0]);
            encoder_hidden_states = std::move(out[1]);
        }
        hidden_states = norm_out(hidden_states, temb);
        hidden_states = proj_out(hidden_states);

        hidden_states = reshape(hidden_states, {batch_size, num_frames, height / p, width / p, p, p, -1});
        hidden_states = permute(hidden_states, {0, 6, 1, 2, 4, 3, 5});
        return {reshape(hidden_states, {batch_size, -1, num_frames, height, width})};
    }

  private:
    [[nodiscard]] static Dims latents(const Request& request, std::int64_t channels) {
        return {request.batch, channels, (request.frames - 1) / 6 + 1, request.height / 8, request.width / 8};
    }

    // MochiCombinedTimestepCaptionEmbedding: the conditioning, and the text in `caption`
    [[nodiscard]] Tensor time_embed(const Tensor& timestep, const Tensor& text, const Tensor& mask, Dtype hidden_dtype,
                                    Tensor& caption) const {
        const Tensor time_proj = timestep_embedding(timestep, time_embed_dim_, true);
        const Tensor time_emb = timestep_embedder(to(time_proj, hidden_dtype));
        const Tensor pooled_projections = pooler(text, mask);
        caption = caption_proj(text);
        return add(time_emb, pooled_projections);
    }

    // MochiRoPE: cos, sin [S, H, D / 2]
    [[nodiscard]] Tensors rope(std::int64_t num_frames, std::int64_t height, std::int64_t width) const {
        Run& run = pos_frequencies.value.run();
        const Tensor pos = positions(run, num_frames, height, width);
        Tensor freqs;
        {
            const AutocastScope autocast(run, {true, Dtype::f32});  // always in fp32
            const Tensor& table = pos_frequencies.value;
            Tensor wide = view(to_float(table), {1, 3, table.size(1) * table.size(2)});
            freqs = matmul(unsqueeze(pos, 0), std::move(wide));
            freqs = view(freqs, {pos.size(0), table.size(1), table.size(2)});
        }
        const Tensor freqs_cos = cos(freqs);
        const Tensor freqs_sin = sin(freqs);
        return {freqs_cos, freqs_sin};
    }
    [[nodiscard]] static Tensor positions(Run& run, std::int64_t num_frames, std::int64_t height, std::int64_t width) {
        const Tensor t = arange(run, num_frames, Dtype::f32);
        const Tensor h = centers(run, height);
        const Tensor w = centers(run, width);
        return view(stack(meshgrid(t, h, w), -1), {-1, 3});
    }
    [[nodiscard]] static Tensor centers(Run& run, std::int64_t num) {
        const Tensor edges = run.empty({num + 1}, Dtype::f32, Op::linspace);
        return div_scalar(add(slice(edges, 0, 0, num), slice(edges, 0, 1, num + 1)));
    }

    std::int64_t in_channels_, out_channels_, patch_size_, text_embed_dim_, time_embed_dim_;
    Parameter& pos_frequencies;
    nn::Conv patch_embed;
    TimestepEmbedding timestep_embedder;
    AttentionPool pooler;
    Linear caption_proj;
    std::deque<MochiTransformerBlock> transformer_blocks;
    AdaLayerNormContinuous norm_out;
    Linear proj_out;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<MochiTransformer3DModel>(Builder(weights), profile.config);
}

}  // namespace vram::models::mochi
