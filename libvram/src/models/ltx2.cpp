// Mirrors LTX2VideoTransformer3DModel (diffusers 0.42.1, models/transformers/transformer_ltx2.py): LTX-2 and LTX-2.3,
// video and audio together. A plain call has one timestep a sample for both, no masks, and makes the coordinates
// itself; pipelines hand over all of these.
#include "models/ltx2.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>

#include "models/families.hpp"
#include "models/ltx2_attention.hpp"
#include "models/normalization.hpp"

namespace vram::models::ltx2 {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;
using nn::Parameter;
using nn::RmsNorm;

/// One modality.
struct Stream {
    std::int64_t dim, heads, head_dim, cross_attention_dim;
    bool gated, cross_attn_mod;
    [[nodiscard]] std::int64_t vectors() const { return cross_attn_mod ? 9 : 6; }
    [[nodiscard]] AttentionSizes self_attention() const { return {dim, dim, heads, head_dim, gated}; }
    [[nodiscard]] AttentionSizes text_attention() const { return {dim, cross_attention_dim, heads, head_dim, gated}; }
};

// get_mod_params: table [N, D], which may lie in host memory, temb [B, T, N D] → N times [B, T, D]
Tensors get_mod_params(const Tensor& scale_shift_table, const Tensor& temb) {
    Tensor ada_values;
    {
        const Tensor table = to_cuda(temb.run(), unsqueeze(unsqueeze(scale_shift_table, 0), 0));
        const Tensor own = reshape(temb, {temb.size(0), temb.size(1), scale_shift_table.size(0), -1});
        ada_values = add(table, own);
    }
    return unbind(ada_values, 2);
}

/// args: see the enumeration → hidden_states, audio_hidden_states
class LTX2VideoTransformerBlock : public Block {
  public:
    enum Argument : std::size_t {
        video,
        audio,
        video_text,
        audio_text,
        temb,
        temb_audio,
        temb_ca_scale_shift,
        temb_ca_audio_scale_shift,
        temb_ca_gate,
        temb_ca_audio_gate,
        video_rotary,  // cos, sin
        audio_rotary = video_rotary + 2,
        ca_video_rotary = audio_rotary + 2,
        ca_audio_rotary = ca_video_rotary + 2,
        temb_prompt = ca_audio_rotary + 2,  // only with cross_attn_mod
        temb_prompt_audio
        // then encoder_attention_mask and audio_encoder_attention_mask, of calls that have them
    };
    /// What a call leaves out.
    struct Guidance {
        bool isolate_modalities = false;  // attention between video and audio
        bool perturbed = false;           // self-attention
    };

    LTX2VideoTransformerBlock(const Builder& parent, const Stream& video_stream, const Stream& audio_stream,
                              const AttentionStyle& style)
        : LTX2VideoTransformerBlock(parent.block(*this), video_stream, audio_stream, style) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override { return guided(args, {}); }
    [[nodiscard]] Tensors guided(const Tensors& args, const Guidance& guidance) const {
        Tensor hidden_states = args[video], audio_hidden_states = args[audio];
        Tensor encoder_hidden_states = args[video_text], audio_encoder_hidden_states = args[audio_text];
        const auto rotary = [&args](std::size_t at) { return Rotary{args[at], args[at + 1]}; };
        const Rotary video_rotary_emb = rotary(video_rotary), audio_rotary_emb = rotary(audio_rotary),
                     ca_video_rotary_emb = rotary(ca_video_rotary), ca_audio_rotary_emb = rotary(ca_audio_rotary);

        const std::size_t mask = prompt_scale_shift_table != nullptr ? temb_prompt_audio + 1 : temb_prompt;
        const bool masks = args.size() > mask;
        const Tensor encoder_attention_mask = masks ? args[mask] : Tensor(),
                     audio_encoder_attention_mask = masks ? args[mask + 1] : Tensor();

        // 1.1. Video Self-Attention. Parameters: shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp,
        // shift_text_q, scale_text_q, gate_text_q
        const Tensors ada = get_mod_params(scale_shift_table.value, args[temb]);
        Tensor norm_hidden_states = norm(hidden_states);
        norm_hidden_states = modulate(norm_hidden_states, ada[1], ada[0]);
        const Tensor video_self_attn_args = norm_hidden_states;  // a dict, which lives on
        Tensor attn_hidden_states =
            attn1(norm_hidden_states, {}, video_rotary_emb, video_rotary_emb, {}, guidance.perturbed);
        hidden_states = add(hidden_states, mul(attn_hidden_states, ada[2]));

        // 1.2. Audio Self-Attention
        const Tensors audio_ada = get_mod_params(audio_scale_shift_table.value, args[temb_audio]);
        Tensor norm_audio_hidden_states = norm(audio_hidden_states);
        norm_audio_hidden_states = modulate(norm_audio_hidden_states, audio_ada[1], audio_ada[0]);
        const Tensor audio_self_attn_args = norm_audio_hidden_states;
        Tensor attn_audio_hidden_states =
            audio_attn1(norm_audio_hidden_states, {}, audio_rotary_emb, audio_rotary_emb, {}, guidance.perturbed);
        audio_hidden_states = add(audio_hidden_states, mul(attn_audio_hidden_states, audio_ada[2]));

        // 2. Cross-Attention with the text embeddings; shift_text_kv, scale_text_kv
        Tensors text_kv, audio_text_kv;
        if (prompt_scale_shift_table != nullptr) {
            text_kv = get_mod_params(prompt_scale_shift_table->value, args[temb_prompt]);
            audio_text_kv = get_mod_params(audio_prompt_scale_shift_table->value, args[temb_prompt_audio]);
        }
        norm_hidden_states = norm(hidden_states);
        if (video_cross_attn_adaln) norm_hidden_states = modulate(norm_hidden_states, ada[7], ada[6]);
        if (!text_kv.empty()) encoder_hidden_states = modulate(encoder_hidden_states, text_kv[1], text_kv[0]);
        attn_hidden_states = attn2(norm_hidden_states, encoder_hidden_states, {}, {}, encoder_attention_mask);
        if (video_cross_attn_adaln) attn_hidden_states = mul(attn_hidden_states, ada[8]);
        hidden_states = add(hidden_states, attn_hidden_states);

        norm_audio_hidden_states = norm(audio_hidden_states);
        if (audio_cross_attn_adaln)
            norm_audio_hidden_states = modulate(norm_audio_hidden_states, audio_ada[7], audio_ada[6]);
        if (!audio_text_kv.empty())
            audio_encoder_hidden_states = modulate(audio_encoder_hidden_states, audio_text_kv[1], audio_text_kv[0]);
        attn_audio_hidden_states =
            audio_attn2(norm_audio_hidden_states, audio_encoder_hidden_states, {}, {}, audio_encoder_attention_mask);
        if (audio_cross_attn_adaln) attn_audio_hidden_states = mul(attn_audio_hidden_states, audio_ada[8]);
        audio_hidden_states = add(audio_hidden_states, attn_audio_hidden_states);

        Tensor video_per_layer_ca_scale_shift, video_per_layer_ca_gate, audio_per_layer_ca_scale_shift,
            audio_per_layer_ca_gate, mod_norm_hidden_states, mod_norm_audio_hidden_states, a2v_attn_hidden_states,
            v2a_attn_hidden_states;
        Tensors video_ca, a2v_gate, audio_ca, v2a_gate;
        if (!guidance.isolate_modalities) {
            // 3.1. Cross-Attention of video and audio: a2v_ca_scale, a2v_ca_shift, v2a_ca_scale, v2a_ca_shift
            norm_hidden_states = norm(hidden_states);
            norm_audio_hidden_states = norm(audio_hidden_states);
            const Tensor& video_table = video_a2v_cross_attn_scale_shift_table.value;
            video_per_layer_ca_scale_shift = slice(video_table, 0, 0, 4);
            video_per_layer_ca_gate = slice(video_table, 0, 4, 5);
            video_ca = get_mod_params(video_per_layer_ca_scale_shift, args[temb_ca_scale_shift]);
            a2v_gate = get_mod_params(video_per_layer_ca_gate, args[temb_ca_gate]);
            const Tensor& audio_table = audio_a2v_cross_attn_scale_shift_table.value;
            audio_per_layer_ca_scale_shift = slice(audio_table, 0, 0, 4);
            audio_per_layer_ca_gate = slice(audio_table, 0, 4, 5);
            audio_ca = get_mod_params(audio_per_layer_ca_scale_shift, args[temb_ca_audio_scale_shift]);
            v2a_gate = get_mod_params(audio_per_layer_ca_gate, args[temb_ca_audio_gate]);

            // 3.2. Audio-to-Video: Q: Video; K,V: Audio
            mod_norm_hidden_states = modulate(norm_hidden_states, video_ca[0], video_ca[1]);
            mod_norm_audio_hidden_states = modulate(norm_audio_hidden_states, audio_ca[0], audio_ca[1]);
            a2v_attn_hidden_states = audio_to_video_attn(mod_norm_hidden_states, mod_norm_audio_hidden_states,
                                                         ca_video_rotary_emb, ca_audio_rotary_emb);
            hidden_states = add(hidden_states, mul(a2v_gate[0], a2v_attn_hidden_states));

            // 3.3. Video-to-Audio: Q: Audio; K,V: Video
            mod_norm_hidden_states = modulate(norm_hidden_states, video_ca[2], video_ca[3]);
            mod_norm_audio_hidden_states = modulate(norm_audio_hidden_states, audio_ca[2], audio_ca[3]);
            v2a_attn_hidden_states = video_to_audio_attn(mod_norm_audio_hidden_states, mod_norm_hidden_states,
                                                         ca_audio_rotary_emb, ca_video_rotary_emb);
            audio_hidden_states = add(audio_hidden_states, mul(v2a_gate[0], v2a_attn_hidden_states));
        }

        // 4. Feedforward
        norm_hidden_states = modulate(norm(hidden_states), ada[4], ada[3]);
        const Tensor ff_output = ff(norm_hidden_states);
        hidden_states = add(hidden_states, mul(ff_output, ada[5]));

        norm_audio_hidden_states = modulate(norm(audio_hidden_states), audio_ada[4], audio_ada[3]);
        const Tensor audio_ff_output = audio_ff(norm_audio_hidden_states);
        audio_hidden_states = add(audio_hidden_states, mul(audio_ff_output, audio_ada[5]));
        return {hidden_states, audio_hidden_states};
    }

  private:
    LTX2VideoTransformerBlock(const BlockBuilder& builder, const Stream& v, const Stream& a,
                              const AttentionStyle& style)
        : video_cross_attn_adaln(v.cross_attn_mod),
          audio_cross_attn_adaln(a.cross_attn_mod),
          scale_shift_table(builder.parameter("scale_shift_table", {v.vectors(), v.dim})),
          audio_scale_shift_table(builder.parameter("audio_scale_shift_table", {a.vectors(), a.dim})),
          prompt_scale_shift_table(v.cross_attn_mod || a.cross_attn_mod
                                       ? &builder.parameter("prompt_scale_shift_table", {2, v.dim})
                                       : nullptr),
          audio_prompt_scale_shift_table(v.cross_attn_mod || a.cross_attn_mod
                                             ? &builder.parameter("audio_prompt_scale_shift_table", {2, a.dim})
                                             : nullptr),
          video_a2v_cross_attn_scale_shift_table(
              builder.parameter("video_a2v_cross_attn_scale_shift_table", {5, v.dim})),
          audio_a2v_cross_attn_scale_shift_table(
              builder.parameter("audio_a2v_cross_attn_scale_shift_table", {5, a.dim})),
          attn1(builder["attn1"], v.self_attention(), style),
          audio_attn1(builder["audio_attn1"], a.self_attention(), style),
          attn2(builder["attn2"], v.text_attention(), style),
          audio_attn2(builder["audio_attn2"], a.text_attention(), style),
          audio_to_video_attn(builder["audio_to_video_attn"], {v.dim, a.dim, a.heads, a.head_dim, v.gated}, style),
          video_to_audio_attn(builder["video_to_audio_attn"], {a.dim, v.dim, a.heads, a.head_dim, a.gated}, style),
          ff(builder["ff"], v.dim, 4 * v.dim, FeedForward::Activation::gelu),
          audio_ff(builder["audio_ff"], a.dim, 4 * a.dim, FeedForward::Activation::gelu) {
        builder.finish(
            *this, "LTX2VideoTransformerBlock",
            {v.heads, a.heads, v.gated, a.gated, v.cross_attn_mod, a.cross_attn_mod, style.split, style.perturbed});
    }

    bool video_cross_attn_adaln, audio_cross_attn_adaln;
    PlainRmsNorm norm;  // norm1, norm2, norm3 and those of audio and between: none has a weight
    Parameter &scale_shift_table, &audio_scale_shift_table;
    Parameter *prompt_scale_shift_table, *audio_prompt_scale_shift_table;
    Parameter &video_a2v_cross_attn_scale_shift_table, &audio_a2v_cross_attn_scale_shift_table;
    LTX2Attention attn1, audio_attn1, attn2, audio_attn2, audio_to_video_attn, video_to_audio_attn;
    FeedForward ff, audio_ff;
};

/// A block as guidance calls it, without gradients: a call that repeats, too, and another one than the plain one.
class GuidedBlock : public Block {
  public:
    GuidedBlock(const Builder& parent, const LTX2VideoTransformerBlock& block,
                const LTX2VideoTransformerBlock::Guidance& guidance)
        : GuidedBlock(parent.block(*this), block, guidance) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override { return block_.guided(args, guidance_); }

  private:
    GuidedBlock(const BlockBuilder& builder, const LTX2VideoTransformerBlock& block,
                const LTX2VideoTransformerBlock::Guidance& guidance)
        : block_(block), guidance_(guidance) {
        builder.finish(*this, "GuidedBlock", {block.spec, guidance.isolate_modalities, guidance.perturbed});
    }

    const LTX2VideoTransformerBlock& block_;
    LTX2VideoTransformerBlock::Guidance guidance_;
};

/// LTX2AudioVideoRotaryPosEmbed: coords [B, axes, S, 2] → cos, sin [B, S, dim], or split
/// [B, heads, S, dim / heads / 2].
struct RotaryPosEmbed {
    std::int64_t dim, heads;
    bool split;

    [[nodiscard]] Rotary operator()(Tensor coords_in) const {
        const Tensor held = std::move(coords_in);
        Run& run = held.run();
        const std::int64_t axes = held.size(1), elements = 2 * axes;
        const Tensors ends = chunk(held, 2, -1);
        Tensor coords = div_scalar(add(ends[0], ends[1]));
        coords = squeeze(coords, -1);
        Tensor grid;
        {
            std::vector<Tensor> fractions;
            for (std::int64_t i = 0; i < axes; ++i) fractions.push_back(div_scalar(select(coords, 1, i)));
            grid = stack(fractions, -1);
        }
        const Tensor pow_indices = scalar_pow(run.empty({dim / elements}, Dtype::f64, Op::linspace));
        Tensor freqs = div_scalar(mul_scalar(pow_indices));
        freqs = to_float(std::move(freqs));
        {
            Tensor places = mul_scalar(unsqueeze(grid, -1), false);
            places = add_scalar(std::move(places));
            freqs = mul(std::move(places), freqs);
        }
        freqs = flatten(transpose(freqs, -1, -2), 2, 3);
        Tensor cos_freqs, sin_freqs;
        if (split) {
            cos_freqs = cos(freqs);
            sin_freqs = sin(freqs);
        } else {
            cos_freqs = repeat_interleave(cos(freqs), 2, -1);
            sin_freqs = repeat_interleave(sin(freqs), 2, -1);
        }
        const std::int64_t rest = (split ? dim / 2 : dim) - cos_freqs.size(2);
        if (rest != 0) {
            const Dims sizes{cos_freqs.size(0), cos_freqs.size(1), rest};
            const Tensor cos_padding = run.empty(sizes, Dtype::f32, Op::ones);
            const Tensor sin_padding = run.empty(sizes, Dtype::f32, Op::zeros);
            cos_freqs = cat({cos_padding, cos_freqs}, -1);
            sin_freqs = cat({sin_padding, sin_freqs}, -1);
        }
        if (!split) return {cos_freqs, sin_freqs};
        const auto by_head = [this](const Tensor& x) {
            return transpose(reshape(x, {x.size(0), x.size(1), heads, -1}), 1, 2);
        };
        return {by_head(cos_freqs), by_head(sin_freqs)};
    }
};

class LTX2VideoTransformer3DModel : public Model {
  public:
    LTX2VideoTransformer3DModel(const Builder& builder, const profile::Config& config)
        : in_channels_(config.integer("in_channels")),
          out_channels_(config.integer("out_channels")),
          audio_in_channels_(config.integer("audio_in_channels")),
          audio_out_channels_(config.integer("audio_out_channels")),
          caption_channels_(config.integer("caption_channels")),
          use_prompt_embeddings_(config.boolean("use_prompt_embeddings", true)) {
        const Stream v{config.integer("num_attention_heads") * config.integer("attention_head_dim"),
                       config.integer("num_attention_heads"),
                       config.integer("attention_head_dim"),
                       config.integer("cross_attention_dim"),
                       config.boolean("gated_attn", false),
                       config.boolean("cross_attn_mod", false)};
        const Stream a{config.integer("audio_num_attention_heads") * config.integer("audio_attention_head_dim"),
                       config.integer("audio_num_attention_heads"),
                       config.integer("audio_attention_head_dim"),
                       config.integer("audio_cross_attention_dim"),
                       config.boolean("audio_gated_attn", false),
                       config.boolean("audio_cross_attn_mod", false)};
        dim_ = v.dim;
        audio_dim_ = a.dim;
        prompt_modulation_ = v.cross_attn_mod || a.cross_attn_mod;
        scale_shift_table = &builder.parameter("scale_shift_table", {2, dim_});
        audio_scale_shift_table = &builder.parameter("audio_scale_shift_table", {2, audio_dim_});
        proj_in = builder.linear("proj_in", in_channels_, dim_);
        audio_proj_in = builder.linear("audio_proj_in", audio_in_channels_, audio_dim_);
        constexpr auto gelu_tanh = TextProjection::Activation::gelu_tanh;
        if (use_prompt_embeddings_) {
            caption_projection = TextProjection(builder["caption_projection"], caption_channels_, dim_, gelu_tanh);
            audio_caption_projection =
                TextProjection(builder["audio_caption_projection"], caption_channels_, audio_dim_, gelu_tanh);
        }
        const auto single = [&builder](std::string_view name, std::int64_t dim, std::int64_t vectors) {
            return AdaLayerNormSingle(builder[name], dim, vectors);
        };
        time_embed = single("time_embed", dim_, v.vectors());
        audio_time_embed = single("audio_time_embed", audio_dim_, a.vectors());
        av_cross_attn_video_scale_shift = single("av_cross_attn_video_scale_shift", dim_, 4);
        av_cross_attn_audio_scale_shift = single("av_cross_attn_audio_scale_shift", audio_dim_, 4);
        av_cross_attn_video_a2v_gate = single("av_cross_attn_video_a2v_gate", dim_, 1);
        av_cross_attn_audio_v2a_gate = single("av_cross_attn_audio_v2a_gate", audio_dim_, 1);
        if (prompt_modulation_) {
            prompt_adaln = single("prompt_adaln", dim_, 2);
            audio_prompt_adaln = single("audio_prompt_adaln", audio_dim_, 2);
        }
        const AttentionStyle style{config.text("rope_type", "interleaved") == "split",
                                   config.boolean("perturbed_attn", false)};
        rope = {dim_, v.heads, style.split};
        audio_rope = {audio_dim_, a.heads, style.split};
        cross_attn_rope = {a.cross_attention_dim, v.heads, style.split};
        cross_attn_audio_rope = {a.cross_attention_dim, a.heads, style.split};
        for (std::int64_t i = 0; i < config.integer("num_layers"); ++i)
            transformer_blocks.emplace_back(builder["transformer_blocks"][i], v, a, style);
        for (const LTX2VideoTransformerBlock& block : transformer_blocks) {
            isolated_blocks.emplace_back(builder, block, LTX2VideoTransformerBlock::Guidance{true, false});
            perturbed_blocks.emplace_back(builder, block, LTX2VideoTransformerBlock::Guidance{false, true});
        }
        norm_out = builder.layer_norm("norm_out", dim_, false);
        proj_out = builder.linear("proj_out", dim_, out_channels_);
        audio_norm_out = builder.layer_norm("audio_norm_out", audio_dim_, false);
        audio_proj_out = builder.linear("audio_proj_out", audio_dim_, audio_out_channels_);
    }

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        // LTX-2.3's connectors project the prompt for each modality
        const std::int64_t text = use_prompt_embeddings_ ? caption_channels_ : dim_,
                           audio_text = use_prompt_embeddings_ ? caption_channels_ : audio_dim_;
        std::vector<Value> out{
            {"hidden_states", {request.batch, tokens(request), in_channels_}, request.dtype},
            {"audio_hidden_states", {request.batch, audio_tokens(request), audio_in_channels_}, request.dtype},
            {"encoder_hidden_states", {request.batch, request.text_tokens, text}, request.dtype},
            {"audio_encoder_hidden_states", {request.batch, request.text_tokens, audio_text}, request.dtype},
            {"timestep", {request.batch}, request.dtype}};
        if (prompt_modulation_ || request.attention_mask) out.push_back({"sigma", {request.batch}, request.dtype});
        if (request.attention_mask) {
            for (const char* name : {"encoder_attention_mask", "audio_encoder_attention_mask"})
                out.push_back({name, {request.batch, request.text_tokens}, Dtype::i64});
            out.push_back({"video_coords", {request.batch, 3, tokens(request), 2}, Dtype::f32});
            out.push_back({"audio_coords", {request.batch, 1, audio_tokens(request), 2}, Dtype::f32});
            out.push_back({"audio_timestep", {request.batch}, Dtype::f32});
        }
        return out;
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {{request.batch, tokens(request), out_channels_},
                {request.batch, audio_tokens(request), audio_out_channels_}};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request& request) const override {
        Tensor hidden_states = args[0], audio_hidden_states = args[1];
        Tensor encoder_hidden_states = args[2], audio_encoder_hidden_states = args[3];
        const auto given = [&args](std::size_t i) { return i < args.size() ? args[i] : Tensor(); };
        const Tensor timestep = args[4], sigma = given(5);
        Tensor encoder_attention_mask = given(6), audio_encoder_attention_mask = given(7);
        Tensor video_coords = given(8), audio_coords = given(9), audio_timestep = given(10);
        if (!audio_timestep.defined()) audio_timestep = timestep;
        const std::int64_t batch_size = hidden_states.size(0);
        Run& run = hidden_states.run();
        if (encoder_attention_mask.defined())
            encoder_attention_mask = bias_of(std::move(encoder_attention_mask), hidden_states.dtype());
        if (audio_encoder_attention_mask.defined())
            audio_encoder_attention_mask = bias_of(std::move(audio_encoder_attention_mask), hidden_states.dtype());

        // 1. Prepare RoPE positional embeddings
        if (!video_coords.defined()) video_coords = prepare_video_coords(run, batch_size, grid_of(request));
        if (!audio_coords.defined()) audio_coords = prepare_audio_coords(run, batch_size, audio_tokens(request));
        const Rotary video_rotary_emb = rope(video_coords);
        const Rotary audio_rotary_emb = audio_rope(audio_coords);
        const Rotary video_cross_attn_rotary_emb = cross_attn_rope(slice(video_coords, 1, 0, 1));
        const Rotary audio_cross_attn_rotary_emb = cross_attn_audio_rope(slice(audio_coords, 1, 0, 1));

        // 2. Patchify input projections
        hidden_states = proj_in(hidden_states);
        audio_hidden_states = audio_proj_in(audio_hidden_states);

        // 3. Prepare timestep embeddings and modulation parameters
        const Dtype dtype = hidden_states.dtype();
        const auto by_sample = [batch_size](const Tensor& x) { return view(x, {batch_size, -1, x.size(-1)}); };
        Tensor temb, embedded_timestep, temb_audio, audio_embedded_timestep;
        {
            const Tensors embedded = time_embed(flatten(timestep, 0, timestep.rank() - 1), dtype);
            temb = by_sample(embedded[0]);
            embedded_timestep = by_sample(embedded[1]);
        }
        {
            const Tensors embedded = audio_time_embed(audio_timestep, dtype);
            temb_audio = by_sample(embedded[0]);
            audio_embedded_timestep = by_sample(embedded[1]);
        }
        Tensor unused;  // `_`, which keeps the last one's embedded timestep
        const auto modulation = [&](const AdaLayerNormSingle& adaln, Tensor at) {
            Tensors embedded = adaln(std::move(at), dtype);
            unused = embedded[1];
            return by_sample(embedded[0]);
        };
        Tensor temb_prompt, temb_prompt_audio;
        if (prompt_modulation_) {
            temb_prompt = modulation(prompt_adaln, sigma);
            temb_prompt_audio = modulation(audio_prompt_adaln, sigma);
        }
        // use_cross_timestep, which pipelines set where prompts are modulated (LTX-2.3).
        const Tensor video_ca_timestep = prompt_modulation_ ? sigma : flatten(timestep, 0, timestep.rank() - 1);
        const Tensor audio_ca_timestep = prompt_modulation_ ? sigma : audio_timestep;
        const Tensor video_cross_attn_scale_shift = modulation(av_cross_attn_video_scale_shift, video_ca_timestep);
        const Tensor video_cross_attn_a2v_gate =
            modulation(av_cross_attn_video_a2v_gate, mul_scalar(video_ca_timestep));
        const Tensor audio_cross_attn_scale_shift = modulation(av_cross_attn_audio_scale_shift, audio_ca_timestep);
        const Tensor audio_cross_attn_v2a_gate =
            modulation(av_cross_attn_audio_v2a_gate, mul_scalar(audio_ca_timestep));

        // 4. Prepare prompt embeddings (LTX-2.0)
        if (use_prompt_embeddings_) {
            encoder_hidden_states = caption_projection(encoder_hidden_states);
            encoder_hidden_states = view(encoder_hidden_states, {batch_size, -1, dim_});
            audio_encoder_hidden_states = audio_caption_projection(audio_encoder_hidden_states);
            audio_encoder_hidden_states = view(audio_encoder_hidden_states, {batch_size, -1, audio_dim_});
        }

        // 5. Run transformer blocks
        const Caller call(run, gradient_checkpointing);
        for (std::size_t i = 0; i < transformer_blocks.size(); ++i) {
            const Block* block = &transformer_blocks[i];
            if (request.isolate_modalities) block = &isolated_blocks[i];
            if (std::find(request.perturbed_blocks.begin(), request.perturbed_blocks.end(),
                          static_cast<std::int64_t>(i)) != request.perturbed_blocks.end())
                block = &perturbed_blocks[i];
            Tensors block_args{hidden_states,
                               audio_hidden_states,
                               encoder_hidden_states,
                               audio_encoder_hidden_states,
                               temb,
                               temb_audio,
                               video_cross_attn_scale_shift,
                               audio_cross_attn_scale_shift,
                               video_cross_attn_a2v_gate,
                               audio_cross_attn_v2a_gate,
                               video_rotary_emb.cos,
                               video_rotary_emb.sin,
                               audio_rotary_emb.cos,
                               audio_rotary_emb.sin,
                               video_cross_attn_rotary_emb.cos,
                               video_cross_attn_rotary_emb.sin,
                               audio_cross_attn_rotary_emb.cos,
                               audio_cross_attn_rotary_emb.sin};
            if (prompt_modulation_) {
                block_args.push_back(temb_prompt);
                block_args.push_back(temb_prompt_audio);
            }
            if (encoder_attention_mask.defined()) {
                block_args.push_back(encoder_attention_mask);
                block_args.push_back(audio_encoder_attention_mask);
            }
            Tensors results = call(*block, std::move(block_args));
            hidden_states = std::move(results[0]);
            audio_hidden_states = std::move(results[1]);
        }

        // 6. Output layers
        const Tensor scale_shift_values = scale_shift(*scale_shift_table, embedded_timestep);
        const Tensor shift = select(scale_shift_values, 2, 0), scale = select(scale_shift_values, 2, 1);
        hidden_states = norm_out(hidden_states);
        hidden_states = modulate(hidden_states, scale, shift);
        const Tensor output = proj_out(hidden_states);

        const Tensor audio_scale_shift_values = scale_shift(*audio_scale_shift_table, audio_embedded_timestep);
        const Tensor audio_shift = select(audio_scale_shift_values, 2, 0),
                     audio_scale = select(audio_scale_shift_values, 2, 1);
        audio_hidden_states = audio_norm_out(audio_hidden_states);
        audio_hidden_states = modulate(audio_hidden_states, audio_scale, audio_shift);
        const Tensor audio_output = audio_proj_out(audio_hidden_states);
        return {output, audio_output};
    }

  private:
    // (1 - mask) * -10000.0 of each sample's tokens
    [[nodiscard]] static Tensor bias_of(Tensor mask, Dtype dtype) {
        Tensor bias = rsub_scalar(to(std::move(mask), dtype));
        bias = mul_scalar(std::move(bias));
        return unsqueeze(std::move(bias), 1);
    }

    [[nodiscard]] static Grid grid_of(const Request& request) {
        return {(request.frames - 1) / 8 + 1, request.height / 32, request.width / 32};  // as the VAE compresses
    }
    [[nodiscard]] static std::int64_t tokens(const Request& request) {
        const Grid grid = grid_of(request);
        return checked_mul(checked_mul(grid.num_frames, grid.height), grid.width);
    }
    [[nodiscard]] static std::int64_t audio_tokens(const Request& request) {
        return audio_latents_of(request.frames, 24);
    }

    // table[None, None] + embedded_timestep[:, :, None]
    [[nodiscard]] static Tensor scale_shift(const Parameter& table, const Tensor& embedded_timestep) {
        return add(unsqueeze(unsqueeze(table.value, 0), 0), unsqueeze(embedded_timestep, 2));
    }

    std::int64_t in_channels_, out_channels_, audio_in_channels_, audio_out_channels_, caption_channels_;
    std::int64_t dim_ = 0, audio_dim_ = 0;
    bool use_prompt_embeddings_, prompt_modulation_ = false;
    Parameter *scale_shift_table = nullptr, *audio_scale_shift_table = nullptr;
    Linear proj_in, audio_proj_in, proj_out, audio_proj_out;
    TextProjection caption_projection, audio_caption_projection;
    AdaLayerNormSingle time_embed, audio_time_embed, av_cross_attn_video_scale_shift, av_cross_attn_audio_scale_shift,
        av_cross_attn_video_a2v_gate, av_cross_attn_audio_v2a_gate, prompt_adaln, audio_prompt_adaln;
    RotaryPosEmbed rope{}, audio_rope{}, cross_attn_rope{}, cross_attn_audio_rope{};
    std::deque<LTX2VideoTransformerBlock> transformer_blocks;
    std::deque<GuidedBlock> isolated_blocks, perturbed_blocks;  // the same ones
    nn::LayerNorm norm_out, audio_norm_out;
};

}  // namespace

std::int64_t audio_latents_of(std::int64_t frames, std::int64_t fps) {
    return static_cast<std::int64_t>(std::nearbyint(static_cast<double>(frames) / static_cast<double>(fps) * 25));
}

Tensor prepare_video_coords(Run& run, std::int64_t batch_size, const Grid& size) {
    const Tensor grid_f = arange(run, size.num_frames, Dtype::f32);
    const Tensor grid_h = arange(run, size.height, Dtype::f32);
    const Tensor grid_w = arange(run, size.width, Dtype::f32);
    const Tensor grid = stack(meshgrid(grid_f, grid_h, grid_w), 0);
    const Tensor patch_size_delta = run.empty({3}, Dtype::f32, Op::to_device);
    const Tensor patch_ends = add(grid, view(patch_size_delta, {3, 1, 1, 1}));
    Tensor latent_coords = stack(std::array{grid, patch_ends}, -1);
    latent_coords = flatten(latent_coords, 1, 3);
    latent_coords = repeat(unsqueeze(latent_coords, 0), {batch_size, 1, 1, 1});
    const Tensor scale_tensor = run.empty({3}, Dtype::i64, Op::to_device);
    const Tensor pixel_coords = mul(latent_coords, view(scale_tensor, {1, 3, 1, 1}));
    {
        Tensor frames = add_scalar(select(pixel_coords, 1, 0));
        frames = add_scalar(std::move(frames));
        frames = clamp_min(std::move(frames));
    }
    static_cast<void>(div_scalar(select(pixel_coords, 1, 0)));
    return pixel_coords;
}

Tensor prepare_audio_coords(Run& run, std::int64_t batch_size, std::int64_t num_frames) {
    const auto causal = [](const Tensor& mel) {
        Tensor shifted = add_scalar(add_scalar(mel));
        return clamp_min(std::move(shifted));
    };
    const Tensor grid_f = arange(run, num_frames, Dtype::f32);
    Tensor grid_start_mel = mul_scalar(grid_f, false);
    grid_start_mel = causal(grid_start_mel);
    const Tensor grid_start_s = div_scalar(mul_scalar(grid_start_mel, false));
    Tensor grid_end_mel = mul_scalar(add_scalar(grid_f), false);
    grid_end_mel = causal(grid_end_mel);
    const Tensor grid_end_s = div_scalar(mul_scalar(grid_end_mel, false));
    Tensor audio_coords = stack(std::array{grid_start_s, grid_end_s}, -1);
    audio_coords = expand(unsqueeze(audio_coords, 0), {batch_size, -1, -1});
    return unsqueeze(audio_coords, 1);
}

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<LTX2VideoTransformer3DModel>(Builder(weights), profile.config);
}

}  // namespace vram::models::ltx2
