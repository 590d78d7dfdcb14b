// Mirrors LTXVideoTransformer3DModel (diffusers 0.42.1, models/transformers/transformer_ltx.py): LTX-Video 2B and 13B,
// text to video, with one timestep a sample and positions that are counted, not handed in.
#include <deque>

#include "models/attention.hpp"
#include "models/embeddings.hpp"
#include "models/families.hpp"
#include "models/normalization.hpp"

namespace vram::models::ltx {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;
using nn::RmsNorm;

struct Sizes {
    std::int64_t dim, heads, cross_attention_dim;
};

class LTXAttention {
  public:
    LTXAttention(const Builder& builder, const Sizes& sizes, std::int64_t context_dim)
        : heads_(sizes.heads),
          norm_q(builder.rms_norm("norm_q", sizes.dim)),
          norm_k(builder.rms_norm("norm_k", sizes.dim)),
          to_q(builder.linear("to_q", sizes.dim, sizes.dim)),
          to_k(builder.linear("to_k", context_dim, sizes.dim)),
          to_v(builder.linear("to_v", context_dim, sizes.dim)),
          to_out(builder["to_out"].linear("0", sizes.dim, sizes.dim)) {}

    /// LTXVideoAttnProcessor: self-attention with cos, sin, or cross-attention with encoder_hidden_states and
    /// attention_mask [B, 1, L]; undefined is None.
    Tensor operator()(Tensor hidden_states_in, Tensor encoder_hidden_states_in, const Tensor& attention_mask_in,
                      const Tensor& cos, const Tensor& sin) const {
        const Tensor held = std::move(hidden_states_in), held_encoder = std::move(encoder_hidden_states_in);
        Tensor hidden_states = held, encoder_hidden_states = held_encoder, attention_mask = attention_mask_in;
        if (attention_mask.defined()) {
            const std::int64_t batch_size = held.size(0), length = attention_mask.size(-1);
            if (attention_mask.size(0) < batch_size * heads_)
                attention_mask = repeat_interleave(attention_mask, heads_, 0);
            attention_mask = view(attention_mask, {batch_size, heads_, -1, length});
        }
        if (!encoder_hidden_states.defined()) encoder_hidden_states = hidden_states;

        Tensor query = to_q(hidden_states);
        Tensor key = to_k(encoder_hidden_states);
        Tensor value = to_v(encoder_hidden_states);
        query = norm_q(query);
        key = norm_k(key);
        if (cos.defined()) {
            query = apply_interleaved_rotary_emb(query, cos, sin);
            key = apply_interleaved_rotary_emb(key, cos, sin);
        }
        query = unflatten(query, 2, {heads_, -1});
        key = unflatten(key, 2, {heads_, -1});
        value = unflatten(value, 2, {heads_, -1});

        hidden_states = dispatch_attention(query, key, value, attention_mask);
        hidden_states = flatten(hidden_states, 2, 3);
        hidden_states = to(hidden_states, query.dtype());
        return to_out(hidden_states);
    }

  private:
    std::int64_t heads_;
    RmsNorm norm_q, norm_k;
    Linear to_q, to_k, to_v, to_out;
};

/// args: hidden_states, encoder_hidden_states, temb [B, 1, 6 D], cos, sin, encoder_attention_mask → hidden_states
class LTXVideoTransformerBlock : public Block {
  public:
    LTXVideoTransformerBlock(const Builder& parent, const Sizes& sizes)
        : LTXVideoTransformerBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0];
        const Tensor &encoder_hidden_states = args[1], &temb = args[2];
        const std::int64_t batch_size = hidden_states.size(0);
        Tensor norm_hidden_states = norm1(hidden_states);

        const Tensor table = unsqueeze(unsqueeze(scale_shift_table.value, 0), 0);
        const Tensor ada_values = add(table, reshape(temb, {batch_size, temb.size(1), 6, -1}));
        const Tensors ada = unbind(ada_values, 2);  // shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp
        norm_hidden_states = modulate(norm_hidden_states, ada[1], ada[0]);

        Tensor attn_hidden_states = attn1(norm_hidden_states, {}, {}, args[3], args[4]);
        hidden_states = add(hidden_states, mul(attn_hidden_states, ada[2]));

        attn_hidden_states = attn2(hidden_states, encoder_hidden_states, args[5], {}, {});
        hidden_states = add(hidden_states, attn_hidden_states);
        norm_hidden_states = modulate(norm2(hidden_states), ada[4], ada[3]);

        const Tensor ff_output = ff(norm_hidden_states);
        hidden_states = add(hidden_states, mul(ff_output, ada[5]));
        return {hidden_states};
    }

  private:
    LTXVideoTransformerBlock(const BlockBuilder& builder, const Sizes& sizes)
        : scale_shift_table(builder.parameter("scale_shift_table", {6, sizes.dim})),
          attn1(builder["attn1"], sizes, sizes.dim),
          attn2(builder["attn2"], sizes, sizes.cross_attention_dim),
          ff(builder["ff"], sizes.dim, 4 * sizes.dim, FeedForward::Activation::gelu) {
        builder.finish(*this, "LTXVideoTransformerBlock", {sizes.heads});
    }

    Parameter& scale_shift_table;
    PlainRmsNorm norm1;
    LTXAttention attn1;
    PlainRmsNorm norm2;
    LTXAttention attn2;
    FeedForward ff;
};

class LTXVideoTransformer3DModel : public Model {
  public:
    LTXVideoTransformer3DModel(const Builder& builder, const profile::Config& config)
        : in_channels_(config.integer("in_channels")),
          out_channels_(config.integer("out_channels", in_channels_)),
          caption_channels_(config.integer("caption_channels")),
          dim_(config.integer("num_attention_heads") * config.integer("attention_head_dim")) {
        const Sizes sizes{dim_, config.integer("num_attention_heads"), config.integer("cross_attention_dim")};
        scale_shift_table = &builder.parameter("scale_shift_table", {2, dim_});
        proj_in = builder.linear("proj_in", in_channels_, dim_);
        time_embed = AdaLayerNormSingle(builder["time_embed"], dim_);
        caption_projection = TextProjection(builder["caption_projection"], caption_channels_, dim_,
                                            TextProjection::Activation::gelu_tanh);
        for (std::int64_t i = 0; i < config.integer("num_layers"); ++i)
            transformer_blocks.emplace_back(builder["transformer_blocks"][i], sizes);
        norm_out = builder.layer_norm("norm_out", dim_, false);
        proj_out = builder.linear("proj_out", dim_, out_channels_);
    }

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        return {{"hidden_states", {request.batch, tokens(request), in_channels_}, request.dtype},
                {"encoder_hidden_states", {request.batch, request.text_tokens, caption_channels_}, request.dtype},
                {"timestep", {request.batch}, request.dtype},
                {"encoder_attention_mask", {request.batch, request.text_tokens}, Dtype::boolean}};
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {{request.batch, tokens(request), out_channels_}};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request& request) const override {
        Tensor hidden_states = args[0], encoder_hidden_states = args[1], encoder_attention_mask = args[3];
        const std::int64_t batch_size = hidden_states.size(0);
        const Tensors image_rotary_emb = rope(hidden_states.run(), batch_size, grid_of(request));

        // convert encoder_attention_mask to a bias the same way we do for attention_mask
        encoder_attention_mask = rsub_scalar(to(encoder_attention_mask, hidden_states.dtype()));
        encoder_attention_mask = mul_scalar(std::move(encoder_attention_mask));
        encoder_attention_mask = unsqueeze(std::move(encoder_attention_mask), 1);

        hidden_states = proj_in(hidden_states);
        Tensor temb, embedded_timestep;
        {
            const Tensors embedded = time_embed(args[2], hidden_states.dtype());
            temb = view(embedded[0], {batch_size, -1, 6 * dim_});
            embedded_timestep = view(embedded[1], {batch_size, -1, dim_});
        }
        encoder_hidden_states = caption_projection(encoder_hidden_states);
        encoder_hidden_states = view(encoder_hidden_states, {batch_size, -1, dim_});

        const Caller call(hidden_states.run(), gradient_checkpointing);
        for (const LTXVideoTransformerBlock& block : transformer_blocks)
            hidden_states = call(block, {hidden_states, encoder_hidden_states, temb, image_rotary_emb[0],
                                         image_rotary_emb[1], encoder_attention_mask})[0];

        const Tensor table = unsqueeze(unsqueeze(scale_shift_table->value, 0), 0);
        const Tensor scale_shift_values = add(table, unsqueeze(embedded_timestep, 2));
        const Tensor shift = select(scale_shift_values, 2, 0), scale = select(scale_shift_values, 2, 1);
        hidden_states = norm_out(hidden_states);
        hidden_states = modulate(hidden_states, scale, shift);
        return {proj_out(hidden_states)};
    }

  private:
    struct Grid {
        std::int64_t num_frames, height, width;
    };
    [[nodiscard]] static Grid grid_of(const Request& request) {
        return {(request.frames - 1) / 8 + 1, request.height / 32, request.width / 32};  // as the VAE compresses
    }
    [[nodiscard]] static std::int64_t tokens(const Request& request) {
        const Grid grid = grid_of(request);
        return checked_mul(checked_mul(grid.num_frames, grid.height), grid.width);
    }

    // LTXVideoRotaryPosEmbed: cos, sin [B, S, dim] fp32
    [[nodiscard]] Tensors rope(Run& run, std::int64_t batch_size, const Grid& size) const {
        const Tensor grid = prepare_video_coords(run, batch_size, size);
        Tensor freqs = scalar_pow(run.empty({dim_ / 6}, Dtype::f32, Op::linspace));
        freqs = div_scalar(mul_scalar(freqs));
        {
            Tensor places = mul_scalar(unsqueeze(grid, -1), false);
            places = add_scalar(std::move(places));
            freqs = mul(freqs, std::move(places));
        }
        freqs = flatten(transpose(freqs, -1, -2), 2, 3);
        Tensor cos_freqs = repeat_interleave(cos(freqs), 2, -1);
        Tensor sin_freqs = repeat_interleave(sin(freqs), 2, -1);
        if (dim_ % 6 != 0) {
            const Dims sizes{batch_size, cos_freqs.size(1), dim_ % 6};
            const Tensor cos_padding = run.empty(sizes, Dtype::f32, Op::ones);
            const Tensor sin_padding = run.empty(sizes, Dtype::f32, Op::zeros);
            cos_freqs = cat({cos_padding, cos_freqs}, -1);
            sin_freqs = cat({sin_padding, sin_freqs}, -1);
        }
        return {cos_freqs, sin_freqs};
    }

    // [B, S, 3]: places in time, height and width
    [[nodiscard]] static Tensor prepare_video_coords(Run& run, std::int64_t batch_size, const Grid& size) {
        const Tensor grid_h = arange(run, size.height, Dtype::f32);
        const Tensor grid_w = arange(run, size.width, Dtype::f32);
        const Tensor grid_f = arange(run, size.num_frames, Dtype::f32);
        Tensor grid = stack(meshgrid(grid_f, grid_h, grid_w), 0);
        grid = repeat(unsqueeze(grid, 0), {batch_size, 1, 1, 1, 1});
        return transpose(flatten(grid, 2, 4), 1, 2);
    }

    std::int64_t in_channels_, out_channels_, caption_channels_, dim_;
    Parameter* scale_shift_table = nullptr;
    Linear proj_in, proj_out;
    AdaLayerNormSingle time_embed;
    TextProjection caption_projection;
    std::deque<LTXVideoTransformerBlock> transformer_blocks;
    nn::LayerNorm norm_out;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<LTXVideoTransformer3DModel>(Builder(weights), profile.config);
}

}  // namespace vram::models::ltx
